"""Where no cluster is set, none of its modules is imported."""

from __future__ import annotations

import subprocess
import sys

IMPORTED = """
import importlib, sys
for name in ("worker_service.daemon.start", "worker_service.runner.fork_server", "worker_service.cli.run",
             "worker_service.cli.status", "worker_service.services.health"):
    importlib.import_module(name)
print([name for name in sys.modules if name.startswith(("worker_service.cluster", "ray"))])
"""


def test_a_daemon_without_a_cluster_imports_nothing_of_it() -> None:
    result = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True, timeout=60)

    assert result.stdout == "[]\n"
