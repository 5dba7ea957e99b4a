"""Heartbeats, messages to systemd, and signals."""

from __future__ import annotations

import os
import select
import signal
import socket
from pathlib import Path
from typing import Any

from tests.daemon.conftest import MakeAttempt
from tests.kit.system import wait_until
from tests.store.kit import jobs_with_ids
from worker_service.base.sd_notify import Notifier
from worker_service.daemon.heartbeat import Heartbeat
from worker_service.daemon.loop import Signals
from worker_service.daemon.start import beat_seconds
from worker_service.jobs.workers import Beat
from worker_service.store.opening import open_store
from worker_service.store.store import Store


def test_a_beat_returns_lost_and_cancelled_leases(
    store: Store, database: Path, make_attempt: MakeAttempt, log: Any
) -> None:
    kept, stopped, lost = make_attempt(), make_attempt(), make_attempt()
    store.job_control.cancel(jobs_with_ids(stopped.job.id), actor="test")
    store.leases.release(lost.lease)
    heartbeat = Heartbeat(lambda: open_store(database), "w1", log, 600)
    heartbeat.leases = (kept.lease, stopped.lease, lost.lease)

    heartbeat.start()
    assert select.select([heartbeat], [], [], 10)[0]
    [beat] = heartbeat.pop_results()
    heartbeat.close()

    assert beat == Beat([lost.lease], [stopped.lease])
    assert heartbeat.committed_beats == 1


def test_a_beat_of_a_worker_without_a_row_does_not_count(store: Store, database: Path, log: Any) -> None:
    store.leases.requeue("w1")
    heartbeat = Heartbeat(lambda: open_store(database), "w1", log, 600)

    heartbeat.start()
    assert select.select([heartbeat], [], [], 10)[0]
    assert heartbeat.pop_results() == [None]
    heartbeat.close()

    assert heartbeat.committed_beats == 0


def test_a_failed_beat_does_not_count(log: Any) -> None:
    def broken() -> Store:
        raise OSError("no disk")

    now = [0.0]
    heartbeat = Heartbeat(broken, "w1", log, 0.001, lambda: now[0])
    heartbeat.start()
    now[0] = 250.0
    wait_until(lambda: "beat.failed" in log.events)
    heartbeat.close()

    assert (heartbeat.committed_beats, heartbeat.silent_seconds()) == (0, 250.0)


def test_each_message_to_systemd_is_one_line(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(str(tmp_path / "notify"))
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})

    notifier.status("2 pending\nMAINPID=1\x1b[0m")
    notifier.status("2 pending\nMAINPID=1\x1b[0m")
    notifier.ready()

    assert listener.recv(100) == b"STATUS=2 pending MAINPID=1 [0m"
    assert listener.recv(100) == b"READY=1"
    listener.close()


def test_a_missing_notify_socket_is_ignored(tmp_path: Path) -> None:
    Notifier({}).ready()
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).alive()


def test_the_watchdog_applies_only_to_the_process_that_systemd_names() -> None:
    assert Notifier({"WATCHDOG_USEC": "6000000"}).watchdog_seconds == 6
    assert Notifier({"WATCHDOG_USEC": "6000000", "WATCHDOG_PID": str(os.getpid())}).watchdog_seconds == 6
    assert Notifier({"WATCHDOG_USEC": "6000000", "WATCHDOG_PID": "1"}).watchdog_seconds is None
    assert beat_seconds(30, 6) == 2
    assert beat_seconds(30, None) == 30


def test_signals_are_counted_and_wake_the_loop() -> None:
    signals = Signals()
    try:
        os.kill(os.getpid(), signal.SIGTERM)

        assert select.select([signals], [], [], 10)[0]
        signals.drain()
        assert not select.select([signals], [], [], 0)[0]
        assert signals.stop_requests == 1
    finally:
        signals.close()
