"""What people do to many jobs at once. Each change is an action with the rows before and after: it can be undone.

Large selections are worked through in short transactions of the same action; each job is looked at again inside.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from worker_service.clock import as_text
from worker_service.errors import Refused, RuleBroken
from worker_service.jobs.model import Changed, Status
from worker_service.jobs.selector import Selector
from worker_service.store.database import Database, chunks
from worker_service.store.intake import settle
from worker_service.store.reading import SqliteReading

UNDO_DAYS = 7

_JOBS_PER_TRANSACTION = 500

_ENDED = "status IN ('completed', 'failed', 'cancelled')"

_LIVE = "status IN ('pending', 'running')"

# What must not have moved since, for an undo to put the rest back.
_MOVED_BY = ("status", "fence", "priority", "completed_at", "run_at", "cancel_requested_at", "retry_count")

_Refusal = Callable[[int, Status], str | None]
"""Why this job, of this status, cannot be changed; None if it can."""


class _Reason(str):
    """Why a job was not changed. Not a status."""


@dataclass(slots=True)
class _Action:
    """One action while it is under way. It has a row as soon as it has changed something."""

    verb: str
    actor: str
    values: dict[str, object]
    also: str | None
    """A second statement for each job."""
    id: int | None = None


class SqliteSteering:
    def __init__(self, database: Database, reading: SqliteReading) -> None:
        self._db = database
        self._reading = reading

    def cancel(self, selector: Selector, *, actor: str, without_grace: bool = False) -> Changed:
        def refusal(job_id: int, status: Status) -> str | None:
            return f"it is already {status}" if status.is_ended else None

        # In one transaction: a worker must not hear of the one without the other.
        also = "cancel_now" if without_grace else None
        return self._act("cancel", selector, _LIVE, refusal, actor, also, now=self._db.now())

    def retry(self, selector: Selector, *, actor: str) -> Changed:
        def refusal(job_id: int, status: Status) -> str | None:
            if not status.is_ended:
                return f"it is {status}, and has not ended"
            for document_id, generation in self._db.write("stale_work", job_id=job_id):
                return (
                    f"generation {generation} of document {document_id} is no longer the newest: "
                    f"`pagemill reindex {document_id}` has it read again"
                )
            for needs_id, needs_status in self._db.write("broken_need", job_id=job_id):
                return f"it waits for job {needs_id}, which is {needs_status}: retry that one"
            for (live_id,) in self._db.write("live_twin", job_id=job_id):
                return f"job {live_id} is live with the same unique_key, and will do the work"
            return None

        return self._act("retry", selector, _ENDED, refusal, actor)

    def delete(self, selector: Selector, *, actor: str) -> Changed:
        def refusal(job_id: int, status: Status) -> str | None:
            return "it is running: cancel it first" if status == Status.RUNNING else None

        return self._act("delete", selector, "status <> 'running'", refusal, actor)

    def priority(self, selector: Selector, level: int, *, actor: str) -> Changed:
        if level not in range(1, 11):
            raise RuleBroken("priority is 1 (highest) to 10 (lowest)")

        def refusal(job_id: int, status: Status) -> str | None:
            return None if status == Status.PENDING else f"it is {status}, and waits for no turn"

        return self._act("priority", selector, "status = 'pending'", refusal, actor, priority=level)

    def _act(
        self,
        verb: str,
        selector: Selector,
        condition: str,
        refusal: _Refusal,
        actor: str,
        also: str | None = None,
        **values: object,
    ) -> Changed:
        """Run the statement of this name over the jobs, and remember each before and after."""
        # Jobs that were named are all looked at, so that each refusal has its reason.
        is_named = selector == Selector(ids=selector.ids) and bool(selector.ids)
        job_ids = sorted(set(selector.ids)) if is_named else self._reading.ids(selector, condition)
        action = _Action(verb, actor, values, also)
        done: list[int] = []
        asked: list[int] = []
        refused: dict[int, str] = {}
        for chunk in chunks(job_ids, _JOBS_PER_TRANSACTION):
            with self._db.transaction():
                for job_id in chunk:
                    outcome = self._change(action, job_id, refusal)
                    if isinstance(outcome, _Reason):
                        refused[job_id] = outcome
                    else:
                        (asked if outcome is Status.RUNNING else done).append(job_id)
                settle(self._db)
        return Changed(action.id, done, asked, refused)

    def _change(self, action: _Action, job_id: int, refusal: _Refusal) -> Status | _Reason | None:
        """Return the status that the job has now (None: it is gone), or why it was not changed."""
        rows = self._db.write("row_of", job_id=job_id)
        if not rows:
            return _Reason("there is no such job")
        [(status, before)] = rows
        reason = refusal(job_id, Status(status))
        if reason is not None:
            return _Reason(reason)
        if action.id is None:
            [(action.id,)] = self._db.write("begin_action", verb=action.verb, actor=action.actor, now=self._db.now())
        item = {"action_id": action.id, "job_id": job_id, "before": before}
        # Written first: what an open action of deletion names keeps its history.
        self._db.write("remember", **item, after=None)
        self._db.write(action.verb, job_id=job_id, **action.values)
        if action.also is not None:
            self._db.write(action.also, job_id=job_id)
        for now_status, after in self._db.write("row_of", job_id=job_id):
            self._db.write("remember", **item, after=after)
            return Status(now_status)
        return None

    def undo(self, action_id: int | None, *, actor: str) -> Changed:
        with self._db.transaction():
            rows = self._db.write("action_to_undo", action_id=action_id)
            if not rows:
                raise Refused(
                    "there is nothing to undo: `pagemill undo --list` shows the actions and what became of them"
                )
            [(found_id,)] = rows
        done: list[int] = []
        refused: dict[int, str] = {}
        seen = 0
        while items := self._put_back_some(found_id, seen, done, refused):
            seen = items[-1]
        with self._db.transaction():
            # What was refused stays open, and can be tried again.
            self._db.write("undone", action_id=found_id, now=self._db.now(), actor=actor)
        return Changed(found_id, done, (), refused)

    def _put_back_some(self, action_id: int, after_id: int, done: list[int], refused: dict[int, str]) -> list[int]:
        """One short transaction; an undo that is cut off goes on where it stopped."""
        with self._db.transaction():
            items = self._db.write("action_items", action_id=action_id, after_id=after_id, most=_JOBS_PER_TRANSACTION)
            for job_id, before, after in items:
                reason = self._put_back(job_id, before, after)
                if reason is None:
                    done.append(job_id)
                    self._db.write("item_undone", action_id=action_id, job_id=job_id, now=self._db.now())
                else:
                    refused[job_id] = reason
            settle(self._db)
        return [job_id for job_id, _, _ in items]

    def _put_back(self, job_id: int, before: str, after: str | None) -> str | None:
        rows = self._db.write("row_of", job_id=job_id)
        if after is None:
            if rows:
                return "it is back already"
            reason = self._db.try_to_write("restore_deleted_row", {"job_id": job_id, "before": before})
            if reason is None:
                self._db.write("hold_again", job_id=job_id, before=before)
                self._db.write("document_regains_job", job_id=job_id)
                self._db.write("settle_again", job_id=job_id)
            return reason
        if not rows:
            return "it was deleted since"
        then, now = json.loads(after), json.loads(rows[0][1])
        if then["status"] == Status.RUNNING:
            return "it was running, and a request to stop cannot be taken back"
        if any(then[name] != now[name] for name in _MOVED_BY):
            return f"it has moved since: it is {now['status']}"
        return self._db.try_to_write("restore_row", {"job_id": job_id, "before": before})

    def pause(self, scope: str, name: str = "", *, until: datetime | None = None, reason: str | None = None) -> None:
        with self._db.transaction():
            self._db.write(
                "pause", scope=scope, name=name, now=self._db.now(), until=until and as_text(until), reason=reason
            )

    def unpause(self, scope: str, name: str = "") -> bool:
        with self._db.transaction():
            return bool(self._db.write("unpause", scope=scope, name=name))

    def prune(self, selector: Selector, *, most: int = 1000) -> int:
        job_ids = self._reading.oldest_ended_ids(selector, most)
        for chunk in chunks(job_ids, _JOBS_PER_TRANSACTION):
            with self._db.transaction():
                for job_id in chunk:
                    self._db.write("prune", job_id=job_id)
        self._prune_actions()
        return len(job_ids)

    def prune_logs(self, before: datetime, *, most: int = 1000) -> int:
        with self._db.transaction():
            return len(self._db.write("prune_logs", before=as_text(before), most=most))

    def _prune_actions(self) -> None:
        """What can no longer be undone, and what was kept for it."""
        before = as_text(self._db.clock() - timedelta(days=UNDO_DAYS))
        while True:
            with self._db.transaction():
                items = self._db.write("old_action_items", before=before, most=_JOBS_PER_TRANSACTION)
                for action_id, job_id, is_deleted in items:
                    self._db.write("forget_action_item", action_id=action_id, job_id=job_id)
                    if is_deleted and not self._db.write("row_of", job_id=job_id):
                        for kept in ("attempts", "events", "log", "needs", "checkpoint"):
                            self._db.write(f"forget_{kept}", job_id=job_id)
                documents = self._db.write("forget_action_documents", before=before, most=_JOBS_PER_TRANSACTION)
                self._db.write("forget_old_actions", before=before)
            if not items and not documents:
                return
