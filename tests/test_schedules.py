from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import pytest

from worker_service.base.clock import period_of
from worker_service.base.errors import ConfigError
from worker_service.jobs.job import NewJob
from worker_service.settings.config import Settings
from worker_service.settings.cron_schedules import EXAMPLE, Schedule, choose_slots, next_slot, slots, slots_between
from worker_service.settings.loading import load_settings

JOB = 'job = { type = "report" }'
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def settings_of(text: str, tmp_path: Path) -> Settings:
    file = tmp_path / "own.toml"
    file.write_text(text)
    return load_settings(environ={"HOME": str(tmp_path), "WORKER_CONFIG": str(file)}, directory=tmp_path)


def plan(cron: str, zone: str = "Europe/Berlin", *, missed: str = "once", most: int = 10) -> Schedule:
    return Schedule("nightly", cron, zone, missed=missed, missed_most=most, job=NewJob("report"))


def next_slots(schedule: Schedule, after: str, number: int) -> list[str]:
    """Its next slots, in UTC."""
    begin = datetime.fromisoformat(after).replace(tzinfo=UTC)
    return [slot.strftime("%m-%d %H:%M") for slot in islice(slots(schedule, begin), number)]


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


# --- what may stand in it ---------------------------------------------------------------------------


def test_schedules_are_parsed_and_shown(tmp_path: Path) -> None:
    settings = settings_of(
        'zone = "Europe/Berlin"\n[[schedule]]\nname = "nightly"\ncron = "30 2 * * MON-FRI"\nowner = "ann"\n'
        'job = { type = "report", payload = { day = "{day}" }, key = "k", timeout = "10m", max_retries = 0 }\n'
        '[[schedule]]\nname = "reports"\ncron = "@daily"\nzone = "Asia/Kolkata"\ncrawl = "/srv"\nmissed = "all"\n',
        tmp_path,
    )

    job = NewJob(
        "report", payload='{"day":"{day}"}', priority=7, owner="ann", concurrency_key="k", timeout_seconds=600,
        max_retries=0,
    )  # fmt: skip
    assert settings.schedule == (
        Schedule("nightly", "30 2 * * MON-FRI", "Europe/Berlin", "ann", job=job),
        Schedule("reports", "@daily", "Asia/Kolkata", missed="all", crawl="/srv"),
    )
    shown = {key: value for key, value, _ in settings.describe_values()}
    assert shown["schedule.nightly"] == "30 2 * * MON-FRI (Europe/Berlin): report"
    assert shown["schedule.reports"] == "@daily (Asia/Kolkata): crawl /srv"


def test_the_example_is_valid(tmp_path: Path) -> None:
    assert [schedule.name for schedule in settings_of(EXAMPLE, tmp_path).schedule] == ["nightly", "reports of the week"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('cron = "@daily"', "number 1: name is missing: it is up to 100 letters"),
        ('name = "a:b"', "number 1 (a:b).name is up to 100 letters"),
        (f'name = "n"\n{JOB}', "(n): cron is missing: it is five fields"),
        (f'name = "n"\ncron = "61 * * * *"\n{JOB}', "(n).cron '61 * * * *': bad minute: five fields"),
        (f'name = "n"\ncron = "0 0 31 2 *"\n{JOB}', "(n).cron '0 0 31 2 *': bad day-of-month: five fields"),
        (f'name = "n"\ncron = "* * * * * *"\n{JOB}', "(n).cron is five fields (minute, hour, day, month, weekday)"),
        (f'name = "n"\ncron = "@often"\n{JOB}', "(n).cron: '@often' is none of @hourly, @daily"),
        (f'name = "n"\ncron = "@daily"\nzone = "Mars"\n{JOB}', "(n).zone is a time zone of this machine"),
        (f'name = "n"\ncron = "@daily"\nzone = "/etc"\n{JOB}', "(n).zone is a time zone of this machine"),
        (f'name = "n"\ncron = "@daily"\npriority = 11\n{JOB}', "(n).priority is 1 (highest) to 10 (lowest), not 11"),
        (f'name = "n"\ncron = "@daily"\nmissed = "most"\n{JOB}', "(n).missed is one of skip, once, all, not 'most'"),
        (f'name = "n"\ncron = "@daily"\nmissed_most = 0\n{JOB}', "(n).missed_most is a number from 1 to 1000, not 0"),
        (f'name = "n"\ncron = "@daily"\nmised = "all"\n{JOB}', "(n): there is no setting 'mised': did you mean missed"),
        ('name = "n"\ncron = "@daily"\ncrwl = "/srv"', "(n): there is no setting 'crwl': did you mean crawl?"),
        ('name = "n"\ncron = "@daily"', "(n): it begins nothing: name one thing that it begins"),
        (f'name = "n"\ncron = "@daily"\nbatch = []\n{JOB}', "(n): it begins batch and job: name one thing"),
        ('name = "n"\ncron = "@daily"\njob = { platform = "x" }', "(n).job: type is missing"),
        ('name = "n"\ncron = "@daily"\njob = { type = "" }', "job.type is a text that is not empty, not ''"),
        ('name = "n"\ncron = "@daily"\njob = { type = "x", playload = {} }', "did you mean payload?"),
        ('name = "n"\ncron = "@daily"\njob = { type = "x", payload = { day = 2026-11-19 } }', "write a date in quotes"),
        (f'name = "n"\ncron = "@daily"\n{JOB}\n[[schedule]]\nname = "n"\ncron = "@daily"\n{JOB}', "two are called 'n'"),
    ],
)
def test_an_invalid_schedule_is_refused_with_its_field(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        settings_of(f"[[schedule]]\n{text}\n", tmp_path)

    assert sentence in str(error.value)
    assert "own.toml" in str(error.value)


def test_a_single_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is a list of tables, each headed \[\[schedule\]\]"):
        settings_of('[schedule]\nname = "n"\n', tmp_path)


# --- its slots --------------------------------------------------------------------------------------


def test_a_fixed_time_is_the_same_local_time_all_year() -> None:
    assert next_slots(plan("0 6 * * *"), "2026-03-27 12:00", 3) == ["03-28 05:00", "03-29 04:00", "03-30 04:00"]
    assert next_slots(plan("0 6 * * *"), "2026-10-23 12:00", 3) == ["10-24 04:00", "10-25 05:00", "10-26 05:00"]


def test_a_skipped_local_time_runs_right_after_the_change() -> None:
    # On 29 March, 2:00 is 3:00 in Berlin.
    assert next_slots(plan("30 2 * * *"), "2026-03-27 12:00", 3) == ["03-28 01:30", "03-29 01:00", "03-30 00:30"]
    # Two that become one moment are one slot.
    assert next_slots(plan("0 2,3 * * *"), "2026-03-28 12:00", 3) == ["03-29 01:00", "03-30 00:00", "03-30 01:00"]


def test_a_repeated_local_time_is_one_slot() -> None:
    # On 25 October, 3:00 is 2:00 again.
    assert next_slots(plan("30 2 * * *"), "2026-10-23 12:00", 3) == ["10-24 00:30", "10-25 00:30", "10-26 01:30"]
    # Also for who looks between the two.
    assert next_slots(plan("30 2 * * *"), "2026-10-25 01:10", 1) == ["10-26 01:30"]


def test_hourly_slots_follow_elapsed_time() -> None:
    assert next_slots(plan("30 * * * *"), "2026-10-24 23:00", 4) == [
        "10-24 23:30", "10-25 00:30", "10-25 01:30", "10-25 02:30",
    ]  # fmt: skip
    assert next_slots(plan("*/30 * * * *"), "2026-03-29 00:29", 4) == [
        "03-29 00:30", "03-29 01:00", "03-29 01:30", "03-29 02:00",
    ]  # fmt: skip


def test_a_schedule_may_have_no_next_slot() -> None:
    assert next_slot(plan("0 0 */20 * 1L"), utc("2026-01-01")) is None


def test_only_the_newest_of_very_many_slots_are_returned() -> None:
    found, is_all = slots_between(plan("* * * * *"), utc("2020-01-01"), utc("2026-01-01"))

    assert (len(found) > 1000, found[-1], is_all) == (True, utc("2026-01-01"), False)
    assert slots_between(plan("0 0 1 1 *", "UTC"), utc("2020-06-01"), utc("2026-01-01")) == (
        [utc(f"{year}-01-01") for year in range(2021, 2027)],
        True,
    )


# --- which of them begin something ------------------------------------------------------------------

NIGHTS = [utc(f"2026-11-{day} 02:00") for day in range(10, 15)]


@pytest.mark.parametrize(
    ("missed", "most", "chosen"),
    [("skip", 10, []), ("once", 10, NIGHTS[-1:]), ("all", 10, NIGHTS), ("all", 2, NIGHTS[-2:])],
)
def test_missed_slots_are_skipped_or_made_up_as_the_schedule_says(
    missed: str, most: int, chosen: list[datetime]
) -> None:
    assert choose_slots(plan("0 2 * * *", missed=missed, most=most), NIGHTS, NIGHTS[-1] + HOUR) == chosen


def test_a_slot_in_time_is_started_besides_missed_ones() -> None:
    now = NIGHTS[-1] + MINUTE

    assert choose_slots(plan("0 2 * * *", missed="skip"), NIGHTS, now) == NIGHTS[-1:]
    assert choose_slots(plan("0 2 * * *", missed="once"), NIGHTS, now) == NIGHTS[-1:]
    assert choose_slots(plan("0 2 * * *", missed="all", most=1), NIGHTS, now) == NIGHTS[-2:]


# --- periods ----------------------------------------------------------------------------------------


def test_a_period_is_named_in_the_local_time_of_the_zone() -> None:
    late = utc("2026-12-31 23:30")

    assert period_of(late, "day", "UTC") == "day 2026-12-31"
    assert period_of(late, "day", "Europe/Berlin") == "day 2027-01-01"
    assert period_of(late, "month", "Europe/Berlin") == "month 2027-01"
    assert period_of(late, "week", "Europe/Berlin") == "week 2026-W53"


def test_a_repeated_hour_is_two_periods() -> None:
    first, second = (period_of(utc(f"2026-10-25 0{hour}:30"), "hour", "Europe/Berlin") for hour in (0, 1))

    assert first != second
