"""The daemon that starts last decides how many may run at once, and says so where others went by something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from worker_service.base.events import LIMITS_REPLACED
from worker_service.daemon.start import write_limits
from worker_service.settings.config import Settings, load_settings
from worker_service.store.store import Store


def settings(tmp_path: Path, text: str) -> Settings:
    (tmp_path / "own.toml").write_text(text)
    environ = {"HOME": str(tmp_path), "WORKER_CONFIG": str(tmp_path / "own.toml")}
    return load_settings(environ=environ, directory=tmp_path)


def test_other_limits_than_a_daemon_wrote_that_lives_are_told(store: Store, tmp_path: Path, log: Any) -> None:
    first, second = settings(tmp_path, "[limits.owner]\nalice = 2"), settings(tmp_path, "[limits.owner]\nalice = 3")
    write_limits(store, first, log)
    del log.heard[:]

    write_limits(store, first, log)
    assert log.heard == []
    write_limits(store, second, log)

    assert log.heard == [LIMITS_REPLACED]
    assert store.overview.limits()["owner"] == {"alice": 3}


def test_where_nobody_else_is_there_nothing_is_told(store: Store, tmp_path: Path, log: Any) -> None:
    store.workers.deregister("w1")
    store.workers.set_limits("type", {"ocr_pages": 1})

    write_limits(store, settings(tmp_path, ""), log)

    assert log.heard == []
    assert "type" not in store.overview.limits()
