"""Read entry points from their files. importlib.metadata would read all metadata, a fifth of a process's start time."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any

from msgspec import Struct

_INFO_SUFFIXES = (".dist-info", ".egg-info")
_NAME = re.compile(r"^Name:\s*(\S+)", re.MULTILINE)


class EntryPoint(Struct, frozen=True):
    name: str
    spec: str
    """module:attribute, perhaps followed by [extras]."""
    distribution: str

    def load(self) -> Any:
        module, _, attribute = self.spec.partition("[")[0].partition(":")
        names = filter(None, attribute.strip().split("."))
        return reduce(getattr, names, import_module(module.strip()))


def entry_points(group: str, path: Sequence[str] | None = None) -> list[EntryPoint]:
    points: set[EntryPoint] = set()
    visited_names: set[str] = set()
    for directory in sys.path if path is None else path:
        for info_path in _info_directories(directory or "."):
            normalised_name = re.sub(r"[-_.]+", "-", info_path.stem.partition("-")[0]).lower()
            # Python imports the first distribution of this name on the path.
            if normalised_name in visited_names:
                continue
            visited_names.add(normalised_name)
            if specs := list(_specs_by_name(info_path, group)):
                distribution = _distribution_name(info_path)
                points |= {EntryPoint(name, spec, distribution) for name, spec in specs}
    return sorted(points, key=lambda point: (point.name, point.distribution))


def _info_directories(directory: str) -> list[Path]:
    with contextlib.suppress(OSError):
        paths = [Path(entry.path) for entry in os.scandir(directory) if entry.name.endswith(_INFO_SUFFIXES)]
        # pip renames a distribution that it is removing, so that it starts with a tilde.
        return [path for path in paths if not path.name.startswith("~")]
    return []


def _specs_by_name(info_path: Path, group: str) -> Iterator[tuple[str, str]]:
    try:
        text = (info_path / "entry_points.txt").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line.strip("[]")
        elif section == group and not line.startswith(("#", ";")):
            name, equals, spec = line.partition("=")
            if equals:
                yield name.strip(), spec.strip()


def _distribution_name(info_path: Path) -> str:
    # Read the metadata, because the name of the directory has no hyphens.
    for file in ("METADATA", "PKG-INFO"):
        with contextlib.suppress(OSError):
            name = _NAME.search((info_path / file).read_text(encoding="utf-8", errors="replace"))
            if name:
                return name[1]
    return info_path.stem.partition("-")[0]
