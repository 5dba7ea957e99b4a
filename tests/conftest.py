"""Order and compilation of the test files, garbage collection, and signals.

`./run test` gives whole files to its workers, so that module fixtures are built once. The long files come first, so
that no worker is left with one of them at the end. Every worker imports all files. Where none is compiled yet, each
worker starts at another file and finds what the others have compiled.

Modules and tests are never freed, so the garbage collector skips them.
"""

from __future__ import annotations

import gc
import os
import signal
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
# By the seconds that they take.
_FIRST = (
    "cluster/test_cluster.py",
    "web/browser/test_browser.py",
    "systemd/test_service.py",
    "systemd/test_documents.py",
    "system/test_reading.py",
    "system/test_team.py",
    "system/test_readme.py",
    "systemd/test_install.py",
    "system/test_kills.py",
    "web/test_slow_clients.py",
    "simulation/test_simulation.py",
    "cli/test_handlers.py",
    "job_handlers/reading/test_reading.py",
    "system/test_reuse.py",
    "web/api/test_openapi.py",
    "services/test_page_images.py",
    "system/test_hostile.py",
    "runner/test_attempt_endings.py",
    "system/test_bad_surroundings.py",
    "runner/test_child_reuse.py",
    "system/test_chaos.py",
    "cli/test_documents.py",
    "system/test_demo.py",
    "job_handlers/reading/test_neural.py",
    "job_handlers/fetch/test_faults.py",
    "system/test_notify.py",
    "system/test_daemon.py",
    "test_benchmark_scans.py",
)
_OBJECTS_AT_ONCE = 20_000

# A shell ignores SIGINT in what it starts in the background, and so would every process that a test starts from there.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart() -> None:
    gc.disable()


def pytest_collection() -> None:
    if (worker := os.environ.get("PYTEST_XDIST_WORKER")) is None:
        return
    files = sorted(_HERE.rglob("test_*.py"))
    begin = len(files) * int(worker.removeprefix("gw")) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    for file in [*files[begin:], *files[:begin]]:
        # An error is reported when the file is collected.
        with suppress(Exception, pytest.skip.Exception):
            import_module(".".join(file.relative_to(_HERE.parent).with_suffix("").parts))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(_OBJECTS_AT_ONCE)
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {_HERE / name: rank for rank, name in enumerate(_FIRST)}
    assert all(path.exists() for path in ranks), "a file of _FIRST was renamed"
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))
