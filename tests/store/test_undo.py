"""Undo, on databases in random states: each changed job is restored, or refused with a reason.

PAGEMILL_FULL=1 tries over ten times as many.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.full_length import short
from tests.store.kit import EVERY_JOB, all_jobs, change
from tests.store.random_databases import Step, a_world, steps
from worker_service.base.errors import Refused
from worker_service.jobs.job import Job, Status


def _standing(job: Job) -> tuple[Status, int, int]:
    """A job that was asked to stop counts as cancelled."""
    return Status.CANCELLED if job.cancel_requested_at else job.status, job.fence, job.priority


@settings(max_examples=short(40, full=800), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=steps, verb=st.sampled_from(["cancel", "retry", "delete", "priority"]), since=steps)
def test_an_undo_reverses_unchanged_jobs_and_refuses_the_others(
    steps: list[Step], verb: str, since: list[Step]
) -> None:
    with a_world() as world:
        world.walk(steps)
        world.settle()
        before = all_jobs(world.store)
        changed = change(world.store, verb, EVERY_JOB)
        if changed.action_id is None:
            assert all_jobs(world.store) == before
            return
        left = all_jobs(world.store)
        world.walk([step for step in since[:4] if "undo" not in step])
        world.settle()
        now = all_jobs(world.store)

        if verb == "delete":
            with pytest.raises(Refused):
                world.store.job_control.undo(changed.action_id, actor="ann")
            assert all_jobs(world.store) == now
            return
        undone = world.store.job_control.undo(changed.action_id, actor="ann")

        after = all_jobs(world.store)
        assert sorted([*undone.job_ids, *undone.refused]) == sorted([*changed.job_ids, *changed.asked])
        for job_id in [*changed.job_ids, *changed.asked]:
            if job_id not in now:
                assert undone.refused[job_id] == "there is no such job"
                continue
            has_moved = _standing(now[job_id]) != _standing(left[job_id])
            if has_moved or (verb == "cancel" and now[job_id].status is Status.RUNNING):
                assert "it has moved since" in undone.refused[job_id] or verb == "cancel"
            elif verb != "cancel":
                assert job_id in undone.job_ids, undone.refused[job_id]
        for job_id in undone.job_ids:
            becomes = {"cancel": Status.PENDING, "retry": Status.CANCELLED, "priority": now[job_id].status}
            assert (after[job_id].status, after[job_id].priority) == (becomes[verb], before[job_id].priority)
