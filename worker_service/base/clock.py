"""Times, durations and periods. Times are stored as UTC text, which sorts. No other module reads the wall clock."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo

from worker_service.base.errors import BadTime

Clock = Callable[[], datetime]

PERIODS = ("hour", "day", "week", "month")

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)

_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"(\d+)\s*([smhdw])")
_NUMBER = re.compile(r"\d+(\.\d*)?", re.ASCII)


def wall_clock() -> datetime:
    return datetime.now(UTC)


def boot_clock() -> float:
    """Return seconds since boot, including sleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def as_text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(" ", "milliseconds").removesuffix("+00:00")


def from_text(text: str) -> datetime:
    """Parse stored text. Text that is not a time, which only a manual edit can leave, counts as 1970."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return _LONG_AGO


def zone_of(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo  # slow to import, and not needed for UTC

    try:
        return ZoneInfo(name)
    except (OSError, KeyError, ValueError) as error:  # a folder of zones; an unknown name; an invalid name
        raise BadTime(f"{name!r} is no time zone of this machine: `timedatectl list-timezones` lists them") from error


def period_of(moment: datetime, period: str, zone: str) -> str:
    """Return text such as ``day 2026-11-19``."""
    local = moment.astimezone(zone_of(zone))
    # With the offset %z, the hour that is repeated at the end of daylight saving time has two names.
    formats = {"hour": "%Y-%m-%d %H:00 %z", "day": "%Y-%m-%d", "week": "%G-W%V", "month": "%Y-%m"}
    return f"{period} {local.strftime(formats[period])}"


def parse_duration(text: str) -> timedelta:
    """Parse text such as ``90s``, ``2h``, ``30d`` or ``1h30m``."""
    parts = _DURATION.findall(text)
    if not parts or _DURATION.sub("", text).strip():
        raise BadTime(f"{text!r} is not a length of time", "write it like 90s, 10m, 2h, 30d or 1h30m")
    try:
        return timedelta(seconds=sum(int(number) * _UNIT_SECONDS[unit] for number, unit in parts))
    except (OverflowError, ValueError) as error:
        raise BadTime(f"{text!r} is longer than time is kept") from error


def parse_length(text: str) -> timedelta:
    """Parse a duration or a number of seconds. Do not use it for ages, where 30 may mean days."""
    if not _NUMBER.fullmatch(text):
        return parse_duration(text)
    try:
        return timedelta(seconds=float(text))
    except OverflowError as error:
        raise BadTime(f"{text!r} is longer than time is kept") from error


def parse_time(text: str, *, now: datetime) -> datetime:
    """Parse ``+10m`` (from now) or ``2026-11-18 10:00``, in UTC unless a zone is given."""
    if text.startswith("+"):
        return add_duration(now, parse_duration(text[1:]))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadTime(f"{text!r} is not a time", "write it like '2026-11-18 10:00' (UTC) or +10m") from error
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError as error:
        raise BadTime(f"{text!r} is further away than time is kept") from error


def add_duration(moment: datetime, length: timedelta) -> datetime:
    try:
        return moment + length
    except OverflowError as error:
        raise BadTime("that is further away than time is kept") from error
