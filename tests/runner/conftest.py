"""A real fork server with handlers that misbehave, and a client for it."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from worker_service.runner.messages import AttemptEvent, AttemptMessage, Begin, Ended, Logged, Order, Progressed
from worker_service.runner.pool import LocalPool

SABOTEURS = ("tests.saboteurs.handlers:handlers",)
PATIENCE_SECONDS = 30.0


Event = TypeVar("Event", bound=AttemptMessage)


class PoolClient:
    """Launches orders, and collects events."""

    def __init__(self, fork_server: LocalPool) -> None:
        self.pool = fork_server
        self.events: list[AttemptEvent] = []
        self._number = 0
        self._launched: list[Order] = []

    def launch(
        self,
        job_type: str,
        payload: str | None = None,
        *,
        timeout_seconds: int | None = None,
        state: str | None = None,
        **fields: Any,
    ) -> Order:
        self._number += 1
        order = Order(self._number, 1, job_type, "local", "user123", payload, timeout_seconds, state, **fields)
        self._launched.append(order)
        self.pool.launch(order)
        return order

    def stop_all(self) -> None:
        for order in self._launched:
            self.pool.stop(order.job_id, order.fence, now=True)
        self.wait_until(lambda: self.pool._connection is None or not self.pool._connection.running_keys)
        self.events.clear()
        self._launched.clear()

    def run(self, job_type: str, payload: str | None = None, **more: Any) -> Ended:
        return self.wait_for_end(self.launch(job_type, payload, **more))

    def wait_for_end(self, order: Order) -> Ended:
        self.wait_until(lambda: bool(self.events_of_kind(order, Ended)))
        [ended] = self.events_of_kind(order, Ended)
        return ended

    def wait_for_progress(self, order: Order) -> None:
        self.wait_until(lambda: bool(self.events_of_kind(order, Progressed)))

    def events_of(self, order: Order) -> list[AttemptEvent]:
        return [event for event in self.events if event.key == order.key]

    def events_of_kind(self, order: Order, kind: type[Event]) -> list[Event]:
        return [event for event in self.events_of(order) if isinstance(event, kind)]

    def lines(self, order: Order) -> list[str]:
        return [line for event in self.events_of_kind(order, Logged) for line in event.lines]

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_so():
            left = deadline - time.monotonic()
            assert left > 0, f"it did not happen: {self.events[-10:]}"
            select.select([self.pool], [], [], left)
            self.events += self.pool.take_events()


def threads_of(pool: LocalPool) -> int:
    return len(list(Path(f"/proc/{pool.pid}/task").iterdir()))


@contextmanager
def opened_client(place: Path, **settings: Any) -> Iterator[PoolClient]:
    chosen: dict[str, Any] = {
        "staging_root": place / "staging",
        "keep_root": place / "keep",
        "grace_seconds": 0.5,
        "extra_handlers": SABOTEURS,
        "is_without_installed": True,
        **settings,
    }
    fork_server = LocalPool(Begin(**chosen))
    try:
        fork_server.start()
        yield PoolClient(fork_server)
    finally:
        fork_server.close()


MakeClient = Callable[..., PoolClient]


@pytest.fixture
def make_client(tmp_path: Path) -> Iterator[MakeClient]:
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(opened_client(tmp_path, **settings))


@pytest.fixture(scope="module")
def shared_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolClient]:
    with opened_client(tmp_path_factory.mktemp("fork-server")) as client:
        yield client


@pytest.fixture
def client(shared_client: PoolClient) -> Iterator[PoolClient]:
    """One fork server for a whole file: what a test does to a child must not harm the next test."""
    pid = shared_client.pool.pid
    yield shared_client
    shared_client.stop_all()
    assert shared_client.pool.pid == pid
