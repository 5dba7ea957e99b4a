"""Two databases never share a workspace: their files would have the same names."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker_service.base.errors import ConfigError
from worker_service.store.opening import initialise, open_store
from worker_service.workspace import take_workspace


def identity(path: Path) -> str:
    initialise(path)
    store = open_store(path)
    try:
        return store.reading.database_id()
    finally:
        store.close()


def test_a_workspace_is_taken_once_and_again_by_the_same_database(tmp_path: Path) -> None:
    ours = identity(tmp_path / "a.db")

    take_workspace(tmp_path / "workspace", ours)
    take_workspace(tmp_path / "workspace", ours)

    assert identity(tmp_path / "a.db") == ours


def test_another_database_is_refused_the_workspace_in_words(tmp_path: Path) -> None:
    take_workspace(tmp_path / "workspace", identity(tmp_path / "a.db"))

    with pytest.raises(ConfigError, match=r"belongs to another database.*WORKER_WORKSPACE"):
        take_workspace(tmp_path / "workspace", identity(tmp_path / "b.db"))
