"""Hands to make attempts and their ends with, and a database of its own for the pages that write."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.store.kit import MovableClock, lay_out, new_worker
from worker_service.children.messages import Ended, How
from worker_service.daemon.attempts import Attempt
from worker_service.jobs.model import NewJob
from worker_service.store.base import Store
from worker_service.store.opening import open_store

MakeAttempt = Callable[..., Attempt]


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "pagemill.db"
    lay_out(path)
    return path


@pytest.fixture
def store(database: Path, clock: MovableClock) -> Iterator[Store]:
    opened = open_store(database, clock=clock)
    opened.leases.register(new_worker("w1"))
    yield opened
    opened.close()


@pytest.fixture
def attempt(store: Store) -> MakeAttempt:
    """A job that was claimed just now, as the loop notes it."""
    numbers = itertools.count()

    def make(**fields: Any) -> Attempt:
        store.intake.enqueue(NewJob("ocr_pages", payload=f'{{"n":{next(numbers)}}}', **fields))
        [job] = store.leases.claim("w1", 1)
        return Attempt(job, "cpu")

    return make


def ended(attempt: Attempt, how: How = How.DONE, **fields: Any) -> Ended:
    return Ended(attempt.job.id, attempt.job.fence, how, **fields)


class Silence:
    """A log that nobody reads; it remembers the names of the events, and what they told."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.told: list[dict[str, object]] = []

    def info(self, event: str, **fields: object) -> None:
        self.heard.append(event)
        self.told.append(fields)

    warning = error = critical = debug = info


@pytest.fixture
def log() -> Any:
    return Silence()
