"""Parse selectors, times and numbers as users write them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from worker_service.base.clock import add_duration, as_text, parse_duration, parse_time
from worker_service.base.errors import BadInput, BadTime
from worker_service.jobs.documents import IndexStatus
from worker_service.jobs.job import Status
from worker_service.jobs.selector import (
    FILTER_COLUMNS,
    Column,
    S,
    Selector,
    parse_choice,
    parse_match,
)

if TYPE_CHECKING:
    from worker_service.jobs.library import DocumentOrder, DocumentSelector

_PAGES = re.compile(r"(\d{1,9})?(-)?(\d{1,9})?")

_FIELD_BY_PREFIX = {"": "ids", "batch": "batch_ids", "document": "document_ids"}
_BATCH_NAME_CHARACTERS_MAX = 200
_YEAR_MIN = 1970
_NUMBER_MAX = 2**31 - 1
_ID_DIGITS_MAX = 18  # 19 digits may not fit an integer of the database


# ── Jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_priority(number: int | None) -> int:
    if number is None or not 1 <= number <= 10:
        raise BadInput(f"priority is 1 (highest) to 10 (lowest), not {number}")
    return number


def read_name_of_batch(word: str) -> str:
    if len(word) > _BATCH_NAME_CHARACTERS_MAX or not word.isprintable():
        raise BadInput(f"the name of a batch is one line of at most {_BATCH_NAME_CHARACTERS_MAX} characters")
    return check_text("the name of a batch", word.strip())


def read_time(text: str, *, now: datetime) -> datetime:
    moment = parse_time(text, now=now)
    if moment.year < _YEAR_MIN:
        raise BadTime(f"{text!r} is before {_YEAR_MIN}", "write it like '2026-11-18 10:00' (UTC) or +10m")
    return moment


# ── Selectors ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_selector(
    *,
    now: datetime,
    ids: Sequence[int | str] = (),
    statuses: Sequence[str] = (),
    since: str | None = None,
    older_than: str | None = None,
    match: Sequence[str] = (),
    **filters: Any,
) -> Selector:
    """`ids` are 42, batch:7 or document:3; `filters` has the other fields of a selector, as users write them."""
    ids_by_field: dict[str, dict[int, None]] = {field: {} for field in _FIELD_BY_PREFIX.values()}
    for field, number in map(read_job_reference, ids):
        ids_by_field[field][number] = None
    column_by_field = {column.filter_field: column for column in FILTER_COLUMNS}
    return Selector(
        ids=tuple(ids_by_field["ids"]),
        batch_ids=tuple(ids_by_field["batch_ids"]),
        document_ids=tuple(ids_by_field["document_ids"]),
        statuses=read_choices(Status, statuses),
        since=read_past(since, now=now),
        older_than=read_past(older_than, now=now),
        match=tuple(_read_match(text) for text in match),
        **{field: _read_filter(column_by_field[field], words) for field, words in filters.items() if words is not None},
    )


def read_choices(choices: type[S], words: Sequence[str], noun: str = "status") -> tuple[S, ...]:
    return tuple(dict.fromkeys(parse_choice(choices, word, noun) for word in _split_at_commas(words)))


def read_job_reference(word: int | str) -> tuple[str, int]:
    """Parse 42, #42, batch:7 or document:3 into the field of a selector and the id."""
    prefix, _, digits = str(word).rpartition(":")
    digits = digits if prefix else digits.removeprefix("#")
    if prefix not in _FIELD_BY_PREFIX or not is_id(digits):
        raise BadInput(f"{word!r} names no job", "write its id as pagemill ls shows it, or batch:7, or document:3")
    if int(digits) == 0:
        raise BadInput(f"{word!r} names no job: ids begin at 1")
    return _FIELD_BY_PREFIX[prefix], int(digits)


def is_id(digits: str) -> bool:
    return digits.isascii() and digits.isdigit() and len(digits) <= _ID_DIGITS_MAX


def read_document_selector(
    *, now: datetime, statuses: Sequence[str] = (), since: str | None = None, until: str | None = None, **fields: Any
) -> DocumentSelector:
    from worker_service.jobs.library import DocumentSelector

    # `ls` and `show` load this module too, and need none of these imports.
    if fields.get("tags"):
        from worker_service.jobs.tags import read_tags

        fields["tags"] = read_tags(fields["tags"])
    if fields.get("kinds"):
        from job_handlers.file_kinds import FileKind

        fields["kinds"] = read_choices(FileKind, fields["kinds"], "kind")
    return DocumentSelector(
        statuses=read_choices(IndexStatus, statuses),
        since=read_past(since, now=now),
        until=read_past(until, now=now),
        **fields,
    )


def read_document_order(word: str) -> DocumentOrder:
    """Parse `name`, or `-name` for the reverse."""
    from worker_service.jobs.library import DocumentOrder, DocumentSort

    return DocumentOrder(parse_choice(DocumentSort, word.removeprefix("-"), "order"), word.startswith("-"))


def _read_filter(column: Column, words: Any) -> Any:
    if column.is_number:
        return check_number(column.flag, words)
    if isinstance(words, str):
        return check_text(column.flag, words)
    if column.takes_several:
        return tuple(_split_at_commas(words))
    return tuple(check_text(column.flag, word) for word in words)


def read_column(column: Column, word: Any) -> Any:
    if column.is_number:
        return check_number(column.flag, word)
    return check_filled(column.flag, word) if column.must_be_filled else check_text(column.flag, word)


def _read_match(text: str) -> tuple[str, object]:
    try:
        return parse_match(check_text("--match", text))
    except RecursionError as error:
        raise BadInput("the value of --match is nested too deeply") from error


def read_past(text: str | None, *, now: datetime) -> str | None:
    """Parse `2h` (ago) or a time."""
    if text is None:
        return None
    if not text[:1].isdigit():
        raise BadTime(f"{text!r} is not a time", "write it like 2h or 30d (ago), or '2026-11-18 10:00' (UTC)")
    return as_text(add_duration(now, -parse_duration(text)) if is_duration(text) else read_time(text, now=now))


def is_duration(text: str) -> bool:
    # A time may end in Z, for UTC.
    return text[:1].isdigit() and text[-1].isalpha() and text[-1] != "Z"


# ── Words ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_text(label: str, word: str) -> str:
    """Raise `BadInput` for text that cannot be stored: not UTF-8, or with a NUL byte."""
    try:
        word.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"{label} is not UTF-8 text: {word!r}") from error
    if "\0" in word:
        raise BadInput(f"{label} holds a NUL byte")
    return word


def check_number(label: str, number: int) -> int:
    if not 0 <= number <= _NUMBER_MAX:
        raise BadInput(f"{label} is a number from 0 to {_NUMBER_MAX}, not {number}")
    return number


def check_filled(label: str, word: str) -> str:
    if not word.strip():
        raise BadInput(f"{label} is empty")
    return check_text(label, word)


def _split_at_commas(words: Sequence[str]) -> list[str]:
    return [part.strip() for word in words for part in check_text("a selector", word).split(",") if part.strip()]


def read_page_range(text: str | None) -> tuple[int, int | None]:
    """Parse 3-5, 3-, -5 or 3. None as the last page means no limit."""
    if text is None:
        return 1, None
    match = _PAGES.fullmatch(text.strip())
    first_word, dash, last_word = match.groups() if match is not None else (None, None, None)
    if not first_word and not last_word:  # the pattern also matches "" and "-"
        raise BadInput(f"{text!r} names no pages", "write 3, 3-5, 3- or -5")
    first = int(first_word or 1)
    last = None if dash and not last_word else int(last_word or first)
    if first < 1 or (last is not None and last < first):
        raise BadInput(f"{text!r} names no pages", "the first is 1, and the last comes after it")
    return first, last
