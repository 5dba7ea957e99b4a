"""Print results to stdout, messages to stderr. All is sanitised: a name may contain control sequences of a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TextIO

import click

from worker_service.base.clock import as_text, from_text
from worker_service.base.humanize import length as length
from worker_service.base.humanize import size as size
from worker_service.base.sanitize import as_json, escaped_json, harmless, harmless_text

if TYPE_CHECKING:
    from worker_service.services.overview import CheckedNode

Rows = Sequence[Sequence[object]]

_GAP = "  "
_COMFORTABLE_COLUMNS = 20
_NARROWEST_COLUMNS = (10, 5)
_PIPED_PADDING_MAX = 32
"""Without a terminal, a longer cell does not widen its column, so that one long name does not pad every row."""
_COLOURS = {
    "failed": "red", "stopping": "yellow", "running": "green", "cancelled": "bright_black", "wrong": "red",
}  # fmt: skip
_HOME, _TO_LINE_END, _TO_SCREEN_END = "\x1b[H", "\x1b[K", "\x1b[J"


class Styled(str):
    __slots__ = ()


def styled(text: str, **style: Any) -> Styled:
    return Styled(click.style(harmless(text), **style))


def joined(*parts: str) -> Styled:
    return Styled("".join(map(_sanitised, parts)))


def note(sentence: str) -> None:
    """Print to stderr."""
    click.echo(_sanitised(sentence), err=True)


def show(line: str = "") -> None:
    click.echo(_sanitised(line))


def show_text(text: str) -> None:
    click.echo(harmless_text(text), nl=False)


def show_table(
    headers: Sequence[str], rows: Rows, *, gives_up: Sequence[str] = (), whole: Collection[str] = ()
) -> None:
    for line in table_lines(headers, rows, gives_up=gives_up, whole=whole):
        show(line)


def show_section(headers: Sequence[str], rows: Rows, *, title: str = "") -> None:
    if rows:
        show()
        if title:
            show(title)
        show_table(headers, rows)


def show_values(values: Mapping[str, object]) -> None:
    for name, value in values.items():
        if value not in (None, "", []):
            show(f"{name:20} {', '.join(map(str, value)) if isinstance(value, list) else value}")


def show_csv(headers: Sequence[str], rows: Iterable[Sequence[object]], *, is_for_excel: bool = False) -> None:
    from worker_service.services.csv_and_xlsx import csv_lines

    for line in csv_lines(headers, rows, is_for_excel=is_for_excel):
        click.echo(line, nl=False)


def show_json_text(text: str) -> None:
    click.echo(escaped_json(text))


def show_json(value: object) -> None:
    from worker_service.services.serialize import as_object  # not needed by every command

    indent = 2 if is_terminal(sys.stdout) else None
    click.echo(_json_text(as_object(value), sys.stdout, indent=indent))


def show_error_json(value: Mapping[str, object]) -> None:
    click.echo(_json_text(value, sys.stderr), err=True)


def _json_text(value: object, to: TextIO | None, *, indent: int | None = None) -> str:
    is_ascii = "utf" not in (getattr(to, "encoding", None) or "utf-8").lower()
    return as_json(value, indent=indent, is_ascii=is_ascii)


def draw(lines: Iterable[str]) -> None:
    """Draw over the last picture: clearing the screen first would flicker."""
    click.echo(_HOME + picture(lines), nl=False)


def show_cursor(*, is_shown: bool) -> None:
    click.echo(f"\x1b[?25{'h' if is_shown else 'l'}", nl=False)


def picture(lines: Iterable[str], *, over: int = 0) -> str:
    up = f"\x1b[{over}A" if over else ""
    return up + "".join(f"{_sanitised(line)}{_TO_LINE_END}\n" for line in lines) + _TO_SCREEN_END


def _sanitised(line: str) -> str:
    return line if isinstance(line, Styled) else harmless(line)


def is_terminal(stream: TextIO | None) -> bool:
    # A standard stream is None if it was closed before the start.
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
    """Return lines, cut to `width`: first without the columns in `gives_up`, then cutting all except `whole`."""
    if width is None and is_terminal(sys.stdout):
        import shutil  # also imports the compression modules

        width = shutil.get_terminal_size().columns
    if width is not None:
        full = [i for i in range(len(headers)) if not rows or any(row[i] not in (None, "") for row in rows)]
        headers, rows = [headers[i] for i in full], [[row[i] for i in full] for row in rows]
    headers = [harmless(header) for header in headers]
    cells = [[harmless(str(cell)) if cell not in (None, "") else "-" for cell in row] for row in rows]
    widths = [max(map(_width, column)) for column in zip(headers, *cells, strict=True)]
    if width is None:
        widths = [min(one, _PIPED_PADDING_MAX) for one in widths]
    else:
        kept = _columns_that_fit(headers, widths, width, gives_up, whole)
        headers, widths = [headers[i] for i in kept], [widths[i] for i in kept]
        cells = [[row[i] for i in kept] for row in cells]
        widths = _reduced_widths(widths, width, [header in whole for header in headers])
    numeric = [_is_numeric([row[i] for row in cells]) for i in range(len(headers))]
    is_cut = width is not None
    has_colour = is_terminal(sys.stdout) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    lines: list[str] = [_line(list(headers), widths, numeric, is_cut=is_cut)]
    lines += [_line(row, widths, numeric, is_cut=is_cut, is_coloured=has_colour) for row in cells]
    return lines


def _is_numeric(column: Sequence[str]) -> bool:
    return any(cell != "-" for cell in column) and all(cell == "-" or cell.isdigit() for cell in column)


def _columns_that_fit(
    headers: Sequence[str], widths: Sequence[int], total: int, gives_up: Sequence[str], whole: Collection[str]
) -> list[int]:
    """Return the columns that stay if each gets up to 20 terminal columns."""
    kept = list(range(len(headers)))
    for given_up in gives_up:
        needed = sum(widths[i] if headers[i] in whole else min(widths[i], _COMFORTABLE_COLUMNS) for i in kept)
        if needed + len(_GAP) * (len(kept) - 1) > total:
            kept = [i for i in kept if headers[i] != given_up]
    return kept


def _reduced_widths(widths: list[int], total: int, is_whole: Sequence[bool]) -> list[int]:
    """Take from the widest column until all fit; from narrow ones last."""
    widths = list(widths)
    spare = sum(widths) + len(_GAP) * (len(widths) - 1) - total
    may_shrink = [i for i, whole in enumerate(is_whole) if not whole]
    for narrowest in _NARROWEST_COLUMNS:
        while spare > 0 and (wide := [i for i in may_shrink if widths[i] > narrowest]):
            widths[max(wide, key=widths.__getitem__)] -= 1
            spare -= 1
    return widths


def _line(row: list[str], widths: list[int], numeric: list[bool], *, is_cut: bool, is_coloured: bool = False) -> Styled:
    parts = []
    for cell, width, is_number in zip(row, widths, numeric, strict=True):
        text = truncate(cell, width) if is_cut else cell
        padding = " " * (width - _width(text))
        text = click.style(text, fg=_COLOURS[cell]) if is_coloured and cell in _COLOURS else text
        parts.append(padding + text if is_number else text + padding)
    return Styled(_GAP.join(parts).rstrip())


def truncate(text: str, width: int) -> str:
    if _width(text) <= width:
        return text
    while text and _width(text) > width - 1:
        text = text[:-1]
    return text + "…"


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


# ── Values ──────────────────────────────────────────────────────────────────────────────────────────────────────


def to_the_second(text: str | None) -> str | None:
    return None if text is None else text[:19]


def short_time(text: str, *, now: datetime) -> str:
    """Return the time of today, else the date; without a terminal, both."""
    if not is_terminal(sys.stdout):
        return text[:19]
    return text[11:19] if text[:10] == as_text(now)[:10] else text[:10]


NODE_COLUMNS = ("NODE", "STATE", "SLOTS", "RUNNING", "VERSION", "REASON")


def node_row(node: CheckedNode) -> tuple[object, ...]:
    state = f"{node.state}, draining" if node.is_draining and node.state != "draining" else node.state
    return node.name, state, node.slots, node.running, node.version, node.reason


def age(text: str, *, now: datetime) -> str:
    return length(now - from_text(text))
