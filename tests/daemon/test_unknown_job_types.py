"""A job of a type that no worker knows ends, and never too soon."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.conftest import context_in
from tests.store.kit import START, MovableClock, new_worker
from worker_service.daemon.chores import FailUnknown
from worker_service.jobs.job import NewJob, Status
from worker_service.jobs.selector import Selector
from worker_service.store.store import Store

GRACE = 3600.0

Look = Callable[[float], float]
"""So many seconds later."""


@pytest.fixture
def look(store: Store, clock: MovableClock, log: Any, tmp_path: Path) -> Look:
    context = context_in(tmp_path, store, log, clock, unknown_type_grace=f"{GRACE:g}s")
    chore = FailUnknown(context, {"left_to_others"}, lambda: (clock() - START).total_seconds())

    def look(seconds: float) -> float:
        clock.now += timedelta(seconds=seconds)
        store.leases.beat("w1", ())
        return chore.run()

    return look


def test_it_ends_with_a_sentence_once_its_grace_is_over(store: Store, look: Look) -> None:
    job = store.intake.enqueue(NewJob("no_such_type")).job_id
    look(0)
    look(GRACE - 1)
    assert store.job_queries.get(job).status is Status.PENDING

    look(1)

    failed = store.job_queries.get(job)
    assert (failed.status, failed.error_code) == (Status.FAILED, "UNKNOWN_TYPE")
    assert failed.error_message == (
        "no worker that lives has had a handler for no_such_type since 2026-11-18 10:00:00.000"
    )
    assert failed.error_remedy == "install it, or correct the job type, then retry"
    assert store.integrity.audit() == []


def test_a_job_that_came_later_has_a_grace_of_its_own(store: Store, look: Look) -> None:
    store.intake.enqueue(NewJob("no_such_type"))
    look(0)
    look(GRACE - 1)
    late = store.intake.enqueue(NewJob("no_such_type")).job_id
    look(GRACE / 2)
    assert store.job_queries.get(late).status is Status.PENDING

    look(GRACE)

    assert store.job_queries.get(late).status is Status.FAILED


def test_a_type_that_was_known_in_between_begins_anew(store: Store, look: Look) -> None:
    job = store.intake.enqueue(NewJob("no_such_type")).job_id
    look(0)
    store.workers.register(new_worker("w2", types=["no_such_type"]))
    look(60)
    store.workers.deregister("w2")

    look(GRACE)
    assert store.job_queries.get(job).status is Status.PENDING
    look(GRACE)

    assert store.job_queries.get(job).status is Status.FAILED


def test_a_job_that_is_held_or_paused_known_or_left_to_others_stays(store: Store, look: Look) -> None:
    store.intake.enqueue(NewJob("no_such_type", run_at=START + timedelta(days=30)))
    store.intake.enqueue(NewJob("left_to_others"))
    store.intake.enqueue(NewJob("ocr_pages"))
    look(0)

    look(GRACE * 2)

    assert store.job_queries.count(Selector(statuses=(Status.PENDING,))) == 3


def test_after_a_retry_the_grace_counts_from_then(store: Store, look: Look) -> None:
    job = store.intake.enqueue(NewJob("no_such_type")).job_id
    look(0)
    look(GRACE)
    store.job_control.retry(Selector(ids=(job,)), actor="a")

    look(60)

    assert store.job_queries.get(job).status is Status.PENDING


def test_what_waits_for_it_fails_with_it(store: Store, look: Look) -> None:
    job = store.intake.enqueue(NewJob("no_such_type")).job_id
    follower = store.intake.enqueue(NewJob("ocr_pages", after=(job,))).job_id
    look(0)

    look(GRACE)

    assert store.job_queries.get(follower).error_code == "DEPENDENCY_FAILED"


def test_a_long_backlog_goes_in_pieces_soon_after_each_other(store: Store, look: Look) -> None:
    store.intake.enqueue_many([NewJob("no_such_type")] * 700)
    look(0)

    again = look(GRACE)
    assert store.job_queries.count(Selector(statuses=(Status.FAILED,))) == 500
    assert again < 1
    look(again)

    assert store.job_queries.count(Selector(statuses=(Status.FAILED,))) == 700
