"""`status`, `workers` and `doctor` beside a real daemon."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

from tests.system.conftest import System
from worker_service.jobs.model import Status


def give(system: System, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "worker_service.commands", *words]
    return subprocess.run(
        command, cwd=system.place, env=system.environment(), capture_output=True, text=True, timeout=60, check=False
    )


def read(done: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(done.stdout)


def test_without_a_worker_the_status_is_critical(system: System) -> None:
    done = give(system, "status")

    assert done.returncode == 2
    assert done.stdout.startswith("CRITICAL: no worker is alive | workers=0 pending=0")


def test_with_a_worker_all_is_well(system: System) -> None:
    job = system.enqueue("sleep")
    daemon = system.start()
    system.wait_for(job, Status.RUNNING)

    status, workers, doctor = give(system, "status"), give(system, "workers", "--json"), give(system, "doctor")

    assert (status.returncode, status.stdout.split(":")[0]) == (0, "OK")
    [worker] = read(workers)["items"]
    assert (worker["pid"], worker["running"], worker["state"]) == (daemon.pid, 1, "alive")
    assert doctor.returncode == 0, doctor.stdout
    assert "✓ integrity: every page is sound" in doctor.stdout


def test_the_doctor_finds_a_worker_that_was_killed(system: System) -> None:
    job = system.enqueue("sleep")
    daemon = system.start()
    system.pids_of(job)
    daemon.signal(signal.SIGKILL)
    daemon.ends()

    done = give(system, "doctor", "--json")
    for _ in range(100):
        # Its children follow it in a moment.
        found = [item for item in read(done)["items"] if item["detail"] == "it is dead, and held 1 jobs"]
        if found:
            break
        done = give(system, "doctor", "--json")

    assert done.returncode == 1
    assert found[0]["level"] == "critical"


def test_what_cannot_be_known_is_unknown(system: System) -> None:
    done = give(system, "status", "--database", str(system.place / "none.db"))

    assert done.returncode == 3
    assert done.stdout.startswith("UNKNOWN: ")
