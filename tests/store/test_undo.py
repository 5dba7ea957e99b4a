"""Undo, on databases in random states: what an action changed is put back, or named with the reason why not.

PAGEMILL_FULL=1 tries over ten times as many.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.length import short
from tests.store.kit import EVERY_JOB, KINDS, Kind, codes, everything
from tests.store.worlds import Step, a_world, steps
from worker_service.jobs.model import Changed, Status
from worker_service.store.base import Store


def _act(store: Store, verb: str) -> Changed:
    match verb:
        case "cancel":
            return store.steering.cancel(EVERY_JOB, actor="ann")
        case "retry":
            return store.steering.retry(EVERY_JOB, actor="ann")
        case "delete":
            return store.steering.delete(EVERY_JOB, actor="ann")
        case _:
            return store.steering.priority(EVERY_JOB, 7, actor="ann")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@settings(max_examples=short(60, full=800), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=steps, verb=st.sampled_from(["cancel", "retry", "delete", "priority"]))
def test_an_undone_action_leaves_every_job_as_it_was(kind: Kind, steps: list[Step], verb: str) -> None:
    with a_world(kind) as world:
        # Who sets held by hand starts a job before its time: an undo gives it back its time.
        world.walk([step for step in steps if "SET held" not in str(step)])
        world.settle()
        before = everything(world.store)
        gates = {job_id: codes(world.store, job_id) for job_id in before}

        changed = _act(world.store, verb)
        if changed.action_id is None:
            assert everything(world.store) == before
            return
        undone = world.store.steering.undo(changed.action_id, actor="ann")

        after = everything(world.store)
        assert sorted([*undone.job_ids, *undone.refused]) == sorted([*changed.job_ids, *changed.asked])
        assert set(undone.refused) == set(changed.asked), undone.refused
        for job_id, job in before.items():
            if job.status is not Status.RUNNING:
                assert after[job_id]._replace(held=job.held) == job
        if not changed.asked:
            assert {job_id: codes(world.store, job_id) for job_id in after} == gates
