"""A daemon whose children run several jobs each."""

from __future__ import annotations

import signal
from collections import Counter

from tests.kit.system import System, is_running, wait_until
from tests.store.kit import ids
from worker_service.jobs.job import NewJob, Status
from worker_service.jobs.selector import Selector


def many(system: System, job_type: str, number: int, *, owner: str = "", payload: str = "{}") -> list[int]:
    made = system.store.intake.enqueue_many([NewJob(job_type, payload=payload, owner=owner)] * number)
    return [one.job_id for one in made]


def pid_of(system: System, job_id: int) -> int:
    [attempt] = system.store.history.attempts(job_id)
    return attempt.pid or 0


def test_many_small_jobs_share_children_and_each_has_an_attempt_of_its_own(system: System) -> None:
    jobs = many(system, "kept", 200)
    system.start()
    system.wait_for_all(Status.COMPLETED, 200)

    attempts = [attempt for job_id in jobs for attempt in system.store.history.attempts(job_id)]
    assert Counter(attempt.outcome for attempt in attempts) == {"completed": 200}
    assert {attempt.sandbox for attempt in attempts} == {"landlock+seccomp"}
    assert all(attempt.pid and attempt.memory_peak_bytes and attempt.cpu_seconds is not None for attempt in attempts)
    served = Counter(attempt.pid for attempt in attempts)
    assert max(served.values()) == 20
    assert len(served) < 100
    assert [line.line for line in system.store.history.logs(jobs[-1])] == ["a line"]
    system.assert_sound()


def test_what_was_claimed_ahead_of_a_long_job_is_run_elsewhere(system: System) -> None:
    system.start(concurrency=2)
    many(system, "kept_sleep", 40, payload='{"seconds": 0}')
    system.wait_for_all(Status.COMPLETED, 40)
    [long] = many(system, "kept_sleep", 1, payload='{"seconds": 600}')
    many(system, "kept_sleep", 60, payload='{"seconds": 0}')

    system.wait_for_all(Status.COMPLETED, 100)

    assert system.status(long) is Status.RUNNING
    system.assert_sound()


def test_p9_a_job_of_another_type_is_not_overtaken_for_ever(system: System) -> None:
    system.start(concurrency=1)
    many(system, "kept", 3000)
    system.wait_for_all(Status.COMPLETED, 20)
    other = system.store.intake.enqueue(NewJob("noop", payload="{}", priority=1)).job_id

    system.wait_for(other, Status.COMPLETED)

    assert system.store.job_queries.count(Selector(statuses=(Status.COMPLETED,))) < 3000


def test_p7_a_cancelled_one_is_gone_before_its_row_says_so_and_the_others_go_on(system: System) -> None:
    system.start(concurrency=1)
    [long, *others] = many(system, "kept_sleep", 3, payload='{"seconds": 600}')
    [pid] = system.pids_of(long)
    system.store.job_control.cancel(ids(long), actor="test")
    system.wait_for(long, Status.CANCELLED)

    assert not is_running(pid)
    system.pids_of(others[0])
    assert pid_of(system, others[0]) != pid
    system.store.job_control.cancel(ids(*others), actor="test")
    system.wait_for_all(Status.CANCELLED, 3)


def test_after_kill_9_what_was_claimed_ahead_is_taken_back_and_runs_once(system: System) -> None:
    first = system.start()
    jobs = many(system, "kept", 300)
    system.wait_for_all(Status.COMPLETED, 60)
    first.signal(signal.SIGKILL)
    first.ends()

    system.start()
    system.wait_for_all(Status.COMPLETED, len(jobs))

    ends = Counter(tuple(system.outcomes(job_id)) for job_id in jobs)
    # Released: what waits too long behind another in one child goes back, not begun.
    assert {last for *_, last in ends} == {"completed"}
    assert {outcome for *before, _ in ends for outcome in before} <= {"requeued", "released"}
    system.assert_sound()


def test_a_stop_gives_back_what_was_not_begun(system: System) -> None:
    daemon = system.start(concurrency=1, grace_period=1)
    jobs = many(system, "kept", 2000)
    system.wait_for_all(Status.COMPLETED, 100)
    daemon.signal(signal.SIGTERM)

    assert daemon.ends() == 0
    assert system.store.job_queries.count(Selector(statuses=(Status.RUNNING,))) == 0
    assert {system.job(job_id).retry_count for job_id in jobs[-50:]} == {0}
    system.assert_sound()


def test_others_insert_while_it_runs_flat_out(system: System) -> None:
    daemon = system.start()
    many(system, "kept", 6_000)
    system.wait_for_all(Status.COMPLETED, 100)
    statement = "INSERT INTO worker_job_queue (job_type, platform) VALUES ('noop', 'local')"
    for _ in range(15):
        inserted = system.sqlite3(statement)
        assert inserted.returncode == 0, inserted.stderr
    daemon.signal(signal.SIGTERM)
    wait_until(lambda: daemon.process.poll() is not None, "the daemon ends")
