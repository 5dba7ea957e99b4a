"""Batches under a real daemon: stopped and gone on with, by verbs and by hand, with the daemon killed around both."""

from __future__ import annotations

import signal

from tests.full_length import short
from tests.kit.system import System, wait_until
from worker_service.jobs.batches import BatchState, NewBatch
from worker_service.jobs.job import NewJob, Status
from worker_service.jobs.selector import Selector


def add(system: System, jobs: list[NewJob]) -> int:
    return system.store.batches.add(NewBatch("ann", "reports"), jobs).batch.id


def number(system: System, batch_id: int, *statuses: Status) -> int:
    return system.store.job_queries.count(Selector(batch_id=batch_id, statuses=statuses))


def wait_for_state(system: System, batch_id: int, state: BatchState) -> None:
    # Two hundred jobs, on a machine that has other things to do.
    wait_until(lambda: system.store.batches.get(batch_id).state is state, f"the batch is {state}", seconds=90)


def test_a_daemon_that_is_killed_around_stop_and_resume_loses_nothing_and_does_nothing_twice(system: System) -> None:
    jobs = 40
    batch_id = add(system, [NewJob("chaos", payload='{"seconds":0.02}') for _ in range(jobs)])

    for third in short((1,), full=(1, 2)):
        daemon = system.start()
        wait_until(lambda: number(system, batch_id, Status.COMPLETED) >= third * jobs // 3, "some are done")  # noqa: B023
        system.store.batches.stop(batch_id, actor="ann")
        daemon.signal(signal.SIGKILL)
        assert daemon.ends() == -signal.SIGKILL
        daemon = system.start()
        wait_until(lambda: not number(system, batch_id, Status.RUNNING), "what ran was taken back")
        done = number(system, batch_id, Status.COMPLETED)
        other = system.enqueue()
        system.wait_for(other, Status.COMPLETED)
        assert number(system, batch_id, Status.COMPLETED) == done
        system.store.batches.resume(batch_id, actor="ann")
        daemon.signal(signal.SIGKILL)
        assert daemon.ends() == -signal.SIGKILL

    system.start()
    wait_for_state(system, batch_id, BatchState.DONE)
    of_batch = system.store.job_queries.list(Selector(batch_id=batch_id), most=1000)
    assert {job.status for job in of_batch} == {Status.COMPLETED}
    parents = [job.parent_id for job in of_batch if job.job_type == "fetch"]
    assert sorted(map(int, filter(None, parents))) == [job.id for job in reversed(of_batch) if job.job_type == "chaos"]
    system.assert_sound()
