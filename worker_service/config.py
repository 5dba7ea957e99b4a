"""What is set, and where from: flags, then WORKER_* in the environment, then a TOML file, then defaults.

Read once, at the start of each command. Every value remembers its origin, so that `pagemill config show` can tell.
An unknown key is an error: a setting that silently does nothing is worse than none. What a value may be is read in
`config_values`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker_service import config_values as values_of
from worker_service.config_values import Reader, RetryRule, length
from worker_service.errors import ConfigError

_ENV_PREFIX = "WORKER_"
_FILE_VARIABLE = "WORKER_CONFIG"

OWN_PLACE = Path(__file__).resolve().parents[1]
"""Where this code stands: in a checkout, or among the packages of an installation."""
SERVICE_CONFIGURATION, SERVICE_STATE = Path("/etc/pagemill"), Path("/var/lib/pagemill")
"""Where `pagemill service install` puts the settings and the database, so that every shell finds them."""
_SERVICE = "the service"


@dataclass(frozen=True, slots=True)
class Settings:
    database: Path
    payload_bytes_max: int
    orphan_after_seconds: int
    concurrency: int
    """Slots for handlers of class cpu."""
    io_concurrency: int
    """Slots for handlers of class io. As `concurrency`, where only that is said."""
    poll_interval_seconds: float
    """How late a hint that was missed may be noticed."""
    heartbeat_interval_seconds: float
    recovery_interval_seconds: float
    grace_period_seconds: float
    """How long a daemon that was asked to stop lets its children finish."""
    unknown_type_grace_seconds: float
    """How long a job may wait for a handler that no worker has."""
    queued_patience_seconds: float
    """For how long a document may stand still, before its reading has begun, until another wish takes it over."""
    indexing_patience_seconds: float
    """The same, while it is being read."""
    types: Sequence[str]
    """The job types that this worker takes; with ! those that it does not. Empty: all. `@commands` stands for every
    table [commands.X], and is followed by what it stands for."""
    log_format: str
    workspace: Path
    sandbox: str
    webhook_allow: Sequence[str]
    """Networks that a webhook may reach although they are not public."""
    limits: Mapping[str, Mapping[str, int]]
    """How many jobs may run at once: by kind ('type', 'class', 'owner'), then by name."""
    commands: Mapping[str, Mapping[str, object]]
    """The owner's own programs, by job type. Read by the room of the children."""
    retries: Mapping[str, RetryRule]
    """How a job type is tried again, where not as any other."""
    prune: Mapping[str, str]
    """How long ended jobs are kept, by status, and 'logs', the lines of any job."""
    origins: Mapping[str, str]
    """Where each value came from: a flag, a variable, a file, 'default', or (the database) 'the service'. By key, as
    the key is written in TOML."""

    @property
    def is_of_the_service(self) -> bool:
        """Whether the database is the one of this machine's service because nobody said otherwise."""
        return self.origins["database"] == _SERVICE

    def shown(self) -> list[tuple[str, str, str]]:
        """Key, value and origin of each setting, written as they would be in the TOML file."""
        values = {
            "database": str(self.database),
            "workspace": str(self.workspace),
            "payload_bytes_max": str(self.payload_bytes_max),
            "concurrency": str(self.concurrency),
            "io_concurrency": str(self.io_concurrency),
            "types": ",".join(self.types),
            "poll_interval": length(self.poll_interval_seconds),
            "heartbeat_interval": length(self.heartbeat_interval_seconds),
            "orphan_after": f"{self.orphan_after_seconds}s",
            "recovery_interval": length(self.recovery_interval_seconds),
            "grace_period": length(self.grace_period_seconds),
            "unknown_type_grace": length(self.unknown_type_grace_seconds),
            "queued_patience": length(self.queued_patience_seconds),
            "indexing_patience": length(self.indexing_patience_seconds),
            "sandbox": self.sandbox,
            "webhook_allow": ",".join(self.webhook_allow),
            "log_format": self.log_format,
        }
        shown = [(key, value, self.origins[key]) for key, value in values.items()]
        for kind, most in self.limits.items():
            shown += [(f"limits.{kind}.{name}", str(number), self.origins["limits"]) for name, number in most.items()]
        shown += [(f"retries.{name}", _rule(rule), self.origins["retries"]) for name, rule in self.retries.items()]
        shown += [(f"prune.{what}", age, self.origins[f"prune.{what}"]) for what, age in self.prune.items()]
        # Only the program: an argument may be a secret, though it should not be.
        shown += [
            (f"commands.{name}", values_of.program(table), self.origins["commands"])
            for name, table in self.commands.items()
        ]
        return shown

    def for_handlers(self) -> dict[str, str]:
        """The settings that handlers read, as the variables by which they declare them."""
        return {_variable("webhook_allow"): ",".join(self.webhook_allow)} if self.webhook_allow else {}


def load_settings(
    flags: Mapping[str, str] | None = None, *, environ: Mapping[str, str] | None = None, directory: Path | None = None
) -> Settings:
    """Read the settings as they are for this process: its environment, its current directory."""
    environ = os.environ if environ is None else environ
    directory = Path.cwd() if directory is None else directory
    _refuse_misspelt_variables(environ)
    file, from_file, is_shared = _read_file(environ, directory)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for key, read in _READERS.items():
        raw, origin, base = _find(key, flags or {}, environ, from_file, file, directory)
        if origin != "default":
            values[key] = read(raw, f"{key} ({origin})", base)
        elif key == "database":
            values[key] = _default_database(environ, directory, is_shared=is_shared)
        elif key == "workspace":
            values[key] = values["database"].parent / "workspace"
        else:
            values[key] = _processors() if key == "concurrency" else _DEFAULTS[key]
        origins[key] = origin
    origins |= {f"prune.{what}": origins["prune"] if what in values["prune"] else "default" for what in values_of.KEPT}
    values["prune"] = values_of.KEPT | values["prune"]
    if is_shared and origins["database"] in ("default", str(file)):
        origins["database"] = _SERVICE
    if origins["io_concurrency"] == "default" and values["concurrency"] and origins["concurrency"] != "default":
        # Who says only one number, as the original proposal does, means scrapers and downloads by it as well.
        values["io_concurrency"], origins["io_concurrency"] = values["concurrency"], origins["concurrency"]
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
            f"heartbeat_interval is {length(heartbeat)} and orphan_after {orphan_after}s: a worker would be given up "
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


def _read_file(environ: Mapping[str, str], directory: Path) -> tuple[Path | None, dict[str, object], bool]:
    """The file, what it says, and whether it is the service's, found where nothing nearer is."""
    if (file := _settings_file(environ, directory)) is not None:
        return file, _table_of(file), False
    file = SERVICE_CONFIGURATION / "pagemill.toml"
    if environ.get("STATE_DIRECTORY") or is_checkout(directory) or not os.access(file, os.R_OK):
        return None, {}, False
    table = _table_of(file)
    database = SERVICE_CONFIGURATION / str(table.get("database", SERVICE_STATE / "pagemill.db"))
    # Who may not look into the service's keeps one of their own, if there is one.
    if not os.access(database, os.R_OK) and _own_database(environ).exists():
        return None, {}, False
    return file, table, True


def _table_of(file: Path) -> dict[str, object]:
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
    return table


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


def _default_database(environ: Mapping[str, str], directory: Path, *, is_shared: bool) -> Path:
    if given := environ.get("STATE_DIRECTORY"):
        return _first_path(given) / "pagemill.db"
    if is_checkout(directory):
        return directory / "var" / "pagemill.db"
    return SERVICE_STATE / "pagemill.db" if is_shared else _own_database(environ)


def is_checkout(directory: Path) -> bool:
    """Whether this is the checkout whose code runs, which keeps its own things in ./var."""
    return directory.resolve() == OWN_PLACE and (directory / "pyproject.toml").is_file()


def _own_database(environ: Mapping[str, str]) -> Path:
    return _xdg(environ, "XDG_DATA_HOME", ".local/share") / "pagemill.db"


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
    known = {_FILE_VARIABLE, *_OF_HANDLERS, *(_variable(key) for key in _READERS if key not in _TABLES)}
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


def _read_commands(raw: object, label: str, _: Path) -> dict[str, dict[str, object]]:
    from worker_service.programs import read_program  # only where there are some

    tables = values_of.read_tables(raw, f"{label}: commands")
    for name, table in tables.items():
        if not name.isprintable() or not 0 < len(name) <= 100:
            raise ConfigError(f"{label}: {name!r} is not the name of a job type")
        read_program(table, f"{label}: commands.{name}")
    return tables


def _rule(rule: RetryRule) -> str:
    most = "" if rule.max is None else f"max {rule.max}, "
    return f"{most}first {length(rule.first_seconds)}, most {length(rule.most_seconds)}"


def _processors() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0))


_READERS: dict[str, Reader] = {
    "database": values_of.read_database,
    "workspace": values_of.read_workspace,
    "payload_bytes_max": values_of.read_payload_bytes_max,
    "orphan_after": values_of.read_orphan_after,
    "concurrency": values_of.read_slots,
    "io_concurrency": values_of.read_slots,
    "poll_interval": values_of.read_interval,
    "heartbeat_interval": values_of.read_interval,
    "recovery_interval": values_of.read_interval,
    "grace_period": values_of.read_grace,
    "unknown_type_grace": values_of.read_unknown_type_grace,
    "queued_patience": values_of.read_patience,
    "indexing_patience": values_of.read_patience,
    "types": values_of.read_types,
    "log_format": values_of.one_of("auto", "console", "json", "journal"),
    "sandbox": values_of.one_of("strict", "best-effort", "off"),
    "webhook_allow": values_of.read_networks,
    "limits": values_of.read_limits,
    "commands": _read_commands,
    "retries": values_of.read_retries,
    "prune": values_of.read_prune,
}
_DEFAULTS: dict[str, object] = {
    "payload_bytes_max": 1_048_576,
    "orphan_after": 300,
    "io_concurrency": 4,
    "poll_interval": 5.0,
    "heartbeat_interval": 30.0,
    "recovery_interval": 60.0,
    "grace_period": 30.0,
    "unknown_type_grace": 86400.0,
    "queued_patience": 600.0,
    "indexing_patience": 2700.0,
    "types": (),
    "log_format": "auto",
    "sandbox": "strict",
    "webhook_allow": (),
    "limits": {},
    "commands": {},
    "retries": {},
    "prune": {},
}
# What the shipped handlers read for themselves, from the environment only.
_OF_HANDLERS = ("WORKER_DOWNLOAD_ALLOW", "WORKER_DOWNLOAD_ROOTS", "WORKER_DOWNLOAD_BYTES_MAX", "WORKER_DRIVE_ENDPOINT")
# Tables stand in the file only.
_TABLES = ("limits", "commands", "retries", "prune")
_FIELDS = {
    key: f"{key}_seconds"
    for key in (
        "orphan_after",
        "poll_interval",
        "heartbeat_interval",
        "recovery_interval",
        "grace_period",
        "unknown_type_grace",
        "queued_patience",
        "indexing_patience",
    )
}
