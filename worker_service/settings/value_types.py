"""Settings and the types of their values. A type parses a flag, a variable or TOML, and formats a value for users."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar, get_args, overload

import msgspec
from msgspec import Meta, Struct, field

from worker_service.base.clock import parse_duration, parse_length, zone_of
from worker_service.base.errors import BadTime, ConfigError

if TYPE_CHECKING:
    from worker_service.jobs.retries import RetryRule
    from worker_service.settings.cluster import Cluster
    from worker_service.settings.cron_schedules import Schedule
    from worker_service.settings.notifications import NotifyRule
    from worker_service.settings.trusted_proxy import TrustedProxy

T = TypeVar("T")
S = TypeVar("S", bound=Struct)

_PAYLOAD_BYTES_MAX = 1_000_000_000
YEAR_SECONDS = 31_536_000.0
_MODEL_CHARACTERS_MAX = 200
_FILE_BYTES_MAX = 2**40
_PORT_MAX = 65535
_DEFAULT_PORT_BY_SCHEME = {"http": "80", "https": "443"}
_DIGITS = re.compile(r"[0-9]{1,19}")
_URL = re.compile(r"(https?)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(\d{1,5}))?/?")

Listen = tuple[str, int] | Path


class ValueType(Struct, Generic[T], frozen=True):
    description: str
    """Valid values, as in an error message: `a length of time such as 5m`."""
    parse: Callable[[object, str, Path], T]
    """Takes a raw value, its label in errors and the base of relative paths. `read` reports a ValueError."""
    format: Callable[[T], str | Mapping[str, str]] = str
    """Returns a text for `config show`; for a table, the text of each entry."""

    def read(self, raw: object, label: str, base: Path = Path()) -> T:
        try:
            return self.parse(raw, label, base)
        except (ValueError, BadTime) as error:
            raise ConfigError(f"{label} is {self.description}, not {raw!r}") from error


@dataclass(slots=True, eq=False)
class Setting(Generic[T]):
    """The declaration of a setting as a class attribute. On an instance, the same attribute is the value."""

    value_type: ValueType[T]
    default: object
    """The value as in TOML, or None if it depends on other values."""
    help: str
    otherwise: str = ""
    """Shown to users in place of `default`."""
    has_flag: bool = False
    table: str = ""
    """Heading in TOML; a setting with one has no variable."""
    key: str = ""
    """Name in TOML, without the unit."""

    def __set_name__(self, _: type, name: str) -> None:
        self.key = name.removesuffix("_seconds")

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, _: type) -> Setting[T]: ...
        @overload
        def __get__(self, instance: object, _: type) -> T: ...
        def __get__(self, instance: Any, _: type) -> Any: ...

    @property
    def variable(self) -> str:
        return f"WORKER_{self.key.upper()}"

    @property
    def flag(self) -> str:
        return f"--{self.key.replace('_', '-')}"

    def from_environment(self) -> T:
        return self.value_type.read(os.environ.get(self.variable) or self.default, self.variable)


def find_settings(declarations: type) -> dict[str, Setting[Any]]:
    return {setting.key: setting for setting in vars(declarations).values() if isinstance(setting, Setting)}


# ── Numbers, times, paths, words ──────────────────────────────────────────────────────────────────────────────────────


def whole_number(description: str, least: int, most: int) -> ValueType[int]:
    number = Annotated[int, Meta(ge=least, le=most)]

    def parse(raw: object, _: str, __: Path) -> int:
        # Variables and flags are text. msgspec's own conversion, strict=False, would also accept "1e3".
        is_text_of_digits = isinstance(raw, str) and _DIGITS.fullmatch(raw)
        return msgspec.convert(int(str(raw)) if is_text_of_digits else raw, number)

    return ValueType(description, parse)


def format_seconds(seconds: float) -> str:
    return f"{seconds:.10g}s"


def _length_of_time(least_seconds: float) -> ValueType[float]:
    def parse(raw: object, _: str, __: Path) -> float:
        if isinstance(raw, bool):
            raise ValueError
        seconds = parse_length(str(raw)).total_seconds()
        if not least_seconds <= seconds <= YEAR_SECONDS:
            raise ValueError
        return seconds

    return ValueType("a length of time such as 5m, or a number of seconds", parse, format_seconds)


def _parse_whole_seconds(raw: object, label: str, base: Path) -> int:
    return int(TIME_FROM_ONE.parse(raw, label, base))


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
    words = raw.split(separator) if isinstance(raw, str) else raw
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError
    return [word.strip() for word in words if word.strip()]


def _parse_types(raw: object, _: str, __: Path) -> tuple[str, ...]:
    words = parse_words(raw)
    if any(word == "!" or word.startswith("!!") for word in words):
        raise ValueError
    return tuple(words)


def _parse_zone(raw: object, _: str, __: Path) -> str:
    name = msgspec.convert(raw, str)
    zone_of(name)  # raises BadTime if there is none
    return name


def _parse_yes_no(raw: object, _: str, __: Path) -> bool:
    # TOML has booleans, but a variable is text.
    if raw in ("true", "false"):
        return raw == "true"
    return msgspec.convert(raw, bool)


def _parse_listen(raw: object, _: str, base: Path) -> Listen:
    if not isinstance(raw, str) or "\0" in raw:
        raise ValueError
    if raw.startswith(("/", "./", "~/")):
        return base / Path(raw).expanduser()
    host, colon, port = raw.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")  # around an IPv6 address
    if not colon or not host or not _DIGITS.fullmatch(port) or int(port) > _PORT_MAX:
        raise ValueError
    return host, int(port)


def _format_listen(listen: Listen) -> str:
    if isinstance(listen, Path):
        return str(listen)
    host, port = listen
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _parse_urls(raw: object, _: str, __: Path) -> tuple[str, ...]:
    return tuple(_origin_as_browsers_send_it(word) for word in parse_words(raw))


def _origin_as_browsers_send_it(url: str) -> str:
    match = _URL.fullmatch(url.lower())
    if match is None:
        raise ValueError
    scheme, host, port = match.groups()
    return f"{scheme}://{host}" if port in (None, _DEFAULT_PORT_BY_SCHEME[scheme]) else f"{scheme}://{host}:{port}"


def list_of(*words: str) -> ValueType[list[str]]:
    def parse(raw: object, _: str, __: Path) -> list[str]:
        chosen_words = parse_words(raw)
        if not set(chosen_words) <= set(words):
            raise ValueError
        return chosen_words

    return ValueType(f"a list of {', '.join(words)}", parse, ",".join)


def _parse_model(raw: object, _: str, __: Path) -> str:
    if not isinstance(raw, str) or not raw.isprintable() or len(raw) > _MODEL_CHARACTERS_MAX:
        raise ValueError
    return raw


def one_of(*words: str) -> ValueType[str]:
    return ValueType(f"one of {', '.join(words)}", lambda raw, _, __: msgspec.convert(raw, Literal[words]))


# ── Reading tables ────────────────────────────────────────────────────────────────────────────────────────────────────


def read_table(raw: object, label: str) -> dict[str, object]:
    if not isinstance(raw, dict):
        raise ConfigError(f"{label} is a table, not {raw!r}")
    return raw


def read_struct(struct: type[S], raw: object, label: str) -> S:
    """Read a table whose keys are the fields of `struct` that have a ValueType or a Meta with a description."""
    table = read_table(raw, label)
    field_by_key = {field.encode_name: field for field in msgspec.structs.fields(struct)}
    type_by_key = {key: value_type for key, field in field_by_key.items() if (value_type := _value_type_of(field.type))}
    for key in table:
        if key not in type_by_key:
            from worker_service.base.suggestions import did_you_mean  # only needed after a mistake

            remedy = did_you_mean(key, type_by_key, f"the settings are {', '.join(type_by_key)}")
            raise ConfigError(f"{label}: there is no setting {key!r}", remedy)
    values = {field_by_key[key].name: type_by_key[key].read(raw, f"{label}.{key}") for key, raw in table.items()}
    for key, value_type in type_by_key.items():
        if field_by_key[key].required and key not in table:
            raise ConfigError(f"{label}: {key} is missing", f"it is {value_type.description}")
    return struct(**values)


def _value_type_of(annotation: Any) -> ValueType[Any] | None:
    for argument in get_args(annotation):
        if isinstance(argument, ValueType):
            return argument
        if isinstance(argument, Meta) and argument.description:
            # Convert to the whole annotation, so that msgspec checks the constraints of its Metas.
            return ValueType(argument.description, lambda raw, _, __: msgspec.convert(raw, annotation))
        if (nested := _value_type_of(argument)) is not None:
            return nested
    return None


# ── Value types ───────────────────────────────────────────────────────────────────────────────────────────────────────

DATABASE = ValueType("the path of a file", _parse_database)
DIRECTORY = ValueType("the path of a directory", _parse_path)
PAYLOAD_BYTES = whole_number(f"a number of bytes from 1024 to {_PAYLOAD_BYTES_MAX}", 1024, _PAYLOAD_BYTES_MAX)
PASSAGE_TOKENS = whole_number("a number of tokens from 50 to 8000", 50, 8000)
OVERLAP_TOKENS = whole_number("a number of tokens from 0 to 4000", 0, 4000)
SLOTS = whole_number("a number of slots from 0 to 1000", 0, 1000)
INTERVAL = _length_of_time(0.05)
TIME_FROM_ZERO = _length_of_time(0)
TIME_FROM_ONE = _length_of_time(1)
WHOLE_SECONDS = ValueType(TIME_FROM_ONE.description, _parse_whole_seconds, format_seconds)
ZONE = ValueType("a time zone of this machine such as Europe/Berlin (`timedatectl list-timezones`)", _parse_zone)
YES_NO = ValueType("true or false", _parse_yes_no, lambda value: str(value).lower())
LISTEN = ValueType(
    "HOST:PORT such as 127.0.0.1:8470, or the path of a socket such as /run/pagemill/web.sock",
    _parse_listen,
    _format_listen,
)
WORDS: ValueType[list[str]] = ValueType("a list of texts", lambda raw, _, __: parse_words(raw), ",".join)
URLS = ValueType("a list of addresses such as https://docs.example.org, without a path", _parse_urls, ",".join)
_Embeddings = Annotated[str, Meta(pattern=r"\A(off|bundled|https?://[^\s?#]+)\Z")]
EMBEDDINGS = ValueType(
    "off, bundled or the address of a server such as http://127.0.0.1:11434/v1",
    lambda raw, _, __: msgspec.convert(raw, _Embeddings),
)
MODEL = ValueType("the name of a model", _parse_model)
FILE_BYTES = whole_number(f"a number of bytes from 1 to {_FILE_BYTES_MAX}", 1, _FILE_BYTES_MAX)
TYPES = ValueType("a list of job types such as scrape,!command", _parse_types, ",".join)

Jobs = Annotated[int, Meta(ge=0, le=2**63 - 1, description="a number of jobs")]
Text = Annotated[str, Meta(pattern=r"\A[^\0]*\Z", description="a text")]
FilledText = Annotated[str, Meta(pattern=r"\A[^\0]*\S[^\0]*\Z", description="a text that is not empty")]
YesNo = Annotated[bool, Meta(description="true or false")]


# ── Tables, which can only be set in the file ─────────────────────────────────────────────────────────────────────────

NEVER = "never"
_LIMIT_KINDS = ("type", "class", "owner")
_JOB_COUNT = ValueType("a number of jobs", lambda raw, _, __: msgspec.convert(raw, Jobs))


def _parse_limits(raw: object, label: str, _: Path) -> dict[str, dict[str, int]]:
    limits: dict[str, dict[str, int]] = {}
    for kind, table in read_table(raw, label).items():
        if kind not in _LIMIT_KINDS:
            raise ConfigError(f"{label}: there is no limit of {kind!r}", "write [limits.type], .class or .owner")
        limits[kind] = {
            name: _JOB_COUNT.read(max_running, f"{label}: limits.{kind}.{name}")
            for name, max_running in read_table(table, f"{label}: limits.{kind}").items()
        }
    for name in limits.get("class", {}):
        if name not in ("cpu", "io", "node"):
            raise ConfigError(f"{label}: limits.class.{name}: the classes are cpu, io and node")
    return limits


def _format_limits(limits: Mapping[str, Mapping[str, int]]) -> dict[str, str]:
    return {f"{kind}.{name}": str(number) for kind, table in limits.items() for name, number in table.items()}


LIMITS = ValueType("a table", _parse_limits, _format_limits)


class _RetryTable(Struct, frozen=True):
    max_retries: Annotated[int, Meta(ge=0, le=1000, description="a number of retries from 0 to 1000")] | None = field(
        default=None, name="max"
    )
    first_wait_seconds: Annotated[float | None, INTERVAL] = field(default=None, name="first")
    longest_wait_seconds: Annotated[float | None, INTERVAL] = field(default=None, name="most")


def _parse_retries(raw: object, label: str, _: Path) -> dict[str, RetryRule]:
    tables = read_table(raw, label)
    return {name: _parse_retry_rule(table, f"{label}: retries.{name}") for name, table in tables.items()}


def _parse_retry_rule(raw: object, label: str) -> RetryRule:
    from worker_service.jobs.retries import RetryRule  # only needed with a table [retries.TYPE]

    table, default = read_struct(_RetryTable, raw, label), RetryRule()
    first, longest = table.first_wait_seconds, table.longest_wait_seconds
    # If only one is set, adjust the default of the other to it.
    if first is None:
        first = default.first_wait_seconds if longest is None else min(default.first_wait_seconds, longest)
    if longest is None:
        longest = max(default.longest_wait_seconds, first)
    if first > longest:
        raise ConfigError(
            f"{label}: first is {format_seconds(first)} and most {format_seconds(longest)}: no wait is longer than most"
        )
    return RetryRule(table.max_retries, first, longest)


def _format_retries(rules: Mapping[str, RetryRule]) -> dict[str, str]:
    return {job_type: _format_retry_rule(rule) for job_type, rule in rules.items()}


def _format_retry_rule(rule: RetryRule) -> str:
    retries = "" if rule.max_retries is None else f"max {rule.max_retries}, "
    first, longest = format_seconds(rule.first_wait_seconds), format_seconds(rule.longest_wait_seconds)
    return f"{retries}first {first}, most {longest}"


RETRIES = ValueType("a table", _parse_retries, _format_retries)


def _parse_age(raw: object, _: str, __: Path) -> str:
    age = msgspec.convert(raw, str)
    if age != NEVER and not 1 <= parse_duration(age).total_seconds() <= 100 * YEAR_SECONDS:
        raise ValueError
    return age


_Age = Annotated[str, ValueType("a length of time such as 30d, or never", _parse_age)]


class _PruneTable(Struct, frozen=True):
    completed: _Age = "90d"
    failed: _Age = "90d"
    cancelled: _Age = "90d"
    logs: _Age = "30d"


def _parse_prune(raw: object, label: str, _: Path) -> dict[str, str]:
    return msgspec.structs.asdict(read_struct(_PruneTable, raw, f"{label}: prune"))


PRUNE = ValueType("a table", _parse_prune, dict)


# ── Tables with a module of their own ─────────────────────────────────────────────────────────────────────────────────


def _imported_if_set(description: str, path: str, unset: T, raw_unset_values: Sequence[object]) -> ValueType[T]:
    """Return the type at `path` (module.NAME), whose module is imported only for values that are not unset."""

    def load() -> ValueType[T]:
        module, _, name = path.partition(".")
        value_type: ValueType[T] = getattr(import_module(f"worker_service.settings.{module}"), name)
        return value_type

    def parse(raw: object, label: str, base: Path) -> T:
        return unset if raw in raw_unset_values else load().parse(raw, label, base)

    def format_value(value: T) -> str | Mapping[str, str]:
        if value == unset:
            # A single value has one text, a table or a list of tables has a text for each entry.
            return "" if unset is None else {}
        return load().format(value)

    return ValueType(description, parse, format_value)


COMMANDS: ValueType[dict[str, Any]] = _imported_if_set("a table", "commands.COMMANDS", {}, ({},))
SCHEDULES: ValueType[tuple[Schedule, ...]] = _imported_if_set("a list of tables", "cron_schedules.SCHEDULES", (), ([],))
CLUSTER: ValueType[Cluster | None] = _imported_if_set("a cluster", "cluster.CLUSTER", None, ("", {}))
RULES: ValueType[tuple[NotifyRule, ...]] = _imported_if_set("a list of tables", "notifications.RULES", (), ([],))
ADDRESSES: ValueType[dict[str, str]] = _imported_if_set("a table", "notifications.ADDRESSES", {}, ({},))
PROXY: ValueType[TrustedProxy | None] = _imported_if_set(
    "a proxy that signs users in", "trusted_proxy.PROXY", None, ({},)
)
