"""Invariants of a history: of the gates at any moment, and of all rows at its end."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from tests.simulation.daemons import Daemon
from tests.simulation.watched_store import WatchedStore
from tests.store.kit import EVERY_JOB
from worker_service.jobs.batches import BatchState
from worker_service.jobs.job import Status
from worker_service.jobs.selector import Selector
from worker_service.store.claim_order import claim_values, make_ready


def gate_faults(people: WatchedStore, workers: Sequence[str]) -> Iterator[str]:
    """P12: the jobs without a gate are exactly those that some worker would claim next."""
    free = {
        job_id
        for job_id in people.job_queries.ids(Selector(statuses=(Status.PENDING,)))
        if not people.gates.explain(job_id)
    }
    yield from (sentence for (sentence,) in people.database.read("audit_batches", most=5))
    with people.database.unwatched(), people.database.rehearsal():
        make_ready(people.database, people.database.now())
        next_ones = {
            job_id
            for worker_id in workers
            for job_class in ("cpu", "io")
            for (job_id,) in people.database.read_locked(
                "next_turn", **claim_values(people.database, worker_id, job_class)
            )
        }
    if free != next_ones:
        yield f"P12: {sorted(free)} have no gate, and the next claims would take {sorted(next_ones)}"


def end_faults(people: WatchedStore, daemons: Collection[Daemon], acknowledged: Sequence[int]) -> Iterator[str]:
    """Check all rows after every job has ended."""
    yield from map(str, people.integrity.audit())
    jobs = {job.id: job for job in people.job_queries.list(EVERY_JOB, most=10_000)}
    yield from (f"P3: job {job_id} was acknowledged and is lost" for job_id in acknowledged if job_id not in jobs)
    followed = [job.parent_id for job in jobs.values()]
    published = {key for daemon in daemons for key in daemon.published}
    for job in jobs.values():
        completed = [attempt.fence for attempt in people.history.attempts(job.id) if attempt.outcome == "completed"]
        is_parent = job.job_type != "leaf"
        if followed.count(job.id) != len(completed) * is_parent:
            yield f"P5: job {job.id} completed {len(completed)} times and has {followed.count(job.id)} follow-ups"
        if is_parent and any((job.id, fence) not in published for fence in completed):
            yield f"P5: job {job.id} is completed without its files: {completed}, {sorted(published)}"
        if job.status is Status.COMPLETED and (job.result is None or not completed):
            yield f"P5: job {job.id} is completed without a result"
    live = [batch for batch in people.batches.list() if not batch.state.is_ended]
    yield from (f"P3: all jobs have ended, and {batch} has not" for batch in live)
    for batch in people.batches.list():
        has_failed = any(job.batch_id == batch.id and job.status is not Status.COMPLETED for job in jobs.values())
        if batch.state is BatchState.DONE and has_failed:
            yield f"{batch.title} is done, and a job of it has failed"
    living = [key for daemon in daemons for key in daemon.pool.living]
    if living:
        yield f"P13: {living} live, and no row of theirs runs"
