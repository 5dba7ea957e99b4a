"""Ticks start each due slot once, also if several run at once or one is killed; users list and change schedules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.services.kill_points import ROOT, count_kills
from tests.store.kit import START, ByHand, MovableClock, lay_out
from worker_service.base.errors import BadInput, Refused
from worker_service.jobs.selector import Selector
from worker_service.services import schedules as service
from worker_service.services.schedule_ticks import run_tick
from worker_service.services.schedules import list_schedules
from worker_service.services.session import Session
from worker_service.services.undo import find_undoable, undo_action
from worker_service.settings.config import Settings
from worker_service.settings.loading import load_settings
from worker_service.store.opening import open_store

HOURLY = '[[schedule]]\nname = "hourly"\ncron = "0 * * * *"\njob = { type = "report", payload = { slot = "{slot}" } }\n'
MINUTELY = (
    HOURLY.replace("hourly", "minutely").replace("0 * * * *", "* * * * *") + 'missed = "all"\nmissed_most = 1000\n'
)
HOUR = timedelta(hours=1)

Open = Callable[[str], Session]


@pytest.fixture
def opened(tmp_path: Path, clock: MovableClock, request: pytest.FixtureRequest) -> Open:
    """Return a function that opens a session with the given settings. All use one database."""
    lay_out(tmp_path / "pagemill.db")

    def open_with(text: str) -> Session:
        settings = settings_in(tmp_path, text)
        session = Session(open_store(settings.database, clock=clock), settings, "ann", clock)
        request.addfinalizer(session.close)
        return session

    return open_with


def settings_in(directory: Path, text: str) -> Settings:
    file = directory / "own.toml"
    file.write_text(f'database = "{directory}/pagemill.db"\n{text}')
    return load_settings(environ={"HOME": str(directory), "WORKER_CONFIG": str(file)}, directory=directory)


def started_slots(session: Session) -> list[str | None]:
    return [started.slot for started in run_tick(session).items]


def at(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M}:00.000"


# --- due slots ------------------------------------------------------------------------------------


def test_a_new_schedule_starts_with_its_next_slot(opened: Open, clock: MovableClock) -> None:
    session = opened(HOURLY)

    assert started_slots(session) == []
    clock.advance(3599)
    assert started_slots(session) == []
    clock.advance(2)
    assert started_slots(session) == [at(START + HOUR)]
    assert started_slots(session) == []

    [job] = session.job_queries.list(Selector())
    assert (job.job_type, job.name, job.priority) == ("report", "hourly", 7)
    assert json.loads(job.payload or "") == {"slot": "2026-11-18T11:00:00+00:00"}


@pytest.mark.parametrize(("missed", "hours"), [("skip", []), ("once", [5]), ("all", [3, 4, 5])])
def test_missed_slots_are_reported_and_started_as_the_schedule_says(
    opened: Open, clock: MovableClock, missed: str, hours: list[int]
) -> None:
    session = opened(f'{HOURLY}missed = "{missed}"\nmissed_most = 3\n')
    run_tick(session)
    clock.advance(5 * 3600 + 1800)

    tick = run_tick(session)

    assert [started.slot for started in tick.items] == [at(START + hour * HOUR) for hour in hours]
    assert [(missed.schedule, missed.slots, missed.is_all) for missed in tick.missed] == [
        ("hourly", 5 - len(hours), True)
    ]
    next_tick = run_tick(session)
    assert (next_tick.items, next_tick.missed) == ([], [])


def test_a_schedule_that_fails_stops_no_other_and_is_tried_again(
    opened: Open, clock: MovableClock, tmp_path: Path
) -> None:
    folder = tmp_path / "reports"
    crawl = f'[[schedule]]\nname = "reports"\ncron = "0 * * * *"\nowner = "ann"\ncrawl = "{folder}"\n'
    session = opened(crawl + HOURLY)
    run_tick(session)
    clock.advance(3601)

    tick = run_tick(session)
    assert [started.schedule for started in tick.items] == ["hourly"]
    assert [fault.why for fault in tick.troubles] == [f"schedule reports: crawl: there is no directory {folder}"]

    folder.mkdir()
    assert [started.schedule for started in run_tick(session).items] == ["reports"]


def test_the_list_shows_the_next_and_last_run_and_whether_ticks_run(opened: Open, clock: MovableClock) -> None:
    session = opened(HOURLY)
    assert [state.is_waiting for state in list_schedules(session)] == [True]

    run_tick(session)
    [state] = list_schedules(session)
    assert (state.is_waiting, state.next_at, state.last_at, state.job) == (False, at(START + HOUR), None, None)

    clock.advance(3600 + 301)
    assert [state.is_waiting for state in list_schedules(session)] == [True]

    run_tick(session)
    [state] = list_schedules(session)
    assert (state.is_waiting, state.last_slot, state.next_at) == (False, at(START + HOUR), at(START + 2 * HOUR))
    assert state.job is not None
    assert state.job.status == "pending"


# --- many at once, and kills ------------------------------------------------------------------------


def database_without_ticks(directory: Path, minutes: int, text: str = MINUTELY) -> Path:
    """Return a database on which no tick has run for some minutes."""
    database = directory / "pagemill.db"
    lay_out(database)
    ByHand(database)(
        "INSERT INTO schedule_plan (schedule, plan, until)"
        f" VALUES ('minutely', '* * * * * UTC', strftime('%Y-%m-%d %H:%M:00.000', 'now', '-{minutes} minutes'))"
    )
    settings_in(directory, text)
    return database


def slots_and_their_jobs(database: Path) -> list[tuple[object, object]]:
    """Return each slot with the slot in the payload of its job, and None in place of a slot or job that is absent."""
    slot_of_job = "replace(substr(json_extract(q.payload, '$.slot'), 1, 16), 'T', ' ') || ':00.000'"
    rows = ByHand(database)(
        f"SELECT slot, {slot_of_job} AS slot_of_job FROM schedule_run r LEFT JOIN worker_job_queue q ON q.id = r.job_id"
        f" UNION ALL SELECT NULL, {slot_of_job} FROM worker_job_queue q"
        " WHERE id NOT IN (SELECT job_id FROM schedule_run WHERE job_id IS NOT NULL) ORDER BY 1"
    )
    return [(row["slot"], row["slot_of_job"]) for row in rows]


def minutes_from(begin: object, number: int) -> list[tuple[object, object]]:
    first = datetime.fromisoformat(str(begin))
    return [(at(first + timedelta(minutes=minute)),) * 2 for minute in range(number)]


def test_concurrent_ticks_start_each_slot_once(tmp_path: Path) -> None:
    database = database_without_ticks(tmp_path, 60)
    command = [sys.executable, "-m", "worker_service.cli", "schedules", "tick", "--json"]
    environ = {**os.environ, "WORKER_CONFIG": str(tmp_path / "own.toml")}

    ticks = [subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, cwd=ROOT) for _ in range(4)]
    started = [len(json.loads(tick.communicate()[0])["items"]) for tick in ticks]

    slots = slots_and_their_jobs(database)
    assert (sum(started), slots) == (len(slots), minutes_from(slots[0][0], len(slots)))
    assert len(slots) >= 60


def test_a_killed_tick_has_taken_a_slot_with_its_job_or_not_at_all(tmp_path: Path) -> None:
    base = database_without_ticks(tmp_path, 2)

    kills = count_kills("tick", base)

    for number in range(1, kills + 1):
        slots = slots_and_their_jobs(base.with_name(f"{base.stem}-{number}.db"))
        assert slots == minutes_from(slots[0][0], len(slots)), number
        assert 2 <= len(slots) <= 3
    # BEGIN and COMMIT for each slot.
    assert kills >= 2 * 2


def test_a_killed_tick_has_started_a_whole_batch_or_none(tmp_path: Path) -> None:
    batch = 'batch = ["https://example.org/a.pdf", "https://example.org/b.pdf"]'
    base = database_without_ticks(
        tmp_path, 1, MINUTELY.replace('job = { type = "report", payload = { slot = "{slot}" } }', batch)
    )

    kills = count_kills("tick", base)

    for number in range(1, kills + 1):
        [counts] = ByHand(base.with_name(f"{base.stem}-{number}.db"))(
            "SELECT (SELECT count(*) FROM schedule_run r JOIN batch b ON b.id = r.batch_id) AS slots,"
            " (SELECT count(*) FROM batch) AS batches, (SELECT count(*) FROM worker_job_queue) AS jobs,"
            " (SELECT count(*) FROM worker_job_queue q JOIN batch b ON b.id = q.batch_id) AS jobs_in_batches"
        )
        slots = int(str(counts["slots"]))
        assert slots in (1, 2)
        assert counts == {"slots": slots, "batches": slots, "jobs": 2 * slots, "jobs_in_batches": 2 * slots}
    # BEGIN and COMMIT of the due slot.
    assert kills >= 2


# --- schedules in the database ----------------------------------------------------------------------

REPORT = {"cron": "0 * * * *", "job": {"type": "report"}}


def test_schedules_of_users_and_of_the_settings_run_together(opened: Open, clock: MovableClock) -> None:
    session = opened(HOURLY)
    service.add_schedule(session, "mine", REPORT, owner="ann")
    run_tick(session)
    clock.advance(3600)

    assert sorted(started.schedule for started in run_tick(session).items) == ["hourly", "mine"]
    assert {state.name: state.definition is None for state in list_schedules(session)} == {
        "hourly": True,
        "mine": False,
    }
    assert [state.when for state in list_schedules(session)] == ["At the start of every hour"] * 2
    with pytest.raises(Refused):
        service.add_schedule(session, "hourly", REPORT)
    with pytest.raises(Refused):
        service.remove_schedule(session, "hourly")


def test_slots_of_a_pause_are_neither_started_nor_missed(opened: Open, clock: MovableClock) -> None:
    session = opened("")
    service.add_schedule(session, "mine", REPORT)
    service.pause_schedule(session, "mine")
    clock.advance(2 * 3600)
    assert started_slots(session) == []

    service.resume_schedule(session, "mine")
    assert started_slots(session) == []
    clock.advance(3600)
    assert len(started_slots(session)) == 1


def test_each_change_of_a_schedule_is_recorded_and_undone(opened: Open) -> None:
    session = opened("")
    service.add_schedule(session, "mine", REPORT)
    service.change_schedule(session, "mine", {**REPORT, "cron": "@daily"})
    service.remove_schedule(session, "mine")

    assert [(action.verb, action.subject) for action in session.history.actions()] == [
        ("remove_schedule", "schedule mine"), ("change_schedule", "schedule mine"), ("add_schedule", "schedule mine"),
    ]  # fmt: skip
    for expected in ([("mine", "@daily")], [("mine", "0 * * * *")], []):
        undo_action(session, find_undoable(session, None))
        assert [(state.name, state.cron) for state in list_schedules(session)] == expected
        assert service.overdue_schedules(session) == []


def test_an_undo_does_not_overwrite_a_later_change(opened: Open) -> None:
    session = opened("")
    service.add_schedule(session, "mine", REPORT)
    [added] = session.history.actions()
    service.pause_schedule(session, "mine")

    with pytest.raises(Refused, match="changed meanwhile"):
        undo_action(session, added)


def test_a_schedule_of_another_owner_cannot_be_changed(opened: Open) -> None:
    session = opened("")
    service.add_schedule(session, "mine", REPORT, owner="ann")

    for change in (service.pause_schedule, service.resume_schedule, service.remove_schedule):
        with pytest.raises(BadInput, match="no schedule 'mine'"):
            change(session, "mine", owner="bob")
    with pytest.raises(BadInput, match="no schedule 'mine'"):
        service.change_schedule(session, "mine", REPORT, owner="bob")


def test_a_definition_that_cannot_start_is_refused(opened: Open) -> None:
    session = opened("")
    for definition, sentence in (
        ({"cron": "0 * * *", "job": {"type": "a"}}, "five fields"),
        ({"cron": "@daily"}, "it begins nothing"),
        ({"cron": "@daily", "crawl": "/nowhere"}, "no directory /nowhere"),
    ):
        with pytest.raises(BadInput, match=sentence):
            service.add_schedule(session, "mine", definition)
    assert list_schedules(session) == []


def test_a_watched_folder_is_crawled_now_and_by_one_schedule(opened: Open, clock: MovableClock, tmp_path: Path) -> None:
    session = opened("")
    (tmp_path / "in coming").mkdir()
    folder = str(tmp_path / "in coming")

    state, started = service.watch_folder(session, folder, owner="ann")
    clock.advance(1)
    changed, _ = service.watch_folder(session, folder, {"lang": ["deu"]}, owner="ann", every="1h")

    assert (state.name, state.when, changed.name, changed.when) == (
        "in coming", "Every 5 minutes", "in coming", "At the start of every hour",
    )  # fmt: skip
    assert session.job_queries.get(started.job_id or 0).job_type == "crawl"
    assert len(list_schedules(session)) == 1
    with pytest.raises(BadInput, match="divide"):
        service.watch_folder(session, folder, every="7m")
