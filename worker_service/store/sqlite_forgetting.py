"""What is no longer wanted: documents by a person's wish, and what nobody refers to any more by a chore.

A document goes in one short transaction with the rows of its files; its pages, which may be ten thousand, are forgotten
after that, a little at a time. A page result that no page refers to is first marked, and from then on is not known to
handlers that ask. It is removed once every attempt that may have asked before has ended.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from worker_service.jobs.library import OwnerSize, Removed, Weight
from worker_service.store.sqlite_steering import Steering, chunks

_DOCUMENTS_PER_TRANSACTION = 50


class Forgetting(Steering):
    def weigh(self, document_ids: Sequence[int]) -> Weight:
        [row] = self._read("weight", document_ids=json.dumps(list(document_ids)))
        return Weight(*row)

    def remove_documents(self, document_ids: Sequence[int], *, actor: str) -> Removed:
        action_id: int | None = None
        removed: list[int] = []
        refused: dict[int, str] = {}
        freed = Weight()
        for chunk in chunks(sorted(set(document_ids)), _DOCUMENTS_PER_TRANSACTION):
            with self._transaction():
                for document_id in chunk:
                    # One after the other: of two that share a file, the second frees it.
                    [row] = self._write("weight", document_ids=json.dumps([document_id]))
                    weight = Weight(*row)
                    reason = self._why_not_removed(document_id, weight)
                    if reason is not None:
                        refused[document_id] = reason
                        continue
                    if action_id is None:
                        [(action_id,)] = self._write("begin_action", verb="remove", actor=actor, now=self._now())
                    told = {"files": weight.files, "size": weight.size}
                    self._write("remember_document", action_id=action_id, document_id=document_id, **told)
                    self._write("remove_document", document_id=document_id)
                    removed.append(document_id)
                    freed += weight
        return Removed(action_id, removed, refused, freed)

    def _why_not_removed(self, document_id: int, weight: Weight) -> str | None:
        if not weight.documents:
            return "there is no such document"
        for job_id, job_type in self._write("any_live_job", document_id=document_id):
            return f"job {job_id} ({job_type}) still works for it: pagemill cancel {job_id}, and then once more"
        return None

    def sizes_by_owner(self) -> Sequence[OwnerSize]:
        return [OwnerSize(*row) for row in self._read("sizes_by_owner")]

    def size_of_all(self) -> tuple[int, int]:
        [(files, size)] = self._read("size_of_all")
        return files, size

    def forget_gone(self, most: int = 1000) -> int:
        if self._read("is_forgettable") == [(0,)]:
            return 0
        gone = self._read("gone_documents", most=most)
        with self._transaction():
            return self._forget_generations(gone, most) + self._forget_results(most)

    def forget_pages(self, most: int = 1000) -> int:
        # Looked for by the reader, so that nobody waits meanwhile; looked at again under the write lock.
        generations = self._read("old_generations", most=most)
        files = self._read("superseded_files", most=most)
        with self._transaction():
            forgotten = self._forget_generations(generations, most)
            forgotten += sum(len(self._write("forget_file", file_id=file_id)) for (file_id,) in files)
            return forgotten + self._forget_results(most)

    def _forget_generations(self, generations: Sequence[tuple[int, int | None]], most: int) -> int:
        """None: of a document that was removed, no page is left."""
        forgotten = 0
        for document_id, generation in generations:
            if generation is None:
                self._write("forget_gone_document", document_id=document_id)
            elif forgotten < most:
                left = {"document_id": document_id, "generation": generation, "most": most - forgotten}
                forgotten += len(self._write("forget_page", **left))
        return forgotten

    def _forget_results(self, most: int) -> int:
        self._write("date_forgotten", now=self._now())
        return len(self._write("forget_result", most=most))

    def gone_files(self, most: int = 1000) -> Sequence[str]:
        return [os.fsdecode(path) for (path,) in self._read("gone_files", most=most)]

    def forget_gone_files(self, paths: Sequence[str]) -> None:
        with self._transaction():
            self._write_each("forget_gone_file", [(os.fsencode(path),) for path in paths])
