from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.kit.system import System, is_running, wait_until
from worker_service.jobs.job import NewJob, Status
from worker_service.jobs.selector import Selector


@pytest.fixture(scope="module")
def shared_system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """A daemon for the tests that do not end it. It polls once a minute, so only hints and deadlines wake it."""
    made = System(tmp_path_factory.mktemp("standing"))
    made.start(poll_interval=60)
    yield made
    made.assert_sound()
    made.close()


def test_jobs_run_and_drain_ends_when_nothing_is_left(system: System) -> None:
    jobs = [system.enqueue("noop", n=n) for n in range(5)]

    daemon = system.begin("--drain")

    assert daemon.wait_for_exit() == 0
    assert [json.loads(system.job(job).result or "") for job in jobs] == [{"seen": n} for n in range(5)]
    assert system.store.overview.workers() == []
    assert list((system.database.parent / "workers").iterdir()) == []
    system.assert_sound()


def test_drain_waits_for_jobs_that_are_due_soon(system: System) -> None:
    soon, later = (datetime.now(UTC) + timedelta(seconds=seconds) for seconds in (0.5, 600))
    retried = system.enqueue("fail", max_retries=1, how="retryable")
    begins_soon, begins_later = (system.store.intake.enqueue(NewJob("noop", run_at=at)).job_id for at in (soon, later))
    snoozed = system.enqueue("fail", how="snooze")

    daemon = system.begin("--drain")

    assert daemon.wait_for_exit() == 0
    assert (system.outcomes(retried), system.outcomes(snoozed)) == (["retry", "failed"], ["snoozed"])
    assert (system.status(begins_soon), system.status(begins_later)) == (Status.COMPLETED, Status.PENDING)
    assert [event["pending"] for event in daemon.events("daemon.drained")] == [2]


def test_a_reload_applies_what_can_change_and_names_what_needs_a_restart(system: System) -> None:
    file = system.place / "pagemill.toml"
    file.write_text("poll_interval = 60")
    daemon = system.start(config=file)

    file.write_text('queued_patience = 1\nzone = "Europe/Berlin"\n[limits.type]\nnoop = 3\n')
    daemon.signal(signal.SIGHUP)
    wait_until(lambda: daemon.events("settings.reloaded"))
    file.write_text("no settings")
    daemon.signal(signal.SIGHUP)
    wait_until(lambda: daemon.events("settings.refused"))

    [reloaded] = daemon.events("settings.reloaded")
    assert reloaded["applied"] == ["limits", "poll_interval", "zone"]
    assert reloaded["need_restart"] == ["queued_patience"]
    assert system.store.overview.limits()["type"] == {"noop": 3}
    daemon.signal(signal.SIGTERM)
    assert daemon.wait_for_exit() == 0


def test_a_daemon_ends_with_its_terminal(system: System) -> None:
    ours, theirs = os.openpty()
    script = "import fcntl, os, signal, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    # The tests may run under nohup, and a daemon under nohup outlives its terminal.
    script += "signal.signal(signal.SIGHUP, signal.SIG_DFL); "
    script += "os.execv(sys.executable, [sys.executable, '-m', 'worker_service'])"
    child = subprocess.Popen(
        [sys.executable, "-c", script], cwd=system.place, env=system.environment(),
        stdin=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(theirs)
    system.wait_for(system.enqueue("noop"), Status.COMPLETED)

    os.close(ours)

    assert child.wait(timeout=60) == 0
    assert system.store.overview.workers() == []


def test_a_job_waits_until_its_dependency_is_installed(shared_system: System) -> None:
    engine = shared_system.place / "engine"
    job = shared_system.enqueue("lacks", max_retries=0, needs=str(engine))
    wait_until(lambda: len(shared_system.outcomes(job)) >= 2, "it looks again")

    gates_seen: set[tuple[str, str]] = set()

    def is_held() -> bool:
        gates_seen.update((gate.code, gate.detail) for gate in shared_system.store.gates.explain(job))
        return bool(gates_seen)

    wait_until(is_held, "a gate")
    assert {code for code, _ in gates_seen} == {"CAPABILITY_MISSING"}
    assert all(detail.endswith("after CAPABILITY_MISSING: there is no engine: touch it") for _, detail in gates_seen)
    engine.touch()

    assert shared_system.wait_for(job, Status.COMPLETED).retry_count == 0


def test_each_way_to_fail_has_its_outcome(shared_system: System) -> None:
    permanent = shared_system.enqueue("fail", how="permanent")
    snoozed = shared_system.enqueue("fail", how="snooze")
    retried = shared_system.enqueue("fail", max_retries=1, how="retryable")
    crashed = shared_system.enqueue("fail", max_retries=0, how="crash")
    bug = shared_system.enqueue("fail", max_retries=0, how="bug")

    assert shared_system.wait_for(permanent, Status.FAILED).error_code == "NO_SUCH_FILE"
    assert shared_system.wait_for(crashed, Status.FAILED).error_code == "CRASHED"
    assert "a bug" in str(shared_system.wait_for(bug, Status.FAILED).error_message)
    assert shared_system.wait_for(retried, Status.FAILED).retry_count == 1
    assert shared_system.outcomes(retried) == ["retry", "failed"]
    wait_until(lambda: shared_system.outcomes(snoozed) == ["snoozed"])
    assert (shared_system.job(snoozed).status, shared_system.job(snoozed).retry_count) == (Status.PENDING, 0)


def test_a_manual_insert_is_noticed_at_once(shared_system: System) -> None:
    insert = (
        "INSERT INTO worker_job_queue (job_type, platform, payload) VALUES ('noop', 'local', '{\"n\":1}') RETURNING id"
    )

    began = time.monotonic()
    job = int(shared_system.sqlite3(insert).stdout)

    shared_system.wait_for(job, Status.COMPLETED)
    # Nothing but the wake-up can have been so quick: the poll comes once in a minute.
    assert time.monotonic() - began < 10


def test_a_cancelled_job_ends_when_its_processes_are_gone(shared_system: System) -> None:
    job = shared_system.enqueue("sleep", grandchild=True)
    pids = shared_system.pids_of(job, 2)

    shared_system.store.job_control.cancel(Selector(ids=(job,)), actor="test")

    shared_system.wait_for(job, Status.CANCELLED)
    assert [pid for pid in pids if is_running(pid)] == []
    assert shared_system.outcomes(job) == ["cancelled"]


def test_sigterm_releases_jobs_that_exceed_the_grace_period(system: System) -> None:
    job = system.enqueue("sleep")
    daemon = system.start(grace_period=0)
    [pid] = system.pids_of(job)

    daemon.signal(signal.SIGTERM)

    assert daemon.wait_for_exit() == 0
    found = system.job(job)
    assert (found.status, found.retry_count, found.requeue_count) == (Status.PENDING, 0, 0)
    assert system.outcomes(job) == ["released"]
    assert not is_running(pid)
    assert system.store.overview.workers() == []


def test_sigterm_lets_jobs_finish_within_the_grace_period(system: System) -> None:
    job = system.enqueue("sleep", seconds=1)
    daemon = system.start(grace_period=60)
    system.pids_of(job)

    daemon.signal(signal.SIGTERM)
    daemon.wait_for("daemon.stopping")
    late = system.enqueue("noop")

    assert daemon.wait_for_exit() == 0
    assert system.status(job) is Status.COMPLETED
    assert system.status(late) is Status.PENDING


def test_a_second_sigterm_stops_at_once(system: System) -> None:
    job = system.enqueue("sleep")
    daemon = system.start(grace_period=600)
    system.pids_of(job)

    daemon.signal(signal.SIGTERM)
    daemon.wait_for("daemon.stopping")
    daemon.signal(signal.SIGTERM)

    assert daemon.wait_for_exit() == 0
    assert system.outcomes(job) == ["released"]


def test_the_watchdog_and_the_status_reach_systemd(system: System) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    address = str(system.place / "notify")
    listener.bind(address)
    listener.settimeout(20)
    environment = system.environment(heartbeat_interval=0.1, orphan_after=2) | {"NOTIFY_SOCKET": address}
    process = subprocess.Popen([sys.executable, "-m", "worker_service"], cwd=system.place, env=environment,
                               stderr=subprocess.DEVNULL)  # fmt: skip
    messages: list[str] = []
    try:
        while not {"READY=1", "WATCHDOG=1"} <= set(messages) or not any(
            line.startswith("STATUS=") for line in messages
        ):
            messages.append(listener.recv(4096).decode())
        process.send_signal(signal.SIGTERM)
        while "STOPPING=1" not in messages:
            messages.append(listener.recv(4096).decode())
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        listener.close()

    assert messages[0] == "READY=1"
    assert "STATUS=0/2 cpu · 0/4 io · 0 pending" in messages


def test_a_daemon_without_a_database_exits_with_69(system: System) -> None:
    daemon = system.begin(database=system.place / "elsewhere" / "none.db")

    assert daemon.wait_for_exit() == 69
    assert not (system.place / "elsewhere").exists()
