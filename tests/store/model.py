"""What a queue does, in memory and in one page: the oracle of the state machine. Unowned jobs of one type."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from worker_service.jobs.model import Lease, Status
from worker_service.jobs.retries import REQUEUES_MAX

PENDING, RUNNING, COMPLETED, FAILED, CANCELLED = Status


@dataclass
class ModelJob:
    id: int
    priority: int
    created_at: datetime
    key: str | None = None
    unique: str | None = None
    run_at: datetime | None = None
    max_retries: int = 3
    status: Status = PENDING
    fence: int = 0
    worker: str | None = None
    retries: int = 0
    requeues: int = 0
    is_asked: bool = False
    percent: int = 0
    outcomes: list[str | None] = field(default_factory=list)
    is_scheduled: bool = False
    """It ended before the start that was set for it."""

    @property
    def turn(self) -> tuple[int, datetime, int]:
        return self.priority, self.created_at, self.id

    def holds(self, lease: Lease) -> bool:
        return (self.status, self.fence, self.worker) == (RUNNING, lease.fence, lease.worker_id)


class ModelQueue:
    """Every method says what the store has to do at this moment, or returns None where it has to refuse."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.jobs: dict[int, ModelJob] = {}
        self.is_paused = False

    def live_with(self, unique: str | None) -> ModelJob | None:
        live = (PENDING, RUNNING)
        return next((j for j in self.jobs.values() if unique and j.unique == unique and j.status in live), None)

    def running(self, worker: str | None = None) -> list[ModelJob]:
        return [j for j in self.jobs.values() if j.status is RUNNING and worker in (None, j.worker)]

    def claim(self, worker: str, most: int, now: datetime) -> list[ModelJob]:
        if self.is_paused:
            return []
        room = min(most, self.slots - len(self.running(worker)))
        busy = {j.key for j in self.running()}
        taken: list[ModelJob] = []
        for job in sorted((j for j in self.jobs.values() if j.status is PENDING), key=lambda j: j.turn):
            if len(taken) >= room or (job.run_at and job.run_at > now) or (job.key and job.key in busy):
                continue
            busy.add(job.key)
            job.status, job.worker, job.fence, job.percent = RUNNING, worker, job.fence + 1, 0
            job.outcomes.append(None)
            taken.append(job)
        return taken

    def report(self, lease: Lease, percent: int) -> bool:
        job = self.jobs.get(lease.job_id)
        if job is None or not job.holds(lease):
            return False
        job.percent = max(job.percent, percent)
        return True

    def _close(self, lease: Lease, *, is_cancel: bool = False) -> ModelJob | None:
        job = self.jobs.get(lease.job_id)
        return job if job and job.holds(lease) and job.is_asked == is_cancel else None

    def complete(self, lease: Lease) -> bool:
        job = self._close(lease)
        if job:
            job.percent = 100
            self._end(job, COMPLETED, "completed")
        return job is not None

    def fail(self, lease: Lease, retry_at: datetime | None) -> bool:
        job = self._close(lease)
        if job and retry_at and job.retries < job.max_retries:
            job.retries += 1
            self._give_back(job, "retry", retry_at)
        elif job:
            self._end(job, FAILED, "failed")
        return job is not None

    def give_back(self, lease: Lease, outcome: str, run_at: datetime | None) -> bool:
        job = self._close(lease)
        if job:
            self._give_back(job, outcome, run_at)
        return job is not None

    def confirm_cancel(self, lease: Lease) -> bool:
        job = self._close(lease, is_cancel=True)
        if job:
            self._end(job, CANCELLED, "cancelled")
        return job is not None

    def requeue(self, worker: str) -> list[int]:
        orphans = self.running(worker)
        for job in orphans:
            if job.is_asked:
                self._end(job, CANCELLED, "cancelled")
            elif job.requeues >= REQUEUES_MAX:
                self._end(job, FAILED, "failed")
            else:
                job.requeues += 1
                self._give_back(job, "requeued", None)
        return [job.id for job in orphans]

    def cancel(self, job_id: int, now: datetime) -> None:
        job = self.jobs[job_id]
        if job.status is RUNNING:
            job.is_asked = True
        elif job.status is PENDING:
            job.status, job.is_asked = CANCELLED, True
            is_retry = job.outcomes[-1:] in (["retry"], ["snoozed"])
            job.is_scheduled = job.run_at is not None and job.run_at > now and not is_retry

    def retry(self, job_id: int) -> None:
        job = self.jobs[job_id]
        if job.status.is_ended and not self.live_with(job.unique):
            job.status, job.is_asked, job.run_at = PENDING, False, job.run_at if job.is_scheduled else None
            job.retries = job.requeues = job.percent = 0
            job.worker = None

    def reprioritise(self, job_id: int, priority: int) -> None:
        if self.jobs[job_id].status is PENDING:
            self.jobs[job_id].priority = priority

    def remove(self, job_id: int) -> bool:
        if self.jobs[job_id].status is RUNNING:
            return False
        del self.jobs[job_id]
        return True

    def _end(self, job: ModelJob, status: Status, outcome: str) -> None:
        job.status, job.is_scheduled = status, False
        job.outcomes[-1] = outcome

    def _give_back(self, job: ModelJob, outcome: str, run_at: datetime | None) -> None:
        job.status, job.worker, job.run_at, job.percent = PENDING, None, run_at, 0
        job.outcomes[-1] = outcome
