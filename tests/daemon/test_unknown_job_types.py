"""Jobs of a type that no worker knows fail after a grace period."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.conftest import context_in
from tests.store.kit import START, MovableClock, new_worker
from worker_service.daemon.chores import FailUnknownTypes
from worker_service.jobs.job import NewJob, Status
from worker_service.jobs.selector import Selector
from worker_service.jobs.workers import allows_type
from worker_service.store.store import Store

GRACE = 3600.0

RunAfter = Callable[[float], float]
"""Advances the clock by some seconds, and runs the chore."""


@pytest.fixture
def run_after(store: Store, clock: MovableClock, log: Any, tmp_path: Path) -> RunAfter:
    context = context_in(tmp_path, store, log, clock, unknown_type_grace=f"{GRACE:g}s")
    chore = FailUnknownTypes(context, {"left_to_others"}, lambda: (clock() - START).total_seconds())

    def run(seconds: float) -> float:
        clock.now += timedelta(seconds=seconds)
        store.leases.beat("w1", ())
        return chore.run()

    return run


def test_a_job_of_an_unknown_type_fails_after_the_grace_period(store: Store, run_after: RunAfter) -> None:
    job = store.intake.enqueue(NewJob("no_such_type")).job_id
    run_after(0)
    run_after(GRACE - 1)
    assert store.job_queries.get(job).status is Status.PENDING

    run_after(1)

    failed = store.job_queries.get(job)
    assert (failed.status, failed.error_code) == (Status.FAILED, "UNKNOWN_TYPE")
    assert failed.error_message == (
        "no worker that lives has had a handler for no_such_type since 2026-11-18 10:00:00.000"
    )
    assert failed.error_remedy == "install it, or correct the job type, then retry"
    assert store.integrity.audit() == []


def test_each_job_has_its_own_grace_period(store: Store, run_after: RunAfter) -> None:
    store.intake.enqueue(NewJob("no_such_type"))
    run_after(0)
    run_after(GRACE - 1)
    late = store.intake.enqueue(NewJob("no_such_type")).job_id
    run_after(GRACE / 2)
    assert store.job_queries.get(late).status is Status.PENDING

    run_after(GRACE)

    assert store.job_queries.get(late).status is Status.FAILED


def test_the_grace_period_restarts_when_the_type_was_known_in_between(store: Store, run_after: RunAfter) -> None:
    job = store.intake.enqueue(NewJob("no_such_type")).job_id
    run_after(0)
    store.workers.register(new_worker("w2", types=["no_such_type"]))
    run_after(60)
    store.workers.deregister("w2")

    run_after(GRACE)
    assert store.job_queries.get(job).status is Status.PENDING
    run_after(GRACE)

    assert store.job_queries.get(job).status is Status.FAILED


def test_held_known_and_excluded_jobs_stay_pending(store: Store, run_after: RunAfter) -> None:
    store.intake.enqueue(NewJob("no_such_type", run_at=START + timedelta(days=30)))
    store.intake.enqueue(NewJob("left_to_others"))
    store.intake.enqueue(NewJob("ocr_pages"))
    run_after(0)

    run_after(GRACE * 2)

    assert store.job_queries.count(Selector(statuses=(Status.PENDING,))) == 3


def test_a_retry_restarts_the_grace_period(store: Store, run_after: RunAfter) -> None:
    job = store.intake.enqueue(NewJob("no_such_type")).job_id
    run_after(0)
    run_after(GRACE)
    store.job_control.retry(Selector(ids=(job,)), actor="a")

    run_after(60)

    assert store.job_queries.get(job).status is Status.PENDING


def test_jobs_that_wait_for_it_fail_too(store: Store, run_after: RunAfter) -> None:
    job = store.intake.enqueue(NewJob("no_such_type")).job_id
    follower = store.intake.enqueue(NewJob("ocr_pages", after=(job,))).job_id
    run_after(0)

    run_after(GRACE)

    assert store.job_queries.get(follower).error_code == "DEPENDENCY_FAILED"


def test_a_long_backlog_fails_in_small_steps(store: Store, run_after: RunAfter) -> None:
    store.intake.enqueue_many([NewJob("no_such_type")] * 700)
    run_after(0)

    seconds_to_next_run = run_after(GRACE)
    assert store.job_queries.count(Selector(statuses=(Status.FAILED,))) == 500
    assert seconds_to_next_run < 1
    run_after(seconds_to_next_run)

    assert store.job_queries.count(Selector(statuses=(Status.FAILED,))) == 700


@pytest.mark.parametrize(
    ("types", "wanted"),
    [((), True), (("a",), True), (("b",), False), (("!a",), False), (("!b",), True), (("a", "!a"), False)],
)
def test_job_types_that_the_setting_allows(types: tuple[str, ...], wanted: bool) -> None:
    assert allows_type(types, "a") is wanted
