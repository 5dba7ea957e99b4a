"""Attempts and their ends, and a database for each test."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.store.kit import MovableClock, lay_out, new_worker
from worker_service.base.clock import Clock, wall_clock
from worker_service.daemon.attempts import Attempt, DaemonContext, Slots
from worker_service.jobs.job import NewJob, Status
from worker_service.runner.messages import Ended, How
from worker_service.runner.worker_identity import Identity
from worker_service.settings.loading import load_settings
from worker_service.store.opening import open_store
from worker_service.store.store import Store

MakeAttempt = Callable[..., Attempt]


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


class ManualClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def monotonic() -> ManualClock:
    return ManualClock()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "pagemill.db"
    lay_out(path)
    return path


@pytest.fixture
def store(database: Path, clock: MovableClock) -> Iterator[Store]:
    opened = open_store(database, clock=clock)
    opened.workers.register(new_worker("w1"))
    yield opened
    opened.close()


@pytest.fixture
def make_attempt(store: Store) -> MakeAttempt:
    numbers = itertools.count()

    def make(**fields: Any) -> Attempt:
        store.intake.enqueue(NewJob("ocr_pages", payload=f'{{"n":{next(numbers)}}}', **fields))
        [job] = store.leases.claim("w1", 1)
        return Attempt(job, job.lease, "cpu")

    return make


def context_in(
    place: Path,
    store: Store,
    log: Any,
    clock: Clock = wall_clock,
    *,
    slots: Slots | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    own: Identity = Identity("w1", "h", "boot-1", 1),  # noqa: B008  frozen
    **settings: object,
) -> DaemonContext:
    values = {"database": place / "pagemill.db", "workspace": place / "workspace", **settings}
    environ = {"HOME": str(place), **{f"WORKER_{name.upper()}": str(value) for name, value in values.items()}}
    settled = load_settings(environ=environ, directory=place)
    slots = Slots({"cpu": 8, "io": 4}) if slots is None else slots
    return DaemonContext(settled, own, log, store, store, slots, clock, monotonic)


def ended(attempt: Attempt, how: How = How.DONE, **fields: Any) -> Ended:
    return Ended(attempt.job.id, attempt.job.fence, how, **fields)


def status_and_code(store: Store, attempt: Attempt) -> tuple[Status, str | None]:
    job = store.job_queries.get(attempt.job.id)
    return job.status, job.error_code


class RecordedLog:
    def __init__(self) -> None:
        self.events: list[str] = []
        self.fields: list[dict[str, object]] = []

    def info(self, event: str, **fields: object) -> None:
        self.events.append(event)
        self.fields.append(fields)

    warning = error = critical = debug = info


@pytest.fixture
def log() -> Any:
    return RecordedLog()
