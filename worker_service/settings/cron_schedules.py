"""Schedules, as the settings and the database define them, and their slots.

A slot is a moment, in UTC, at which a schedule is to start its job, crawl or batch. `services.schedule_ticks` does so.
When clocks go forward, a fixed time that does not exist comes right after the change; when they go back, one that
occurs twice is one slot. Times given by * or */ follow elapsed time (as in Debian's cron).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from cronsim import CronSim, CronSimError
from msgspec import Meta, Struct, field, structs

from worker_service.base.clock import parse_length, zone_of
from worker_service.base.errors import BadInput, ConfigError
from worker_service.base.humanize import counted
from worker_service.jobs.job import NewJob
from worker_service.settings.value_types import (
    INTERVAL,
    ZONE,
    FilledText,
    Text,
    ValueType,
    one_of,
    read_struct,
    read_table,
)

JOB, CRAWL, BATCH = "job", "crawl", "batch"
LATE = timedelta(minutes=5)
"""Age above which a slot counts as missed."""

_SLOTS_ENOUGH = 1000  # The largest `missed_most`. With more due slots than this, older ones are not searched for.
_ANY_START = datetime(2026, 1, 1, tzinfo=UTC)  # CronSim takes one even to check or explain an expression.
_EVERY_MINUTES, _EVERY_HOURS = re.compile(r"\*/(\d+) \* \* \* \*"), re.compile(r"0 \*/(\d+) \* \* \*")
_CRON_BY_WORD = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}  # fmt: skip


def _parse_cron(raw: object, label: str, _: Path) -> str:
    cron = " ".join(msgspec.convert(raw, str).split())
    if cron.startswith("@") and cron not in _CRON_BY_WORD:
        raise ConfigError(f"{label}: {cron!r} is none of {', '.join(_CRON_BY_WORD)}")
    if cron not in _CRON_BY_WORD and len(cron.split()) != 5:
        raise ValueError
    try:
        CronSim(_CRON_BY_WORD.get(cron, cron), _ANY_START)
    except CronSimError as error:
        raise ConfigError(f"{label} {cron!r}: {str(error).lower()}: {_CRON.description}") from error
    return cron


def _parse_payload(raw: object, label: str, _: Path) -> str:
    try:
        return json.dumps(raw, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{label} is not JSON: {error}", "write a date in quotes") from error


def _parse_timeout(raw: object, label: str, base: Path) -> int:
    return max(1, int(INTERVAL.parse(raw, label, base)))


_NAME = Meta(pattern=r"\A\w[\w .-]{0,99}\Z", description="up to 100 letters, digits, spaces and . _ -")
_CRON = ValueType("five fields (minute, hour, day, month, weekday) such as '0 6 * * 1-5', or @daily", _parse_cron)
_TIMEOUT = ValueType(INTERVAL.description, _parse_timeout)


class _ScheduledJob(Struct, frozen=True):
    job_type: FilledText = field(name="type")
    payload: Annotated[str | None, ValueType("a table", _parse_payload)] = None
    platform: FilledText = "local"
    account: Text | None = None
    source: Text = ""
    name: FilledText | None = None
    unique_key: FilledText | None = field(default=None, name="unique")
    concurrency_key: FilledText | None = field(default=None, name="key")
    max_retries: Annotated[int, Meta(ge=0, le=1000, description="a number from 0 to 1000")] | None = None
    timeout_seconds: Annotated[int | None, _TIMEOUT] = field(default=None, name="timeout")


def _parse_job(raw: object, label: str, _: Path) -> NewJob:
    return NewJob(**structs.asdict(read_struct(_ScheduledJob, raw, label)))


_JOB = ValueType('a table such as { type = "report" }', _parse_job)
_ANYTHING: ValueType[object] = ValueType("", lambda raw, _, __: raw)


EXAMPLE = """\
# For the settings file. Ticks are run by `systemctl enable --now pagemill-schedule.timer`, by the daemon after
# schedule_in_daemon = true and a restart, or by `* * * * * pagemill schedules tick` in a crontab.

[[schedule]]
name = "nightly"
cron = "30 2 * * *"             # minute hour day month weekday; or @hourly, @daily, @weekly, @monthly
zone = "UTC"                    # or "Europe/Berlin", …: the same local time in summer and winter
job = { type = "nightly_report", payload = { day = "{day}", slot = "{slot}" } }
priority = 7                    # 1 is the highest; users' jobs have higher ones
missed = "once"                 # slots seen too late: "skip", "once" (the newest), "all"
missed_most = 10                # limit for "all": only the newest count

[[schedule]]
name = "reports of the week"
cron = "0 6 * * MON-FRI"
crawl = "/srv/reports"          # or { folder = "https://drive.google.com/…", mime = ["application/pdf"] }
owner = "alice"
"""


class Schedule(Struct, frozen=True):
    name: Annotated[str, _NAME]
    cron: Annotated[str, _CRON]
    zone: Annotated[str, ZONE] = ""
    owner: Text = ""
    priority: Annotated[int, Meta(ge=1, le=10, description="1 (highest) to 10 (lowest)")] = 7
    """The default is lower than the priority of users' jobs."""
    missed: Annotated[str, one_of("skip", "once", "all")] = "once"
    """`once` creates a job only for the newest missed slot."""
    missed_most: Annotated[int, Meta(ge=1, le=1000, description="a number from 1 to 1000")] = 10
    """`all` creates jobs only for this many of the newest missed slots."""
    job: Annotated[NewJob | None, _JOB] = None
    crawl: Annotated[object, _ANYTHING] = None
    batch: Annotated[object, _ANYTHING] = None
    """`crawl` and `batch` are checked only when they start."""

    @property
    def kind_of_work(self) -> str:
        return next((kind for kind in (JOB, CRAWL, BATCH) if getattr(self, kind) is not None), "")

    @property
    def when(self) -> str:
        """A text such as `Every 15 minutes` or `At 06:00 on Monday`."""
        cron = _CRON_BY_WORD.get(self.cron, self.cron)
        if steps := _EVERY_MINUTES.fullmatch(cron):
            return f"Every {counted(int(steps[1]), 'minute')}"
        if steps := _EVERY_HOURS.fullmatch(cron):
            return f"Every {counted(int(steps[1]), 'hour')}"
        return CronSim(cron, _ANY_START).explain()

    @property
    def plan(self) -> str:
        """A text that identifies the sequence of slots. A schedule with another plan counts as new."""
        return f"{self.cron} {self.zone}"

    @property
    def what(self) -> str:
        """A text such as `ocr_report`, `crawl /srv/reports` or `batch of 2 sources`."""
        if self.job is not None:
            return self.job.job_type
        if isinstance(self.batch, list):
            return f"batch of {counted(len(self.batch), 'source')}"
        # A crawl is a folder, or a table with the folder and more.
        work = getattr(self, self.kind_of_work)
        values = work.values() if isinstance(work, Mapping) else [work]
        return f"{self.kind_of_work} {next((value for value in values if isinstance(value, str)), '')}".rstrip()


def cron_every(length: str) -> str:
    """Return the cron expression of an interval. Raise `BadInput` if there is none."""
    seconds = parse_length(length).total_seconds()
    minutes, hours = seconds / 60, seconds / 3600
    if minutes == 1:
        return "* * * * *"
    if hours == 1:
        return "0 * * * *"
    if hours == 24:
        return "0 0 * * *"
    if minutes.is_integer() and 1 < minutes < 60 and 60 % minutes == 0:
        return f"*/{minutes:.0f} * * * *"
    if hours.is_integer() and 1 < hours < 24 and 24 % hours == 0:
        return f"0 */{hours:.0f} * * *"
    raise BadInput(f"{length!r} does not divide an hour or a day evenly", "choose 1m, 5m, 15m, 30m, 1h, 6h, 12h or 1d")


# ── Slots ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def slots(schedule: Schedule, after: datetime) -> Iterator[datetime]:
    last = after
    # CronSim may repeat a local time in the hour that occurs twice.
    for local in CronSim(_CRON_BY_WORD.get(schedule.cron, schedule.cron), after.astimezone(zone_of(schedule.zone))):
        if (slot := local.astimezone(UTC)) > last:
            yield slot
            last = slot


def next_slot(schedule: Schedule, after: datetime) -> datetime | None:
    return next(slots(schedule, after), None)


class DueSlots(NamedTuple):
    slots: Sequence[datetime]
    is_complete: bool
    """False if there are so many that `slots` has only the newest."""


def slots_between(schedule: Schedule, after: datetime, now: datetime) -> DueSlots:
    # Look back further and further from `now`: a schedule that has not run for years may have millions of slots.
    span = timedelta(hours=1)
    while True:
        begin = max(after, now - span)
        due = list(takewhile(lambda slot: slot <= now, slots(schedule, begin)))
        if begin == after or len(due) > _SLOTS_ENOUGH:
            return DueSlots(due, is_complete=begin == after)
        span *= 8


def choose_slots(schedule: Schedule, due: Sequence[datetime], now: datetime) -> Sequence[datetime]:
    """Return the due slots for which jobs are created. A slot older than `LATE` counts as missed."""
    in_time = [slot for slot in due if now - slot <= LATE]
    missed = due[: len(due) - len(in_time)]
    if schedule.missed == "skip":
        return in_time
    if schedule.missed == "once":
        return in_time or missed[-1:]
    return [*missed[-schedule.missed_most :], *in_time]


def fill_slot(job: NewJob, slot: datetime, zone: str) -> str | None:
    """Replace {slot} and {day} in the payload by the slot's local time and date."""
    local = slot.astimezone(zone_of(zone))
    return job.payload and job.payload.replace("{slot}", local.isoformat()).replace("{day}", local.date().isoformat())


# ── Parsing the table ─────────────────────────────────────────────────────────────────────────────────────────────────


def _parse_schedules(raw: object, label: str, _: Path) -> tuple[Schedule, ...]:
    if not isinstance(raw, list):
        raise ConfigError(f"{label} is a list of tables, each headed [[schedule]], not {raw!r}")
    schedules = tuple(
        read_schedule(read_table(table, label), f"{label}: number {number}") for number, table in enumerate(raw, 1)
    )
    names = [schedule.name for schedule in schedules]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{label}: two are called {name!r}: what has run is remembered by the name")
    return schedules


def _format_schedules(schedules: Sequence[Schedule]) -> dict[str, str]:
    return {schedule.name: f"{schedule.cron} ({schedule.zone}): {schedule.what}" for schedule in schedules}


SCHEDULES = ValueType("a list of tables", _parse_schedules, _format_schedules)


def read_schedule(table: Mapping[str, object], label: str) -> Schedule:
    if isinstance(table.get("name"), str):
        label = f"{label} ({table['name']})"
    schedule = read_struct(Schedule, table, label)
    kinds = [key for key in table if key in (JOB, CRAWL, BATCH)]
    if len(kinds) != 1:
        begins = f"it begins {' and '.join(kinds)}" if kinds else "it begins nothing"
        raise ConfigError(f"{label}: {begins}", 'name one thing that it begins, such as job = { type = "…" }')
    if schedule.job is None:
        return schedule
    job = structs.replace(schedule.job, owner=schedule.owner, priority=schedule.priority)
    return structs.replace(schedule, job=job)
