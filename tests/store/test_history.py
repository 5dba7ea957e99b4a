"""The audit finds nothing after any verb of the store, and names each row that breaks a promise."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.store.kit import MovableClock, findings_after, new_worker, open_at, undo
from worker_service.jobs.attempts import Failure
from worker_service.jobs.job import Lease, NewJob, Status
from worker_service.jobs.retries import REQUEUES_MAX
from worker_service.jobs.selector import Selector
from worker_service.store import opening
from worker_service.store.integrity import FINDINGS_PER_STATEMENT_MAX
from worker_service.store.store import Store


@pytest.fixture
def begin(store: Store) -> Callable[..., Lease]:
    """Enqueue a job and claim it."""
    store.workers.register(new_worker("w1"))

    def _begin(key: str | None = None) -> Lease:
        store.intake.enqueue(NewJob("ocr_pages", concurrency_key=key))
        return store.leases.claim("w1", 1)[0].lease

    return _begin


def test_a_history_of_every_verb_is_clean(store: Store, begin: Callable[..., Lease], clock: MovableClock) -> None:
    store.leases.complete(begin("k"))
    store.leases.release(begin("k"))
    store.leases.complete(store.leases.claim("w1", 1)[0].lease)
    store.leases.snooze(begin(), clock.after(5))
    failing = begin()
    store.leases.fail(failing, Failure("X", "x"), retry_at=clock.after(1))
    clock.advance(10)
    for job in store.leases.claim("w1", 9):
        store.leases.fail(job.lease, Failure("X", "x"), retry_at=None)
    begin()
    for _ in range(REQUEUES_MAX + 1):
        store.leases.requeue("w1")
        store.workers.register(new_worker("w1"))
        store.leases.claim("w1", 1)
    ended = Selector(statuses=(Status.FAILED,))
    assert store.job_queries.count(ended) > 1
    retried = store.job_control.retry(ended, actor="ann").action_id
    assert undo(store, retried).job_ids
    store.job_control.cancel(Selector(statuses=(Status.PENDING,)), actor="ann")
    cancelled = begin()
    store.job_control.cancel(Selector(ids=(cancelled.job_id,)), actor="ann")
    store.leases.confirm_cancel(cancelled)

    assert store.integrity.audit() == []


def test_a_clock_stepped_back_breaks_no_promise(store: Store, begin: Callable[..., Lease], clock: MovableClock) -> None:
    store.leases.release(begin("k"))
    clock.advance(-3600)

    store.leases.complete(store.leases.claim("w1", 1)[0].lease)

    assert store.integrity.audit() == []


@pytest.mark.parametrize(
    ("statements", "finding"),
    [
        ("UPDATE worker_job_event SET from_status = 'failed' WHERE to_status = 'running'", "P1: job 1: event"),
        ("UPDATE worker_job_event SET fence = 3", "P1: job 1: event"),
        ("DELETE FROM worker_job_event", "nothing tells how"),
        ("UPDATE worker_job_queue SET status = 'failed'", "P4: job 1 is failed with fence 1"),
        ("UPDATE worker_job_queue SET cancel_requested_at = created_at", "P7: job 1 was asked to stop at"),
        ("UPDATE worker_job_attempt SET outcome = 'failed'", "P5: job 1 is completed, and none of its attempts is"),
        (
            "UPDATE worker_job_attempt SET outcome = NULL, ended_at = NULL",
            "P1: attempt 1 of job 1 (open) has 1 starts and 1 ends",
        ),
        ("DELETE FROM worker_job_attempt", "P1: event 1 of job 1 is about attempt 1, which is not there"),
        (
            "INSERT INTO worker_job_event (job_id, fence, from_status, to_status, at)"
            " SELECT job_id, fence, from_status, to_status, at FROM worker_job_event WHERE to_status = 'completed'",
            "P5: attempt 1 of job 1 (completed) has 1 starts and 2 ends",
        ),
    ],
)
def test_the_audit_names_rows_that_do_not_agree(
    store: Store, begin: Callable[..., Lease], statements: str, finding: str
) -> None:
    store.leases.complete(begin())

    findings = findings_after(store, statements)

    assert [named for named in findings if finding in named], findings
    assert [check.detail for check in store.integrity.check() if check.name == "consistency"] == ["; ".join(findings)]


def test_the_audit_names_jobs_of_one_key_that_overlapped(store: Store, begin: Callable[..., Lease]) -> None:
    first, second = begin("k"), begin("other")
    store.leases.complete(first)
    store.leases.complete(second)
    assert store.integrity.audit() == []

    findings = findings_after(store, "UPDATE worker_job_queue SET concurrency_key = 'k'")

    assert findings == ["P8: job 2 began at event 2, while another with the concurrency_key k ran until event 3"]


def test_the_audit_names_a_job_that_counts_too_few_requeues(store: Store, begin: Callable[..., Lease]) -> None:
    begin()
    store.leases.requeue("w1")
    assert store.integrity.audit() == []

    findings = findings_after(store, "UPDATE worker_job_queue SET requeue_count = 0")

    assert findings == ["P6: job 1 had 0 retries of 3 and 1 requeues of 5, and counts 0 and 0"]


def test_the_audit_limits_the_findings_of_each_rule(store: Store) -> None:
    store.workers.register(new_worker("w1", cpu=1000))
    store.intake.enqueue_many([NewJob("ocr_pages")] * 200)
    for job in store.leases.claim("w1", 200):
        store.leases.complete(job.lease)

    findings = findings_after(store, "UPDATE worker_job_queue SET status = 'failed'")

    assert len(findings) == FINDINGS_PER_STATEMENT_MAX


def test_the_audit_needs_no_earlier_statement(
    monkeypatch: pytest.MonkeyPatch, path: Path, clock: MovableClock, store: Store, begin: Callable[..., Lease]
) -> None:
    store.leases.complete(begin())
    monkeypatch.setattr(opening, "_STATEMENTS", opening._LateStatements())  # as in a new process

    with closing(open_at(path, clock)) as newly_opened:
        findings = findings_after(newly_opened, "DELETE FROM worker_job_event")

    assert findings
