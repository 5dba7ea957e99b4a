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

_ABOUT = (".dist-info", ".egg-info")
_NAME = re.compile(r"^Name:\s*(\S+)", re.MULTILINE)


class EntryPoint(Struct, frozen=True):
    name: str
    spec: str
    distribution: str

    def load(self) -> Any:
        module, _, attribute = self.spec.partition("[")[0].partition(":")
        names = filter(None, attribute.strip().split("."))
        return reduce(getattr, names, import_module(module.strip()))


def entry_points(group: str, path: Sequence[str] | None = None) -> list[EntryPoint]:
    found: set[EntryPoint] = set()
    seen: set[str] = set()
    for directory in sys.path if path is None else path:
        for about in _abouts(directory or "."):
            known_as = re.sub(r"[-_.]+", "-", about.stem.partition("-")[0]).lower()
            # The first one on the path is the one that is imported.
            if known_as in seen:
                continue
            seen.add(known_as)
            if points := list(_listed(about, group)):
                found |= {EntryPoint(*point, _name(about)) for point in points}
    return sorted(found, key=lambda one: (one.name, one.distribution))


def _abouts(directory: str) -> list[Path]:
    with contextlib.suppress(OSError):
        found = [Path(one.path) for one in os.scandir(directory) if one.name.endswith(_ABOUT)]
        # pip renames a distribution that it is removing, so that it starts with a tilde.
        return [one for one in found if not one.name.startswith("~")]
    return []


def _listed(about: Path, group: str) -> Iterator[tuple[str, str]]:
    try:
        text = (about / "entry_points.txt").read_text(encoding="utf-8")
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


def _name(about: Path) -> str:
    # The name of the directory has no hyphens.
    for file in ("METADATA", "PKG-INFO"):
        with contextlib.suppress(OSError):
            named = _NAME.search((about / file).read_text(encoding="utf-8", errors="replace"))
            if named:
                return named[1]
    return about.stem.partition("-")[0]
