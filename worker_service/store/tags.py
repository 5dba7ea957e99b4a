from __future__ import annotations

import json
from collections.abc import Sequence

from worker_service.jobs.documents import DeferredAction, OnEnd, TagAction
from worker_service.jobs.tags import TagCount
from worker_service.store.database import StorePart
from worker_service.store.intake import action_values
from worker_service.store.settling import ParentFacts, fire_actions, tag_documents


class Tags(StorePart):
    def add(self, document_ids: Sequence[int], tags: Sequence[str]) -> Sequence[int]:
        """Add tags, and start their actions for documents already read. Return the changed documents."""
        with self._db.transaction():
            new = tag_documents(self._db, document_ids, tags)
            changed = sorted({document_id for document_id, _ in new})
            fire_actions(self._db, changed, new, ParentFacts())
            return changed

    def remove(self, document_ids: Sequence[int], tags: Sequence[str]) -> Sequence[int]:
        """Return the documents that had any of the tags."""
        with self._db.transaction():
            values = {"document_ids": json.dumps(list(document_ids)), "tags": json.dumps(list(tags))}
            return sorted({document_id for (document_id,) in self._db.write("untag_documents", **values)})

    def counts(self, owner: str | None) -> Sequence[TagCount]:
        rows = self._db.read("tag_counts") if owner is None else self._db.read("tag_counts_of_owner", owner=owner)
        return [TagCount(*row) for row in rows]

    def names(self, owner: str | None, *, most: int) -> Sequence[str]:
        statement = "tag_names" if owner is None else "tag_names_of_owner"
        return [tag for (tag,) in self._db.read(statement, owner=owner, most=most)]

    # ── Actions ──

    def add_action(self, tag: str, action: DeferredAction, *, owner: str) -> bool:
        """Return False if the action exists. An empty `owner` means documents of all owners."""
        with self._db.transaction():
            return bool(self._db.write("add_tag_action", tag=tag, owner=owner, **action_values(action)))

    def remove_action(self, tag: str, action: DeferredAction, *, owner: str) -> bool:
        with self._db.transaction():
            return bool(self._db.write("remove_tag_action", tag=tag, owner=owner, **action_values(action)))

    def actions(self, owner: str | None) -> Sequence[TagAction]:
        rows = self._db.read("tag_actions", owner=owner)
        return [
            TagAction(job_type, payload, OnEnd(on_end), tag=tag, owner=tag_owner)
            for job_type, payload, on_end, tag, tag_owner in rows
        ]
