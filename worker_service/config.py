"""What is set, and where from: flags, then WORKER_* in the environment, then a TOML file, then defaults.

Read once, at the start of each command. Every value remembers its origin, so that `pagemill config show` can tell.
An unknown key is an error: a setting that silently does nothing is worse than none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
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
    origins: Mapping[str, str]
    """Where each value came from: a flag, a variable, a file, or 'default'. By key, as the key is written in TOML."""

    def shown(self) -> list[tuple[str, str, str]]:
        """Key, value and origin of each setting, written as they would be in the TOML file."""
        values = {
            "database": str(self.database),
            "payload_bytes_max": str(self.payload_bytes_max),
            "orphan_after": f"{self.orphan_after_seconds}s",
        }
        return [(key, value, self.origins[key]) for key, value in values.items()]


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
        if origin == "default":
            values[key] = _default_database(environ, directory) if key == "database" else _DEFAULTS[key]
        else:
            values[key] = read(raw, f"{key} ({origin})", base)
        origins[key] = origin
    return Settings(values["database"], values["payload_bytes_max"], values["orphan_after"], origins)


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
    if environ.get(variable):
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
    return next((place / "pagemill.toml" for place in places if (place / "pagemill.toml").exists()), None)


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
    known = {_FILE_VARIABLE, *map(_variable, _READERS)}
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
    seconds = _whole_number(raw)
    if seconds is None and isinstance(raw, str):
        try:
            seconds = int(parse_duration(raw).total_seconds())
        except (BadTime, OverflowError, ValueError):
            seconds = None
    if seconds is None or not 1 <= seconds <= 31_536_000:
        raise ConfigError(f"{label} is a length of time such as 5m, or a number of seconds, not {raw!r}")
    return seconds


def _whole_number(raw: object) -> int | None:
    if isinstance(raw, bool):
        return None
    if isinstance(raw, int):
        return raw
    return int(raw) if isinstance(raw, str) and raw.isascii() and raw.isdigit() and len(raw) < 20 else None


_READERS: dict[str, Callable[[object, str, Path], object]] = {
    "database": _read_database,
    "payload_bytes_max": _read_payload_bytes_max,
    "orphan_after": _read_orphan_after,
}
_DEFAULTS = {"payload_bytes_max": 1_048_576, "orphan_after": 300}
