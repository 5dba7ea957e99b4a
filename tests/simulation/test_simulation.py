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

HISTORIES = short(20, full=60)
"""Within so many, and those below, each mutant is caught; the store and the daemon as they are survive them all."""
FOUND_BY = {
    "complete that overtakes a cancel": 44,
    "job that comes back to a stopped batch ready": 50,
    "row of a dead worker kept": 29,
    "job that comes in ready to a stopped batch": 70,
    "claim that nobody heard of kept": 17,
    "owner limit not counted": 18,
    "report without a fence": 3,
    "progress may fall": 10,
    "a claim that gates do not bind": 3,
    "children of a fenced worker left at work": 7,
    "complete without a fence": 13,
    "release without a fence": 3,
    "fail without a fence": 3,
    "beat without a fence": 1,
    "no cap of requeues": 3,
    "at most once, again": 14,
    "follow-ups of a refused completion": 3,
    "lost children left at work": 29,
    "type limit not counted": 10,
    "completion in two transactions": 21,
    "worker that never fences itself": 7,
    "claim that selects, then updates": 3,
    "requeue that forgets a cancel": 1,
    "requeue of a worker that lives": 1,
    "release that costs a requeue": 1,
}
"""The histories that found them last, tried first: to look for the rare ones takes seconds each. Others: 0."""


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
    max_examples=30,
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
        seed = next(seed for seed in range(HISTORIES) if play(plan_of(seed), mutated))
        first = play(plan_of(seed), mutated)
        again = play(plan_of(seed), mutated)
        with MUTANTS[0].stores() as another:
            elsewhere = play(plan_of(seed), another)

    assert first == again == elsewhere != []
