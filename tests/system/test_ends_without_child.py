from __future__ import annotations

from pathlib import Path

from tests.kit.system import System, is_running
from worker_service.jobs.job import NewJob, Status

STUBBORN = """
[commands.stubborn]
argv = ["/bin/sh", "-c", "trap '' TERM; echo pid $$; while :; do sleep 1; done"]
"""


def with_settings(system: System, text: str) -> Path:
    file = system.place / "own.toml"
    file.write_text(text)
    return file


def test_cancel_now_kills_a_running_job_at_once(system: System) -> None:
    daemon = system.start(config=with_settings(system, STUBBORN))
    job = system.enqueue("stubborn")
    [pid] = system.pids_of(job)
    waiting = system.enqueue("no_such_type")

    done = system.run("cancel", "--now", "--yes", str(job), str(waiting))

    assert (done.returncode, done.stdout) == (0, "cancelled 2 jobs\n"), done.stderr
    assert not is_running(pid)
    assert [system.status(job_id) for job_id in (job, waiting)] == [Status.CANCELLED, Status.CANCELLED]
    assert [event["now"] for event in daemon.events("job.stopped")] == [True]
    [attempt] = system.store.history.attempts(job)
    assert (attempt.outcome, attempt.signal) == ("cancelled", "SIGKILL")
    system.assert_sound()


def test_a_manual_cancel_without_grace_kills_a_running_job(system: System) -> None:
    daemon = system.start(config=with_settings(system, STUBBORN))
    job = system.enqueue("stubborn")
    system.pids_of(job)

    done = system.sqlite3(
        f"UPDATE worker_job_attempt SET without_grace = 1 WHERE job_id = {job} AND ended_at IS NULL;"
        f"UPDATE worker_job_queue SET status = 'cancelled' WHERE id = {job};"
    )

    assert done.returncode == 0, done.stderr
    system.wait_for(job, Status.CANCELLED)
    assert True in [event["now"] for event in daemon.events("job.stopped")]


def test_settings_reach_handlers_and_retries_from_the_file(system: System) -> None:
    text = """
    webhook_allow = ["10.0.0.0/8"]
    [commands.show]
    argv = ["/bin/sh", "-c", "echo allowed $WORKER_WEBHOOK_ALLOW; exit 3"]
    env = ["WORKER_WEBHOOK_ALLOW"]
    [retries.show]
    max = 1
    first = "0.1"
    """
    file = with_settings(system, text)
    system.start(config=file)
    job = system.store.intake.enqueue(NewJob("show", max_retries=1)).job_id

    system.wait_for(job, Status.FAILED)

    assert [line.line for line in system.store.history.logs(job)] == ["allowed 10.0.0.0/8"] * 2
    assert system.outcomes(job) == ["retry", "failed"]
