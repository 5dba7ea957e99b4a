"""What each setting may be: a raw value from a flag, a variable or the TOML file, read into a value or refused by name.

A reader gets the raw value, a label that says whose it is and where it was written, and the directory that a relative
path in it begins at. Where the raw values are looked for is `config`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from worker_service.clock import parse_duration
from worker_service.errors import BadTime, ConfigError

Reader = Callable[[object, str, Path], object]

_PAYLOAD_BYTES_LEAST = 1024
_PAYLOAD_BYTES_MOST = 1_000_000_000
"""SQLite's own limit for one value."""
_SLOTS_MOST = 1000
_RETRIES_MOST = 1000
_LIMITED = ("type", "class", "owner")
_YEAR_SECONDS = 31_536_000.0

NEVER = "never"
KEPT = {"completed": "90d", "failed": "90d", "cancelled": "90d", "logs": "30d"}
"""How long ended jobs are kept, by status, and log lines."""


@dataclass(frozen=True, slots=True)
class RetryRule:
    """How a job type is tried again: [retries.TYPE]."""

    max: int | None = None
    """How many retries a new job of the type gets, where nobody says otherwise. None: what every job gets."""
    first_seconds: float = 10.0
    """The wait before the first retry; each one after it waits twice as long."""
    most_seconds: float = 3600.0


def read_database(raw: object, label: str, base: Path) -> Path:
    if not isinstance(raw, str) or not raw or "\0" in raw:
        raise ConfigError(f"{label} is the path of a file, not {raw!r}")
    if raw.startswith(("postgres://", "postgresql://")):
        raise ConfigError(
            f"{label} is a PostgreSQL address: this version speaks SQLite only, so give the path of a file"
        )
    if "://" in raw:
        raise ConfigError(f"{label} is an address: give the path of a file, such as /var/lib/pagemill/pagemill.db")
    return base / Path(raw).expanduser()


def read_payload_bytes_max(raw: object, label: str, _: Path) -> int:
    number = _whole_number(raw)
    if number is None or not _PAYLOAD_BYTES_LEAST <= number <= _PAYLOAD_BYTES_MOST:
        raise ConfigError(
            f"{label} is a number of bytes from {_PAYLOAD_BYTES_LEAST} to {_PAYLOAD_BYTES_MOST}, not {raw!r}"
        )
    return number


def read_orphan_after(raw: object, label: str, _: Path) -> int:
    return int(_seconds(raw, label, least=1))


def read_interval(raw: object, label: str, _: Path) -> float:
    return _seconds(raw, label, least=0.05)


def read_grace(raw: object, label: str, _: Path) -> float:
    return _seconds(raw, label, least=0)


def read_unknown_type_grace(raw: object, label: str, _: Path) -> float:
    return _seconds(raw, label, least=1)


def read_patience(raw: object, label: str, _: Path) -> float:
    return _seconds(raw, label, least=0)


def _seconds(raw: object, label: str, *, least: float, most: float = _YEAR_SECONDS) -> float:
    seconds = _number(raw)
    if seconds is None and isinstance(raw, str):
        try:
            seconds = parse_duration(raw).total_seconds()
        except (BadTime, OverflowError, ValueError):
            seconds = None
    if seconds is None or not least <= seconds <= most:
        raise ConfigError(f"{label} is a length of time such as 5m, or a number of seconds, not {raw!r}")
    return seconds


def length(seconds: float) -> str:
    return f"{seconds:g}s"


def read_slots(raw: object, label: str, _: Path) -> int:
    number = _whole_number(raw)
    if number is None or not 0 <= number <= _SLOTS_MOST:
        raise ConfigError(f"{label} is a number of slots from 0 to {_SLOTS_MOST}, not {raw!r}")
    return number


def read_types(raw: object, label: str, _: Path) -> tuple[str, ...]:
    words = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ConfigError(f"{label} is a list of job types such as ocr_pages,!command, not {raw!r}")
    types = tuple(word.strip() for word in words if word.strip())
    if any(word in ("!", "") or word.removeprefix("!").startswith("!") for word in types):
        raise ConfigError(f"{label} is a list of job types such as ocr_pages,!command, not {raw!r}")
    return types


def one_of(*words: str) -> Callable[[object, str, Path], str]:
    def read(raw: object, label: str, _: Path) -> str:
        if not isinstance(raw, str) or raw not in words:
            raise ConfigError(f"{label} is one of {', '.join(words)}, not {raw!r}")
        return raw

    return read


def read_networks(raw: object, label: str, _: Path) -> tuple[str, ...]:
    from ipaddress import ip_network  # only where there is one

    words = raw.replace(",", " ").split() if isinstance(raw, str) else raw
    try:
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError
        return tuple(str(ip_network(word, strict=False)) for word in words)
    except ValueError as error:
        raise ConfigError(f"{label} is a list of networks such as 10.0.0.0/8, not {raw!r}") from error


def read_workspace(raw: object, label: str, base: Path) -> Path:
    if not isinstance(raw, str) or not raw or "\0" in raw:
        raise ConfigError(f"{label} is the path of a directory, not {raw!r}")
    return base / Path(raw).expanduser()


def read_limits(raw: object, label: str, _: Path) -> dict[str, dict[str, int]]:
    tables = _table(raw, label)
    for kind in tables:
        if kind not in _LIMITED:
            raise ConfigError(f"{label}: there is no limit of {kind!r}: write [limits.type], .class or .owner")
    limits: dict[str, dict[str, int]] = {}
    for kind, table in tables.items():
        limits[kind] = {}
        for name, most in _table(table, f"{label}: limits.{kind}").items():
            number = None if isinstance(most, str) else _whole_number(most)
            if number is None or number < 0:
                raise ConfigError(f"{label}: limits.{kind}.{name} is a number of jobs, not {most!r}")
            limits[kind][name] = number
    for name in limits.get("class", {}):
        if name not in ("cpu", "io"):
            raise ConfigError(f"{label}: limits.class.{name}: the classes are cpu and io")
    return limits


def read_timeout(raw: object, label: str) -> int:
    return int(_seconds(raw, label, least=1))


def read_tables(raw: object, label: str) -> dict[str, dict[str, object]]:
    """What stands in them is read by whoever knows it."""
    return {name: _table(table, f"{label}.{name}") for name, table in _table(raw, label).items()}


def read_prune(raw: object, label: str, _: Path) -> dict[str, str]:
    ages: dict[str, str] = {}
    for what, age in _table(raw, label).items():
        if what not in KEPT:
            raise ConfigError(f"{label}: prune.{what}: what is pruned is completed, failed, cancelled or logs")
        if not isinstance(age, str):
            raise ConfigError(f"{label}: prune.{what} is a length of time such as 30d, or never, not {age!r}")
        if age != NEVER:
            _seconds(age, f"{label}: prune.{what}", least=1, most=100 * _YEAR_SECONDS)
        ages[what] = age
    return ages


def read_retries(raw: object, label: str, _: Path) -> dict[str, RetryRule]:
    return {name: _rule(table, f"{label}: retries.{name}") for name, table in _table(raw, label).items()}


def _rule(raw: object, label: str) -> RetryRule:
    table, plain = _table(raw, label), RetryRule()
    for key in table:
        if key not in ("max", "first", "most"):
            raise ConfigError(f"{label}: there is no setting {key!r}: the settings are max, first, most")
    most_retries = table.get("max")
    number = None if isinstance(most_retries, str) else _whole_number(most_retries)
    if most_retries is not None and (number is None or not 0 <= number <= _RETRIES_MOST):
        raise ConfigError(f"{label}.max is a number of retries from 0 to {_RETRIES_MOST}, not {most_retries!r}")
    first, most = (
        _seconds(table[key], f"{label}.{key}", least=0.05) if key in table else None for key in ("first", "most")
    )
    # One that was given moves the other's default along.
    if first is None:
        first = plain.first_seconds if most is None else min(plain.first_seconds, most)
    if most is None:
        most = max(plain.most_seconds, first)
    if first > most:
        raise ConfigError(f"{label}: first is {length(first)} and most {length(most)}: no wait is longer than most")
    return RetryRule(number, first, most)


def _table(raw: object, label: str) -> dict[str, object]:
    if not isinstance(raw, dict):
        raise ConfigError(f"{label} is a table, not {raw!r}")
    return raw


def program(table: Mapping[str, object]) -> str:
    argv = table.get("argv")
    return str(argv[0]) if isinstance(argv, list) and argv else ""


def _whole_number(raw: object) -> int | None:
    if isinstance(raw, bool):
        return None
    if isinstance(raw, int):
        return raw
    return int(raw) if isinstance(raw, str) and raw.isascii() and raw.isdigit() and len(raw) < 20 else None


def _number(raw: object) -> float | None:
    """A whole number, or one with a decimal point."""
    if isinstance(raw, float):
        return raw
    if isinstance(raw, str) and raw.count(".") == 1 and len(raw) < 20:
        whole, _, part = raw.partition(".")
        return float(raw) if (whole + part).isascii() and (whole + part).isdigit() else None
    return _whole_number(raw)
