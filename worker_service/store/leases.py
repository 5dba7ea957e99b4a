"""Claims, beats, reports and ends of attempts.

An end closes the attempt before it changes the job's status: otherwise a trigger refuses the change.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from math import isfinite
from operator import attrgetter

from msgspec.structs import asdict

from worker_service.base.clock import as_text, from_text
from worker_service.base.errors import CancelRequested, LeaseLost, WorkerUnknown
from worker_service.jobs.attempts import Completion, Failure, Report, Usage
from worker_service.jobs.history import LOG_LINES_MOST
from worker_service.jobs.job import Job, Lease, NewJob, Status
from worker_service.jobs.retries import MAY_HAVE_RUN, MAY_HAVE_RUN_REMEDY, REQUEUES_MAX, may_have_run_detail
from worker_service.jobs.workers import Beat, LeaseRow
from worker_service.store.claim_order import claim_values, make_ready
from worker_service.store.database import Database, Row, StorePart, chunks
from worker_service.store.settling import settle

STALE = "STALE_GENERATION"

_COMPLETED_AT_ONCE = 100

_claim_order = attrgetter("priority", "created_at", "id")

_NO_CHILD = {"pid": None, "pid_started": None, "sandbox": None}


class Leases(StorePart):
    # ── Claim, beat, report ──

    def claim(
        self,
        worker_id: str,
        most: int,
        job_class: str = "cpu",
        *,
        prefetched: int = 0,
        only: Sequence[str] | None = None,
    ) -> list[Job]:
        """Claim jobs that have no gate (P1, P8, P9).

        `prefetched` is the number of claimed jobs that take no slot yet. Stop at the first job whose type is not in
        `only`, so that prefetching overtakes no job.
        """
        try:
            with self._db.transaction():
                values = claim_values(self._db, worker_id, job_class) | {"prefetched": prefetched}
                make_ready(self._db, values["now"])
                claimed = self._claim_readable(worker_id, most, values, only)
                if not claimed and not self._db.read_locked("worker_is_known", worker_id=worker_id):
                    raise WorkerUnknown(f"worker {worker_id} has no row: it was given up for dead and owns nothing")
                if any(job.generation is not None for job in claimed):
                    settle(self._db)
                if claimed:
                    self._store.scheduler.record_turns(list(dict.fromkeys(job.owner for job in claimed)))
        except BaseException:
            # The cache may hold rows of the transaction that was rolled back.
            self._store.scheduler.forget_lanes()
            raise
        return claimed

    def _claim_readable(
        self, worker_id: str, most: int, values: dict[str, object], only: Sequence[str] | None
    ) -> list[Job]:
        claimed, unreadable = self._store.scheduler.claim(values, most, only)
        while unreadable:
            for job_id in unreadable:
                self._fail_unreadable(job_id, worker_id)
            more, unreadable = self._store.scheduler.claim(values, most - len(claimed), only)
            claimed += more
        return sorted(claimed, key=_claim_order)

    def _fail_unreadable(self, job_id: int, worker_id: str) -> None:
        [(fence, *columns)] = self._db.read_locked("job_as_bytes", job_id=job_id)
        broken = [name for name, value in zip(Job._fields, columns, strict=True) if not _is_utf8(value)]
        detail = f"its {' and '.join(broken)} is not UTF-8 text"
        failure = Failure("NOT_UTF8", detail, remedy="insert the job again, written as UTF-8")
        self._end(Lease(job_id, fence, worker_id), "failed", "fail", failure)

    def beat(self, worker_id: str, leases: Sequence[Lease]) -> Beat:
        with self._db.transaction():
            if not self._db.write("beat", worker_id=worker_id, now=self._db.now()):
                raise WorkerUnknown(f"worker {worker_id} has no row: it was given up for dead and owns nothing")
            pairs = json.dumps([[lease.job_id, lease.fence] for lease in leases])
            rows = self._db.write("beat_leases", worker_id=worker_id, leases=pairs, now=self._db.now())
        must_cancel_by_lease = {(job_id, fence): bool(is_requested) for job_id, fence, is_requested in rows}
        return Beat(
            lost=[lease for lease in leases if (lease.job_id, lease.fence) not in must_cancel_by_lease],
            to_cancel=[lease for lease in leases if must_cancel_by_lease.get((lease.job_id, lease.fence))],
        )

    def report(self, reports: Sequence[Report]) -> list[Lease]:
        """Write progress, which never falls (P10), and log lines. Return the lost leases."""
        lost: list[Lease] = []
        with self._db.transaction():
            for report in reports:
                lease = report.lease
                now, child = self._db.now(), report.child
                if not self._db.write("report", **lease._asdict(), now=now, **_progress_columns(report)):
                    lost.append(lease)
                    continue
                process = asdict(child) if child else _NO_CHILD
                self._db.write("record_child", **lease._asdict(), **process, node=report.node, now=now)
                if report.lines:
                    rows = [(lease.job_id, lease.fence, now, line) for line in report.lines]
                    self._db.write_each("add_log_lines", rows)
                    self._db.write("trim_log", job_id=lease.job_id, most=LOG_LINES_MOST)
        return lost

    # ── Ends of an attempt ──

    def complete(self, lease: Lease, result: str | None = None, follow_ups: Sequence[NewJob] = ()) -> None:
        if self.complete_many([Completion(lease, result, follow_ups)]):
            raise lease_error(self._db, lease)

    def complete_many(self, completions: Sequence[Completion]) -> list[Lease]:
        """Complete each job whose lease holds (P5). Return the lost leases."""
        # If a lease is named twice, only its last completion is written.
        by_lease = {done.lease: done for done in completions}
        has_document_by_lease: dict[Lease, bool] = {}
        with self._db.transaction():
            now = self._db.now()
            for chunk in chunks([*by_lease.values()], _COMPLETED_AT_ONCE):
                self._db.write_rows("close_completed", [_closing_row(done) for done in chunk], now)
                ended = self._db.write_rows("complete", [(*done.lease, done.result) for done in chunk], now)
                has_document_by_lease |= {Lease(*lease): bool(has_document) for *lease, has_document in ended}
            with_effects = [
                done
                for done in by_lease.values()
                if done.lease in has_document_by_lease
                and (has_document_by_lease[done.lease] or done.files or done.follow_ups or done.publishes)
            ]
            has_no_effects = not with_effects and self._db.read_flag_locked("has_no_effects")
            if not has_no_effects:
                job_ids = json.dumps([lease.job_id for lease in has_document_by_lease])
                self._db.write("forget_checkpoints", job_ids=job_ids)
                self._store.completions.write(with_effects)
                settle(self._db)
        return [
            done.lease
            for done in completions
            if done.lease not in has_document_by_lease or by_lease[done.lease] is not done
        ]

    def fail(self, lease: Lease, failure: Failure, *, retry_at: datetime | None) -> None:
        """Put the job back until `retry_at` and count a retry; without one, fail it."""
        with self._db.transaction():
            has_retry_left = self._db.read_flag_locked("has_retry_left", **lease._asdict())
            if retry_at is not None and has_retry_left:
                self._end(lease, "retry", "fail_with_retry", failure, run_at=as_text(retry_at))
            else:
                self._end(lease, "failed", "fail", failure)
            settle(self._db)

    def snooze(self, lease: Lease, until: datetime, why: Failure | None = None) -> None:
        with self._db.transaction():
            self._end(lease, "snoozed", "snooze", why, run_at=as_text(until))

    def release(self, lease: Lease) -> None:
        with self._db.transaction():
            self._end(lease, "released", "release")

    def confirm_cancel(self, lease: Lease, usage: Usage = Usage()) -> None:  # noqa: B008  frozen
        """Call only when the processes of the attempt are proven gone (P7)."""
        with self._db.transaction():
            self._end_cancelled(lease, usage)
            settle(self._db)

    def requeue(self, worker_id: str, *, last_beat: str | None = None) -> list[Job]:
        """Requeue or end the jobs of a worker that is proven gone, unless it has beaten since `last_beat`."""
        worker_died = Failure("WORKER_DIED", f"worker {worker_id} died while it ran this job")
        with self._db.transaction():
            values = {"worker_id": worker_id, "last_beat": last_beat}
            if last_beat is not None and self._db.read_locked("has_beaten_since", **values):
                return []
            orphans = self._db.read_locked("orphans", worker_id=worker_id, requeues_max=REQUEUES_MAX)
            for job_id, fence, _, fate in orphans:
                self._end_by_fate(Lease(job_id, fence, worker_id), fate, worker_died)
            self._db.write("forget_handlers", worker_id=worker_id)
            self._db.write("forget_worker", worker_id=worker_id)
            self._db.write("mark_nodes_of_worker_down", worker_id=worker_id)
            settle(self._db)
            return [Job.from_row(row) for job_id, *_ in orphans for row in self._db.read_locked("get", job_id=job_id)]

    def requeue_one(self, lease: Lease, why: Failure) -> Status:
        with self._db.transaction():
            for (fate,) in self._db.read_locked("fate_of_orphan", **lease._asdict(), requeues_max=REQUEUES_MAX):
                self._end_by_fate(lease, fate, why)
                settle(self._db)
                return {"pending": Status.PENDING, "cancelled": Status.CANCELLED}.get(fate, Status.FAILED)
            raise lease_error(self._db, lease)

    def _end_by_fate(self, lease: Lease, fate: str, why: Failure) -> None:
        if fate == "pending":
            self._end(lease, "requeued", "requeue", why)
        elif fate == "cancelled":
            self._end_cancelled(lease, why.usage)
        elif fate == "at most once":
            detail = may_have_run_detail(why.code, why.message)
            self._end(lease, "failed", "fail", Failure(MAY_HAVE_RUN, detail, why.usage, MAY_HAVE_RUN_REMEDY))
        else:
            detail = f"{why.message}, for the {REQUEUES_MAX + 1}th time"
            self._end(lease, "failed", "fail", Failure("REQUEUED_TOO_OFTEN", detail, why.usage))

    def _end_cancelled(self, lease: Lease, usage: Usage) -> None:
        for document_id, generation in self._db.read_locked("stale_work", job_id=lease.job_id):
            detail = f"generation {generation} of document {document_id} is no longer the newest"
            self._end(lease, "cancelled", "confirm_cancel_stale", Failure(STALE, detail, usage))
            return
        self._end(lease, "cancelled", "confirm_cancel", Failure("CANCELLED", "cancellation was requested", usage))

    def _end(
        self, lease: Lease, outcome: str, statement: str, failure: Failure | None = None, **values: object
    ) -> None:
        row: dict[str, object] = {"error_code": None, "error_message": None, "error_remedy": None}
        if failure is not None:
            row = {"error_code": failure.code, "error_message": failure.message, "error_remedy": failure.remedy or None}
        usage = asdict(failure.usage if failure else Usage())
        row |= {**lease._asdict(), **values, "now": self._db.now()}
        if not self._db.write("close_attempt", **row, **usage, outcome=outcome):
            raise lease_error(self._db, lease)
        self._db.write(statement, **row)

    def rest_source(self, source: str, until: datetime, reason: str) -> None:
        with self._db.transaction():
            self._db.write("rest_source", source=source, until=as_text(until), reason=reason)

    # ── Questions of the daemon ──

    def leases_of(self, worker_id: str) -> Sequence[LeaseRow]:
        return [
            LeaseRow(Lease(job_id, fence, worker_id), *map(bool, flags))
            for job_id, fence, *flags in self._db.read("leases_of", worker_id=worker_id)
        ]

    def next_deadline(self) -> datetime | None:
        """Return when a held job becomes due, or a pause or rest ends."""
        at = self._db.read_value("next_deadline", now=self._db.now())
        return from_text(at) if at else None

    def comes_due(self, worker_id: str, until: datetime) -> bool:
        """Return True if a job for this worker waits only for a time before `until`."""
        return self._db.read_flag("has_job_due", worker_id=worker_id, until=as_text(until))


def lease_error(db: Database, lease: Lease) -> LeaseLost:
    for (has_newer_generation,) in db.read_locked("requested_cancel", **lease._asdict()):
        why = "works for an older generation" if has_newer_generation else "was asked to stop"
        return CancelRequested(f"job {lease.job_id} {why}: it can only end as cancelled")
    return LeaseLost(f"job {lease.job_id}: fence {lease.fence} is no longer current")


def _is_utf8(value: bytes | None) -> bool:
    try:
        if value is not None:
            value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _progress_columns(report: Report) -> dict[str, str | int | float | None]:
    done, total, unit, rate = report.count or (None, None, None, None)
    return {
        "percent": _whole_percent(report.percent),
        "message": report.message,
        "has_progress": report.percent is not None,
        "has_lines": bool(report.lines),
        "done": done,
        "total": total,
        "unit": unit or None,
        "rate": rate,
    }


def _whole_percent(percent: float | None) -> int:
    # NaN and infinity count as no progress.
    return min(100, max(0, int(percent))) if percent is not None and isfinite(percent) else 0


def _closing_row(done: Completion) -> Row:
    usage, child = done.usage, done.child
    process = (child.pid, child.pid_started, child.sandbox) if child else (None, None, None)
    return (*done.lease, usage.signal, usage.cpu_seconds, usage.memory_peak_bytes, *process, done.node)
