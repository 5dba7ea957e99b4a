"""The daemon begins what is scheduled, where it is told to: in the loop of a real one, and by the clock here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.daemon.conftest import context_in
from tests.store.kit import MovableClock
from worker_service.base import events
from worker_service.daemon.chores import BeginScheduled
from worker_service.jobs.selector import Selector
from worker_service.store.store import Store

HOURLY = '[[schedule]]\nname = "{name}"\ncron = "0 * * * *"\n{what}\n'


@pytest.fixture
def chore(store: Store, clock: MovableClock, log: Any, tmp_path: Path) -> BeginScheduled:
    file = tmp_path / "own.toml"
    job = HOURLY.format(name="hourly", what='job = { type = "report" }')
    file.write_text(
        "schedule_in_daemon = true\n" + job + HOURLY.format(name="folder", what=f'crawl = "{tmp_path}/nowhere"')
    )
    return BeginScheduled(context_in(tmp_path, store, log, clock, config=file))


def test_each_slot_begins_its_job_and_what_cannot_be_begun_is_told_once(
    store: Store, clock: MovableClock, log: Any, chore: BeginScheduled
) -> None:
    chore.run()
    clock.advance(3600)
    for _ in range(3):
        chore.run()

    assert store.reading.count(Selector(job_types=("report",))) == 1
    assert log.heard == [events.SCHEDULE_BEGUN, events.SCHEDULE_FAILED]


def test_it_looks_again_when_the_next_slot_comes_and_not_much_later(clock: MovableClock, chore: BeginScheduled) -> None:
    assert chore.run() == 20
    clock.advance(3595)
    assert chore.run() == 5
