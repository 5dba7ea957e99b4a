"""Distributions for a path of the tests' own. What stands there first hides what is installed under the same name.

The shipped handlers are hidden wherever a test has no use for them: each nursery would import the libraries of all.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path

GROUP = "worker_service.handlers"
SETTINGS = "worker_service.settings"


def install(place: Path, name: str, points: Mapping[str, str], settings: Mapping[str, str] = {}) -> None:
    """A distribution with these entry points: handlers come in by the same door as anybody's."""
    about = place / f"{name.replace('-', '_')}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"[{GROUP}]", *_lines(points), f"[{SETTINGS}]", *_lines(settings), ""]
    (about / "entry_points.txt").write_text("\n".join(lines))


def _lines(points: Mapping[str, str]) -> list[str]:
    return [f"{point} = {spec}" for point, spec in points.items()]


def shipped(group: str = GROUP) -> dict[str, str]:
    """The handlers of this checkout."""
    return {point.name: point.value for point in distribution("pagemill").entry_points.select(group=group)}


def keep_of_the_shipped(place: Path, *names: str) -> None:
    """Only these are found, and what they all are set by."""
    install(place, "pagemill", {name: spec for name, spec in shipped().items() if name in names}, shipped(SETTINGS))
