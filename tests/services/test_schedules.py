"""Ticks: each slot begins its job once, however many tick at once and wherever one is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.store.kit import START, ByHand, MovableClock, lay_out
from worker_service.base.errors import BadInput, Refused
from worker_service.jobs.selector import Selector
from worker_service.services import schedules as service
from worker_service.services.schedule_ticks import run_tick
from worker_service.services.schedules import list_schedules, start_schedule_now
from worker_service.services.session import Session
from worker_service.services.undo import find_undoable, undo_action
from worker_service.settings.config import Settings
from worker_service.settings.loading import load_settings
from worker_service.store.opening import open_store

ROOT = Path(__file__).resolve().parents[2]
HOURLY = '[[schedule]]\nname = "hourly"\ncron = "0 * * * *"\njob = { type = "report", payload = { slot = "{slot}" } }\n'
MINUTELY = (
    HOURLY.replace("hourly", "minutely").replace("0 * * * *", "* * * * *") + 'missed = "all"\nmissed_most = 1000\n'
)
HOUR = timedelta(hours=1)

Open = Callable[[str], Session]


@pytest.fixture
def opened(tmp_path: Path, clock: MovableClock, request: pytest.FixtureRequest) -> Open:
    """A session with these settings, over one database."""
    lay_out(tmp_path / "pagemill.db")

    def open_with(text: str) -> Session:
        settings = settings_in(tmp_path, text)
        session = Session(open_store(settings.database, clock=clock), settings, "ann", clock)
        request.addfinalizer(session.close)
        return session

    return open_with


def settings_in(place: Path, text: str) -> Settings:
    file = place / "own.toml"
    file.write_text(f'database = "{place}/pagemill.db"\n{text}')
    return load_settings(environ={"HOME": str(place), "WORKER_CONFIG": str(file)}, directory=place)


def slots_begun(session: Session) -> list[str | None]:
    return [begun.slot for begun in run_tick(session).items]


def at(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M}:00.000"


# --- what is due ------------------------------------------------------------------------------------


def test_a_new_schedule_has_no_past_and_then_each_slot_begins_a_job(opened: Open, clock: MovableClock) -> None:
    session = opened(HOURLY)

    assert slots_begun(session) == []
    clock.advance(3599)
    assert slots_begun(session) == []
    clock.advance(2)
    assert slots_begun(session) == [at(START + HOUR)]
    assert slots_begun(session) == []

    [job] = session.store.job_queries.list(Selector())
    assert (job.job_type, job.name, job.priority) == ("report", "hourly", 7)
    assert json.loads(job.payload or "") == {"slot": "2026-11-18T11:00:00+00:00"}


@pytest.mark.parametrize(("missed", "hours"), [("skip", []), ("once", [5]), ("all", [3, 4, 5])])
def test_what_was_missed_is_told_and_made_up_as_the_schedule_says(
    opened: Open, clock: MovableClock, missed: str, hours: list[int]
) -> None:
    session = opened(f'{HOURLY}missed = "{missed}"\nmissed_most = 3\n')
    run_tick(session)
    clock.advance(5 * 3600 + 1800)

    done = run_tick(session)

    assert [begun.slot for begun in done.items] == [at(START + hour * HOUR) for hour in hours]
    assert [(one.schedule, one.slots, one.is_all) for one in done.missed] == [("hourly", 5 - len(hours), True)]
    again = run_tick(session)
    assert (again.items, again.missed) == ([], [])


def test_another_expression_is_another_schedule_without_a_past(opened: Open, clock: MovableClock) -> None:
    run_tick(opened(HOURLY))
    clock.advance(2 * 3600)

    assert slots_begun(opened(HOURLY.replace('"0 *', '"30 *'))) == []
    clock.advance(1801)
    assert slots_begun(opened(HOURLY.replace('"0 *', '"30 *'))) == [at(START + 2.5 * HOUR)]


def test_what_cannot_be_begun_is_told_keeps_nobody_else_from_it_and_is_tried_again(
    opened: Open, clock: MovableClock, tmp_path: Path
) -> None:
    folder = tmp_path / "reports"
    crawl = f'[[schedule]]\nname = "reports"\ncron = "0 * * * *"\nowner = "ann"\ncrawl = "{folder}"\n'
    session = opened(crawl + HOURLY)
    run_tick(session)
    clock.advance(3601)

    done = run_tick(session)
    assert [one.schedule for one in done.items] == ["hourly"]
    assert [one.why for one in done.troubles] == [f"schedule reports: crawl: there is no directory {folder}"]

    folder.mkdir()
    assert [one.schedule for one in run_tick(session).items] == ["reports"]


def test_one_is_begun_now_and_its_slots_come_all_the_same(opened: Open, clock: MovableClock) -> None:
    session = opened(HOURLY)
    run_tick(session)

    begun = start_schedule_now(session, "hourly")
    clock.advance(3601)

    assert (begun.slot, begun.existing) == (None, False)
    assert slots_begun(session) == [at(START + HOUR)]
    with pytest.raises(BadInput, match="there is no schedule 'hurly': did you mean hourly"):
        start_schedule_now(session, "hurly")


def test_the_list_tells_what_is_next_what_was_last_and_whether_anybody_ticks(opened: Open, clock: MovableClock) -> None:
    session = opened(HOURLY)
    assert [one.is_waiting for one in list_schedules(session)] == [True]

    run_tick(session)
    [state] = list_schedules(session)
    assert (state.is_waiting, state.next_at, state.last_at, state.job) == (False, at(START + HOUR), None, None)

    clock.advance(3600 + 301)
    assert [one.is_waiting for one in list_schedules(session)] == [True]

    run_tick(session)
    [state] = list_schedules(session)
    assert (state.is_waiting, state.last_slot, state.next_at) == (False, at(START + HOUR), at(START + 2 * HOUR))
    assert state.job is not None
    assert state.job.status == "pending"


# --- many at once, and kills ------------------------------------------------------------------------


def left_behind(place: Path, minutes: int, text: str = MINUTELY) -> Path:
    """A database whose schedule nobody has looked at for so long."""
    database = place / "pagemill.db"
    lay_out(database)
    ByHand(database)(
        "INSERT INTO schedule_plan (schedule, plan, until)"
        f" VALUES ('minutely', '* * * * * UTC', strftime('%Y-%m-%d %H:%M:00.000', 'now', '-{minutes} minutes'))"
    )
    settings_in(place, text)
    return database


def taken(database: Path) -> list[tuple[object, object]]:
    """Each slot with that of its job, in order; what has the one and not the other stands alone."""
    made = "replace(substr(json_extract(q.payload, '$.slot'), 1, 16), 'T', ' ') || ':00.000'"
    rows = ByHand(database)(
        f"SELECT slot, {made} AS made FROM schedule_run r LEFT JOIN worker_job_queue q ON q.id = r.job_id"
        f" UNION ALL SELECT NULL, {made} FROM worker_job_queue q"
        " WHERE id NOT IN (SELECT job_id FROM schedule_run WHERE job_id IS NOT NULL) ORDER BY 1"
    )
    return [(row["slot"], row["made"]) for row in rows]


def minutes_from(begin: object, number: int) -> list[tuple[object, object]]:
    first = datetime.fromisoformat(str(begin))
    return [(at(first + timedelta(minutes=one)),) * 2 for one in range(number)]


def test_ticks_that_run_at_once_begin_each_slot_once(tmp_path: Path) -> None:
    database = left_behind(tmp_path, 60)
    command = [sys.executable, "-m", "worker_service.cli", "schedules", "tick", "--json"]
    environ = {**os.environ, "WORKER_CONFIG": str(tmp_path / "own.toml")}

    ticks = [subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, cwd=ROOT) for _ in range(4)]
    begun = [len(json.loads(one.communicate()[0])["items"]) for one in ticks]

    found = taken(database)
    assert (sum(begun), found) == (len(found), minutes_from(found[0][0], len(found)))
    assert len(found) >= 60


def killed_ticks(place: Path, base: Path) -> int:
    driver = [sys.executable, "-m", "tests.services.kill_points", "tick", str(place / "own.toml"), str(base)]
    return int(subprocess.run(driver, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout)


def test_a_tick_that_is_killed_at_any_statement_has_taken_a_slot_with_its_job_or_has_not(tmp_path: Path) -> None:
    base = left_behind(tmp_path, 2)

    killed = killed_ticks(tmp_path, base)

    for number in range(1, killed + 1):
        found = taken(base.with_name(f"{base.stem}-{number}.db"))
        assert found == minutes_from(found[0][0], len(found)), number
        assert 2 <= len(found) <= 3
    # BEGIN and COMMIT for each slot.
    assert killed >= 2 * 2


def test_a_tick_that_is_killed_at_any_statement_has_begun_a_whole_batch_or_none(tmp_path: Path) -> None:
    batch = 'batch = ["https://example.org/a.pdf", "https://example.org/b.pdf"]'
    base = left_behind(tmp_path, 1, MINUTELY.replace('job = { type = "report", payload = { slot = "{slot}" } }', batch))

    killed = killed_ticks(tmp_path, base)

    for number in range(1, killed + 1):
        [found] = ByHand(base.with_name(f"{base.stem}-{number}.db"))(
            "SELECT (SELECT count(*) FROM schedule_run r JOIN batch b ON b.id = r.batch_id) AS slots,"
            " (SELECT count(*) FROM batch) AS batches, (SELECT count(*) FROM worker_job_queue) AS jobs,"
            " (SELECT count(*) FROM worker_job_queue q JOIN batch b ON b.id = q.batch_id) AS theirs"
        )
        slots = found["slots"]
        assert slots in (1, 2)
        assert found == {"slots": slots, "batches": slots, "jobs": 2 * int(str(slots)), "theirs": 2 * int(str(slots))}
    # BEGIN and COMMIT, of the slot that is due.
    assert killed >= 2


# --- schedules in the database ----------------------------------------------------------------------

REPORT = {"cron": "0 * * * *", "job": {"type": "report"}}


def test_a_schedule_made_by_a_user_runs_beside_those_of_the_settings(opened: Open, clock: MovableClock) -> None:
    session = opened(HOURLY)
    service.add_schedule(session, "mine", REPORT, owner="ann")
    run_tick(session)
    clock.advance(3600)

    assert sorted(begun.schedule for begun in run_tick(session).items) == ["hourly", "mine"]
    assert {one.name: one.definition is None for one in list_schedules(session)} == {"hourly": True, "mine": False}
    assert [one.when for one in list_schedules(session)] == ["At the start of every hour"] * 2
    with pytest.raises(Refused):
        service.add_schedule(session, "hourly", REPORT)
    with pytest.raises(Refused):
        service.remove_schedule(session, "hourly")


def test_a_paused_schedule_starts_nothing_and_makes_up_for_nothing(opened: Open, clock: MovableClock) -> None:
    session = opened("")
    service.add_schedule(session, "mine", REPORT)
    service.pause_schedule(session, "mine")
    clock.advance(2 * 3600)
    assert slots_begun(session) == []

    service.resume_schedule(session, "mine")
    assert slots_begun(session) == []
    clock.advance(3600)
    assert len(slots_begun(session)) == 1


def test_each_change_of_a_schedule_is_recorded_and_undone(opened: Open) -> None:
    session = opened("")
    service.add_schedule(session, "mine", REPORT)
    service.change_schedule(session, "mine", {**REPORT, "cron": "@daily"})
    service.remove_schedule(session, "mine")

    assert [(one.verb, one.subject) for one in session.history.actions()] == [
        ("remove_schedule", "schedule mine"), ("change_schedule", "schedule mine"), ("add_schedule", "schedule mine"),
    ]  # fmt: skip
    for expected in ([("mine", "@daily")], [("mine", "0 * * * *")], []):
        undo_action(session, find_undoable(session, None))
        assert [(one.name, one.cron) for one in list_schedules(session)] == expected
        assert service.overdue_schedules(session) == []


def test_an_undo_does_not_overwrite_a_later_change(opened: Open) -> None:
    session = opened("")
    service.add_schedule(session, "mine", REPORT)
    [added] = session.history.actions()
    service.pause_schedule(session, "mine")

    with pytest.raises(Refused, match="changed meanwhile"):
        undo_action(session, added)


def test_nobody_changes_a_schedule_of_another_owner(opened: Open) -> None:
    session = opened("")
    service.add_schedule(session, "mine", REPORT, owner="ann")

    for change in (service.pause_schedule, service.resume_schedule, service.remove_schedule):
        with pytest.raises(BadInput, match="no schedule 'mine'"):
            change(session, "mine", owner="bob")
    with pytest.raises(BadInput, match="no schedule 'mine'"):
        service.change_schedule(session, "mine", REPORT, owner="bob")


def test_what_could_never_start_is_refused(opened: Open) -> None:
    session = opened("")
    for definition, sentence in (
        ({"cron": "0 * * *", "job": {"type": "a"}}, "five fields"),
        ({"cron": "@daily"}, "it begins nothing"),
        ({"cron": "@daily", "crawl": "/nowhere"}, "no directory /nowhere"),
    ):
        with pytest.raises(BadInput, match=sentence):
            service.add_schedule(session, "mine", definition)
    assert list_schedules(session) == []


def test_a_watched_folder_is_one_schedule_that_crawls_it_now_and_every_few_minutes(
    opened: Open, clock: MovableClock, tmp_path: Path
) -> None:
    session = opened("")
    (tmp_path / "in coming").mkdir()
    folder = str(tmp_path / "in coming")

    state, begun = service.watch_folder(session, folder, owner="ann")
    clock.advance(1)
    again, _ = service.watch_folder(session, folder, {"lang": ["deu"]}, owner="ann", every="1h")

    assert (state.name, state.when, again.name, again.when) == (
        "in coming", "Every 5 minutes", "in coming", "At the start of every hour",
    )  # fmt: skip
    assert session.job_queries.get(begun.job_id or 0).job_type == "crawl"
    assert len(list_schedules(session)) == 1
    with pytest.raises(BadInput, match="divide"):
        service.watch_folder(session, folder, every="7m")
