"""What a daemon tells its gateway of what waits, where machines are started for it; and how long it waits for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from tests.daemon.conftest import Watch, tools_in
from worker_service.children.messages import NodesSeen, Wishes
from worker_service.daemon.attempts import Slots
from worker_service.daemon.far import Far
from worker_service.jobs.model import NODE, HandlerFacts, NewJob, NodeState, Worker
from worker_service.nodes.routes import Children
from worker_service.store.store import Store

MakeFar = Callable[[int], tuple[Far, "Gateway"]]


class Gateway:
    """It knows the nodes that a test says, and keeps what it is told."""

    is_alive = True

    def __init__(self) -> None:
        self.seen = NodesSeen(())
        self.held: Counter[str | None] = Counter()
        self.told = Wishes()
        self.far = self
        self.may_begin: Callable[[], bool] = lambda: True

    def wish(self, wishes: Wishes) -> None:
        self.told = wishes


@pytest.fixture
def make_far(store: Store, tmp_path: Path, log: Any, watch: Watch) -> MakeFar:
    def make(autoscale: int) -> tuple[Far, Gateway]:
        store.leases.register(Worker("w1", "h", "boot-1", 1, "0", 2, 2, [HandlerFacts("ocr_pages", NODE)], 0, 9.0))
        gateway = Gateway()
        tools = tools_in(tmp_path, store, log, slots=Slots({"cpu": 2, NODE: 0}), monotonic=watch)
        far = Far(tools, cast(Children, gateway), ["ocr_pages"], autoscale)
        assert gateway.may_begin()
        return far, gateway

    return make


def test_a_gateway_is_told_how_many_attempts_there_could_be(make_far: MakeFar, store: Store, watch: Watch) -> None:
    far, gateway = make_far(4)
    for _ in range(3):
        store.intake.enqueue(NewJob("ocr_pages"))

    far.follow()
    assert gateway.told.attempts == 3
    for _ in range(3):
        store.intake.enqueue(NewJob("ocr_pages"))
    watch.now += 1
    far.follow()
    assert gateway.told.attempts == 4, "no more than the settings say"
    store.steering.pause("all")
    watch.now += 1
    far.follow()
    assert gateway.told.attempts == 0


def test_where_nobody_starts_machines_nothing_is_counted(
    make_far: MakeFar, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    far, gateway = make_far(0)
    monkeypatch.setattr(type(store.reading), "could_begin", None)
    store.intake.enqueue(NewJob("ocr_pages"))

    far.follow()

    assert gateway.told == Wishes()


def test_who_works_the_queue_off_waits_for_the_machines_that_it_has_asked_for(
    make_far: MakeFar, store: Store, watch: Watch
) -> None:
    far, gateway = make_far(4)

    def waits() -> bool:
        return far.may_still_come

    assert waits()
    watch.now = 3600.0
    far.follow()
    assert not waits()

    store.intake.enqueue(NewJob("ocr_pages"))
    watch.now += 1
    far.follow()
    assert waits()
    watch.now += 600
    far.follow()
    assert waits()
    watch.now += 600
    far.follow()
    assert not waits(), "nobody has one"

    gateway.seen = NodesSeen((NodeState("n1", "up", 1),))
    watch.now += 1
    far.follow()
    gateway.seen = NodesSeen(())
    watch.now += 1
    far.follow()
    assert waits(), "it was there, and has gone"
