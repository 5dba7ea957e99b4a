"""Settings and their kinds: each is declared once and parsed from a flag, a variable or TOML.

`config` finds the raw values and declares pagemill's own settings. Handlers declare theirs (`worker_service.handlers`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from msgspec import Struct

from worker_service.base.clock import parse_duration, parse_length, zone_of
from worker_service.base.errors import BadTime, ConfigError
from worker_service.jobs.retries import RetryRule

T = TypeVar("T")

_PAYLOAD_BYTES_MOST = 1_000_000_000
"""Our databases accept no larger value."""
_YEAR_SECONDS = 31_536_000.0
_LIMITED = ("type", "class", "owner")

_FILE_BYTES_MOST = 2**40
_PORT_MOST = 65535
_USUAL_PORTS = {"http": "80", "https": "443"}
_URL = re.compile(r"(https?)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(\d{1,5}))?/?")

NEVER = "never"
_KEPT = {"completed": "90d", "failed": "90d", "cancelled": "90d", "logs": "30d"}


Listen = tuple[str, int] | Path
"""A host and a port, or the path of a Unix socket."""


class ValueType(Struct, Generic[T], frozen=True):
    what: str
    """Description of the valid values, which ends the error message for another value."""
    parse: Callable[[object, str, Path], T]
    """Parse a raw value, given a label for errors and the base directory of relative paths. Raises ValueError, or
    ConfigError for a more specific message."""
    write: Callable[[T], str | Mapping[str, str]] = str
    """Format a value for `config show`; a table has one entry per line."""

    def read(self, raw: object, label: str, base: Path = Path()) -> T:
        try:
            return self.parse(raw, label, base)
        except ValueError as error:
            raise ConfigError(f"{label} is {self.what}, not {raw!r}") from error


@dataclass(slots=True, eq=False)
class Setting(Generic[T]):
    """A setting, declared as an attribute of a class. Its key is the attribute's name without a unit.

    On the class the attribute is the declaration; on an instance (`config.Settings`) it is the value.
    """

    kind: ValueType[T]
    default: object
    """Default as written in TOML; None if it depends on other values."""
    help: str
    otherwise: str = ""
    """Description of the default if it depends on other values."""
    has_flag: bool = False
    table: str = ""
    """Heading of a setting that is a table, and can only be set in the file."""
    key: str = ""

    def __set_name__(self, _: type, name: str) -> None:
        self.key = name.removesuffix("_seconds")

    if TYPE_CHECKING:

        @overload
        def __get__(self, read: None, _: type) -> Setting[T]: ...
        @overload
        def __get__(self, read: object, _: type) -> T: ...
        def __get__(self, read: Any, _: type) -> Any: ...

    @property
    def variable(self) -> str:
        return f"WORKER_{self.key.upper()}"

    @property
    def flag(self) -> str:
        return f"--{self.key.replace('_', '-')}"

    def here(self) -> T:
        """Return the value in a handler's child process, which is given only the variable."""
        return self.kind.read(os.environ.get(self.variable) or self.default, self.variable)


def declared_in(declarations: type) -> dict[str, Setting[Any]]:
    return {one.key: one for one in vars(declarations).values() if isinstance(one, Setting)}


# ── Numbers, times, paths, words ──────────────────────────────────────────────────────────────────────────────────────


def whole_number(what: str, least: int, most: int, *, from_text: bool = True) -> ValueType[int]:
    def parse(raw: object, _: str, __: Path) -> int:
        number = _whole(raw) if from_text or not isinstance(raw, str) else None
        if number is None or not least <= number <= most:
            raise ValueError
        return number

    return ValueType(what, parse)


def _whole(raw: object) -> int | None:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    return int(raw) if isinstance(raw, str) and raw.isascii() and raw.isdigit() and len(raw) < 20 else None


def length(seconds: float) -> str:
    return f"{seconds:.10g}s"


def length_of_time(least: float, most: float = _YEAR_SECONDS) -> ValueType[float]:
    def parse(raw: object, _: str, __: Path) -> float:
        if isinstance(raw, bool):
            raise ValueError
        try:
            seconds = parse_length(str(raw)).total_seconds()
        except BadTime as error:
            raise ValueError from error
        if not least <= seconds <= most:
            raise ValueError
        return seconds

    return ValueType("a length of time such as 5m, or a number of seconds", parse, length)


def _parse_path(raw: object, _: str, base: Path) -> Path:
    if not isinstance(raw, str) or not raw or "\0" in raw:
        raise ValueError
    return base / Path(raw).expanduser()


def _parse_database(raw: object, label: str, base: Path) -> Path:
    if isinstance(raw, str) and raw.startswith(("postgres://", "postgresql://")):
        raise ConfigError(
            f"{label} is a PostgreSQL address: this version speaks SQLite only, so give the path of a file"
        )
    if isinstance(raw, str) and "://" in raw:
        raise ConfigError(f"{label} is an address", "give the path of a file, such as /var/lib/pagemill/pagemill.db")
    return _parse_path(raw, label, base)


def parse_words(raw: object, separator: str = ",") -> list[str]:
    """Return the words of a list, or of a text with separators. Raise ValueError for any other value."""
    words = raw.split(separator) if isinstance(raw, str) else raw
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError
    return [word.strip() for word in words if word.strip()]


def _parse_types(raw: object, _: str, __: Path) -> tuple[str, ...]:
    types = parse_words(raw)
    if any(word == "!" or word.startswith("!!") for word in types):
        raise ValueError
    return tuple(types)


def _parse_zone(raw: object, _: str, __: Path) -> str:
    if not isinstance(raw, str):
        raise ValueError
    try:
        zone_of(raw)
    except BadTime as error:
        raise ValueError from error
    return raw


def _parse_yes_no(raw: object, _: str, __: Path) -> bool:
    # A variable's value is text.
    words = {"true": True, "false": False}
    if isinstance(raw, str) and raw in words:
        return words[raw]
    if not isinstance(raw, bool):
        raise ValueError
    return raw


def _parse_listen(raw: object, _: str, base: Path) -> Listen:
    if not isinstance(raw, str) or "\0" in raw:
        raise ValueError
    if raw.startswith(("/", "./", "~/")):
        return base / Path(raw).expanduser()
    host, colon, port = raw.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    number = _whole(port)
    if not colon or not host or number is None or number > _PORT_MOST:
        raise ValueError
    return host, number


def _listen(said: Listen) -> str:
    if isinstance(said, Path):
        return str(said)
    host, port = said
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _parse_urls(raw: object, _: str, __: Path) -> tuple[str, ...]:
    return tuple(_origin(word) for word in parse_words(raw))


def _origin(word: str) -> str:
    found = _URL.fullmatch(word.lower())
    if found is None:
        raise ValueError
    scheme, host, port = found.groups()
    # The form that browsers send.
    return f"{scheme}://{host}" + ("" if port in (None, _USUAL_PORTS[scheme]) else f":{port}")


def one_of(*words: str) -> ValueType[str]:
    def parse(raw: object, _: str, __: Path) -> str:
        if not isinstance(raw, str) or raw not in words:
            raise ValueError
        return raw

    return ValueType(f"one of {', '.join(words)}", parse)


# ── Tables, which can only be set in the file ─────────────────────────────────────────────────────────────────────────


def read_table(raw: object, label: str) -> dict[str, object]:
    if not isinstance(raw, dict):
        raise ConfigError(f"{label} is a table, not {raw!r}")
    return raw


def read_tables(raw: object, label: str) -> dict[str, dict[str, object]]:
    """Return the tables by name, without checking their contents."""
    return {name: read_table(table, f"{label}.{name}") for name, table in read_table(raw, label).items()}


def _parse_limits(raw: object, label: str, _: Path) -> dict[str, dict[str, int]]:
    limits: dict[str, dict[str, int]] = {}
    for kind, table in read_table(raw, label).items():
        if kind not in _LIMITED:
            raise ConfigError(f"{label}: there is no limit of {kind!r}", "write [limits.type], .class or .owner")
        of_kind = f"{label}: limits.{kind}"
        limits[kind] = {
            name: _JOBS.read(most, f"{of_kind}.{name}") for name, most in read_table(table, of_kind).items()
        }
    for name in limits.get("class", {}):
        if name not in ("cpu", "io", "node"):
            raise ConfigError(f"{label}: limits.class.{name}: the classes are cpu, io and node")
    return limits


def _parse_age(raw: object, _: str, __: Path) -> str:
    if not isinstance(raw, str):
        raise ValueError
    try:
        if raw != NEVER and not 1 <= parse_duration(raw).total_seconds() <= 100 * _YEAR_SECONDS:
            raise ValueError
    except BadTime as error:
        raise ValueError from error
    return raw


def _parse_prune(raw: object, label: str, _: Path) -> dict[str, str]:
    ages = read_table(raw, label)
    for what in ages:
        if what not in _KEPT:
            raise ConfigError(f"{label}: prune.{what}: what is pruned is completed, failed, cancelled or logs")
    return _KEPT | {what: _AGE.read(age, f"{label}: prune.{what}") for what, age in ages.items()}


def _parse_retries(raw: object, label: str, _: Path) -> dict[str, RetryRule]:
    return {name: _rule(table, f"{label}: retries.{name}") for name, table in read_table(raw, label).items()}


def _rule(raw: object, label: str) -> RetryRule:
    table, plain = read_table(raw, label), RetryRule()
    for key in table:
        if key not in ("max", "first", "most"):
            raise ConfigError(f"{label}: there is no setting {key!r}: the settings are max, first, most")
    number = _RETRIES.read(table["max"], f"{label}.max") if "max" in table else None
    first, most = (INTERVAL.read(table[key], f"{label}.{key}") if key in table else None for key in ("first", "most"))
    # If only one is set, adjust the default of the other to it.
    if first is None:
        first = plain.first_seconds if most is None else min(plain.first_seconds, most)
    if most is None:
        most = max(plain.most_seconds, first)
    if first > most:
        raise ConfigError(f"{label}: first is {length(first)} and most {length(most)}: no wait is longer than most")
    return RetryRule(number, first, most)


def _rule_in_words(rule: RetryRule) -> str:
    most = "" if rule.max is None else f"max {rule.max}, "
    return f"{most}first {length(rule.first_seconds)}, most {length(rule.most_seconds)}"


# ── Kinds ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

DATABASE = ValueType("the path of a file", _parse_database)
DIRECTORY = ValueType("the path of a directory", _parse_path)
PAYLOAD_BYTES = whole_number(f"a number of bytes from 1024 to {_PAYLOAD_BYTES_MOST}", 1024, _PAYLOAD_BYTES_MOST)
SLOTS = whole_number("a number of slots from 0 to 1000", 0, 1000)
INTERVAL = length_of_time(0.05)
TIME_FROM_ZERO = length_of_time(0)
TIME_FROM_ONE = length_of_time(1)
WHOLE_SECONDS = ValueType(TIME_FROM_ONE.what, lambda *written: int(TIME_FROM_ONE.parse(*written)), length)
ZONE = ValueType("a time zone of this machine such as Europe/Berlin (`timedatectl list-timezones`)", _parse_zone)
YES_NO = ValueType("true or false", _parse_yes_no, lambda said: str(said).lower())
LISTEN = ValueType(
    "HOST:PORT such as 127.0.0.1:8470, or the path of a socket such as /run/pagemill/web.sock", _parse_listen, _listen
)
URLS = ValueType("a list of addresses such as https://docs.example.org, without a path", _parse_urls, ",".join)
FILE_BYTES = whole_number(f"a number of bytes from 1 to {_FILE_BYTES_MOST}", 1, _FILE_BYTES_MOST)
TYPES = ValueType("a list of job types such as scrape,!command", _parse_types, ",".join)
LIMITS = ValueType(
    "a table",
    _parse_limits,
    lambda limits: {f"{kind}.{name}": str(most) for kind, each in limits.items() for name, most in each.items()},
)
RETRIES = ValueType(
    "a table", _parse_retries, lambda rules: {name: _rule_in_words(rule) for name, rule in rules.items()}
)
PRUNE = ValueType("a table", _parse_prune, dict)

_JOBS = whole_number("a number of jobs", 0, 2**63 - 1, from_text=False)
_RETRIES = whole_number("a number of retries from 0 to 1000", 0, 1000, from_text=False)
_AGE = ValueType("a length of time such as 30d, or never", _parse_age)
