from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drive_server import DriveServer
from tests.job_handlers.fetch.kit import drive_for


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[DriveServer]:
    with drive_for(monkeypatch, tmp_path) as server:
        yield server
