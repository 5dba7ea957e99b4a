"""A real nursery with the saboteurs, and a desk to hear what happens."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from worker_service.children.messages import Begin, Ended, Happening, Logged, Order, Progressed
from worker_service.children.nursery import Nursery

SABOTEURS = ("tests.saboteurs.handlers:handlers",)
PATIENCE_SECONDS = 30.0


class Desk:
    """Launches, and listens until something is true. The one deadline is the suite's patience."""

    def __init__(self, nursery: Nursery) -> None:
        self.nursery = nursery
        self.heard: list[Happening] = []
        self._number = 0

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
        self.nursery.launch(order)
        return order

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

    def of(self, order: Order) -> list[Happening]:
        return [one for one in self.heard if (one.job_id, one.fence) == (order.job_id, order.fence)]

    def lines(self, order: Order) -> list[str]:
        return [line for one in self.of(order) if isinstance(one, Logged) for line in one.lines]

    def until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_so():
            left = deadline - time.monotonic()
            assert left > 0, f"it did not happen; heard: {self.heard[-10:]}"
            select.select([self.nursery], [], [], left)
            self.heard += self.nursery.happened()


MakeDesk = Callable[..., Desk]


@pytest.fixture
def make_desk(tmp_path: Path) -> Iterator[MakeDesk]:
    opened: list[Nursery] = []

    def make(**settings: Any) -> Desk:
        chosen: dict[str, Any] = {
            "staging_root": tmp_path / "staging",
            "keep_root": tmp_path / "keep",
            "grace_seconds": 0.5,
            "extra_handlers": SABOTEURS,
            "is_without_installed": True,
            **settings,
        }
        nursery = Nursery(Begin(**chosen))
        opened.append(nursery)
        nursery.start()
        return Desk(nursery)

    yield make
    for nursery in opened:
        nursery.close()


@pytest.fixture
def desk(make_desk: MakeDesk) -> Desk:
    return make_desk()
