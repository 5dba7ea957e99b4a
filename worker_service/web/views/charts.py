"""SVG charts, with the same data as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup, escape
from msgspec import Struct

WIDTH, HEIGHT = 280, 108
# All sizes are in units of the view box, which the page scales.
_TOP, _FOOT = 16, 17
"""Space for text above and below the bars."""
_GAP = 2.0
_LOWEST = 1.5
"""Height of a bar that would be too low to see."""


class Chart(Struct, frozen=True):
    title: str
    summary: str
    svg: Markup
    headers: Sequence[str]
    rows: Sequence[Sequence[object]]
    """Oldest first; the first cell is a time."""


def draw_bars(
    values: Sequence[float],
    label: str,
    *,
    failures: Sequence[int] = (),
    is_bad: bool = False,
    format_value: Callable[[float], str] = lambda value: f"{value:,}",
) -> Markup:
    """Draw a bar per hour, with `failures` at its foot; the last one is still growing."""
    highest = max([*values, 1])
    step = WIDTH / len(values)
    bars = []
    for number, value in enumerate(values):
        is_last = number == len(values) - 1
        color = "bar-b" if is_bad else "now" if is_last else "bar-a"
        bars.append(_bar(number * step, _height(value, highest), step, color))
        if failures and failures[number]:
            bars.append(_bar(number * step, max(_LOWEST, _height(failures[number], highest)), step, "bar-b"))
    return _svg(bars, format_value(highest) if any(values) else "", len(values), label)


def _height(value: float, highest: float) -> float:
    return (HEIGHT - _TOP - _FOOT) * value / highest


def _bar(x: float, height: float, step: float, color: str) -> str:
    y = HEIGHT - _FOOT - height
    rounded = min(1.5, height / 2)
    return (
        f'<rect class="{color}" x="{x + _GAP / 2:.1f}" y="{y:.1f}" width="{step - _GAP:.1f}" height="{height:.1f}" '
        f'rx="{rounded:.1f}"/>'
    )


def _svg(bars: Sequence[str], highest_text: str, hours: int, label: str) -> Markup:
    base = HEIGHT - _FOOT
    # The distances 4 and 5 lift the baselines of the texts off the edge and the bars.
    return Markup(
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">{"".join(bars)}'
        f'<line class="base" x1="0" y1="{base}.5" x2="{WIDTH}" y2="{base}.5"/>'
        f'<text x="0" y="{HEIGHT - 4}">{hours} h ago</text>'
        f'<text x="{WIDTH}" y="{HEIGHT - 4}" text-anchor="end">now</text>'
        f'<text x="0" y="{_TOP - 5}">{escape(highest_text)}</text></svg>'
    )
