"""A store on a file of its own, a clock that stands still, and functions that fill the store."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.store.kit import (
    MEMORY,
    AddWorker,
    ByHand,
    Enqueue,
    MovableClock,
    Reopen,
    fields_of,
    lay_out,
    new_worker,
    open_at,
    work_as,
)
from worker_service.store.store import Store


class StoreFile:
    """One database file, and the store that is open on it now."""

    def __init__(self, path: Path, clock: MovableClock) -> None:
        self.path, self.clock = path, clock
        lay_out(path)
        self.store = open_at(path, clock)

    def reopen(self) -> Store:
        self.store.close()
        self.store = open_at(self.path, self.clock)
        return self.store


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
def store_file(path: Path, clock: MovableClock) -> Iterator[StoreFile]:
    opened = StoreFile(path, clock)
    yield opened
    opened.store.close()


@pytest.fixture
def store(store_file: StoreFile) -> Store:
    return store_file.store


@pytest.fixture
def reopen(store_file: StoreFile) -> Reopen:
    return store_file.reopen


@pytest.fixture
def enqueue(store_file: StoreFile) -> Enqueue:
    def insert(job_type: str = "ocr_pages", **fields: object) -> int:
        return store_file.store.intake.enqueue(fields_of(job_type, fields)).job_id

    return insert


@pytest.fixture
def worker(store_file: StoreFile) -> AddWorker:
    def register(worker_id: str = "w1", **fields: Any) -> str:
        store_file.store.workers.register(new_worker(worker_id, **fields))
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
def by_hand(store_file: StoreFile) -> ByHand:
    return ByHand(store_file.path)
