"""A store on a file of its own, a clock that stands still, and functions that fill the store."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.store.kit import (
    MEMORY,
    AddWorker,
    ByHand,
    Enqueue,
    MovableClock,
    lay_out,
    new_worker,
    open_at,
    work_as,
)
from worker_service.jobs.job import NewJob
from worker_service.store.store import Store


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def path() -> Iterator[Path]:
    """Return a path in memory if possible, so that no commit waits for a disk."""
    folder = Path(tempfile.mkdtemp(dir=MEMORY))
    yield folder / "pagemill.db"
    shutil.rmtree(folder)


@pytest.fixture
def store(path: Path, clock: MovableClock) -> Iterator[Store]:
    lay_out(path)
    with closing(open_at(path, clock)) as opened:
        yield opened


@pytest.fixture
def enqueue(store: Store) -> Enqueue:
    def insert(job_type: str = "ocr_pages", **fields: object) -> int:
        return store.intake.enqueue(NewJob(job_type, **fields)).job_id  # type: ignore[arg-type]

    return insert


@pytest.fixture
def worker(store: Store) -> AddWorker:
    def register(worker_id: str = "w1", **fields: Any) -> str:
        store.workers.register(new_worker(worker_id, **fields))
        return worker_id

    return register


@pytest.fixture
def worker_is_there(worker: AddWorker) -> None:
    worker()


@pytest.fixture
def document_worker(store: Store) -> None:
    """A worker with the handlers of documents and many slots."""
    work_as(store)


@pytest.fixture
def by_hand(store: Store, path: Path) -> ByHand:
    return ByHand(path)
