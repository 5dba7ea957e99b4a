"""Read the settings: each from a flag, a WORKER_* variable, the settings file, or its default, in this order."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from worker_service.base.errors import ConfigError
from worker_service.settings import locations, value_types
from worker_service.settings.config import OWN_SETTINGS, SERVICE, Settings, every_setting
from worker_service.settings.locations import FILE_VARIABLE, SettingsFile
from worker_service.settings.value_types import Setting, format_seconds

_DEFAULT = "default"


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
    file = locations.read_settings_file(environ, directory)
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
        values[key] = None if source.raw is None else setting.kind.read(source.raw, label, source.directory)
    _locate_database_and_workspace(values, origins, locations.default_database(environ, directory, file), file)
    _count_slots(values, origins)
    _shorten_heartbeat(values, origins)
    _expand_commands(values)
    values["schedule"] = tuple(
        replace(schedule, zone=schedule.zone or values["zone"]) for schedule in values["schedule"]
    )
    prune_table = value_types.read_table(file.table.get("prune", {}), "prune")
    origins |= {f"prune.{kind}": _DEFAULT for kind in values["prune"] if kind not in prune_table}
    return Settings(values, origins, file.path)


def _settings_to_read(environ: Mapping[str, str], file: SettingsFile) -> Mapping[str, Setting[Any]]:
    """Return pagemill's own settings, and the handlers' settings if there is another key or variable."""
    variables = {name for name in environ if name.startswith("WORKER_")} - {FILE_VARIABLE}
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
    known_words = [name.removeprefix("WORKER_") for name in {*known_variables, FILE_VARIABLE}]
    for name in sorted(variables - known_variables):
        if near := nearest(name.removeprefix("WORKER_"), known_words, 0.75):
            raise ConfigError(f"there is no setting {name!r}", f"did you mean WORKER_{near}?")
    return settings


def _variables_of(settings: Mapping[str, Setting[Any]]) -> set[str]:
    return {setting.variable for setting in settings.values() if not setting.table}


def _value_of_variable(setting: Setting[Any], environ: Mapping[str, str], file: SettingsFile) -> object:
    value = None if setting.table else environ.get(setting.variable) or None
    table = file.table.get(setting.key)
    if setting.key == "cluster" and value is not None and isinstance(table, dict):
        # The variable has only the address; keep the rest of the table.
        return {**table, "address": value}
    return value


def _locate_database_and_workspace(
    values: MutableMapping[str, Any], origins: MutableMapping[str, str], default: Path, file: SettingsFile
) -> None:
    if origins["database"] == _DEFAULT:
        values["database"] = default
    if file.is_of_the_service and origins["database"] in (_DEFAULT, str(file.path)):
        origins["database"] = SERVICE
    if origins["workspace"] == _DEFAULT:
        values["workspace"] = values["database"].parent / "workspace"


def _count_slots(values: MutableMapping[str, Any], origins: MutableMapping[str, str]) -> None:
    if origins["concurrency"] == _DEFAULT:
        # The processors that this process may use.
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
    job_types = {"@commands": tuple(values["commands"]), "!@commands": tuple(f"!{name}" for name in values["commands"])}
    # Keep the word itself: if there are no commands, `@commands` must match no job type instead of all.
    values["types"] = tuple(name for word in values["types"] for name in (word, *job_types.get(word, ())))
