"""Find the settings file and the database. docs/settings.md lists the places in their order."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from worker_service.base.errors import ConfigError

FILE_VARIABLE = "WORKER_CONFIG"
SERVICE_CONFIGURATION, SERVICE_STATE = Path("/etc/pagemill"), Path("/var/lib/pagemill")
CHECKOUT = Path(__file__).resolve().parents[2]
"""The directory above this package. Without a pyproject.toml it is no checkout but an installation."""

_FILE_NAME, _DATABASE_NAME = "pagemill.toml", "pagemill.db"


class SettingsFile(NamedTuple):
    path: Path | None = None
    table: Mapping[str, object] = {}
    is_of_the_service: bool = False


def read_settings_file(environ: Mapping[str, str], directory: Path) -> SettingsFile:
    if (path := _nearest_file(environ, directory)) is not None:
        return SettingsFile(path, _read_toml(path))
    path = SERVICE_CONFIGURATION / _FILE_NAME
    if environ.get("STATE_DIRECTORY") or _is_checkout(directory) or not os.access(path, os.R_OK):
        return SettingsFile()
    table = _read_toml(path)
    database = SERVICE_CONFIGURATION / str(table.get("database", SERVICE_STATE / _DATABASE_NAME))
    # A user who may not read the service's database uses their own, if there is one.
    if not os.access(database, os.R_OK) and _own_database(environ).exists():
        return SettingsFile()
    return SettingsFile(path, table, is_of_the_service=True)


def default_database(environ: Mapping[str, str], directory: Path, file: SettingsFile) -> Path:
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


def _nearest_file(environ: Mapping[str, str], directory: Path) -> Path | None:
    if named_file := environ.get(FILE_VARIABLE):
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
