"""A store of each kind on a file of its own, a clock that stands still, and hands to fill it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.store.kit import (
    KINDS,
    AddWorker,
    ByHand,
    Enqueue,
    Kind,
    MovableClock,
    Reopen,
    fields_of,
    lay_out,
    new_worker,
)
from worker_service.store.store import Store


class _House:
    """One database file, and the store that is open on it now."""

    def __init__(self, kind: Kind, path: Path, clock: MovableClock) -> None:
        self.kind, self.path, self.clock = kind, path, clock
        lay_out(path, kind.initialise)
        self.store = kind.open(path, clock)

    def reopen(self) -> Store:
        self.store.close()
        self.store = self.kind.open(self.path, self.clock)
        return self.store


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    chosen: Kind = request.param
    return chosen


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pagemill.db"


@pytest.fixture
def house(kind: Kind, path: Path, clock: MovableClock) -> Iterator[_House]:
    opened = _House(kind, path, clock)
    yield opened
    opened.store.close()


@pytest.fixture
def store(house: _House) -> Store:
    return house.store


@pytest.fixture
def reopen(house: _House) -> Reopen:
    return house.reopen


@pytest.fixture
def enqueue(house: _House) -> Enqueue:
    def insert(job_type: str = "ocr_pages", **fields: object) -> int:
        return house.store.intake.enqueue(fields_of(job_type, fields)).job_id

    return insert


@pytest.fixture
def worker(house: _House) -> AddWorker:
    def register(worker_id: str = "w1", **fields: Any) -> str:
        house.store.workers.register(new_worker(worker_id, **fields))
        return worker_id

    return register


@pytest.fixture
def worker_is_there(worker: AddWorker) -> None:
    worker()


@pytest.fixture
def by_hand(house: _House) -> ByHand:
    return ByHand(house.path)
