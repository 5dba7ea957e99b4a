"""Which job types run on the nodes of a cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from worker_service.cluster.pool import ClusterPool, cluster_types
from worker_service.jobs.workers import HandlerFacts
from worker_service.runner.messages import PASSWORD, HandlerDescription, Order
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


def test_an_attempt_with_a_typed_password_never_leaves_this_machine() -> None:
    class Pool:
        def __init__(self) -> None:
            self.launched: list[Order] = []
            self.descriptor = os.eventfd(0)

        def fileno(self) -> int:
            return self.descriptor

        def launch(self, order: Order) -> None:
            self.launched.append(order)

    local: Any = Pool()
    nodes: Any = Pool()
    pool = ClusterPool(local, nodes, ["ocr_pages"], 0, print)
    order = Order(1, 1, "ocr_pages", "local", None, "{}", None)
    locked = Order(2, 1, "ocr_pages", "local", None, "{}", None, inputs={PASSWORD: Path("/x")})

    pool.launch(order)
    pool.launch(locked)

    assert (nodes.launched, local.launched) == ([order], [locked])
