"""Results as tables for people and as JSON for programs.

A figure is the median of its repeats, followed by the minimum and maximum. A ratio is the median of the ratios of
adjacent repeats, so that a machine that slows down affects both sides.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import apsw


@dataclass(frozen=True, slots=True)
class Goal:
    """The goal of a row. If all fields are None, there is none."""

    text: str = "–"
    ratio_at_least: float | None = None
    ratio_below: float | None = None
    worst_below: float | None = None
    """Every repeat has to stay below it."""
    median_below: float | None = None
    median_at_most: float | None = None
    median_at_least: float | None = None
    above_at_most: float | None = None
    """Allowed excess over the peer. Such a row shows the difference instead of the ratio."""


def at_least(ratio: float) -> Goal:
    return Goal(f"≥ {ratio:g} ×", ratio_at_least=ratio)


def below(ratio: float) -> Goal:
    return Goal(f"< {ratio:g} ×", ratio_below=ratio)


def never_over(milliseconds: float) -> Goal:
    return Goal(f"never > {milliseconds:g} ms", worst_below=milliseconds)


def under(milliseconds: float) -> Goal:
    return Goal(f"< {milliseconds:g} ms", median_below=milliseconds)


def at_most(figure: float, unit: str) -> Goal:
    return Goal(f"≤ {figure:g} {unit}", median_at_most=figure)


def at_most_above(figure: float, unit: str) -> Goal:
    return Goal(f"≤ {figure:+g} {unit}", above_at_most=figure)


_GOALS = {
    r"≥ (\S+) ×": "ratio_at_least",
    r"< (\S+) ×": "ratio_below",
    r"never > (\S+) .+": "worst_below",
    r"≤ ([+-]\S+) .+": "above_at_most",
    r"≤ (\S+) .+": "median_at_most",
    r"≥ (\S+) .+": "median_at_least",
    r"< (\S+) .+": "median_below",
}


def goal_of(text: str) -> Goal:
    """Parse the text of a published goal."""
    for pattern, asked in _GOALS.items():
        if found := re.fullmatch(pattern, text):
            return Goal(text, **{asked: float(found[1])})
    return Goal(text)


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact that readers need to compare results, such as the version of a peer."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Row:
    """One figure beside its peer, if it has one. `ours[n]` and `peer[n]` were measured directly after each other."""

    key: str
    what: str
    beside: str
    unit: str
    ours: Sequence[float]
    peer: Sequence[float]
    goal: Goal = field(default_factory=Goal)
    on: str = ""
    """The day of the measurement, if it differs from that of the table."""

    @property
    def ratios(self) -> list[float]:
        """Empty without a peer, or if the goal is about the difference."""
        if self.goal.above_at_most is not None or not self.peer:
            return []
        return [ours / peer for ours, peer in zip(self.ours, self.peer, strict=True)]

    @property
    def ratio(self) -> float | None:
        return median(self.ratios) if self.ratios else None

    @property
    def differences(self) -> list[float]:
        if self.goal.above_at_most is None or not self.peer:
            return []
        return [ours - peer for ours, peer in zip(self.ours, self.peer, strict=True)]

    @property
    def is_met(self) -> bool | None:
        goal, ratio = self.goal, self.ratio
        if goal.ratio_at_least is not None:
            return ratio >= goal.ratio_at_least if ratio is not None else None
        if goal.ratio_below is not None:
            return ratio < goal.ratio_below if ratio is not None else None
        if goal.worst_below is not None:
            return max(self.ours) <= goal.worst_below
        if goal.median_below is not None:
            return median(self.ours) < goal.median_below
        if goal.median_at_most is not None:
            return median(self.ours) <= goal.median_at_most
        if goal.median_at_least is not None:
            return median(self.ours) >= goal.median_at_least
        if goal.above_at_most is not None and self.differences:
            return median(self.differences) <= goal.above_at_most
        return None

    def cells(self) -> list[str]:
        met = {True: "yes", False: "NO", None: ""}[self.is_met]
        signed, compared = "+" if self.differences else "", self.ratios or self.differences
        middle, least, most = (f"{of(compared):{signed}.2f}" if compared else "–" for of in (median, min, max))
        ratio = f"{middle} ({least}–{most})" if compared else "–"
        ours, unit = f"{_spread(self.ours)} {self.unit}", self.unit
        peer = f"{_spread(self.peer)} {unit}" if self.peer else "–"
        met = f"{met} ({self.on})".lstrip() if self.on else met
        return [self.what, ours, self.beside if self.peer else "–", peer, ratio, self.goal.text, met]

    def as_line(self) -> str:
        what, ours, beside, peer, ratio, goal, met = self.cells()
        return f"{what}: {ours}; {beside}: {peer}; ratio {ratio}; goal {goal} {met}".rstrip()


HEADINGS = ["what", "ours", "beside", "the peer", "ratio", "goal", "met"]


def as_text(rows: Sequence[Row]) -> str:
    lines = [HEADINGS, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def as_markdown(rows: Sequence[Row], machine: dict[str, str]) -> str:
    return f"{' · '.join(machine.values())}\n\n{as_markdown_table(rows)}"


def as_markdown_table(rows: Sequence[Row]) -> str:
    lines = [HEADINGS, ["---"] * len(HEADINGS), *(row.cells() for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def as_json(rows: Sequence[Row], machine: dict[str, str], *, is_quick: bool) -> str:
    content = {"machine": machine, "quick": is_quick, "rows": [_row_as_json(row) for row in rows]}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def among(published: str, rows: Sequence[Row], today: str) -> list[Row]:
    """Return the published rows with `rows` in their places; insert new rows after their predecessor."""
    content = json.loads(published)
    found = [row_from_json(one, content["machine"]["date"], today) for one in content["rows"]]
    at = len(found)
    for row in rows:
        places = [place for place, one in enumerate(found) if one.key == row.key]
        at = places[0] if places else at
        found[at : at + len(places)] = [row]
        at += 1
    return found


def put_into(page: Path, name: str, text: str) -> None:
    """Replace the text between the page's markers of this name."""
    begin, end = f"<!-- {name}: written by --write -->", f"<!-- end of {name} -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    old = page.read_text()
    if not pattern.search(old):
        raise SystemExit(f"{page} has no place for the table: it needs the lines {begin!r} and {end!r}")
    page.write_text(pattern.sub(lambda _: f"{begin}\n{text}\n{end}", old))


def machine(directory: Path) -> dict[str, str]:
    """Date and machine, without the host name."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cores": f"{len(os.sched_getaffinity(0))} cores",
        "memory": f"{memory:.0f} GiB",
        "kernel": f"Linux {platform.release()}",
        "file system": file_system(directory),
        "python": f"Python {platform.python_version()}",
        "sqlite": f"SQLite {apsw.sqlite_lib_version()}",
    }


def file_system(directory: Path) -> str:
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    # If two mounts share a place, the later one is visible.
    under = [(len(mount[1]), number, mount[2]) for number, mount in enumerate(mounts)
             if directory.resolve().is_relative_to(mount[1])]  # fmt: skip
    return max(under)[2]


def _row_as_json(row: Row) -> dict[str, object]:
    return {
        "key": row.key,
        "what": row.what,
        "unit": row.unit,
        "ours": list(row.ours),
        "beside": row.beside,
        "peer": list(row.peer),
        "ratio": row.ratio,
        "goal": row.goal.text,
        "met": row.is_met,
        **({"on": row.on} if row.on else {}),
    }


def row_from_json(one: dict[str, Any], day: str = "", today: str = "") -> Row:
    """Return a published row; `day` is that of its table, shown if the row was measured on another day than `today`."""
    fields = {name: one[name] for name in ("key", "what", "beside", "unit", "ours", "peer")}
    on = one.get("on", day)
    return Row(**fields, goal=goal_of(one["goal"]), on="" if on == today else on)


def _spread(figures: Sequence[float]) -> str:
    return f"{short(median(figures))} ({short(min(figures))}–{short(max(figures))})"


def short(figure: float) -> str:
    if figure >= 100:
        return f"{figure:,.0f}"
    return f"{figure:.1f}" if figure >= 10 else f"{figure:.3f}"
