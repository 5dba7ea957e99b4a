"""Which job has a problem, and what would help one that has ended."""

from __future__ import annotations

from worker_service.jobs.model import Job, Status
from worker_service.jobs.selector import Selector
from worker_service.operations.database import Session
from worker_service.operations.overview import dead_ids, workers

_LOOKED_AT_MOST = 100

# Where no other gate holds a job, it starts by itself.
_NO_PROBLEM = {"NOT_YET", "WAITS_FOR", "OWNER_BUSY", "KEY_BUSY", "TYPE_FULL", "SLOTS_FULL", "AHEAD_IN_QUEUE"}


def newest_with_a_problem(session: Session) -> int | None:
    """The newest job that has failed, has lost its worker, or waits for what does not come by itself."""
    reading, checked = session.store.reading, workers(session)
    dead = dead_ids(checked)
    gone = {one.worker.id for one in checked if not one.is_alive}
    failed = reading.list(Selector(statuses=(Status.FAILED,)), most=1)
    live = reading.list(Selector(statuses=(Status.PENDING, Status.RUNNING)), most=_LOOKED_AT_MOST)

    def has_a_problem(job: Job) -> bool:
        if job.status is not Status.PENDING:
            return job.status is Status.FAILED or job.worker_id in gone
        return any(gate.code not in _NO_PROBLEM for gate in reading.explain(job.id, dead=dead))

    newest_first = sorted([*failed, *live], key=lambda job: -job.id)
    return next((job.id for job in newest_first if has_a_problem(job)), None)


def helps(job: Job) -> str:
    """What would help a job that failed or was cancelled; empty: it did neither."""
    retry = f"pagemill retry {job.id}"
    if job.status is Status.CANCELLED:
        return f"to run it again: {retry}"
    if job.status is not Status.FAILED:
        return ""
    if job.retry_count >= job.max_retries > 0:
        return f"it was tried {job.retry_count + 1} times; to run it again: {retry}"
    # It was given up although it had retries left: another attempt would have ended in the same way.
    again = f"pagemill reindex {job.document_id}" if job.document_id is not None else retry
    _, _, remedy = (job.error_message or "").partition(": ")
    return f"{remedy}; then: {again}" if remedy else f"the same would happen again; once it is put right: {again}"
