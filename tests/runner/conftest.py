"""A real fork server with the saboteurs, and a client to hear what happens."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from worker_service.runner.messages import AttemptEvent, Begin, Ended, Logged, Order, Progressed
from worker_service.runner.pool import LocalPool

SABOTEURS = ("tests.saboteurs.handlers:handlers",)
PATIENCE_SECONDS = 30.0


class PoolClient:
    """Launches, and listens until something is true. The one deadline is the suite's patience."""

    def __init__(self, fork_server: LocalPool) -> None:
        self.pool = fork_server
        self.heard: list[AttemptEvent] = []
        self._number = 0
        self._launched: list[Order] = []

    def launch(
        self,
        job_type: str,
        payload: str | None = None,
        *,
        timeout_seconds: int | None = None,
        state: str | None = None,
        **of_document: Any,
    ) -> Order:
        self._number += 1
        order = Order(self._number, 1, job_type, "local", "user123", payload, timeout_seconds, state, **of_document)
        self._launched.append(order)
        self.pool.launch(order)
        return order

    def clear(self) -> None:
        """Stop what still runs, and forget all of it."""
        for order in self._launched:
            self.pool.stop(order.job_id, order.fence, now=True)
        self.until(lambda: self.pool._connection is None or not self.pool._connection.running_keys)
        self.heard.clear()
        self._launched.clear()

    def run(self, job_type: str, payload: str | None = None, **more: Any) -> Ended:
        return self.ended(self.launch(job_type, payload, **more))

    def ended(self, order: Order) -> Ended:
        found: list[Ended] = []

        def is_there() -> bool:
            found[:] = [one for one in self.of(order) if isinstance(one, Ended)]
            return bool(found)

        self.until(is_there)
        assert len(found) == 1
        return found[0]

    def until_progress(self, order: Order) -> None:
        self.until(lambda: any(isinstance(one, Progressed) for one in self.of(order)))

    def of(self, order: Order) -> list[AttemptEvent]:
        return [one for one in self.heard if (one.job_id, one.fence) == (order.job_id, order.fence)]

    def lines(self, order: Order) -> list[str]:
        return [line for one in self.of(order) if isinstance(one, Logged) for line in one.lines]

    def until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_so():
            left = deadline - time.monotonic()
            assert left > 0, f"it did not happen; heard: {self.heard[-10:]}"
            select.select([self.pool], [], [], left)
            self.heard += self.pool.take_events()


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
    shared_client.clear()
    assert shared_client.pool.pid == pid
