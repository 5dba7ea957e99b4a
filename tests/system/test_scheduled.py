from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.system import System
from worker_service.jobs.job import Status

SETTINGS = """\
schedule_in_daemon = true
[[schedule]]
name = "n"
cron = "0 0 1 1 *"
missed = "all"
job = { type = "noop" }
"""


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    (tmp_path / "own.toml").write_text(SETTINGS)
    opened = System(tmp_path)
    # It has seen nothing of three new years.
    done = opened.sqlite3(
        "INSERT INTO schedule_plan VALUES ('n', '0 0 1 1 * UTC', strftime('%Y-06-01 00:00:00.000', 'now', '-3 years'))"
    )
    assert done.returncode == 0, done.stderr
    yield opened
    opened.close()


def test_daemons_start_each_slot_once_despite_a_kill(system: System) -> None:
    first, second = (system.begin(config=system.place / "own.toml") for _ in range(2))
    system.wait_for_all(Status.COMPLETED, 3)
    for daemon in (first, second):
        daemon.signal(signal.SIGKILL)
        daemon.wait_for_exit()

    third = system.start(config=system.place / "own.toml")
    # It has ticked: chores run in the loop's first turn, and this one before the workspace's names.
    last = system.enqueue()
    system.wait_for(last, Status.COMPLETED)
    third.signal(signal.SIGTERM)
    assert third.wait_for_exit() == 0

    slots = system.sqlite3("SELECT count(*), count(DISTINCT slot), count(DISTINCT job_id) FROM schedule_run")
    assert (slots.stdout, last) == ("3|3|3\n", 4)
    started_slots = [event["slot"] for daemon in (first, second, third) for event in daemon.events("schedule.begun")]
    assert len(started_slots) == 3
