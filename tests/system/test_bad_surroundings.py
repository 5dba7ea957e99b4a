from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.full_length import short
from tests.kit.system import Daemon, System, locked, wait_until
from worker_service.jobs.job import Status
from worker_service.jobs.selector import Selector

LOCKED_SECONDS = short(2.5, full=20.0)
CRASHES = short(20, full=1000)
HOUR = 3600.0


# ── Somebody else has the lock ──


def test_after_a_long_write_lock_all_outcomes_are_written(system: System) -> None:
    daemon = system.start(orphan_after=300)
    jobs = [system.enqueue("chaos", seconds=0.5) for _ in range(4)]
    wait_until(lambda: system.store.job_queries.count(Selector(statuses=(Status.RUNNING,))), "one runs")

    with locked(system.database):
        time.sleep(LOCKED_SECONDS)  # the subject is a lock of this length
        assert daemon.process.poll() is None
    jobs.append(system.enqueue("chaos"))

    for job in jobs:
        system.wait_for(job, Status.COMPLETED)
    assert [system.outcomes(job) for job in jobs] == [["completed"]] * len(jobs)
    assert daemon.process.poll() is None
    assert daemon.events("store.locked")
    system.assert_sound()


# ── Nothing can be written any more ──


@contextmanager
def unwritable(*places: Path) -> Iterator[None]:
    """Make files immutable, for root and for open descriptors too."""
    done = subprocess.run(["chattr", "+i", *places], check=False, capture_output=True)
    if done.returncode:
        subprocess.run(["chattr", "-i", *places], check=False, capture_output=True)
        pytest.skip("files cannot be made immutable here: only root can, on a file system that has it")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", *places], check=True)


def files_of(system: System) -> list[Path]:
    files = [system.database, system.database.with_name("pagemill.db-wal")]
    return [file for file in files if file.exists()]


def test_a_daemon_waits_for_a_database_that_becomes_read_only(system: System) -> None:
    daemon = system.start(heartbeat_interval=0.2)
    job = system.enqueue("sleep", seconds=1)
    waiting = [system.enqueue("chaos") for _ in range(3)]
    system.pids_of(job)

    with unwritable(*files_of(system)):
        wait_until(lambda: daemon.events("store.unavailable"), "it says so")
        daemon.wait_for("beat.failed")
        assert daemon.process.poll() is None
    assert all(line["code"] and line["remedy"] for line in daemon.events("store.unavailable"))

    for job_id in (job, *waiting):
        system.wait_for(job_id, Status.COMPLETED)
        assert system.outcomes(job_id).count("completed") == 1
    assert daemon.process.poll() is None
    assert "cannot be" in reasons(daemon) or "may not be written" in reasons(daemon), reasons(daemon)
    system.assert_sound()


def reasons(daemon: Daemon) -> str:
    return "; ".join(str(event.get("reason")) for event in daemon.events("store.unavailable"))


# ── The wall clock is wrong ──


class WrongClock:
    """A daemon whose wall clock a test can step."""

    def __init__(self, system: System) -> None:
        self._said = system.place / "clock"
        self.step(0)
        log = system.place / "wrong-clock.log"
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.system.moved_clock"],
                cwd=system.place,
                env=system.environment(heartbeat_interval=0.1, orphan_after=60, recovery_interval=0.1)
                | {"PAGEMILL_CLOCK": str(self._said)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.daemon = Daemon(self.process, log)

    def step(self, seconds: float) -> None:
        unfinished = self._said.with_suffix(".new")
        unfinished.write_text(str(seconds))
        unfinished.replace(self._said)

    def end(self) -> int:
        self.process.terminate()
        return self.daemon.wait_for_exit()


def test_a_step_of_the_wall_clock_costs_no_lease_and_keeps_no_dead_one(system: System) -> None:
    first, second = WrongClock(system), system.start(heartbeat_interval=0.1, orphan_after=60, recovery_interval=0.1)
    try:
        first.daemon.wait_for("daemon.started")
        for step in (HOUR, -HOUR):
            first.step(0)
            jobs = [system.enqueue("sleep", seconds=1) for _ in range(3)]
            for job in jobs:
                system.pids_of(job)

            first.step(step)
            jobs += [system.enqueue("chaos") for _ in range(6)]

            for job in jobs:
                system.wait_for(job, Status.COMPLETED)
            assert [system.outcomes(job) for job in jobs] == [["completed"]] * len(jobs), "each ran once"
        assert not [*first.daemon.events("worker.rescued"), *second.events("worker.rescued")]
        assert not [*first.daemon.events("worker.fenced"), *second.events("worker.fenced")]
        system.assert_sound()
    finally:
        code = first.end()
    assert code == 0


# ── A thousand handlers crash, one after the other ──


@pytest.mark.timeout(600)
def test_many_crashing_handlers_disturb_no_other_job(system: System) -> None:
    crashing = [system.enqueue("fail", how="crash", max_retries=0) for _ in range(CRASHES)]
    daemon = system.start(concurrency=4)
    good = [system.enqueue("chaos") for _ in range(5)]

    deadline = time.monotonic() + 60 + CRASHES / 5
    while system.store.job_queries.count(Selector(statuses=(Status.FAILED,))) < CRASHES:
        assert time.monotonic() < deadline, daemon.log.read_text()[-2000:]
        assert daemon.process.poll() is None
        time.sleep(0.05)

    for job in good:
        system.wait_for(job, Status.COMPLETED)
    for job in crashing:
        assert (system.status(job), system.job(job).error_code) == (Status.FAILED, "CRASHED")
    assert [attempt.signal for attempt in system.store.history.attempts(crashing[0])] == ["SIGABRT"]
    assert not daemon.events("nursery.died")
    system.wait_for_all(Status.COMPLETED, 2 * len(good))  # their follow-ups, too
    staging = system.workspace / "staging"

    def is_left() -> bool:
        """Ignore the empty directories of children that have no attempt yet."""
        homes = {*staging.glob("*/child-*"), *staging.glob("*/child-*/staging")}
        return {*staging.glob("*/*-*"), *staging.glob("*/*-*/**/*")} > homes

    wait_until(lambda: not is_left(), "nothing is left in staging")
    system.assert_sound()


@pytest.mark.parametrize(
    ("limit", "command", "detail"),
    [
        ("-n 40", "worker_service", "limit of open files is 40"),
        # Python itself starts with 60 MB, but cannot import all libraries.
        ("-v 60000", "worker_service", "limit of address space is 58 MiB"),
        ("-v 120000", "worker_service.cli run", "limit of address space is 117 MiB"),
    ],
)
def test_a_daemon_whose_limits_are_too_low_names_the_limit(
    system: System, limit: str, command: str, detail: str
) -> None:
    words = ["sh", "-c", f'ulimit {limit}; exec "$0" -m {command}', sys.executable]
    done = subprocess.run(words, env=system.environment(), capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 78
    assert detail in done.stderr
    assert len(done.stderr.splitlines()) == 1


def on_a_read_only_file_system(system: System, *command: str) -> subprocess.CompletedProcess[str]:
    script = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'
    place = system.database.parent
    words: list[str | Path] = ["unshare", "--mount", "sh", "-c", script, "sh", place, sys.executable, "-m", *command]
    done = subprocess.run(words, env=system.environment(), capture_output=True, text=True, timeout=60, check=False)
    if "ermitted" in done.stderr or "ermission" in done.stderr:
        pytest.skip("this user may not mount")
    return done


@pytest.mark.parametrize(("verb", "exit_code"), [("status", 2), ("doctor", 1)])
def test_status_and_doctor_name_a_read_only_file_system(system: System, verb: str, exit_code: int) -> None:
    done = on_a_read_only_file_system(system, "worker_service.cli", verb, "--json")

    assert done.returncode == exit_code, done.stderr
    found = json.loads(done.stdout)
    details = [item["detail"] for item in found.get("reasons", found.get("items"))]
    assert f"the file system of {system.database} is read-only" in details


def test_a_daemon_names_a_read_only_file_system(system: System) -> None:
    done = on_a_read_only_file_system(system, "worker_service")

    assert done.returncode == 77, done.stderr
    assert f"the file system of {system.database} is read-only: look at `dmesg`" in done.stderr
