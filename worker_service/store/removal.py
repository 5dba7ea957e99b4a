"""Removal of documents, and of pages, page results and files that nothing needs any more.

A page result is what was read of a page; equal pages share it. An unused one is deleted when all attempts that may
have asked for it have ended.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from worker_service.jobs.library import OwnerSize, PublishedPath, Removed, Weight
from worker_service.store.database import Database, Row, StorePart, chunks
from worker_service.store.job_control import add_action_item, begin_action

_DOCUMENTS_PER_TRANSACTION = 50
# The last statement makes the daemon delete the document's links.
_REMOVAL_STATEMENTS = (
    "leave_batches", "forget_actions", "forget_tags", "remove_document", "add_gone_document", "mark_workspace_link_due"
)  # fmt: skip


class Removal(StorePart):
    def weigh(self, document_ids: Sequence[int]) -> Weight:
        [row] = self._db.read("weigh", document_ids=json.dumps(list(document_ids)))
        return Weight(*row)

    def is_source_awaited(self, platform: str, owner: str, source_key: str) -> bool:
        return self._db.read_flag("is_source_awaited", platform=platform, owner=owner, source_key=source_key)

    def remove_documents(self, document_ids: Sequence[int], *, actor: str) -> Removed:
        """Remove documents, except files and page results that others share."""
        action_id: int | None = None
        removed_ids: list[int] = []
        refused: dict[int, str] = {}
        freed = Weight()
        for chunk in chunks(sorted(set(document_ids)), _DOCUMENTS_PER_TRANSACTION):
            with self._db.transaction():
                for document_id in chunk:
                    # Weigh one document at a time: if two share a file, removing the second one frees it.
                    [row] = self._db.read_locked("weigh", document_ids=json.dumps([document_id]))
                    weight = Weight(*row)
                    reason = self._why_not_removed(document_id, weight)
                    if reason is not None:
                        refused[document_id] = reason
                        continue
                    if action_id is None:
                        action_id = begin_action(self._db, "remove", actor)
                    self._remove(document_id, action_id)
                    removed_ids.append(document_id)
                    freed += weight
        return Removed(action_id, removed_ids, refused, freed)

    def _why_not_removed(self, document_id: int, weight: Weight) -> str | None:
        if weight.documents == 0:
            return "there is no such document"
        for job_id, job_type in self._db.read_locked("any_live_job", document_id=document_id):
            return f"job {job_id} ({job_type}) still works for it: pagemill cancel {job_id}, then remove it again"
        return None

    def _remove(self, document_id: int, action_id: int) -> None:
        [(title,)] = self._db.read_locked("title_of_document", document_id=document_id)
        add_action_item(self._db, action_id, document_id, title)
        # Before the document leaves its batches.
        self._db.write("mark_batches_unsettled", document_ids=json.dumps([document_id]))
        for statement in _REMOVAL_STATEMENTS:
            self._db.write(statement, document_id=document_id)
        forget_files(self._db, "forget_files_of_document", document_id=document_id)

    def sizes_by_owner(self) -> Sequence[OwnerSize]:
        return [OwnerSize(*row) for row in self._db.read("sizes_by_owner")]

    def size_of_all(self) -> tuple[int, int]:
        """Return the number of files and of bytes."""
        [(files, size)] = self._db.read("size_of_all")
        return files, size

    # ── Deletion in small steps: each call deletes about `most` rows. Call until it returns 0 ──

    def forget_removed_documents(self, most: int = 1000) -> int:
        """Delete pages of removed documents, and unused page results."""
        if not self._db.read_flag("has_unused_rows"):
            return 0
        generations = self._db.read("generations_of_removed_documents", most=most)
        with self._db.transaction():
            return self._forget_generations(generations, most) + self._forget_results(most)

    def forget_superseded_pages(self, most: int = 1000) -> int:
        """Delete pages of older generations, files with a newer version, and unused page results."""
        # Search on the read connection, which blocks no writer. The statements below check again under the write lock.
        generations = self._db.read("old_generations", most=most)
        files = self._db.read("superseded_files", most=most)
        with self._db.transaction():
            forgotten = self._forget_generations(generations, most)
            forgotten += sum(forget_files(self._db, "forget_file", file_id=file_id) for (file_id,) in files)
            return forgotten + self._forget_results(most)

    def _forget_generations(self, generations: Sequence[tuple[int, int | None]], most: int) -> int:
        # Generation None: a removed document has no pages left.
        forgotten = 0
        for document_id, generation in generations:
            if generation is None:
                self._db.write("forget_gone_document", document_id=document_id)
            elif forgotten < most:
                chosen = {"document_id": document_id, "generation": generation, "most": most - forgotten}
                result_rows = self._db.write("forget_pages", **chosen)
                mark_unused_results(self._db, result_rows)
                forgotten += len(result_rows)
        return forgotten

    def _forget_results(self, most: int) -> int:
        self._db.write("set_forgotten_at", now=self._db.now())
        rows = self._db.read_locked("results_to_forget", most=most)
        if rows:
            result_ids = json.dumps([result_id for (result_id,) in rows])
            for statement in ("unindex_results", "forget_aliases", "forget_results"):
                self._db.write(statement, result_ids=result_ids)
        return len(rows)

    def published_files(self, *, after: int, most: int) -> Sequence[PublishedPath]:
        return [PublishedPath(*row) for row in self._db.read("published_files", after=after, most=most)]

    def is_published(self, file_id: int) -> bool:
        return bool(self._db.read("is_published", file_id=file_id))

    def files_to_delete(self, most: int = 1000) -> Sequence[str]:
        """Return paths below the workspace to which no row refers any more."""
        return [os.fsdecode(path) for (path,) in self._db.read("files_to_delete", most=most)]

    def forget_deleted_files(self, paths: Sequence[str]) -> None:
        with self._db.transaction():
            self._db.write_each("forget_deleted_file", [(os.fsencode(path),) for path in paths])


def forget_files(db: Database, statement: str, /, **values: object) -> int:
    """Delete rows of files with this statement, and mark the paths that no other row has for deletion."""
    # JSON cannot carry other bytes than UTF-8. Pagemill's own paths are UTF-8.
    paths = [path.decode(errors="replace") for (path,) in db.write(statement, **values)]
    if paths:
        db.write("mark_files_gone", paths=json.dumps(paths))
    return len(paths)


def mark_unused_results(db: Database, result_rows: Sequence[Row]) -> None:
    if result_rows:
        db.write("mark_unused_results", result_ids=json.dumps([result_id for (result_id,) in result_rows]))
