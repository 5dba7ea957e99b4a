"""Errors of the database while the loop waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.daemon.conftest import context_in
from worker_service.base import events
from worker_service.base.clock import wall_clock
from worker_service.base.errors import StoreError
from worker_service.base.sd_notify import Notifier
from worker_service.daemon.heartbeat import Heartbeat, own_worker
from worker_service.daemon.loop import Loop, Signals
from worker_service.daemon.outcomes import OutcomeWriter
from worker_service.daemon.publisher import Publisher
from worker_service.jobs.job import NewJob
from worker_service.runner.messages import Begin
from worker_service.runner.pool import LocalPool
from worker_service.runner.worker_identity import own_identity
from worker_service.store.database import WriteOptions
from worker_service.store.opening import open_store


@pytest.fixture
def loop(tmp_path: Path, database: Path, log: Any) -> Iterator[Loop]:
    """A daemon without a single handler, not begun."""
    store = open_store(database)
    context = context_in(tmp_path, store, log, wall_clock, own=own_identity())
    with ExitStack() as stack:
        stack.callback(store.close)
        signals = Signals()
        stack.callback(signals.close)
        fork_server = LocalPool(Begin(tmp_path / "staging", tmp_path / "keep", sandbox="off", types=[""]))
        stack.callback(fork_server.close)
        fork_server.start()
        heartbeat = Heartbeat(
            lambda: open_store(database, writing=WriteOptions(is_durable=False)), context.identity.worker_id, log, 30.0
        )
        watch = store.watch()
        stack.callback(watch.close)
        outcomes = OutcomeWriter(context, Publisher(tmp_path / "workspace", tmp_path / "staging"))
        loop = Loop(context, fork_server, {}, outcomes, heartbeat, watch, signals, Notifier({}))
        # After the watch: its hint makes the loop look again while it waits.
        store.workers.register(own_worker(context, []))
        heartbeat.start()
        stack.callback(heartbeat.close)
        yield loop


def test_the_loop_survives_a_database_error_while_it_waits(
    loop: Loop, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, wait = loop.context.store, Loop._wait
    is_waiting, failed = list[bool](), list[bool]()

    def wait_with_a_hint(loop: Loop) -> None:
        store.intake.enqueue(NewJob("nobody_knows_it"))
        is_waiting.append(True)
        try:
            wait(loop)
        finally:
            is_waiting.pop()

    def read_change_counter() -> int:
        if is_waiting and not failed:
            failed.append(True)
            raise StoreError("the disk does not answer")
        loop.signals.stop_requests = len(failed)
        return store.database.change_counter()

    monkeypatch.setattr(Loop, "_wait", wait_with_a_hint)
    monkeypatch.setattr(loop.watch, "_change_counter", read_change_counter)

    assert loop.run() == 0
    assert failed
    assert [event for event in log.events if event in (events.STORE_UNAVAILABLE, events.DAEMON_FAILED)] == [
        events.STORE_UNAVAILABLE
    ]


def test_a_full_disk_is_recorded_once_the_database_takes_it(loop: Loop, database: Path) -> None:
    with closing(apsw.Connection(str(database))) as connection:
        connection.execute(
            "CREATE TRIGGER refuse BEFORE UPDATE OF disk_low ON worker BEGIN SELECT RAISE(ABORT, 'disk full'); END"
        )
        loop.set_disk_low(True)
        connection.execute("DROP TRIGGER refuse")
        loop.context.store_again_at = 0.0

        loop.turn()

        assert connection.execute("SELECT disk_low FROM worker").get == 1
