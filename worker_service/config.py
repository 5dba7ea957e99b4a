"""What is set, and where from: flags, then WORKER_* in the environment, then a TOML file, then defaults.

Read once, at the start of each command. Every value remembers its origin, so that `pagemill config show` can tell.
An unknown key is an error: a setting that silently does nothing is worse than none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker_service.clock import parse_duration
from worker_service.errors import BadTime, ConfigError

_ENV_PREFIX = "WORKER_"
_FILE_VARIABLE = "WORKER_CONFIG"
_PAYLOAD_BYTES_LEAST = 1024
_PAYLOAD_BYTES_MOST = 1_000_000_000
"""SQLite's own limit for one value."""


@dataclass(frozen=True, slots=True)
class Settings:
    database: Path
    payload_bytes_max: int
    orphan_after_seconds: int
    concurrency: int
    """Slots for handlers of class cpu."""
    io_concurrency: int
    poll_interval_seconds: float
    """How late a hint that was missed may be noticed."""
    heartbeat_interval_seconds: float
    recovery_interval_seconds: float
    grace_period_seconds: float
    """How long a daemon that was asked to stop lets its children finish."""
    types: Sequence[str]
    """The job types that this worker takes; with ! those that it does not. Empty: all. `@commands` stands for every
    table [commands.X], and is followed by what it stands for."""
    log_format: str
    workspace: Path
    sandbox: str
    limits: Mapping[str, Mapping[str, int]]
    """How many jobs may run at once: by kind ('type', 'class', 'owner'), then by name."""
    commands: Mapping[str, Mapping[str, object]]
    """The owner's own programs, by job type. Read by the room of the children."""
    prune: Mapping[str, str]
    """How long ended jobs are kept, by status."""
    origins: Mapping[str, str]
    """Where each value came from: a flag, a variable, a file, or 'default'. By key, as the key is written in TOML."""

    def shown(self) -> list[tuple[str, str, str]]:
        """Key, value and origin of each setting, written as they would be in the TOML file."""
        values = {
            "database": str(self.database),
            "workspace": str(self.workspace),
            "payload_bytes_max": str(self.payload_bytes_max),
            "concurrency": str(self.concurrency),
            "io_concurrency": str(self.io_concurrency),
            "types": ",".join(self.types),
            "poll_interval": _length(self.poll_interval_seconds),
            "heartbeat_interval": _length(self.heartbeat_interval_seconds),
            "orphan_after": f"{self.orphan_after_seconds}s",
            "recovery_interval": _length(self.recovery_interval_seconds),
            "grace_period": _length(self.grace_period_seconds),
            "sandbox": self.sandbox,
            "log_format": self.log_format,
        }
        shown = [(key, value, self.origins[key]) for key, value in values.items()]
        for kind, most in self.limits.items():
            shown += [(f"limits.{kind}.{name}", str(number), self.origins["limits"]) for name, number in most.items()]
        shown += [(f"prune.{status}", age, self.origins["prune"]) for status, age in self.prune.items()]
        # Only the program: an argument may be a secret, though it should not be.
        shown += [
            (f"commands.{name}", _program(table), self.origins["commands"]) for name, table in self.commands.items()
        ]
        return shown


def load_settings(
    flags: Mapping[str, str] | None = None, *, environ: Mapping[str, str] | None = None, directory: Path | None = None
) -> Settings:
    """Read the settings as they are for this process: its environment, its current directory."""
    environ = os.environ if environ is None else environ
    directory = Path.cwd() if directory is None else directory
    _refuse_misspelt_variables(environ)
    file, from_file = _read_file(environ, directory)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for key, read in _READERS.items():
        raw, origin, base = _find(key, flags or {}, environ, from_file, file, directory)
        if origin != "default":
            values[key] = read(raw, f"{key} ({origin})", base)
        elif key == "database":
            values[key] = _default_database(environ, directory)
        elif key == "workspace":
            values[key] = values["database"].parent / "workspace"
        else:
            values[key] = _processors() if key == "concurrency" else _DEFAULTS[key]
        origins[key] = origin
    values["types"] = _with_commands(values["types"], values["commands"])
    if origins["heartbeat_interval"] == "default":
        # A short orphan time alone is no contradiction.
        values["heartbeat_interval"] = min(values["heartbeat_interval"], values["orphan_after"] / 4)
    _refuse_slow_heart(values["heartbeat_interval"], values["orphan_after"])
    return Settings(**{_FIELDS.get(key, key): value for key, value in values.items()}, origins=origins)


def _with_commands(types: Sequence[str], commands: Iterable[str]) -> tuple[str, ...]:
    # The word itself stays: `@commands` where there are none is no job type at all, not every one.
    stands_for = {"@commands": tuple(commands), "!@commands": tuple(f"!{name}" for name in commands)}
    return tuple(name for word in types for name in (word, *stands_for.get(word, ())))


def _refuse_slow_heart(heartbeat: float, orphan_after: int) -> None:
    if heartbeat * 2 > orphan_after:
        raise ConfigError(
            f"heartbeat_interval is {_length(heartbeat)} and orphan_after {orphan_after}s: a worker would be given up "
            "after one late beat, so let orphan_after be at least twice as long"
        )


def _find(
    key: str,
    flags: Mapping[str, str],
    environ: Mapping[str, str],
    from_file: Mapping[str, object],
    file: Path | None,
    directory: Path,
) -> tuple[object, str, Path]:
    """The raw value, its origin, and the directory that a relative path in it begins at."""
    variable = _variable(key)
    if flags.get(key):
        return flags[key], f"--{key.replace('_', '-')}", directory
    if key not in _TABLES and environ.get(variable):
        return environ[variable], variable, directory
    if file is not None and key in from_file:
        return from_file[key], str(file), file.parent
    return None, "default", directory


# ── The file ────────────────────────────────────────────────────────────────────────────────────────────────────


def _read_file(environ: Mapping[str, str], directory: Path) -> tuple[Path | None, dict[str, object]]:
    file = _settings_file(environ, directory)
    if file is None:
        return None, {}
    import tomllib  # only where there is a file: it is a tenth of the start of `pagemill ls`

    try:
        table = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"the settings file {file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"the settings file {file} is not TOML: {error}") from error
    for key in table:
        if key not in _READERS:
            raise ConfigError(f"{file}: there is no setting {key!r}{_suggestion(key, _READERS, cutoff=0.5)}")
    return file, table


def _settings_file(environ: Mapping[str, str], directory: Path) -> Path | None:
    if named := environ.get(_FILE_VARIABLE):
        return directory / Path(named).expanduser()
    places = []
    if given := environ.get("CONFIGURATION_DIRECTORY"):
        places.append(_first_path(given))
    elif is_checkout(directory):
        places.append(directory / "var")
    places.append(_xdg(environ, "XDG_CONFIG_HOME", ".config"))
    # Not Path.exists, which raises where a service may not look: at a home that its unit hides.
    return next((file for place in places if os.path.exists(file := place / "pagemill.toml")), None)  # noqa: PTH110


def _default_database(environ: Mapping[str, str], directory: Path) -> Path:
    if given := environ.get("STATE_DIRECTORY"):
        return _first_path(given) / "pagemill.db"
    if is_checkout(directory):
        return directory / "var" / "pagemill.db"
    return _xdg(environ, "XDG_DATA_HOME", ".local/share") / "pagemill.db"


def is_checkout(directory: Path) -> bool:
    """Whether this is the root of a checkout of pagemill, which keeps its own things in ./var."""
    return all((directory / part).is_file() for part in ("pyproject.toml", "schema.sql", "worker_service/config.py"))


def _first_path(given: str) -> Path:
    # systemd separates several directories by colons.
    return Path(given.split(":")[0])


def _xdg(environ: Mapping[str, str], variable: str, otherwise: str) -> Path:
    given = environ.get(variable, "")
    # The specification says to pass over a relative one.
    base = Path(given) if given.startswith("/") else Path(environ.get("HOME") or "~").expanduser() / otherwise
    return base / "pagemill"


# ── Names ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _variable(key: str) -> str:
    return _ENV_PREFIX + key.upper()


def _refuse_misspelt_variables(environ: Mapping[str, str]) -> None:
    """Other programs have WORKER_ variables too: only one that is very near to one of ours is taken for a slip."""
    known = {_FILE_VARIABLE, *(_variable(key) for key in _READERS if key not in _TABLES)}
    for name in environ:
        if name.startswith(_ENV_PREFIX) and name not in known:
            near = _suggestion(
                name.removeprefix(_ENV_PREFIX), [k.removeprefix(_ENV_PREFIX) for k in known], cutoff=0.75
            )
            if near:
                near = near.replace("did you mean ", f"did you mean {_ENV_PREFIX}")
                raise ConfigError(f"there is no setting {name!r}{near}")


def _suggestion(word: str, known: Iterable[str], *, cutoff: float) -> str:
    import difflib  # only for a mistake

    known = list(known)
    near = difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    if near:
        return f": did you mean {near[0]}?"
    return "" if cutoff > 0.5 else f": the settings are {', '.join(known)}"


# ── Values ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _read_database(raw: object, label: str, base: Path) -> Path:
    if not isinstance(raw, str) or not raw or "\0" in raw:
        raise ConfigError(f"{label} is the path of a file, not {raw!r}")
    if raw.startswith(("postgres://", "postgresql://")):
        raise ConfigError(
            f"{label} is a PostgreSQL address: this version speaks SQLite only, so give the path of a file"
        )
    if "://" in raw:
        raise ConfigError(f"{label} is an address: give the path of a file, such as /var/lib/pagemill/pagemill.db")
    return base / Path(raw).expanduser()


def _read_payload_bytes_max(raw: object, label: str, _: Path) -> int:
    number = _whole_number(raw)
    if number is None or not _PAYLOAD_BYTES_LEAST <= number <= _PAYLOAD_BYTES_MOST:
        raise ConfigError(
            f"{label} is a number of bytes from {_PAYLOAD_BYTES_LEAST} to {_PAYLOAD_BYTES_MOST}, not {raw!r}"
        )
    return number


def _read_orphan_after(raw: object, label: str, _: Path) -> int:
    return int(_seconds(raw, label, least=1))


def _read_interval(raw: object, label: str, _: Path) -> float:
    return _seconds(raw, label, least=0.05)


def _read_grace(raw: object, label: str, _: Path) -> float:
    return _seconds(raw, label, least=0)


def _seconds(raw: object, label: str, *, least: float) -> float:
    seconds = _number(raw)
    if seconds is None and isinstance(raw, str):
        try:
            seconds = parse_duration(raw).total_seconds()
        except (BadTime, OverflowError, ValueError):
            seconds = None
    if seconds is None or not least <= seconds <= 31_536_000:
        raise ConfigError(f"{label} is a length of time such as 5m, or a number of seconds, not {raw!r}")
    return seconds


def _length(seconds: float) -> str:
    return f"{seconds:g}s"


def _read_slots(raw: object, label: str, _: Path) -> int:
    number = _whole_number(raw)
    if number is None or not 0 <= number <= _SLOTS_MOST:
        raise ConfigError(f"{label} is a number of slots from 0 to {_SLOTS_MOST}, not {raw!r}")
    return number


def _read_types(raw: object, label: str, _: Path) -> tuple[str, ...]:
    words = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ConfigError(f"{label} is a list of job types such as ocr_pages,!command, not {raw!r}")
    types = tuple(word.strip() for word in words if word.strip())
    if any(word in ("!", "") or word.removeprefix("!").startswith("!") for word in types):
        raise ConfigError(f"{label} is a list of job types such as ocr_pages,!command, not {raw!r}")
    return types


def _one_of(*words: str) -> Callable[[object, str, Path], str]:
    def read(raw: object, label: str, _: Path) -> str:
        if not isinstance(raw, str) or raw not in words:
            raise ConfigError(f"{label} is one of {', '.join(words)}, not {raw!r}")
        return raw

    return read


def _read_workspace(raw: object, label: str, base: Path) -> Path:
    if not isinstance(raw, str) or not raw or "\0" in raw:
        raise ConfigError(f"{label} is the path of a directory, not {raw!r}")
    return base / Path(raw).expanduser()


def _read_limits(raw: object, label: str, _: Path) -> dict[str, dict[str, int]]:
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


def _read_commands(raw: object, label: str, _: Path) -> dict[str, dict[str, object]]:
    commands = {name: _table(table, f"{label}: commands.{name}") for name, table in _table(raw, label).items()}
    for name, table in commands.items():
        argv = table.get("argv")
        if not isinstance(argv, list) or not argv or not all(isinstance(word, str) for word in argv):
            raise ConfigError(f'{label}: commands.{name} needs argv = ["/path/of/the/program", "…"]')
    return commands


def _read_prune(raw: object, label: str, _: Path) -> dict[str, str]:
    ages: dict[str, str] = {}
    for status, age in _table(raw, label).items():
        if status not in ("completed", "failed", "cancelled"):
            raise ConfigError(f"{label}: prune.{status}: what ends is completed, failed or cancelled")
        if not isinstance(age, str):
            raise ConfigError(f"{label}: prune.{status} is a length of time such as 30d, not {age!r}")
        _seconds(age, f"{label}: prune.{status}", least=1)
        ages[status] = age
    return ages


def _table(raw: object, label: str) -> dict[str, object]:
    if not isinstance(raw, dict):
        raise ConfigError(f"{label} is a table, not {raw!r}")
    return raw


def _program(table: Mapping[str, object]) -> str:
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


def _processors() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0))


_READERS: dict[str, Callable[[object, str, Path], object]] = {
    "database": _read_database,
    "workspace": _read_workspace,
    "payload_bytes_max": _read_payload_bytes_max,
    "orphan_after": _read_orphan_after,
    "concurrency": _read_slots,
    "io_concurrency": _read_slots,
    "poll_interval": _read_interval,
    "heartbeat_interval": _read_interval,
    "recovery_interval": _read_interval,
    "grace_period": _read_grace,
    "types": _read_types,
    "log_format": _one_of("auto", "console", "json", "journal"),
    "sandbox": _one_of("strict", "best-effort", "off"),
    "limits": _read_limits,
    "commands": _read_commands,
    "prune": _read_prune,
}
_DEFAULTS: dict[str, object] = {
    "payload_bytes_max": 1_048_576,
    "orphan_after": 300,
    "io_concurrency": 4,
    "poll_interval": 5.0,
    "heartbeat_interval": 30.0,
    "recovery_interval": 60.0,
    "grace_period": 30.0,
    "types": (),
    "log_format": "auto",
    "sandbox": "strict",
    "limits": {},
    "commands": {},
    "prune": {},
}
# Tables stand in the file only.
_TABLES = ("limits", "commands", "prune")
_LIMITED = ("type", "class", "owner")
_SLOTS_MOST = 1000
_FIELDS = {
    key: f"{key}_seconds"
    for key in ("orphan_after", "poll_interval", "heartbeat_interval", "recovery_interval", "grace_period")
}
