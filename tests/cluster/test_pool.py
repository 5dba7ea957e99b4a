"""Which attempts run on the nodes of a cluster, and when the driver is started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from worker_service.cluster.pool import ClusterPool, cluster_types
from worker_service.jobs.workers import HandlerFacts
from worker_service.runner.messages import PASSWORD, AttemptEvent, HandlerDescription, Order
from worker_service.settings.cluster import Cluster

DESCRIBED = {
    "ocr_pages": HandlerDescription(HandlerFacts("ocr_pages"), spec="a.b:c", runs_on_cluster=True),
    "extract_rows": HandlerDescription(HandlerFacts("extract_rows"), spec="a.b:d", runs_on_cluster=True),
    "ingest": HandlerDescription(HandlerFacts("ingest"), spec="a.b:e"),
    "broken": HandlerDescription(HandlerFacts("broken"), spec="a.b:f", runs_on_cluster=True, set_aside="it hangs"),
    "dropped": HandlerDescription(
        HandlerFacts("dropped"), spec="/etc/pagemill/handlers/dropped.py", runs_on_cluster=True
    ),
}


@pytest.mark.parametrize(
    ("wanted", "types"),
    [((), ["extract_rows", "ocr_pages"]), (("ocr_pages", "ingest", "dropped"), ["ocr_pages"])],
)
def test_types_run_on_nodes_that_declare_it_are_installed_and_work(wanted: tuple[str, ...], types: list[str]) -> None:
    assert cluster_types(DESCRIBED, Cluster("10.0.0.1:6379", wanted)) == types


class Pool:
    """A fork server or a Ray driver, without a process."""

    def __init__(self) -> None:
        self.launched: list[Order] = []
        self.descriptor = os.eventfd(0)
        self.starts = 0
        self.is_alive = False
        self.nodes_seen = None

    def fileno(self) -> int:
        return self.descriptor

    def launch(self, order: Order) -> None:
        self.launched.append(order)

    def begin(self) -> None:
        self.starts += 1
        self.is_alive = True

    def take_events(self) -> list[AttemptEvent]:
        return []


def test_an_attempt_with_a_typed_password_never_leaves_this_machine() -> None:
    local: Any = Pool()
    nodes: Any = Pool()
    pool = ClusterPool(local, nodes, ["ocr_pages"], 0, print)
    order = Order(1, 1, "ocr_pages", "local", None, "{}", None)
    locked = Order(2, 1, "ocr_pages", "local", None, "{}", None, inputs={PASSWORD: Path("/x")})

    pool.launch(order)
    pool.launch(locked)

    assert (nodes.launched, local.launched) == ([order], [locked])


def test_a_driver_that_has_ended_is_started_again_after_a_growing_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    local: Any = Pool()
    driver: Any = Pool()
    deaths: list[str] = []
    now = 100.0
    monkeypatch.setattr("worker_service.cluster.pool.time.monotonic", lambda: now)
    pool = ClusterPool(local, driver, ["ocr_pages"], 0, deaths.append)

    waits = []
    for _ in range(3):
        before = now
        while not driver.is_alive:
            now += 0.01
            pool.take_events()
        waits.append(now - before)
        pool.take_events()
        driver.is_alive = False
        pool.take_events()

    assert driver.starts == len(deaths) == 3
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(0.56, abs=0.05)
