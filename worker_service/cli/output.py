"""How values are shown: tables for eyes, one object with --json. stdout is data, stderr is talk.

Tables are cut to the width of a terminal; where they are piped nothing is cut. All that a command prints goes through
here, and is made harmless here: a file, a row or a log line may hold what a terminal obeys. Only what was `styled` here
keeps its power.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TextIO

import click

from worker_service.base.clock import as_text, from_text
from worker_service.base.humanize import counted
from worker_service.base.humanize import length as length
from worker_service.base.humanize import size as size
from worker_service.base.sanitize import as_json, escaped_json, harmless, harmless_text

if TYPE_CHECKING:
    from worker_service.services.overview import CheckedNode

Rows = Sequence[Sequence[object]]

_GAP = "  "
_COMFORTABLE = 20
_NARROWEST = (10, 5)
_COLOURS = {
    "failed": "red", "stopping": "yellow", "running": "green", "cancelled": "bright_black", "wrong": "red",
}  # fmt: skip
_HOME, _TO_LINE_END, _TO_SCREEN_END = "\x1b[H", "\x1b[K", "\x1b[J"


class Styled(str):
    """Made harmless already, and with what we want a terminal to obey."""

    __slots__ = ()


def styled(text: str, **style: Any) -> Styled:
    return Styled(click.style(harmless(text), **style))


def joined(*parts: str) -> Styled:
    return Styled("".join(map(_ready, parts)))


def say(sentence: str) -> None:
    """Talk: one line for the person, not for the next program."""
    click.echo(_ready(sentence), err=True)


def show(line: str = "") -> None:
    click.echo(_ready(line))


def show_text(text: str) -> None:
    """As it is divided into lines and pages."""
    click.echo(harmless_text(text), nl=False)


def show_table(
    headers: Sequence[str], rows: Rows, *, gives_up: Sequence[str] = (), whole: Collection[str] = ()
) -> None:
    for line in table_lines(headers, rows, gives_up=gives_up, whole=whole):
        show(line)


def show_section(headers: Sequence[str], rows: Rows, *, title: str = "") -> None:
    """A table below others, if anything stands in it."""
    if rows:
        show()
        if title:
            show(title)
        show_table(headers, rows)


def show_values(values: Mapping[str, object]) -> None:
    """A line for each that is there."""
    for name, value in values.items():
        if value not in (None, "", []):
            show(f"{name:20} {', '.join(map(str, value)) if isinstance(value, list) else value}")


def show_csv(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    from worker_service.services.spreadsheets import csv_lines

    for line in csv_lines(headers, rows):
        click.echo(line, nl=False)


def show_json_text(text: str) -> None:
    """What is JSON already."""
    click.echo(escaped_json(text))


def show_json(value: object) -> None:
    """Any value, and all that is in it."""
    from worker_service.services.serialize import as_object  # not for every command

    indent = 2 if is_terminal(sys.stdout) else None
    click.echo(_json_text(as_object(value), sys.stdout, indent=indent))


def say_json(value: Mapping[str, object]) -> None:
    click.echo(_json_text(value, sys.stderr), err=True)


def _json_text(value: object, to: TextIO | None, *, indent: int | None = None) -> str:
    is_ascii = "utf" not in (getattr(to, "encoding", None) or "utf-8").lower()
    return as_json(value, indent=indent, is_ascii=is_ascii)


def draw(lines: Iterable[str]) -> None:
    """Over the last picture, not after a cleared screen: that would flicker."""
    click.echo(_HOME + picture(lines), nl=False)


def show_cursor(*, is_shown: bool) -> None:
    click.echo(f"\x1b[?25{'h' if is_shown else 'l'}", nl=False)


def picture(lines: Iterable[str], *, over: int = 0) -> str:
    """Drawn `over` so many lines of the one before."""
    up = f"\x1b[{over}A" if over else ""
    return up + "".join(f"{_ready(line)}{_TO_LINE_END}\n" for line in lines) + _TO_SCREEN_END


def over_line(line: str) -> str:
    return f"\r{harmless(line)}{_TO_LINE_END}"


def _ready(line: str) -> str:
    return line if isinstance(line, Styled) else harmless(line)


def is_terminal(stream: TextIO | None) -> bool:
    """A stream that was closed before we began is None."""
    return stream is not None and stream.isatty()


# ── Tables ──────────────────────────────────────────────────────────────────────────────────────────────────────


def table_lines(
    headers: Sequence[str],
    rows: Rows,
    *,
    width: int | None = None,
    gives_up: Sequence[str] = (),
    whole: Collection[str] = (),
) -> list[str]:
    """The lines of a table, cut to `width` (None: to the terminal's). Piped, nothing is cut and no column left out.

    Where it is narrow, the columns that it `gives_up` go, the first of them first, until the others have room enough;
    what stands in a column that is `whole` is not cut."""
    if width is None and is_terminal(sys.stdout):
        import shutil  # brings the compressors along: not where nobody looks

        width = shutil.get_terminal_size().columns
    if width is not None:
        full = [i for i in range(len(headers)) if not rows or any(row[i] not in (None, "") for row in rows)]
        headers, rows = [headers[i] for i in full], [[row[i] for i in full] for row in rows]
    headers = [harmless(header) for header in headers]
    cells = [[harmless(str(cell)) if cell not in (None, "") else "-" for cell in row] for row in rows]
    widths = [max(map(_width, column)) for column in zip(headers, *cells, strict=True)]
    if width is not None:
        kept = _kept(headers, widths, width, gives_up, whole)
        headers, widths = [headers[i] for i in kept], [widths[i] for i in kept]
        cells = [[row[i] for i in kept] for row in cells]
        widths = _fitting(widths, width, [header in whole for header in headers])
    numeric = [_is_numeric([row[i] for row in cells]) for i in range(len(headers))]
    is_cut = width is not None
    has_colour = is_terminal(sys.stdout) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    lines: list[str] = [_line(list(headers), widths, numeric, is_cut=is_cut)]
    lines += [_line(row, widths, numeric, is_cut=is_cut, is_coloured=has_colour) for row in cells]
    return lines


def _is_numeric(column: Sequence[str]) -> bool:
    return any(cell != "-" for cell in column) and all(cell == "-" or cell.isdigit() for cell in column)


def _kept(
    headers: Sequence[str], widths: Sequence[int], total: int, gives_up: Sequence[str], whole: Collection[str]
) -> list[int]:
    """Which columns stay, where none is to become less than comfortable."""
    kept = list(range(len(headers)))
    for given_up in gives_up:
        needed = sum(widths[i] if headers[i] in whole else min(widths[i], _COMFORTABLE) for i in kept)
        if needed + len(_GAP) * (len(kept) - 1) > total:
            kept = [i for i in kept if headers[i] != given_up]
    return kept


def _fitting(widths: list[int], total: int, is_whole: Sequence[bool]) -> list[int]:
    """Take from the widest column until all fit; from the narrow ones, where states stand, only in need."""
    widths = list(widths)
    spare = sum(widths) + len(_GAP) * (len(widths) - 1) - total
    cut = [i for i, whole in enumerate(is_whole) if not whole]
    for narrowest in _NARROWEST:
        while spare > 0 and (wide := [i for i in cut if widths[i] > narrowest]):
            widths[max(wide, key=widths.__getitem__)] -= 1
            spare -= 1
    return widths


def _line(row: list[str], widths: list[int], numeric: list[bool], *, is_cut: bool, is_coloured: bool = False) -> Styled:
    parts = []
    for cell, width, is_number in zip(row, widths, numeric, strict=True):
        text = cut(cell, width) if is_cut else cell
        padding = " " * (width - _width(text))
        text = click.style(text, fg=_COLOURS[cell]) if is_coloured and cell in _COLOURS else text
        parts.append(padding + text if is_number else text + padding)
    return Styled(_GAP.join(parts).rstrip())


def cut(text: str, width: int) -> str:
    """No wider than this on a terminal."""
    if _width(text) <= width:
        return text
    while text and _width(text) > width - 1:
        text = text[:-1]
    return text + "…"


def _width(text: str) -> int:
    """How many columns a terminal gives it."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


# ── Values ──────────────────────────────────────────────────────────────────────────────────────────────────────


def seconds(text: str | None) -> str | None:
    """A time to the second, as tables show it."""
    return None if text is None else text[:19]


def when(text: str, *, now: datetime) -> str:
    """A time as lists show it: whole when piped; on a terminal the time of day, or the date if that is another."""
    if not is_terminal(sys.stdout):
        return text[:19]
    return text[11:19] if text[:10] == as_text(now)[:10] else text[:10]


NODE_COLUMNS = ("NODE", "STATE", "SLOTS", "RUNNING", "VERSION", "WHY")


def node_row(node: CheckedNode) -> tuple[object, ...]:
    state = f"{node.state}, draining" if node.is_draining and node.state != "draining" else node.state
    return node.name, state, node.slots, node.running, node.version, node.reason


def age(text: str, *, now: datetime) -> str:
    return length(now - from_text(text))


def jobs(number: int) -> str:
    return counted(number, "job")
