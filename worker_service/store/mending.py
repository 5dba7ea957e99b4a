"""Read rows with text that is not UTF-8, which the driver rejects."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import apsw

Row = tuple[Any, ...]

RETURNING = re.compile(r"\bRETURNING\s")


class ReplacedText(str):
    """Text that was not UTF-8, with the replacement character in place of invalid bytes."""

    __slots__ = ()


def read_with_replacement(connection: apsw.Connection, sql: str, values: Sequence[Any] | dict[str, Any]) -> list[Row]:
    """Return the rows of a statement. SQLite returns text as bytes, and this function decodes it."""
    if returning := RETURNING.search(sql):
        columns = _split_columns(sql[returning.end() :])
        sql = sql[: returning.end()] + ", ".join(map(_as_bytes, columns))
    elif names := [f"c{number}" for number in range(_count_columns(connection, sql, values))]:
        read = ", ".join(map(_as_bytes, names))
        sql = f"WITH found({', '.join(names)}) AS MATERIALIZED ({sql}) SELECT {read} FROM found"
    rows: list[Row] = connection.execute(sql, values).fetchall()
    return [
        tuple(_read_text(value) if kind == "text" else value for kind, value in zip(row[::2], row[1::2], strict=True))
        for row in rows
    ]


def _as_bytes(column: str) -> str:
    return f"typeof({column}), CASE typeof({column}) WHEN 'text' THEN CAST({column} AS BLOB) ELSE {column} END"


def _read_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return ReplacedText(value.decode("utf-8", "replace"))


def _split_columns(columns: str) -> list[str]:
    """Split at the commas that are not in brackets."""
    parts, depth = [""], 0
    for one in columns:
        depth += (one == "(") - (one == ")")
        if one == "," and not depth:
            parts.append("")
        else:
            parts[-1] += one
    return parts


def _count_columns(connection: apsw.Connection, sql: str, values: Sequence[Any] | dict[str, Any]) -> int:
    """Return the number of columns of a statement without running it."""
    found: list[int] = []

    def record_width(cursor: apsw.Cursor, sql: str, values: object) -> bool:
        found.append(len(cursor.get_description()))
        return False

    cursor = connection.cursor()
    cursor.exec_trace = record_width
    with suppress(apsw.ExecTraceAbort):
        cursor.execute(sql, values)
    return found[0]
