"""How much is claimed prefetch of a free slot, and what a slot is."""

from __future__ import annotations

from typing import Protocol

import pytest

from tests.daemon.conftest import MakeAttempt
from worker_service.daemon.attempts import Attempt, Slots
from worker_service.daemon.claiming import MOMENT_SECONDS, PREFETCHED_MOST, Prefetch
from worker_service.jobs.workers import HandlerFacts
from worker_service.runner.messages import Described


def described(reuse: int) -> dict[str, Described]:
    return {"leaf": Described(HandlerFacts("leaf"), reuse=reuse)}


class MakeOne(Protocol):
    def __call__(self, number: int, took_seconds: float | None = None, *, job_type: str = "leaf") -> Attempt: ...


@pytest.fixture
def one(attempt: MakeAttempt) -> MakeOne:
    job = attempt().job

    def make(number: int, took_seconds: float | None = None, *, job_type: str = "leaf") -> Attempt:
        return Attempt(
            job._replace(id=number, job_type=job_type),
            job.lease._replace(job_id=number),
            "cpu",
            took_seconds=took_seconds,
        )

    return make


@pytest.mark.parametrize(
    ("reuse", "took_seconds", "room"),
    [
        (0, 0.0001, None),
        (100, None, None),
        (100, 0.0001, PREFETCHED_MOST - 1),
        (100, MOMENT_SECONDS / 4, 3),
        (3, 0.0001, 2),
        (100, 60.0, None),
    ],
    ids=["not kept", "not known yet", "quick", "slower", "few", "long"],
)
def test_as_many_go_prefetch_as_a_kept_child_gets_done_in_a_moment(
    one: MakeOne, reuse: int, took_seconds: float | None, room: int | None
) -> None:
    slots = Slots({"cpu": 2})
    prefetch = Prefetch(slots)
    prefetch.learn_durations([one(1, took_seconds)])
    slots.add(one(2))

    assert prefetch.room("cpu", described(reuse)) == ({} if room is None else {"leaf": room})


def test_those_beyond_the_slots_take_none(one: MakeOne) -> None:
    slots = Slots({"cpu": 2})
    first, second, third = one(1), one(2), one(3)
    for attempt in (first, second, third):
        slots.add(attempt)

    assert (slots.free("cpu"), slots.used("cpu"), slots.prefetched("cpu"), len(slots)) == (0, 2, 1, 3)
    slots.remove(first)
    assert (slots.free("cpu"), slots.prefetched("cpu")) == (0, 0)
    slots.remove(second)
    assert slots.free("cpu") == 1


def test_what_came_back_not_begun_makes_the_next_claims_smaller(one: MakeOne) -> None:
    slots = Slots({"cpu": 1})
    prefetch = Prefetch(slots)
    prefetch.learn_durations([one(1, 0.0001)])
    prefetch.learn_durations([one(number, 0.1) for number in range(2, 6)])
    slots.add(one(9))

    assert prefetch.room("cpu", described(100)) == {}
