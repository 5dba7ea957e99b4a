"""Tables are whole in a pipe and fit a terminal; untrusted text is sanitised."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from worker_service.base.sanitize import as_json, harmless
from worker_service.cli.output import format_length, table_lines


def test_without_a_terminal_a_long_cell_pads_no_other_row() -> None:
    lines = table_lines(("ID", "NAME", "NOTE"), [(1, "n" * 80, "x"), (2, "short", "y")])

    assert lines[1] == f" 1  {'n' * 80}  x"
    assert lines[2] == f" 2  {'short':32}  y"


def test_columns_are_aligned_and_numbers_are_to_the_right() -> None:
    assert table_lines(("ID", "TYPE"), [(7, "a"), (1234, None)]) == ["  ID  TYPE", "   7  a", "1234  -"]


def test_the_widest_column_is_cut_first() -> None:
    lines = table_lines(("ID", "A", "B"), [(1, "x" * 30, "y" * 10)], width=40)

    assert lines[1] == f" 1  {'x' * 23}…  {'y' * 10}"
    assert max(map(len, lines)) == 40


def test_short_columns_are_cut_last() -> None:
    row = ("cancelled", "t" * 30, "n" * 30)
    wide, narrow = (table_lines(("STATE", "TYPE", "NOTE"), [row], width=width)[1] for width in (40, 24))

    assert wide.startswith("cancelled  tttt")
    assert len(narrow) == 24


def test_empty_columns_are_left_out_on_a_terminal() -> None:
    rows = [(1, None, "a"), (2, "", "b")]

    assert table_lines(("ID", "OWNER", "TYPE"), rows, width=80)[0] == "ID  TYPE"
    assert table_lines(("ID", "OWNER", "TYPE"), rows)[0] == "ID  OWNER  TYPE"


def test_a_narrow_table_drops_columns_in_order_and_cuts_no_protected_one() -> None:
    headers, row = (
        ("ID", "NAME", "DATE", "TRIES", "ERROR", "NOTE"),
        (1, "n" * 30, "2026-11-18", "0/3", "E" * 22, "m" * 90),
    )

    def heading_at(width: int) -> str:
        [heading, line] = table_lines(headers, [row], width=width, drop_first=("DATE", "TRIES"), never_cut=("ERROR",))
        assert len(line) <= width
        assert "E" * 22 in line
        return heading

    assert heading_at(120).split() == ["ID", "NAME", "DATE", "TRIES", "ERROR", "NOTE"]
    assert heading_at(80).split() == ["ID", "NAME", "TRIES", "ERROR", "NOTE"]
    assert heading_at(60).split() == ["ID", "NAME", "ERROR", "NOTE"]


def test_wide_letters_count_as_two_columns() -> None:
    lines = table_lines(("NAME", "X"), [("報告書", "a"), ("report", "b")])

    assert lines[1:] == ["報告書  a", "report  b"]


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("plain", "plain"),
        ("a\nb\tc", "a b c"),
        ("\x1b[2J\x7f\x9b2J", "\\x1b[2J\\x7f\\x9b2J"),
        ("\u202eright", "\\u202eright"),
        ("caf\udce9", "caf\\xe9"),
        ("half \ud83d", "half \\ud83d"),
        ("Gr\u00f6\u00dfe 5\u00a0%", "Gr\u00f6\u00dfe 5\u00a0%"),
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"),
    ],
)
def test_control_characters_are_made_visible(text: str, escaped: str) -> None:
    assert harmless(text) == escaped
    assert harmless(escaped) == escaped


def test_json_has_the_real_value_with_control_characters_escaped() -> None:
    value = {"name": "\x1b[2J\x7f\x9b\u202e\udce9\U000e0041 Gr\u00f6\u00dfe"}

    written = as_json(value)

    assert json.loads(written) == value
    assert written.isprintable()
    assert "Gr\u00f6\u00dfe" in written


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0 s"), (59, "59 s"), (60, "1 min"), (3600, "60 min"), (7200, "2 h"), (172800, "2 d")]
)
def test_a_length_of_time_is_shown_in_its_largest_useful_unit(seconds: int, words: str) -> None:
    assert format_length(timedelta(seconds=seconds)) == words
