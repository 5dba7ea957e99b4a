"""Promises hold in every history that is tried, and whoever takes a guard away is found out.

`python -m tests.simulation --minutes 10` tries more of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.full_length import short
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.store_pool import StorePool
from tests.simulation.world import KINDS, Plan, plan_of, play

HISTORIES = short(5, full=60)
"""Within so many, and those below, each mutant is caught; the store and the daemon as they are survive them all."""
FOUND_BY = {
    "complete that overtakes a cancel": 46,
    "job that comes back to a stopped batch ready": 95,
    "row of a dead worker kept": 29,
    "job that comes in ready to a stopped batch": 90,
    "claim that nobody heard of kept": 9,
    "owner limit not counted": 124,
    "report without a fence": 8,
    "progress may fall": 31,
    "a claim that gates do not bind": 124,
    "children of a fenced worker left at work": 56,
    "complete without a fence": 129,
    "release without a fence": 99,
    "fail without a fence": 99,
    "beat without a fence": 72,
    "no cap of requeues": 73,
    "at most once, again": 9,
    "follow-ups of a refused completion": 124,
    "lost children left at work": 72,
    "type limit not counted": 86,
    "completion in two transactions": 123,
    "worker that never fences itself": 56,
    "claim that selects, then updates": 86,
    "requeue that forgets a cancel": 116,
    "requeue of a worker that lives": 86,
    "release that costs a requeue": 63,
    "two of one concurrency key": 6,
    "due jobs never freed": 116,
    "completed before its files are moved": 116,
    "orphans never taken back": 116,
    "batch that nobody sees ending": 116,
    "batch that ends before its jobs": 62,
}
"""The shortest histories that find them, tried first: to look for one takes seconds."""


@pytest.fixture(scope="module")
def stores() -> Iterator[StorePool]:
    with StorePool() as furnished:
        yield furnished


_plans = st.builds(
    Plan,
    seed=st.integers(0, 2**32),
    steps=st.integers(10, 90),
    kinds=st.frozensets(st.sampled_from(KINDS)),
)


@settings(
    max_examples=short(6, full=100),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)
@given(plan=_plans)
def test_whatever_befalls_them_no_promise_is_broken(stores: StorePool, plan: Plan) -> None:
    assert play(plan, stores) == []


def test_no_promise_is_broken_in_the_histories_that_find_out_the_mutants(stores: StorePool) -> None:
    broken = {
        seed: faults for seed in {*range(HISTORIES), *FOUND_BY.values()} if (faults := play(plan_of(seed), stores))
    }

    assert broken == {}


@pytest.mark.parametrize("mutant", [one for one in MUTANTS if one.found_by == "simulation"], ids=lambda one: one.name)
def test_a_guard_that_is_taken_away_is_missed(mutant: Mutant) -> None:
    with mutant.stores() as mutated:
        assert any(play(plan_of(seed), mutated) for seed in (FOUND_BY.get(mutant.name, 0), *range(HISTORIES)))


def test_every_mutant_takes_away_what_is_there_and_somebody_misses_it() -> None:
    assert all(mutant.texts() and mutant.found_by for mutant in MUTANTS)


def test_the_same_plan_is_the_same_history(stores: StorePool) -> None:
    with MUTANTS[0].stores() as mutated:
        seed = FOUND_BY[MUTANTS[0].name]
        first = play(plan_of(seed), mutated)
        again = play(plan_of(seed), mutated)
        with MUTANTS[0].stores() as another:
            elsewhere = play(plan_of(seed), another)

    assert first == again == elsewhere != []
