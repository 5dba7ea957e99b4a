"""Print results to stdout (`show…`) and notes to stderr (`note`), sanitised: names may contain control sequences."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TextIO

import click

from worker_service.base.clock import as_text, from_text
from worker_service.base.humanize import format_length as format_length
from worker_service.base.humanize import format_size as format_size
from worker_service.base.sanitize import as_json, escaped_json, harmless, harmless_text

if TYPE_CHECKING:
    from worker_service.services.overview import CheckedNode

Rows = Sequence[Sequence[object]]

_GAP = "  "
_COMFORTABLE_WIDTH = 20
"""A column is dropped if the other columns would not get this width each."""
_NARROW_WIDTHS = (10, 5)
"""Columns are narrowed to the first of these widths, and only if that is not enough, to the second."""
_PIPED_PADDING_MAX = 32
"""Without a terminal, a longer cell does not widen its column, so that one long name does not pad every row."""
_LABEL_WIDTH = 20
_EMPTY_VALUES = (None, "")
_COLOUR_BY_CELL = {
    "failed": "red", "stopping": "yellow", "running": "green", "cancelled": "bright_black", "wrong": "red",
}  # fmt: skip
_CURSOR_HOME, _ERASE_LINE_END, _ERASE_SCREEN_END = "\x1b[H", "\x1b[K", "\x1b[J"
_SHOW_CURSOR, _HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


class Styled(str):
    """Sanitised text with our own escape sequences, which must not be sanitised again."""

    __slots__ = ()


def styled(text: str, **style: Any) -> Styled:
    return Styled(click.style(harmless(text), **style))


def join_styled(*parts: str) -> Styled:
    return Styled("".join(map(_sanitised, parts)))


def note(sentence: str) -> None:
    click.echo(_sanitised(sentence), err=True)


def show(line: str = "") -> None:
    click.echo(_sanitised(line))


def show_text(text: str) -> None:
    click.echo(harmless_text(text), nl=False)


def show_table(
    headers: Sequence[str], rows: Rows, *, drop_first: Sequence[str] = (), never_cut: Collection[str] = ()
) -> None:
    for line in table_lines(headers, rows, drop_first=drop_first, never_cut=never_cut):
        show(line)


def show_section(headers: Sequence[str], rows: Rows, *, title: str = "") -> None:
    if rows:
        show()
        if title:
            show(title)
        show_table(headers, rows)


def show_values(values: Mapping[str, object]) -> None:
    """Print a line for each value that is not empty."""
    for label, value in values.items():
        if value not in (*_EMPTY_VALUES, []):
            text = ", ".join(map(str, value)) if isinstance(value, list) else value
            show(f"{label:{_LABEL_WIDTH}} {text}")


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


def _json_text(value: object, stream: TextIO | None, *, indent: int | None = None) -> str:
    can_encode_all = "utf" in (getattr(stream, "encoding", None) or "utf-8").lower()
    return as_json(value, indent=indent, is_ascii=not can_encode_all)


def draw_screen(lines: Iterable[str]) -> None:
    """Draw over the last screen: clearing it first would flicker."""
    click.echo(_CURSOR_HOME + overwriting(lines), nl=False)


def show_cursor(*, is_shown: bool) -> None:
    click.echo(_SHOW_CURSOR if is_shown else _HIDE_CURSOR, nl=False)


def overwriting(lines: Iterable[str], *, lines_above: int = 0) -> str:
    """Return text that moves the cursor up, writes the lines over the old ones, and erases the rest of the screen."""
    move_up = f"\x1b[{lines_above}A" if lines_above else ""
    return move_up + "".join(f"{_sanitised(line)}{_ERASE_LINE_END}\n" for line in lines) + _ERASE_SCREEN_END


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
    drop_first: Sequence[str] = (),
    never_cut: Collection[str] = (),
) -> list[str]:
    """Return lines of at most `width`, which is that of the terminal; without a terminal, lines of any length.

    With a width, columns without values are left out. If the table is too wide, the columns in `drop_first` go one by
    one; then cells are cut, except in `never_cut`.
    """
    if width is None and is_terminal(sys.stdout):
        import shutil  # also imports the compression modules

        width = shutil.get_terminal_size().columns
    columns = [_Column(header, [row[i] for row in rows]) for i, header in enumerate(headers)]
    if width is None:
        for column in columns:
            column.width = min(column.width, _PIPED_PADDING_MAX)
    else:
        columns = [column for column in columns if column.has_values or not rows]
        columns = _fit(columns, width, drop_first, never_cut)
    is_cut = width is not None
    has_colour = is_terminal(sys.stdout) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    lines: list[str] = [_join_cells([column.padded(column.header, is_cut=is_cut) for column in columns])]
    for i in range(len(rows)):
        cells = [column.padded(column.cells[i], is_cut=is_cut, is_coloured=has_colour) for column in columns]
        lines.append(_join_cells(cells))
    return lines


class _Column:
    def __init__(self, header: str, values: Sequence[object]) -> None:
        self.header = harmless(header)
        self.cells = ["-" if value in _EMPTY_VALUES else harmless(str(value)) for value in values]
        self.width = max(map(_display_width, [self.header, *self.cells]))
        self.has_values = any(cell != "-" for cell in self.cells)
        self.is_numeric = self.has_values and all(cell == "-" or cell.isdigit() for cell in self.cells)

    def padded(self, cell: str, *, is_cut: bool, is_coloured: bool = False) -> str:
        text = truncate(cell, self.width) if is_cut else cell
        padding = " " * (self.width - _display_width(text))
        if is_coloured and cell in _COLOUR_BY_CELL:
            text = click.style(text, fg=_COLOUR_BY_CELL[cell])
        return padding + text if self.is_numeric else text + padding


def _fit(columns: list[_Column], width: int, drop_first: Sequence[str], never_cut: Collection[str]) -> list[_Column]:
    """Drop columns, then narrow the widest ones that may be cut, until all fit into the width if possible."""
    for header in drop_first:
        widths = [
            column.width if column.header in never_cut else min(column.width, _COMFORTABLE_WIDTH) for column in columns
        ]
        if sum(widths) + len(_GAP) * (len(columns) - 1) > width:
            columns = [column for column in columns if column.header != header]
    excess = sum(column.width for column in columns) + len(_GAP) * (len(columns) - 1) - width
    for narrowest in _NARROW_WIDTHS:
        while excess > 0:
            wide_columns = [column for column in columns if column.header not in never_cut and column.width > narrowest]
            if not wide_columns:
                break
            max(wide_columns, key=lambda column: column.width).width -= 1
            excess -= 1
    return columns


def _join_cells(cells: Sequence[str]) -> Styled:
    return Styled(_GAP.join(cells).rstrip())


def truncate(text: str, width: int) -> str:
    if _display_width(text) <= width:
        return text
    while text and _display_width(text) > width - 1:
        text = text[:-1]
    return text + "…"


def _display_width(text: str) -> int:
    if text.isascii():
        return len(text)
    import unicodedata

    # An accent that is put on the letter before it has no width. Chinese, Japanese and Korean letters have two columns.
    letters = [letter for letter in text if not unicodedata.combining(letter)]
    return len(letters) + sum(unicodedata.east_asian_width(letter) in "WF" for letter in letters)


# ── Values ──────────────────────────────────────────────────────────────────────────────────────────────────────


def whole_seconds(stored_time: str | None) -> str | None:
    """Return, for example, `2026-11-20 10:00:00` of `2026-11-20 10:00:00.123456`."""
    return None if stored_time is None else stored_time[:19]


def whole_minutes(stored_time: str) -> str:
    return stored_time[:16]


def short_time(stored_time: str, *, now: datetime) -> str:
    """Return only the time of a moment today, only the date of another. Without a terminal, return both."""
    day, time_of_day = stored_time[:10], stored_time[11:19]
    if not is_terminal(sys.stdout):
        return stored_time[:19]
    return time_of_day if day == as_text(now)[:10] else day


NODE_COLUMNS = ("NODE", "STATE", "SLOTS", "RUNNING", "VERSION", "REASON")


def node_row(node: CheckedNode) -> tuple[object, ...]:
    state = f"{node.state}, draining" if node.is_draining and node.state != "draining" else node.state
    return node.name, state, node.slots, node.running, node.version, node.reason


def age(stored_time: str, *, now: datetime) -> str:
    return format_length(now - from_text(stored_time))
