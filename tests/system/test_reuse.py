from __future__ import annotations

import signal
from collections import Counter

from tests.kit.system import System, wait_until
from worker_service.jobs.job import NewJob, Status
from worker_service.jobs.selector import Selector


def many(system: System, job_type: str, number: int, *, owner: str = "", payload: str = "{}") -> list[int]:
    made = system.store.intake.enqueue_many([NewJob(job_type, payload=payload, owner=owner)] * number)
    return [enqueued.job_id for enqueued in made]


def test_small_jobs_share_children_and_have_their_own_attempts(system: System) -> None:
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


def test_p9_a_job_of_another_type_is_not_starved(system: System) -> None:
    system.start(concurrency=1)
    many(system, "kept", 3000)
    system.wait_for_all(Status.COMPLETED, 20)
    other = system.store.intake.enqueue(NewJob("noop", payload="{}", priority=1)).job_id

    system.wait_for(other, Status.COMPLETED)

    assert system.store.job_queries.count(Selector(statuses=(Status.COMPLETED,))) < 3000


def test_after_kill_9_jobs_that_were_claimed_ahead_run_once(system: System) -> None:
    first = system.start()
    jobs = many(system, "kept", 300)
    system.wait_for_all(Status.COMPLETED, 60)
    first.signal(signal.SIGKILL)
    first.wait_for_exit()

    system.start()
    system.wait_for_all(Status.COMPLETED, len(jobs))

    ends = Counter(tuple(system.outcomes(job_id)) for job_id in jobs)
    # Released: what waits too long behind another in one child goes back, not begun.
    assert {last for *_, last in ends} == {"completed"}
    assert {outcome for *before, _ in ends for outcome in before} <= {"requeued", "released"}
    system.assert_sound()


def test_a_stop_releases_jobs_that_have_not_started(system: System) -> None:
    daemon = system.start(concurrency=1, grace_period=1)
    jobs = many(system, "kept", 2000)
    system.wait_for_all(Status.COMPLETED, 100)
    daemon.signal(signal.SIGTERM)

    assert daemon.wait_for_exit() == 0
    assert system.store.job_queries.count(Selector(statuses=(Status.RUNNING,))) == 0
    assert {system.job(job_id).retry_count for job_id in jobs[-50:]} == {0}
    system.assert_sound()


def test_other_programs_can_insert_while_the_daemon_is_busy(system: System) -> None:
    daemon = system.start()
    many(system, "kept", 6_000)
    system.wait_for_all(Status.COMPLETED, 100)
    statement = "INSERT INTO worker_job_queue (job_type, platform) VALUES ('noop', 'local')"
    for _ in range(15):
        inserted = system.sqlite3(statement)
        assert inserted.returncode == 0, inserted.stderr
    daemon.signal(signal.SIGTERM)
    wait_until(lambda: daemon.process.poll() is not None, "the daemon ends")
