"""Where no cluster is set, nothing of all this is there."""

from __future__ import annotations

import subprocess
import sys

from tests.nodes.conftest import MakeNodes
from worker_service.jobs.model import Status

OURS = """
import importlib, sys
for name in ("worker_service.daemon.start", "worker_service.children.nursery_main", "worker_service.commands.run",
             "worker_service.commands.state", "worker_service.operations.health"):
    importlib.import_module(name)
print([name for name in sys.modules if name.startswith(("worker_service.nodes", "worker_service.cluster", "ray"))])
"""


def test_a_daemon_without_a_cluster_imports_nothing_of_nodes() -> None:
    told = subprocess.run([sys.executable, "-c", OURS], capture_output=True, text=True, check=True, timeout=60)

    assert told.stdout == "[]\n"


def test_who_works_the_queue_off_waits_for_a_first_node(make_nodes: MakeNodes) -> None:
    nodes = make_nodes({"n1": 1})
    job = nodes.system.enqueue("noop")

    daemon = nodes.system.begin("--drain", config=nodes.settings)

    assert daemon.ends() == 0
    assert nodes.system.status(job) is Status.COMPLETED
