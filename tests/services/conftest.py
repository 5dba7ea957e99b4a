"""A session on an empty database, with a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.store.kit import MEMORY, MovableClock, lay_out, new_worker
from worker_service.services.session import Session
from worker_service.settings.loading import load_settings
from worker_service.store.opening import open_store


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory in memory: no test here is about a power cut, and syncing a disk takes longer than the tests."""
    with TemporaryDirectory(dir=MEMORY, prefix="pagemill-test-") as directory:
        yield Path(directory)


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def session(tmp_path: Path, clock: MovableClock) -> Iterator[Session]:
    """The database has one worker, `w1`."""
    settings = load_settings(environ={"HOME": str(tmp_path)}, directory=tmp_path)
    lay_out(settings.database)
    opened = Session(open_store(settings.database, clock=clock), settings, "ann", clock)
    opened.store.workers.register(new_worker())
    yield opened
    opened.close()
