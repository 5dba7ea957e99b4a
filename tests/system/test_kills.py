from __future__ import annotations

import os
import signal
import time

import pytest

from tests.kit.system import System, is_running, wait_until
from worker_service.jobs.job import NewJob, Status


def test_after_kill_9_a_restarted_daemon_requeues_the_jobs_at_once(system: System) -> None:
    jobs = [system.enqueue("sleep"), system.enqueue("sleep", grandchild=True)]
    first = system.start()
    pids = [*system.pids_of(jobs[0]), *system.pids_of(jobs[1], 2)]

    first.signal(signal.SIGKILL)
    first.wait_for_exit()
    began = time.monotonic()
    second = system.start()
    second.wait_for("job.requeued", 2)
    took = time.monotonic() - began

    wait_until(lambda: all(system.job(job).fence == 2 for job in jobs), "both are claimed again")
    assert took < 1.5 + 2.0, "1.5 s on a machine that has nothing else to do"
    assert [pid for pid in pids if is_running(pid)] == []
    assert [system.job(job).requeue_count for job in jobs] == [1, 1]
    assert [system.job(job).retry_count for job in jobs] == [0, 0]
    assert [system.outcomes(job)[0] for job in jobs] == ["requeued", "requeued"]
    system.assert_sound()


def test_jobs_are_requeued_while_handlers_are_still_imported(system: System) -> None:
    job = system.enqueue("sleep")
    first = system.start()
    system.pids_of(job)
    first.signal(signal.SIGKILL)
    first.wait_for_exit()
    may_import = system.place / "may_import"
    system.install(
        "slow_to_import",
        f"""
import pathlib, time
while not pathlib.Path({str(may_import)!r}).exists():
    time.sleep(0.01)
handlers = []
""",
    )

    second = system.begin()
    system.wait_for(job, Status.PENDING)
    assert second.events("daemon.started") == []
    may_import.touch()

    second.wait_for("daemon.started")
    wait_until(lambda: system.job(job).fence == 2, "it is claimed again")


def test_a_killed_fork_server_is_restarted_and_its_jobs_released(system: System) -> None:
    job = system.enqueue("sleep")
    daemon = system.start()
    [pid] = system.pids_of(job)

    [fork_server] = daemon.fork_server_pids()
    os.kill(fork_server, signal.SIGKILL)

    daemon.wait_for("nursery.restarted")
    wait_until(lambda: system.outcomes(job)[0] is not None, "the attempt has ended")
    assert not is_running(pid)
    assert (system.outcomes(job)[0], system.job(job).retry_count) == ("released", 0)
    other = system.enqueue("noop")
    system.wait_for(other, Status.COMPLETED)


def test_a_worker_that_cannot_beat_stops_its_jobs_before_others_requeue_them(system: System) -> None:
    daemon = system.start(orphan_after=2, heartbeat_interval=0.2)
    job = system.enqueue("sleep", grandchild=True)
    pids = system.pids_of(job, 2)

    refuse = "BEGIN SELECT RAISE(ABORT, 'no beats'); END"
    system.sqlite3(f"CREATE TRIGGER no_beats BEFORE UPDATE OF heartbeat_at ON worker {refuse}")

    daemon.wait_for("worker.fenced")
    [fenced] = daemon.events("worker.fenced")
    assert float(str(fenced["silent_seconds"])) < 2.0 + 2.0, "2 s for a machine that is busy"
    system.wait_for(job, Status.PENDING)
    assert [pid for pid in pids if is_running(pid)] == []
    other = system.enqueue("noop")
    daemon.wait_for("beat.failed", len(daemon.events("beat.failed")) + 3)
    assert [system.status(each) for each in (job, other)] == [Status.PENDING] * 2, "nothing is claimed"

    system.sqlite3("DROP TRIGGER no_beats")

    system.wait_for(other, Status.COMPLETED)
    wait_until(lambda: system.job(job).fence == 2, "it is claimed again")
    assert (system.outcomes(job)[0], system.job(job).retry_count) == ("released", 0)
    system.assert_sound()


def test_a_daemon_that_was_suspended_too_long_has_lost_its_jobs(system: System) -> None:
    scaled = {"orphan_after": 2, "heartbeat_interval": 0.2, "recovery_interval": 0.2}
    sleeper = system.start(**scaled)
    job = system.enqueue("sleep", seconds=600)
    [pid] = system.pids_of(job)

    sleeper.suspend(system.database)
    other = system.start(**scaled)
    other.wait_for("worker.rescued")
    wait_until(lambda: system.job(job).fence == 2, "the other has claimed it")
    assert not is_running(pid)
    sleeper.signal(signal.SIGCONT)

    sleeper.wait_for("worker.registered")
    assert system.status(job) is Status.RUNNING
    assert system.outcomes(job) == ["requeued", None]
    assert len(system.store.overview.workers()) == 2
    next_job = system.enqueue("noop")
    system.wait_for(next_job, Status.COMPLETED)
    system.assert_sound()


def test_a_suspended_daemon_continues_jobs_that_were_not_requeued(system: System) -> None:
    daemon = system.start(orphan_after=2, heartbeat_interval=0.2)
    job = system.enqueue("sleep")
    [pid] = system.pids_of(job)
    [stood_still] = system.store.overview.workers()

    daemon.suspend(system.database)
    silent_since = time.monotonic()
    wait_until(lambda: time.monotonic() - silent_since > 2.2, "it has been silent for longer than `orphan_after`")
    daemon.signal(signal.SIGCONT)

    system.wait_for(system.enqueue("noop"), Status.COMPLETED)
    [goes_on] = system.store.overview.workers()
    assert goes_on.heartbeat_at > stood_still.heartbeat_at
    assert (system.status(job), system.outcomes(job), is_running(pid)) == (Status.RUNNING, [None], True)
    assert daemon.events("worker.fenced") == daemon.events("job.stopped") == []


ONCE = """
import os, time
from pathlib import Path
from worker_service.handlers import Handler

def run(context):
    with Path(context.payload["calls"]).open("a") as calls:
        calls.write("called\\n")
    context.log(f"pid {os.getpid()}")
    time.sleep(600)

handlers = [Handler("once", run, dict, sandbox="off", at_most_once=True)]
"""


@pytest.mark.parametrize("killed", ["child", "fork server", "daemon"])
def test_an_at_most_once_job_that_had_started_does_not_run_again(system: System, killed: str) -> None:
    calls = system.place / "calls"
    system.install("sends", ONCE)
    daemon = system.start()
    job = system.store.intake.enqueue(NewJob("once", payload=f'{{"calls": "{calls}"}}')).job_id
    [pid] = system.pids_of(job)

    if killed == "child":
        os.kill(pid, signal.SIGKILL)
    elif killed == "fork server":
        [fork_server] = daemon.fork_server_pids()
        os.kill(fork_server, signal.SIGKILL)
    else:
        daemon.signal(signal.SIGKILL)
        daemon.wait_for_exit()
        system.start()

    assert system.wait_for(job, Status.FAILED).error_code == "MAY_HAVE_RUN"
    system.wait_for(system.enqueue("noop"), Status.COMPLETED)
    assert (calls.read_text(), system.outcomes(job), is_running(pid)) == ("called\n", ["failed"], False)


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_a_daemon_whose_database_is_deleted_stops_with_its_children(system: System, suffix: str) -> None:
    job = system.enqueue("sleep")
    daemon = system.start()
    [pid] = system.pids_of(job)

    system.database.with_name(f"pagemill.db{suffix}").unlink()

    assert daemon.wait_for_exit() == 74
    [event] = daemon.events("database.replaced")
    assert f"{suffix} was deleted" in str(event["reason"])
    assert not is_running(pid)


LEAVER = """
import subprocess, time
from worker_service.handlers import Handler, Limits

def run(context):
    left = subprocess.Popen(["sh", "-c", "while :; do sleep 0.05; done"], start_new_session=True, env={})
    context.log(f"pid {left.pid}")
    time.sleep(600)

handlers = [Handler("leaver", run, dict, sandbox="off")]
"""


def test_p7_processes_of_a_dead_attempt_are_gone_before_the_next(system: System) -> None:
    system.install("leaver", LEAVER)
    first = system.start()
    job = system.enqueue("leaver")
    [left] = system.pids_of(job)
    [fork_server] = first.fork_server_pids()

    # All at once: neither of them has a moment to clean up after the other.
    first.suspend(system.database)
    os.kill(fork_server, signal.SIGKILL)
    first.signal(signal.SIGKILL)
    first.wait_for_exit()
    assert is_running(left)
    system.start()

    system.pids_of(job, 2)
    assert not is_running(left)
