from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import Any

from tests.kit.system import System, locked, wait_until
from worker_service.jobs.job import Status
from worker_service.jobs.selector import Selector
from worker_service.runner.worker_identity import is_free, lock_path


def read(done: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(done.stdout)


def test_status_workers_and_doctor_are_good_with_a_worker(system: System) -> None:
    job = system.enqueue("sleep")
    daemon = system.start()
    system.wait_for(job, Status.RUNNING)

    status, workers, doctor = system.run("status"), system.run("workers", "--json"), system.run("doctor")

    assert (status.returncode, status.stdout.split(":")[0]) == (0, "OK")
    [worker] = read(workers)["items"]
    assert (worker["pid"], worker["running"], worker["state"]) == (daemon.pid, 1, "alive")
    assert doctor.returncode == 0, doctor.stdout
    assert "✓ integrity: every page is sound" in doctor.stdout


def test_the_doctor_warns_of_a_daemon_that_runs_as_root(system: System) -> None:
    system.start()
    [worker] = system.store.overview.workers()
    lock = lock_path(system.database, worker.id)

    found = {}
    for user in (0, 65534) if os.geteuid() == 0 else (os.geteuid(),):
        os.chown(lock, user, -1)
        found[user] = f"! worker {worker.id}: runs as root" in system.run("doctor").stdout

    assert found == {user: user == 0 for user in found}


def test_after_kill_9_commands_report_the_dead_worker(system: System) -> None:
    job = system.enqueue("sleep")
    daemon = system.start()
    system.pids_of(job)
    daemon.signal(signal.SIGKILL)
    daemon.wait_for_exit()
    [name] = [worker.id for worker in system.store.overview.workers()]
    pending = system.enqueue("sleep")
    # Its children follow it in a moment.
    wait_until(lambda: is_free(lock_path(system.database, name)), "all of it is gone")

    status, workers, doctor = (system.run(*words) for words in (["status"], ["workers", "--json"], ["doctor"]))
    of_running, of_pending = (system.run("why", str(job_id)) for job_id in (job, pending))

    assert (status.returncode, status.stdout.split("|")[0]) == (2, "CRITICAL: no worker is alive (1 dead) ")
    assert [worker["state"] for worker in read(workers)["items"]] == ["dead"]
    assert (doctor.returncode, f"✗ worker {name}: it is dead, and held 1 job\n" in doctor.stdout) == (1, True)
    assert f"on {name}, which is dead\n    next: start a daemon, which puts it back into the queue" in of_running.stdout
    assert of_pending.returncode == 3
    assert of_pending.stdout.startswith(
        f"WORKER_DOWN  worker {name} is dead\n    next: to start a daemon: pagemill run"
    )


def test_the_owner_of_the_write_lock_is_named_by_pid_and_command(system: System) -> None:
    with locked(system.database) as pid:
        check, doctor = system.run("db", "check", "--json"), system.run("doctor")
    after = system.run("db", "check", "--json")

    [found] = [item for item in read(check)["items"] if item["name"] == "write lock"]
    assert (check.returncode, found["is_good"], found["fix"].endswith(f"kill {pid}")) == (1, False, True)
    assert found["detail"].startswith(f"process {pid} (sqlite3 -cmd .timeout 5000 ")
    assert f"✗ write lock: process {pid} (sqlite3 " in doctor.stdout
    assert [item["detail"] for item in read(after)["items"] if item["name"] == "write lock"] == ["free"]


def test_a_command_that_waits_for_the_write_lock_names_its_owner(system: System) -> None:
    words = (["enqueue", "noop"], ["pause", "noop"], ["init"])
    with locked(system.database) as pid:
        waiting = [system.begin_command(*command) for command in words]
        said = [process.stderr.readline() for process in waiting if process.stderr is not None]

    ends = [process.communicate(timeout=60)[1] for process in waiting]
    assert [line.startswith(f"waiting to write: process {pid} (sqlite3 ") for line in said] == [True] * 3
    assert [process.returncode for process in waiting] == [0] * 3
    assert not any("waiting to write" in end for end in ends)
    assert [job.job_type for job in system.store.job_queries.list(Selector())] == ["noop"]
