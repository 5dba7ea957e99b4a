"""Distributions on a path of the tests. They hide installed ones of the same name.

Shipped handlers are hidden where a test does not use them: each fork server would import their libraries.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path

GROUP = "worker_service.handlers"


def install(place: Path, name: str, points: Mapping[str, str], others: Mapping[str, Mapping[str, str]] = {}) -> None:
    """Write a distribution with these entry points. `others`: by group."""
    about = place / f"{name.replace('-', '_')}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines: list[str] = []
    for group, some in {GROUP: points, **others}.items():
        lines += [f"[{group}]", *(f"{point} = {spec}" for point, spec in some.items())]
    (about / "entry_points.txt").write_text("\n".join([*lines, ""]))


def shipped(group: str = GROUP) -> dict[str, str]:
    """Return entry points of this checkout."""
    return {point.name: point.value for point in distribution("pagemill").entry_points.select(group=group)}


def keep_of_the_shipped(place: Path, *names: str) -> None:
    """Hide the shipped handlers but these."""
    install(place, "pagemill", {name: spec for name, spec in shipped().items() if name in names}, beside_handlers())


def beside_handlers() -> dict[str, dict[str, str]]:
    groups = {point.group for point in distribution("pagemill").entry_points} - {GROUP, "console_scripts"}
    return {group: shipped(group) for group in sorted(groups)}
