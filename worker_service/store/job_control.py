"""Bulk changes by users, recorded as actions, in several short transactions."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime

from msgspec import Struct

from worker_service.base.clock import as_text
from worker_service.base.errors import Refused, RuleBroken
from worker_service.jobs.history import OPPOSITE, Changed
from worker_service.jobs.job import Status
from worker_service.jobs.selector import Selector
from worker_service.store.database import Database, StorePart, chunks
from worker_service.store.settling import settle

_JOBS_PER_TRANSACTION = 500

_CONDITION_BY_VERB = {
    "cancel": "status IN ('pending', 'running')",
    "retry": "status IN ('completed', 'failed', 'cancelled')",
    "delete": "status <> 'running'",
    "priority": "status IN ('pending', 'running')",
    "dismiss": "status = 'failed'",
}


class JobToChange(Struct, frozen=True):
    id: int
    status: Status
    priority: int
    undo_state: str
    """Status, fence and priority: if they have changed since an action, it is not undone."""
    is_stopping: bool
    title: str


class JobControl(StorePart):
    def cancel(
        self, selector: Selector, *, actor: str, without_grace: bool = False, action_id: int | None = None
    ) -> Changed:
        # Run both statements in one transaction, so that no worker sees the request without `without_grace`.
        statements = ("cancel", "cancel_now") if without_grace else ("cancel",)
        return self._run_action(statements, selector, actor, action_id=action_id)

    def retry(self, selector: Selector, *, actor: str) -> Changed:
        return self._run_action(("retry",), selector, actor)

    def delete(self, selector: Selector, *, actor: str) -> Changed:
        return self._run_action(("delete",), selector, actor)

    def priority(self, selector: Selector, level: int, *, actor: str) -> Changed:
        if level not in range(1, 11):
            raise RuleBroken("priority is 1 (highest) to 10 (lowest)")
        if batch_ids := [*selector.batch_ids, *([] if selector.batch_id is None else [selector.batch_id])]:
            with self._db.transaction():
                owners = json.dumps(list(selector.owners))
                self._db.write("batch_priority", batch_ids=json.dumps(batch_ids), owners=owners, priority=level)
        changed = self._run_action(("priority",), selector, actor, level)
        # Jobs inserted meanwhile as follow-ups of jobs that still had the old priority.
        with_old_priority = f"{_CONDITION_BY_VERB['priority']} AND priority <> {level}"
        if selector.names_groups or selector.batch_id is not None:
            while ids := self._store.job_queries.ids(selector, with_old_priority):
                self._run_action(("priority",), Selector(ids=ids), actor, level)
        return changed

    def dismiss(self, job_ids: Sequence[int], *, actor: str) -> Changed:
        return self._run_action(("dismiss",), Selector(ids=job_ids), actor) if job_ids else Changed(None, ())

    def bring_forward(self, ids: Sequence[int]) -> Sequence[int]:
        """Remove the start time of pending jobs. Return the jobs that had one."""
        with self._db.transaction():
            return sorted(job_id for (job_id,) in self._db.write("bring_forward", ids=json.dumps(list(ids))))

    def _run_action(
        self,
        statements: Sequence[str],
        selector: Selector,
        actor: str,
        new_priority: int | None = None,
        *,
        action_id: int | None = None,
    ) -> Changed:
        # The first changed job creates the action's row. The first statement has the name of the verb.
        verb = statements[0]
        # Try all jobs that were named by id, so that each refusal gives its reason.
        is_named = selector == Selector(ids=selector.ids) and bool(selector.ids)
        job_ids = (
            sorted(set(selector.ids)) if is_named else self._store.job_queries.ids(selector, _CONDITION_BY_VERB[verb])
        )

        def change(job: JobToChange) -> None:
            nonlocal action_id
            self._refuse_impossible(verb, job)
            if action_id is None:
                action_id = begin_action(self._db, verb, actor)
            for statement in statements:
                self._db.write(statement, job_id=job.id, priority=new_priority, now=self._db.now())
            changed = self.read_job(job.id)
            left_as = changed.undo_state if changed else job.title  # A deleted job has no state.
            add_action_item(self._db, action_id, job.id, left_as, priority_before=job.priority)

        changed_ids, requested_ids, refused = self._apply_to_each(job_ids, change, requests_stop=verb == "cancel")
        return Changed(action_id, changed_ids, requested_ids, refused)

    def _apply_to_each(
        self, job_ids: Sequence[int], change: Callable[[JobToChange], None], *, requests_stop: bool
    ) -> tuple[list[int], list[int], dict[int, str]]:
        """Return the changed jobs, the jobs requested to stop, and the reason for each refused job."""
        changed_ids: list[int] = []
        requested_ids: list[int] = []
        refused: dict[int, str] = {}
        for chunk in chunks(job_ids, _JOBS_PER_TRANSACTION):
            with self._db.transaction():
                for job_id in chunk:
                    job = self.read_job(job_id)
                    if job is None:
                        refused[job_id] = "there is no such job"
                        continue
                    try:
                        change(job)
                    except Refused as refusal:
                        refused[job_id] = str(refusal)
                    else:
                        is_requested = requests_stop and job.status is Status.RUNNING
                        (requested_ids if is_requested else changed_ids).append(job_id)
                settle(self._db)
        return changed_ids, requested_ids, refused

    def read_job(self, job_id: int) -> JobToChange | None:
        for status, *rest in self._db.read_locked("job_to_change", job_id=job_id):
            return JobToChange(job_id, Status(status), *rest)
        return None

    def _refuse_impossible(self, verb: str, job: JobToChange) -> None:
        if verb == "cancel" and job.status.is_ended:
            raise Refused(f"it is already {job.status}")
        if verb == "dismiss" and job.status is not Status.FAILED:
            raise Refused(f"it is {job.status}, and has not failed")
        if verb == "delete" and job.status is Status.RUNNING:
            raise Refused("it is running", "cancel it first")
        if verb == "priority" and job.status.is_ended:
            raise Refused(f"it is {job.status}, and waits for nothing more")
        if verb == "retry":
            self._refuse_retry(job)

    def _refuse_retry(self, job: JobToChange) -> None:
        if job.status is Status.RUNNING and job.is_stopping:
            raise Refused(f"it is still stopping: once it has, `pagemill retry {job.id}`")
        if not job.status.is_ended:
            raise Refused(f"it is {job.status}, and has not ended")
        for document_id, generation in self._db.read_locked("stale_work", job_id=job.id):
            raise Refused(
                f"generation {generation} of document {document_id} is no longer the newest: "
                f"`pagemill reindex {document_id}` has it read again"
            )
        for needed_job, needed_status in self._db.read_locked("broken_dependency", job_id=job.id):
            raise Refused(f"it waits for {needed_job}, which is {needed_status}", "retry that one")
        for (live_job,) in self._db.read_locked("live_with_same_key", job_id=job.id):
            raise Refused(f"{live_job} is live with the same unique_key, and will do the work")

    def undo(self, action_id: int, *, actor: str) -> Changed:
        """Reverse an action for each job that has not changed since."""
        done_verb = next((verb for (verb,) in self._db.read("undoable_verb", action_id=action_id)), None)
        if done_verb is None:
            raise Refused(f"action {action_id} cannot be undone", "`pagemill undo --list` shows what became of it")
        verb = OPPOSITE[done_verb]
        items = {job_id: item for job_id, *item in self._db.read("action_items", action_id=action_id)}

        def undo_one(job: JobToChange) -> None:
            left_as, priority = items[job.id]
            if job.undo_state != left_as:
                raise Refused(f"it has moved since: it is {job.status}, with priority {job.priority}")
            self._refuse_impossible(verb, job)
            self._db.write(verb, job_id=job.id, priority=priority, now=self._db.now())

        undone_ids, requested_ids, refused = self._apply_to_each(list(items), undo_one, requests_stop=verb == "cancel")
        if undone_ids:
            with self._db.transaction():
                self._db.write("mark_undone", action_id=action_id, now=self._db.now(), actor=actor)
        return Changed(action_id, undone_ids, requested_ids, refused)

    def pause(self, scope: str, name: str = "", *, until: datetime | None = None, reason: str | None = None) -> None:
        with self._db.transaction():
            self._db.write(
                "pause", scope=scope, name=name, now=self._db.now(), until=until and as_text(until), reason=reason
            )

    def unpause(self, scope: str, name: str = "") -> bool:
        with self._db.transaction():
            return bool(self._db.write("unpause", scope=scope, name=name))

    def drain_node(self, name: str, *, is_draining: bool) -> bool:
        with self._db.transaction():
            return bool(self._db.write("drain_node", name=name, is_draining=is_draining))


def begin_action(db: Database, verb: str, actor: str, batch_id: int | None = None) -> int:
    [(action_id,)] = db.write("begin_action", verb=verb, actor=actor, batch_id=batch_id, now=db.now())
    return int(action_id)


def add_action_item(
    db: Database, action_id: int, item_id: int, left_as: str, *, priority_before: int | None = None
) -> None:
    item = {"item_id": item_id, "left_as": left_as, "priority_before": priority_before}
    db.write("add_action_item", action_id=action_id, **item)
