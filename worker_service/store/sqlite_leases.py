"""Leases of the SQLite store: what daemons do to a row.

Each verb is one transaction. A verb that ends an attempt closes the attempt first; the table lets no running row move
before that. After anything that may concern waiting jobs, the same transaction settles them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from math import isfinite

from worker_service.clock import as_text
from worker_service.errors import Refused, WorkerUnknown
from worker_service.jobs.model import (
    LOG_LINES_MOST,
    Beat,
    Completion,
    Failure,
    Job,
    Lease,
    NewJob,
    Report,
    Usage,
    Worker,
)
from worker_service.jobs.retries import REQUEUES_MAX
from worker_service.store.sqlite_connection import Mended
from worker_service.store.sqlite_documents import STALE, Documents, by, of, work_from
from worker_service.store.sqlite_reading import job_from

FREED_MOST = 1000


class Leases(Documents):
    # ── Workers ──

    def register(self, worker: Worker) -> None:
        with self._transaction():
            self._write(
                "register",
                id=worker.id,
                host=worker.host,
                boot_id=worker.boot_id,
                pid=worker.pid,
                version=worker.version,
                cpu_slots=worker.cpu_slots,
                io_slots=worker.io_slots,
                now=self._now(),
            )
            self._write("forget_handlers", worker_id=worker.id)
            for handler in worker.handlers:
                self._write(
                    "register_handler",
                    worker_id=worker.id,
                    job_type=handler.job_type,
                    job_class=handler.job_class,
                    missing=handler.missing,
                    at_most_once=handler.at_most_once,
                    timeout_seconds=handler.timeout_seconds,
                    payload_schema=handler.payload_schema,
                    choices=handler.choices,
                )

    def deregister(self, worker_id: str) -> None:
        with self._transaction():
            if not self._write("deregister", worker_id=worker_id):
                raise Refused(f"worker {worker_id} still holds leases, or is not registered: release them first")
            self._write("forget_handlers", worker_id=worker_id)

    def set_worker_state(self, worker_id: str, *, draining: bool, disk_low: bool) -> None:
        with self._transaction():
            if not self._write("set_worker_state", worker_id=worker_id, draining=draining, disk_low=disk_low):
                raise WorkerUnknown(f"worker {worker_id} has no row: register it first")

    def set_limits(self, kind: str, most: dict[str, int]) -> None:
        with self._transaction():
            self._write("forget_limits", kind=kind)
            for name, number in most.items():
                self._write("set_limit", kind=kind, name=name, most=number)

    def silent_workers(self, stale_before: datetime) -> list[Worker]:
        return [Worker(*row) for row in self._read("silent_workers", stale_before=as_text(stale_before))]

    # ── Claim, beat, report ──

    def claim(
        self, worker_id: str, most: int, job_class: str = "cpu", *, behind: int = 0, only: Sequence[str] | None = None
    ) -> list[Job]:
        try:
            return self._claim(worker_id, most, job_class, behind, only)
        except UnicodeDecodeError:
            with self._mending():
                return self._claim(worker_id, most, job_class, behind, only)

    def _claim(self, worker_id: str, most: int, job_class: str, behind: int, only: Sequence[str] | None) -> list[Job]:
        claimed: list[Job] = []
        with self._transaction():
            values = self._claim_values(worker_id, job_class) | {"behind": behind}
            types = None if only is None else json.dumps(list(only))
            self._make_ready(values["now"])
            while (room := most - len(claimed)) > 0:
                # A second round only where a limit cut the first one short, or the queue is empty.
                is_one = room == 1 and only is None
                rows = (
                    self._write("claim_one", **values)
                    if is_one
                    else self._write("claim", most=room, only=types, **values)
                )
                if not rows:
                    break
                claimed += self._readable(list(map(job_from, rows)))
            if not claimed and not self._write("worker_is_known", worker_id=worker_id):
                raise WorkerUnknown(f"worker {worker_id} has no row: it was given up for dead and owns nothing")
            if claimed:
                claimed.sort(key=lambda job: (job.priority, job.created_at, job.id))
                self._write("served", owners=json.dumps(list(dict.fromkeys(job.owner for job in claimed))))
        return claimed

    def _readable(self, jobs: list[Job]) -> list[Job]:
        """A job whose text cannot be read ends here: nobody can know what it was to do."""
        if not self._is_mending:
            return jobs
        for job in jobs:
            if broken := [name for name, value in zip(job._fields, job, strict=True) if isinstance(value, Mended)]:
                sentence = f"its {' and '.join(broken)} is not UTF-8 text: insert the job again, written as UTF-8"
                self._end_failed(job.lease, Failure("NOT_UTF8", sentence))
        return [job for job in jobs if not any(isinstance(value, Mended) for value in job)]

    def _end_failed(self, lease: Lease, failure: Failure) -> None:
        self._close(lease, "failed", failure=failure)
        self._write("fail", **of(lease), now=self._now(), error_code=failure.code, error_message=failure.message)

    def _make_ready(self, now: object) -> None:
        """Free, fail or revive what others waited for, and free what is due."""
        if self._write("unready", now=now) == [(1,)]:
            self._settle()
            self._write("free_due", now=now, most=FREED_MOST)

    def _claim_values(self, worker_id: str, job_class: str) -> dict[str, object]:
        return {
            "worker_id": worker_id,
            "job_class": job_class,
            "now": self._now(),
            "stale_before": self._stale_before(),
            "behind": 0,
        }

    def beat(self, worker_id: str, leases: Sequence[Lease]) -> Beat:
        with self._transaction():
            if not self._write("beat", worker_id=worker_id, now=self._now()):
                raise WorkerUnknown(f"worker {worker_id} has no row: it was given up for dead and owns nothing")
            held = json.dumps([[lease.job_id, lease.fence] for lease in leases])
            rows = self._write("beat_leases", worker_id=worker_id, leases=held, now=self._now())
        alive = {(job_id, fence): bool(is_cancelled) for job_id, fence, is_cancelled in rows}
        return Beat(
            lost=[lease for lease in leases if (lease.job_id, lease.fence) not in alive],
            to_cancel=[lease for lease in leases if alive.get((lease.job_id, lease.fence))],
        )

    def report(self, reports: Sequence[Report]) -> list[Lease]:
        lost: list[Lease] = []
        with self._transaction():
            for report in reports:
                lease = report.lease
                percent = _whole_percent(report.percent)
                if not self._write("report", **by(lease), percent=percent, message=report.message):
                    lost.append(lease)
                    continue
                now, child = self._now(), report.child
                known = (child.pid, child.pid_started, child.sandbox) if child else (None, None, None)
                self._write(
                    "heard", **of(lease), now=now, **dict(zip(("pid", "pid_started", "sandbox"), known, strict=True))
                )
                if report.lines:
                    lines = [
                        {"job_id": lease.job_id, "fence": lease.fence, "now": now, "line": line}
                        for line in report.lines
                    ]
                    self._write_each("log", lines)
                    self._write("trim_log", job_id=lease.job_id, most=LOG_LINES_MOST)
        return lost

    # ── The ends of an attempt ──

    def complete(self, lease: Lease, result: str | None = None, follow_ups: Sequence[NewJob] = ()) -> None:
        if self.complete_many([Completion(lease, result, follow_ups)]):
            raise self._why_lost(lease)

    def complete_many(self, completions: Sequence[Completion]) -> list[Lease]:
        try:
            return self._complete_many(completions)
        except UnicodeDecodeError:
            with self._mending():
                return self._complete_many(completions)

    def _complete_many(self, completions: Sequence[Completion]) -> list[Lease]:
        with self._transaction():
            now = self._now()
            closed = set(self._write("close_completed", now=now, done=_completed(completions)))
            # A lease that is named twice lands once.
            landed = {done.lease: done for done in completions if (done.lease.job_id, done.lease.fence) in closed}
            rows = self._write("complete", now=now, done=_completed(landed.values()))
            works = {row[0]: work_from(row[1:]) for row in rows}
            for done in landed.values():
                self._land(done, works[done.lease.job_id], now)
            self._settle()
        return [done.lease for done in completions if landed.get(done.lease) is not done]

    def fail(self, lease: Lease, failure: Failure, *, retry_at: datetime | None) -> None:
        error = {"error_code": failure.code, "error_message": failure.message}
        with self._transaction():
            job = self._leased(lease)
            is_retried = retry_at is not None and job.retry_count < job.max_retries
            self._close(lease, "retry" if is_retried else "failed", failure=failure)
            if retry_at is not None and is_retried:
                self._write("fail_for_now", **of(lease), run_at=as_text(retry_at), **error)
            else:
                self._write("fail", **of(lease), now=self._now(), **error)
            self._settle()

    def snooze(self, lease: Lease, until: datetime, why: Failure | None = None) -> None:
        with self._transaction():
            self._close(lease, "snoozed", why)
            self._write("snooze", **of(lease), run_at=as_text(until))

    def release(self, lease: Lease) -> None:
        with self._transaction():
            self._close(lease, "released")
            self._write("release", **of(lease))

    def confirm_cancel(self, lease: Lease, usage: Usage = Usage()) -> None:  # noqa: B008  frozen
        with self._transaction():
            self._end_cancelled(lease, usage)
            self._settle()

    def requeue(self, worker_id: str) -> list[Job]:
        with self._transaction():
            orphans = self._write("orphans", worker_id=worker_id, requeues_max=REQUEUES_MAX)
            for job_id, fence, _, fate in orphans:
                self._requeue_one(Lease(job_id, fence, worker_id), fate)
            self._write("forget_handlers", worker_id=worker_id)
            self._write("forget_worker", worker_id=worker_id)
            self._settle()
            return [job_from(row) for job_id, *_ in orphans for row in self._write("get", job_id=job_id)]

    def _requeue_one(self, lease: Lease, fate: str) -> None:
        gone = f"worker {lease.worker_id} died while it ran this job"
        if fate == "pending":
            self._close(lease, "requeued", failure=Failure("WORKER_DIED", gone))
            self._write("requeue", **of(lease))
        elif fate == "cancelled":
            self._end_cancelled(lease, Usage())
        else:
            failure = (
                Failure("WORKER_DIED", f"{gone}, and it may run at most once")
                if fate == "at most once"
                else Failure("REQUEUED_TOO_OFTEN", f"{gone}, for the {REQUEUES_MAX + 1}th time")
            )
            self._end_failed(lease, failure)

    def _end_cancelled(self, lease: Lease, usage: Usage) -> None:
        failure = Failure("CANCELLED", "somebody asked it to stop", usage)
        for document_id, generation in self._write("stale_work", job_id=lease.job_id):
            sentence = f"generation {generation} of document {document_id} is no longer the newest"
            failure = Failure(STALE, sentence, usage)
        self._close(lease, "cancelled", failure=failure)
        is_stale = failure.code == STALE
        error = {"error_code": STALE, "error_message": failure.message} if is_stale else {}
        self._write("confirm_cancel_stale" if is_stale else "confirm_cancel", **of(lease), now=self._now(), **error)

    def rest_source(self, source: str, until: datetime, reason: str) -> None:
        with self._transaction():
            self._write("rest_source", source=source, until=as_text(until), reason=reason)

    def _close(self, lease: Lease, outcome: str, failure: Failure | None = None) -> None:
        usage = failure.usage if failure else Usage()
        if not self._write("close_attempt", **_closing(lease, outcome, self._now(), failure, usage)):
            raise self._why_lost(lease)

    def _leased(self, lease: Lease) -> Job:
        for row in self._write("get", job_id=lease.job_id):
            job = job_from(row)
            if job.worker_id == lease.worker_id and job.fence == lease.fence and not job.status.is_ended:
                return job
        raise self._why_lost(lease)


def _whole_percent(percent: float | None) -> int:
    """What is no number is no progress."""
    return min(100, max(0, int(percent))) if percent is not None and isfinite(percent) else 0


def _closing(
    lease: Lease,
    outcome: str,
    now: str,
    failure: Failure | None = None,
    usage: Usage = Usage(),  # noqa: B008  frozen
) -> dict[str, object]:
    return {
        **by(lease),
        "outcome": outcome,
        "now": now,
        "error_code": failure.code if failure else None,
        "error_message": failure.message if failure else None,
        "signal": usage.signal,
        "cpu_seconds": usage.cpu_seconds,
        "memory_peak_bytes": usage.memory_peak_bytes,
    }


def _completed(completions: Iterable[Completion]) -> str:
    """For `close_completed` and `complete`, by position."""
    return json.dumps(
        [
            (
                done.lease.job_id,
                done.lease.fence,
                done.lease.worker_id,
                done.usage.signal,
                done.usage.cpu_seconds,
                done.usage.memory_peak_bytes,
                done.result,
                *((done.child.pid, done.child.pid_started, done.child.sandbox) if done.child else (None, None, None)),
            )
            for done in completions
        ]
    )
