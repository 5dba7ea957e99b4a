"""Periodic work of the daemon, and the limits that it writes when it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.daemon.conftest import MakeAttempt, context_in
from tests.store.kit import MovableClock, jobs_with_ids, new_worker
from worker_service.base import events
from worker_service.base.errors import BadInput, Refused
from worker_service.base.events import LIMITS_REPLACED
from worker_service.daemon.chores import BeginScheduled, DiskSpace, Prune, adopt_slots, status_line
from worker_service.daemon.start import write_limits
from worker_service.jobs.attempts import Failure, Report
from worker_service.jobs.counts import Counts
from worker_service.jobs.job import Status
from worker_service.jobs.selector import Selector
from worker_service.services.job_control import set_slots
from worker_service.services.overview import Overview
from worker_service.services.session import Session
from worker_service.settings.config import Settings
from worker_service.settings.loading import load_settings
from worker_service.store.store import Store


def test_the_status_line_names_slots_pending_jobs_and_the_oldest_wait() -> None:
    counts = Counts({Status.PENDING: 14}, None)

    line = status_line({"cpu": (2, 2), "io": (1, 4)}, counts, oldest_seconds=185)

    assert line == "2/2 cpu · 1/4 io · 14 pending · oldest 3 min"


def test_old_jobs_and_log_lines_are_pruned_at_their_age_and_logged_once(
    store: Store, database: Path, clock: MovableClock, make_attempt: MakeAttempt, log: Any
) -> None:
    old, failed, living = make_attempt(), make_attempt(), make_attempt()
    store.leases.report([Report(living.lease, lines=["an old line"] * 600)])
    store.leases.complete(old.lease)
    store.leases.fail(failed.lease, Failure("X", "x"), retry_at=None)
    clock.advance(86400 * 31)
    store.leases.beat("w1", ())
    new = make_attempt()
    store.leases.report([Report(living.lease, lines=["a new line"])])
    store.leases.complete(new.lease)
    (database.parent / "pagemill.toml").write_text('[prune]\ncompleted = "30d"\nfailed = "never"\nlogs = "30d"\n')
    prune = Prune(context_in(database.parent, store, log, clock, config=database.parent / "pagemill.toml"))

    waits = [prune.run() for _ in range(3)]

    assert [job.id for job in store.job_queries.list(jobs_with_ids())] == [new.job.id, living.job.id, failed.job.id]
    assert [line.line for line in store.history.logs(living.job.id)] == ["a new line"]
    assert waits == [0.1, 600, 600]
    assert log.fields == [{"completed": 1, "logs": 600}]


def test_a_full_disk_is_reported_once(store: Store, tmp_path: Path, log: Any) -> None:
    calls: list[bool] = []
    full = DiskSpace(context_in(tmp_path, store, log, workspace=tmp_path), calls.append, free_bytes_least=1 << 60)

    full.run()
    full.run()

    assert calls == [True]
    assert log.events == ["disk.filled"]


def test_a_commands_max_running_is_a_limit_of_its_type_unless_one_is_set(tmp_path: Path) -> None:
    file = tmp_path / "pagemill.toml"
    file.write_text(
        'payload_bytes_max = 4096\n[limits.type]\nfetch = 7\n[limits.owner]\n"*" = 2\n'
        '[commands.scrape]\nargv = ["/bin/true"]\nmax_running = 1\n'
        '[commands.fetch]\nargv = ["/bin/true"]\nmax_running = 3\n'
        '[commands.free]\nargv = ["/bin/true"]\n'
    )

    settings = load_settings(environ={"WORKER_CONFIG": str(file), "HOME": str(tmp_path)}, directory=tmp_path)
    limits = settings.wanted_limits

    assert limits == {
        "type": {"scrape": 1, "fetch": 7},
        "class": {},
        "owner": {"*": 2},
        "payload": {"bytes": 4096},
    }


def test_a_daemon_adopts_the_slots_that_a_user_sets(
    store: Store, clock: MovableClock, log: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = context_in(tmp_path, store, log, clock)
    store.workers.deregister("w1")
    store.workers.register(new_worker(context.identity.worker_id, cpu=context.slots.sizes["cpu"]))
    monkeypatch.setattr(Overview, "live_workers", property(lambda self: self.workers))
    session = Session(store, context.settings, "ann", clock)

    assert set_slots(session, 5) == context.identity.worker_id
    adopt_slots(context)

    assert context.slots.sizes["cpu"] == 5
    assert log.events == [events.SLOTS_CHANGED]
    with pytest.raises(BadInput, match="pause"):
        set_slots(session, 0)
    with pytest.raises(Refused):
        set_slots(session, 3, "w2")


HOURLY = '[[schedule]]\nname = "{name}"\ncron = "0 * * * *"\n{what}\n'


@pytest.fixture
def chore(store: Store, clock: MovableClock, log: Any, tmp_path: Path) -> BeginScheduled:
    file = tmp_path / "own.toml"
    job = HOURLY.format(name="hourly", what='job = { type = "report" }')
    file.write_text(
        "schedule_in_daemon = true\n" + job + HOURLY.format(name="folder", what=f'crawl = "{tmp_path}/nowhere"')
    )
    return BeginScheduled(context_in(tmp_path, store, log, clock, config=file))


def test_each_slot_of_a_schedule_starts_its_job_and_a_failure_is_logged_once(
    store: Store, clock: MovableClock, log: Any, chore: BeginScheduled
) -> None:
    chore.run()
    clock.advance(3600)
    for _ in range(3):
        chore.run()

    assert store.job_queries.count(Selector(job_types=("report",))) == 1
    assert log.events == [events.SCHEDULE_BEGUN, events.SCHEDULE_FAILED]


def test_the_chore_runs_again_when_the_next_slot_is_due(clock: MovableClock, chore: BeginScheduled) -> None:
    assert chore.run() == 20
    clock.advance(3595)
    assert chore.run() == 5


def settings(tmp_path: Path, text: str) -> Settings:
    (tmp_path / "own.toml").write_text(text)
    environ = {"HOME": str(tmp_path), "WORKER_CONFIG": str(tmp_path / "own.toml")}
    return load_settings(environ=environ, directory=tmp_path)


def test_changing_the_limits_of_a_running_daemon_is_logged(store: Store, tmp_path: Path, log: Any) -> None:
    first, second = settings(tmp_path, "[limits.owner]\nalice = 2"), settings(tmp_path, "[limits.owner]\nalice = 3")
    write_limits(store, first, log)
    del log.events[:]

    write_limits(store, first, log)
    assert log.events == []
    write_limits(store, second, log)

    assert log.events == [LIMITS_REPLACED]
    assert store.overview.limits()["owner"] == {"alice": 3}


def test_changing_limits_without_another_daemon_is_not_logged(store: Store, tmp_path: Path, log: Any) -> None:
    store.workers.deregister("w1")
    store.workers.set_limits("type", {"ocr_pages": 1})

    write_limits(store, settings(tmp_path, ""), log)

    assert log.events == []
    assert "type" not in store.overview.limits()
