"""Distributions for a path of the tests' own. What stands there first hides what is installed under the same name.

The shipped handlers are hidden wherever a test has no use for them: each fork server would import the libraries of all.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path

GROUP = "worker_service.handlers"


def install(place: Path, name: str, points: Mapping[str, str], others: Mapping[str, Mapping[str, str]] = {}) -> None:
    """A distribution with these entry points: handlers come in by the same door as anybody's. `others`: by group."""
    about = place / f"{name.replace('-', '_')}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines: list[str] = []
    for group, some in {GROUP: points, **others}.items():
        lines += [f"[{group}]", *(f"{point} = {spec}" for point, spec in some.items())]
    (about / "entry_points.txt").write_text("\n".join([*lines, ""]))


def shipped(group: str = GROUP) -> dict[str, str]:
    """The handlers of this checkout, or what else it brings."""
    return {point.name: point.value for point in distribution("pagemill").entry_points.select(group=group)}


def keep_of_the_shipped(place: Path, *names: str) -> None:
    """Only these handlers are found. What else is shipped costs nothing where nobody asks for it."""
    install(place, "pagemill", {name: spec for name, spec in shipped().items() if name in names}, beside_handlers())


def beside_handlers() -> dict[str, dict[str, str]]:
    """What this checkout brings by other doors."""
    groups = {point.group for point in distribution("pagemill").entry_points} - {GROUP, "console_scripts"}
    return {group: shipped(group) for group in sorted(groups)}
