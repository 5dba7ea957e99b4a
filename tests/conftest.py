"""In which order the files run, and when memory is looked through.

`./run test` gives whole files to its workers, so that what a file makes once is made once. The long files come first:
at the end none is left that keeps one worker busy while the others have nothing to do.

Modules and tests stay to the end: whoever looks for what can be freed need not look among them.
"""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_FIRST = (
    "test_benchmarks.py",
    "systemd/test_service.py",
    "systemd/test_documents.py",
    "web/browser/test_browser.py",
    "nodes/test_losses.py",
    "nodes/test_lab.py",
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


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS_AT_ONCE)
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {_HERE / name: rank for rank, name in enumerate(_FIRST)}
    assert all(path.exists() for path in ranks), "a file of _FIRST has another name now"
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))
