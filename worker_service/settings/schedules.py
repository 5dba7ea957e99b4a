"""The settings table [[schedule]] and its slots: the times of a cron expression in a time zone.

Read with the settings, so that a mistake is reported before a night is lost. A slot is a moment in UTC. When clocks go
forward, a fixed time that does not exist comes right after the change; when they go back, a fixed time that occurs
twice is one slot, the first. Times given by * or */ follow elapsed time (as in Debian's cron). `services/schedules.py`
decides when to check; the store records which slots have begun.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any

from cronsim import CronSim, CronSimError
from msgspec import Struct

from worker_service.base.clock import zone_of
from worker_service.base.errors import ConfigError, did_you_mean
from worker_service.base.humanize import counted
from worker_service.jobs.job import NewJob
from worker_service.settings.value_types import INTERVAL, ZONE, ValueType, one_of, read_table, whole_number

PRIORITY = 7
"""Lower than that of jobs that a user waits for."""
JOB, CRAWL, BATCH = "job", "crawl", "batch"
LATE = timedelta(minutes=5)

_MISSED_SEEN = 1000
_NAME = re.compile(r"\w[\w .-]{0,99}")
_WORDS = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}  # fmt: skip
_OWN = ("name", "cron", "zone", "owner", "priority", "missed", "missed_most")


class Schedule(Struct, frozen=True):
    name: str
    cron: str
    zone: str
    word: str
    """Kind of work: `job`, `crawl` or `batch`."""
    wish: object
    """A `NewJob` for a job; otherwise the value from the file."""
    owner: str
    priority: int
    missed: str
    """Policy for missed slots: `skip`, `once` (the newest), or `all`."""
    missed_most: int
    """Limit for `all`: only the newest slots count."""

    @property
    def plan(self) -> str:
        """Identifies the sequence of slots: another plan makes it another schedule."""
        return f"{self.cron} {self.zone}"

    @property
    def what(self) -> str:
        """Short description for lists."""
        wish = self.wish
        if isinstance(wish, NewJob):
            return wish.job_type
        if isinstance(wish, list):
            return f"{self.word} of {counted(len(wish), 'source')}"
        told = next((one for one in wish.values() if isinstance(one, str)), "") if isinstance(wish, Mapping) else wish
        return f"{self.word} {told}".rstrip()


# ── Slots ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def slots(schedule: Schedule, after: datetime) -> Iterator[datetime]:
    """Yield the slots after `after`, in UTC."""
    last = after
    # CronSim may repeat a local time in the hour that occurs twice.
    for told in CronSim(_WORDS.get(schedule.cron, schedule.cron), after.astimezone(zone_of(schedule.zone))):
        if (slot := told.astimezone(UTC)) > last:
            yield slot
            last = slot


def next_slot(schedule: Schedule, after: datetime) -> datetime | None:
    """Return the next slot, or None if there is none in the next fifty years."""
    return next(slots(schedule, after), None)


def slots_between(schedule: Schedule, after: datetime, now: datetime) -> tuple[Sequence[datetime], bool]:
    """Return the slots after `after` up to `now`, and whether these are all. Of very many, return the newest."""
    span = timedelta(hours=1)
    while True:
        begin = max(after, now - span)
        found = list(takewhile(lambda slot: slot <= now, slots(schedule, begin)))
        if begin == after or len(found) > _MISSED_SEEN:
            return found, begin == after
        span *= 8


def to_begin(schedule: Schedule, due: Sequence[datetime], now: datetime) -> Sequence[datetime]:
    """Return the due slots that create something. A slot is missed if it was not seen within `LATE`."""
    in_time = [slot for slot in due if now - slot <= LATE]
    missed = due[: len(due) - len(in_time)]
    if schedule.missed == "skip":
        return in_time
    if schedule.missed == "once":
        return in_time or missed[-1:]
    return [*missed[-schedule.missed_most :], *in_time]


def of_slot(job: NewJob, slot: datetime, zone: str) -> str | None:
    """Return the job's payload with {slot} and {day} replaced by the slot's local time and date in `zone`."""
    here = slot.astimezone(zone_of(zone))
    return job.payload and job.payload.replace("{slot}", here.isoformat()).replace("{day}", here.date().isoformat())


# ── Parsing the table ─────────────────────────────────────────────────────────────────────────────────────────────────


def read_schedules(raw: object, label: str) -> tuple[Schedule, ...]:
    """Return the schedules. A schedule without a zone of its own has an empty zone."""
    if not isinstance(raw, list):
        raise ConfigError(f"{label} is a list of tables, each headed [[schedule]], not {raw!r}")
    read = tuple(_read(read_table(one, label), label, number) for number, one in enumerate(raw, 1))
    names = [one.name for one in read]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{label}: two are called {name!r}: what has run is remembered by the name")
    return read


def _read(table: Mapping[str, object], label: str, number: int) -> Schedule:
    name = table.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        told = "has no name" if name is None else f"has the name {name!r}"
        raise ConfigError(f"{label}: number {number} {told}: a name is up to 100 letters, digits, spaces and . _ -")
    own = f"{label}: {name}"
    words = [key for key in table if key not in _OWN]
    for word in words:
        if word not in (JOB, CRAWL, BATCH):
            known = (*_OWN, JOB, CRAWL, BATCH)
            meant = did_you_mean(word, known, f"the fields are {', '.join(known)}")
            raise ConfigError(f"{own}: there is no field {word!r}", meant)
    if len(words) != 1:
        told = "it says nothing" if not words else f"it says {' and '.join(words)}"
        raise ConfigError(f"{own}: {told}", 'say one thing that it is to begin, such as job = { type = "…" }')
    if "cron" not in table:
        raise ConfigError(f"{own}: cron is missing", 'say when, such as cron = "0 6 * * 1-5"')

    def field(key: str, kind: ValueType[Any], otherwise: object) -> Any:
        return kind.read(table.get(key, otherwise), f"{own}: {key}")

    owner, priority = field("owner", _TEXT, ""), field("priority", _PRIORITY, PRIORITY)
    wish = table[words[0]]
    return Schedule(
        name=name,
        cron=field("cron", _CRON, ""),
        zone=field("zone", ZONE, "UTC") if "zone" in table else "",
        word=words[0],
        wish=_read_job(wish, f"{own}: job", owner, priority) if words[0] == JOB else wish,
        owner=owner,
        priority=priority,
        missed=field("missed", _MISSED, "once"),
        missed_most=field("missed_most", _MISSED_MOST, 10),
    )


def _read_job(raw: object, label: str, owner: str, priority: int) -> NewJob:
    table = read_table(raw, label)
    for key in table:
        if key not in _JOB_FIELDS:
            meant = did_you_mean(key, _JOB_FIELDS, f"the fields are {', '.join(_JOB_FIELDS)}")
            raise ConfigError(f"{label}: there is no field {key!r}", meant)
    if "type" not in table:
        raise ConfigError(f"{label}: type is missing: the type of the job")
    read: dict[str, Any] = {}
    for key, (column, kind) in _JOB_FIELDS.items():
        if key in table:
            read[column] = kind.read(table[key], f"{label}.{key}")
    return NewJob(owner=owner, priority=priority, **read)


def _parse_cron(raw: object, label: str, _: object) -> str:
    if not isinstance(raw, str):
        raise ValueError
    cron = " ".join(raw.split())
    if cron.startswith("@") and cron not in _WORDS:
        raise ConfigError(f"{label}: {cron!r} is none of {', '.join(_WORDS)}")
    if cron not in _WORDS and len(cron.split()) != 5:
        raise ValueError
    try:
        CronSim(_WORDS.get(cron, cron), datetime(2026, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        raise ConfigError(f"{label} {cron!r}: {str(error).lower()}: {_CRON.what}") from error
    return cron


def _parse_text(raw: object, _: str, __: object) -> str:
    if not isinstance(raw, str) or "\0" in raw:
        raise ValueError
    return raw


def _parse_filled(raw: object, _: str, __: object) -> str:
    if not isinstance(raw, str) or not raw.strip():
        raise ValueError
    return raw


def _parse_payload(raw: object, label: str, _: object) -> str:
    try:
        return json.dumps(raw, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{label} is not JSON: {error}", "write a date in quotes") from error


_TEXT = ValueType("a text", _parse_text)
_FILLED = ValueType("a text that is not empty", _parse_filled)
_CRON = ValueType("five fields (minute, hour, day, month, weekday) such as '0 6 * * 1-5', or @daily", _parse_cron)
_PRIORITY = whole_number("1 (highest) to 10 (lowest)", 1, 10, from_text=False)
_MISSED = one_of("skip", "once", "all")
_MISSED_MOST = whole_number("a number from 1 to 1000", 1, 1000, from_text=False)
_JOB_FIELDS: Mapping[str, tuple[str, ValueType[Any]]] = {
    "type": ("job_type", _FILLED),
    "payload": ("payload", ValueType("a table", _parse_payload)),
    "platform": ("platform", _FILLED),
    "account": ("account", _TEXT),
    "source": ("source", _TEXT),
    "name": ("name", _FILLED),
    "unique": ("unique_key", _FILLED),
    "key": ("concurrency_key", _FILLED),
    "max_retries": ("max_retries", whole_number("a number from 0 to 1000", 0, 1000, from_text=False)),
    "timeout": ("timeout_seconds", ValueType(INTERVAL.what, lambda *said: max(1, int(INTERVAL.parse(*said))))),
}
