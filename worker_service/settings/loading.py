"""Read the settings: each from a flag, a WORKER_* variable, the settings file, or its default, in this order."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from worker_service.base.errors import ConfigError
from worker_service.settings import value_types
from worker_service.settings.config import OWN_SETTINGS, SERVICE, Settings, every_setting
from worker_service.settings.value_types import Setting, format_seconds

_DEFAULT = "default"
_FILE_VARIABLE = "WORKER_CONFIG"
SERVICE_CONFIGURATION, SERVICE_STATE = Path("/etc/pagemill"), Path("/var/lib/pagemill")
CHECKOUT = Path(__file__).resolve().parents[2]
"""The directory above this package: a checkout if it has a pyproject.toml."""

_FILE_NAME, _DATABASE_NAME = "pagemill.toml", "pagemill.db"


class _SettingsFile(NamedTuple):
    path: Path | None = None
    table: Mapping[str, object] = {}
    is_of_the_service: bool = False


class _Source(NamedTuple):
    raw: Any
    origin: str
    directory: Path
    """The base of relative paths."""


def load_settings(
    flags: Mapping[str, str] | None = None, *, environ: Mapping[str, str] | None = None, directory: Path | None = None
) -> Settings:
    environ = os.environ if environ is None else environ
    directory = Path.cwd() if directory is None else directory
    file = _read_settings_file(environ, directory)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for key, setting in _settings_to_read(environ, file).items():
        sources = (
            _Source((flags or {}).get(key) or None, setting.flag, directory),
            _Source(_value_of_variable(setting, environ, file), setting.variable, directory),
            _Source(file.table.get(key), str(file.path), directory if file.path is None else file.path.parent),
        )
        default = _Source(setting.default, _DEFAULT, directory)
        source = next((source for source in sources if source.raw is not None), default)
        origins[key] = source.origin
        label = f"{key} ({source.origin})"
        values[key] = None if source.raw is None else setting.value_type.read(source.raw, label, source.directory)
    _locate_database_and_workspace(values, origins, _default_database(environ, directory, file), file)
    _count_slots(values, origins)
    _shorten_heartbeat(values, origins)
    _expand_commands(values)
    schedules, default_zone = values["schedule"], values["zone"]
    values["schedule"] = tuple(replace(schedule, zone=schedule.zone or default_zone) for schedule in schedules)
    prune_table = value_types.read_table(file.table.get("prune", {}), "prune")
    origins |= {f"prune.{kind}": _DEFAULT for kind in values["prune"] if kind not in prune_table}
    return Settings(values, origins, file.path)


def _settings_to_read(environ: Mapping[str, str], file: _SettingsFile) -> Mapping[str, Setting[Any]]:
    """Return pagemill's settings, and if another name is used the handlers', which are slow to find."""
    variables = {name for name in environ if name.startswith("WORKER_")} - {_FILE_VARIABLE}
    if file.table.keys() <= OWN_SETTINGS.keys() and variables <= _variables_of(OWN_SETTINGS):
        return OWN_SETTINGS
    from worker_service.base.suggestions import did_you_mean, nearest  # only needed for a doubtful name

    settings = every_setting()
    for key in file.table:
        if key not in settings:
            remedy = did_you_mean(key, settings, f"the settings are {', '.join(settings)}", 0.5)
            raise ConfigError(f"{file.path}: there is no setting {key!r}", remedy)
    # Other programs have WORKER_ variables, too: report only variables that are nearly the name of a setting.
    known_variables = _variables_of(settings)
    known_words = [name.removeprefix("WORKER_") for name in {*known_variables, _FILE_VARIABLE}]
    for variable in sorted(variables - known_variables):
        if near := nearest(variable.removeprefix("WORKER_"), known_words, 0.75):
            raise ConfigError(f"there is no setting {variable!r}", f"did you mean WORKER_{near}?")
    return settings


def _variables_of(settings: Mapping[str, Setting[Any]]) -> set[str]:
    # A setting with a table has no variable.
    return {setting.variable for setting in settings.values() if not setting.table}


def _value_of_variable(setting: Setting[Any], environ: Mapping[str, str], file: _SettingsFile) -> object:
    value = None if setting.table else environ.get(setting.variable) or None
    table = file.table.get(setting.key)
    if setting.key == "cluster" and value is not None and isinstance(table, dict):
        # The variable has only the address; keep the rest of the table.
        return {**table, "address": value}
    return value


def _locate_database_and_workspace(
    values: MutableMapping[str, Any], origins: MutableMapping[str, str], default: Path, file: _SettingsFile
) -> None:
    if origins["database"] == _DEFAULT:
        values["database"] = default
    if file.is_of_the_service and origins["database"] in (_DEFAULT, str(file.path)):
        origins["database"] = SERVICE
    if origins["workspace"] == _DEFAULT:
        values["workspace"] = values["database"].parent / "workspace"


def _count_slots(values: MutableMapping[str, Any], origins: MutableMapping[str, str]) -> None:
    if origins["concurrency"] == _DEFAULT:
        # Only the processors that this process may use.
        values["concurrency"] = len(os.sched_getaffinity(0))
    elif origins["io_concurrency"] == _DEFAULT and values["concurrency"]:
        # A user who sets only one number means it for all jobs.
        values["io_concurrency"], origins["io_concurrency"] = values["concurrency"], origins["concurrency"]


def _shorten_heartbeat(values: MutableMapping[str, Any], origins: Mapping[str, str]) -> None:
    heartbeat, orphan_after = values["heartbeat_interval"], values["orphan_after"]
    if origins["heartbeat_interval"] == _DEFAULT:
        # A short `orphan_after` alone must not be an error.
        heartbeat = values["heartbeat_interval"] = min(heartbeat, orphan_after / 4)
    if heartbeat * 2 > orphan_after:
        raise ConfigError(
            f"heartbeat_interval is {format_seconds(heartbeat)} and orphan_after {orphan_after}s: a worker would be "
            "given up after one late beat, so let orphan_after be at least twice as long"
        )


def _expand_commands(values: MutableMapping[str, Any]) -> None:
    commands = values["commands"]
    types_by_word = {"@commands": tuple(commands), "!@commands": tuple(f"!{name}" for name in commands)}
    # Keep the word itself: if there are no commands, `@commands` must match no job type instead of all.
    values["types"] = tuple(name for word in values["types"] for name in (word, *types_by_word.get(word, ())))


# ── Places of the settings file and the database: docs/settings.md lists them ─────────────────────────────────────────


def _read_settings_file(environ: Mapping[str, str], directory: Path) -> _SettingsFile:
    # The service's file is read only if there is no other.
    if (path := _preferred_file(environ, directory)) is not None:
        return _SettingsFile(path, _read_toml(path))
    path = SERVICE_CONFIGURATION / _FILE_NAME
    if environ.get("STATE_DIRECTORY") or _is_checkout(directory) or not os.access(path, os.R_OK):
        return _SettingsFile()
    table = _read_toml(path)
    database = SERVICE_CONFIGURATION / str(table.get("database", SERVICE_STATE / _DATABASE_NAME))
    # A user who may not read the service's database uses their own, if there is one.
    if not os.access(database, os.R_OK) and _own_database(environ).exists():
        return _SettingsFile()
    return _SettingsFile(path, table, is_of_the_service=True)


def _default_database(environ: Mapping[str, str], directory: Path, file: _SettingsFile) -> Path:
    if state_directories := environ.get("STATE_DIRECTORY"):
        return _first_path(state_directories) / _DATABASE_NAME
    if _is_checkout(directory):
        return directory / "var" / _DATABASE_NAME
    return SERVICE_STATE / _DATABASE_NAME if file.is_of_the_service else _own_database(environ)


def belongs_to_service(database: Path, settings_file: Path | None) -> bool:
    return database.parent == SERVICE_STATE or settings_file == SERVICE_CONFIGURATION / _FILE_NAME


def own_configuration(environ: Mapping[str, str]) -> Path:
    return _xdg_directory(environ, "XDG_CONFIG_HOME", ".config")


def user_unit(environ: Mapping[str, str]) -> Path:
    return own_configuration(environ).parent / "systemd/user/pagemill.service"


def _preferred_file(environ: Mapping[str, str], directory: Path) -> Path | None:
    if named_file := environ.get(_FILE_VARIABLE):
        return directory / Path(named_file).expanduser()
    places = []
    if configuration_directories := environ.get("CONFIGURATION_DIRECTORY"):
        places.append(_first_path(configuration_directories))
    elif _is_checkout(directory):
        places.append(directory / "var")
    places.append(own_configuration(environ))
    # Not Path.exists: it raises if a service may not look there, as in a home directory that its unit hides.
    return next((file for place in places if os.path.exists(file := place / _FILE_NAME)), None)  # noqa: PTH110


def _read_toml(file: Path) -> Mapping[str, object]:
    import tomllib  # imported only with a file: it takes a tenth of the start of `pagemill ls`

    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"the settings file {file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"the settings file {file} is not TOML: {error}") from error


def _is_checkout(directory: Path) -> bool:
    return directory.resolve() == CHECKOUT and (directory / "pyproject.toml").is_file()


def _own_database(environ: Mapping[str, str]) -> Path:
    return _xdg_directory(environ, "XDG_DATA_HOME", ".local/share") / _DATABASE_NAME


def _first_path(directories: str) -> Path:
    # systemd separates several directories with colons.
    return Path(directories.split(":")[0])


def _xdg_directory(environ: Mapping[str, str], variable: str, default: str) -> Path:
    value = environ.get(variable, "")
    # The specification says to ignore a relative path.
    base = Path(value) if value.startswith("/") else Path(environ.get("HOME") or "~").expanduser() / default
    return base / "pagemill"
