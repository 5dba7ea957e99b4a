"""In which order the files run and are compiled, and when memory is looked through.

`./run test` gives whole files to its workers, so that what a file makes once is made once. The long files come first:
at the end none is left that keeps one worker busy while the others have nothing to do. Every worker reads all files:
where none is compiled yet, each begins elsewhere, and finds what the others have done.

Modules and tests stay to the end: whoever looks for what can be freed need not look among them.
"""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_FIRST = (
    "test_benchmarks.py",
    "systemd/test_service.py",
    "systemd/test_documents.py",
    "web/browser/test_browser.py",
    "cluster/test_cluster.py",
    "system/test_readme.py",
    "system/test_team.py",
    "system/test_hostile.py",
    "simulation/test_simulation.py",
    "system/test_chaos.py",
    "system/test_reading.py",
    "system/test_daemon.py",
    "system/test_bad_surroundings.py",
    "system/test_kills.py",
    "system/test_reuse.py",
    "test_wheel.py",
)
_OBJECTS_AT_ONCE = 20_000


def pytest_sessionstart() -> None:
    gc.disable()


def pytest_collection() -> None:
    if (worker := os.environ.get("PYTEST_XDIST_WORKER")) is None:
        return
    files = sorted(_HERE.rglob("test_*.py"))
    begin = len(files) * int(worker.removeprefix("gw")) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    for file in [*files[begin:], *files[:begin]]:
        # What is wrong with it is told when it is collected.
        with suppress(Exception, pytest.skip.Exception):
            import_module(".".join(file.relative_to(_HERE.parent).with_suffix("").parts))


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS_AT_ONCE)
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {_HERE / name: rank for rank, name in enumerate(_FIRST)}
    assert all(path.exists() for path in ranks), "a file of _FIRST has another name now"
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))
