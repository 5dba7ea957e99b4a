"""Find the handlers of installed distributions and of the administrator's directory, and load them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from worker_service.base.entry_points import EntryPoint, entry_points
from worker_service.base.errors import PagemillError
from worker_service.handlers.contract import Family, Handler

GROUP = "worker_service.handlers"

Commands = Mapping[str, Mapping[str, object]]
"""Table of the settings file, by job type."""


class LoadedHandlers(Struct, frozen=True):
    handlers: Sequence[Handler[Any]] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    """Reason by job type that the entry point cannot provide."""


def find_entry_points(
    extra: Sequence[str] = (), path: Sequence[str] | None = None, group: str = GROUP
) -> list[EntryPoint]:
    """Search `path`, or sys.path. `extra` adds entry points (module:attribute) that no distribution declares."""
    points = [*entry_points(group, path), *(EntryPoint(spec, spec, "extra") for spec in extra)]
    return sorted(points, key=lambda entry_point: (entry_point.name, entry_point.distribution))


def find_in_directory(directory: Path) -> list[EntryPoint]:
    """Return an entry point for each file, whose path is its `spec`, and its name its distribution."""
    try:
        files = sorted(file for file in directory.iterdir() if file.suffix == ".py")
    except OSError:
        return []
    handler_files = [file for file in files if not file.name.startswith(("_", ".", "test_"))]
    return [EntryPoint(file.stem, str(file), file.name) for file in handler_files]


def load(point: EntryPoint, tables_by_section: Mapping[str, Commands]) -> LoadedHandlers:
    provided = _load_file(Path(point.spec)) if point.spec.endswith(".py") else point.load()
    if isinstance(provided, Family):
        return _load_family(provided, tables_by_section.get(provided.section, {}))
    if isinstance(provided, Handler):
        return LoadedHandlers([provided])
    if isinstance(provided, Iterable):
        handlers = list(provided)
        if all(isinstance(handler, Handler) for handler in handlers):
            return LoadedHandlers(handlers)
    raise TypeError(f"{point.spec} is {type(provided).__name__}: an entry point names a Handler, several, or a Family")


def _load_file(path: Path) -> Any:
    for checked_path in (path.parent, path):
        status = checked_path.stat()
        if status.st_uid not in (0, os.geteuid()):
            raise PermissionError(
                f"{checked_path} belongs to another user, who could run code: chown root {checked_path}"
            )
        if status.st_mode & 0o022:
            raise PermissionError(f"others may write {checked_path}, and so run code: chmod go-w {checked_path}")
    spec = spec_from_file_location(f"pagemill_dropped_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    # Dataclasses look up their module in sys.modules.
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    for name in ("handlers", "handler"):
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"{path} has neither `handler` nor `handlers`")


def find_clashes(claims: Iterable[tuple[str, EntryPoint]]) -> dict[str, str]:
    """Return the job types that several entry points provide, with the reason why none is used."""
    points_by_type: dict[str, list[EntryPoint]] = {}
    for job_type, point in claims:
        points_by_type.setdefault(job_type, []).append(point)
    clashes: dict[str, str] = {}
    for job_type, points in points_by_type.items():
        if len(points) > 1:
            providers = " and by ".join(f"{point.distribution} ({point.spec})" for point in points)
            clashes[job_type] = f"{job_type} is provided by {providers}: uninstall or rename one of them"
    return clashes


def _load_family(family: Family, tables: Commands) -> LoadedHandlers:
    handlers: list[Handler[Any]] = []
    refused: dict[str, str] = {}
    for key, table in tables.items():
        try:
            handlers.append(family.make(key, table))
        except (ValueError, PagemillError) as error:
            refused[key] = f"[{family.section}.{key}]: {error}"
    return LoadedHandlers(handlers, refused)
