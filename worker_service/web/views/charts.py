"""SVG charts, with the same data as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup, escape
from msgspec import Struct

WIDTH, HEIGHT, _TOP, _FOOT = 280, 108, 16, 17
_GAP = 2.0


class Chart(Struct, frozen=True):
    title: str
    now: str
    svg: Markup
    headers: Sequence[str]
    rows: Sequence[Sequence[object]]
    """Oldest first; the first cell is a time."""


def bars(
    times: Sequence[str],
    values: Sequence[float],
    label: str,
    *,
    failures: Sequence[int] = (),
    is_bad: bool = False,
    format_value: Callable[[float], str] = "{:,}".format,
) -> Markup:
    """Draw a bar per time, with `failures` at its foot; the last one is still growing."""
    top = max([*values, 1])
    step = WIDTH / len(values)
    parts = []
    for at, value in enumerate(values):
        kind = "bar-b" if is_bad else "now" if at == len(values) - 1 else "bar-a"
        parts.append(_bar(at * step, _height(value, top), step, kind))
        if failures and failures[at]:
            parts.append(_bar(at * step, max(1.5, _height(failures[at], top)), step, "bar-b"))
    return _svg(parts, format_value(top) if any(values) else "", times, label)


def _height(value: float, top: float) -> float:
    return (HEIGHT - _TOP - _FOOT) * value / top


def _bar(x: float, height: float, step: float, kind: str) -> str:
    y = HEIGHT - _FOOT - height
    rounded = min(1.5, height / 2)
    return (
        f'<rect class="{kind}" x="{x + _GAP / 2:.1f}" y="{y:.1f}" width="{step - _GAP:.1f}" height="{height:.1f}" '
        f'rx="{rounded:.1f}"/>'
    )


def _svg(parts: Sequence[str], top: str, times: Sequence[str], label: str) -> Markup:
    base = HEIGHT - _FOOT
    return Markup(
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">{"".join(parts)}'
        f'<line class="base" x1="0" y1="{base}.5" x2="{WIDTH}" y2="{base}.5"/>'
        f'<text x="0" y="{HEIGHT - 4}">{len(times)} h ago</text>'
        f'<text x="{WIDTH}" y="{HEIGHT - 4}" text-anchor="end">now</text>'
        f'<text x="0" y="{_TOP - 5}">{escape(top)}</text></svg>'
    )
