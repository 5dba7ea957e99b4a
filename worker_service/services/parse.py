"""Parse jobs and selectors as users write them. Errors say what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from worker_service.base.clock import add_duration, as_text, parse_duration, parse_length, parse_time
from worker_service.base.errors import BadInput, BadPayload, BadTime
from worker_service.jobs.documents import IndexStatus, OnEnd
from worker_service.jobs.follow_ups import read_action, read_json
from worker_service.jobs.job import NewJob, Status
from worker_service.jobs.library import DocumentSelector
from worker_service.jobs.selector import (
    CHOSEN_BY,
    FORMER_ERROR_CODES,
    WRITTEN,
    Column,
    S,
    Selector,
    one_of,
    parse_match,
)
from worker_service.jobs.tags import read_tags
from worker_service.settings.config import Settings

_PAGES = re.compile(r"(\d{1,9})?(-)?(\d{1,9})?")

_NAMES = {"": "ids", "batch": "batch_ids", "document": "document_ids"}
_BATCH_NAME_MOST = 200
_EARLIEST = 1970
_LARGEST = 2**31 - 1


# ── Jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_job(words: Mapping[str, Any], settings: Settings, *, now: datetime, stdin: Callable[[int], bytes]) -> NewJob:
    """Return the job that `words` describe: values as written, by column name; None means not given.

    `assignments` change the payload, and `timeout` gives `timeout_seconds`.
    """
    given = {name: word for name, word in words.items() if word is not None}
    default = NewJob(_check_filled("the job type", given["job_type"]))
    # If there is a default, ignore an empty word: a variable in a crontab line may be empty.
    named = [c for c in WRITTEN if c.name in given and (given[c.name] != "" or getattr(default, c.name) is None)]
    fields: dict[str, Any] = {column.name: _read_column(column, given[column.name]) for column in named}
    readers: dict[str, Callable[[Any], Any]] = {
        "unique_key": partial(_check_filled, "--unique"),
        "concurrency_key": partial(_check_filled, "--key"),
        "priority": read_priority,
        "run_at": partial(read_time, now=now),
        "after": _read_ids,
        "max_retries": partial(_check_number, "--max-retries"),
    }
    fields |= {name: read(given[name]) for name, read in readers.items() if name in given}
    if "timeout" in given:
        fields["timeout_seconds"] = _read_timeout(given["timeout"])
    on_failure = [read_action(word, OnEnd.FAILURE) for word in given.get("on_failure", ())]
    payload = read_payload(given.get("payload"), given.get("assignments", ()), settings.payload_bytes_max, stdin)
    after_any = given.get("after_any", False)
    return replace(default, payload=payload, on_failure=on_failure, after_any=after_any, **fields)


def read_payload(
    words: str | None, assignments: Sequence[str], bytes_max: int, stdin: Callable[[int], bytes]
) -> str | None:
    if words is None and not assignments:
        return None
    text = "{}" if words is None else _payload_text(words, bytes_max, stdin)
    _refuse_large(len(text.encode()), bytes_max)
    value = read_json(text)
    if not assignments:
        return text
    if not isinstance(value, dict):
        raise BadPayload("--set needs a payload that is an object, such as {}")
    for assignment in assignments:
        _assign(value, assignment)
    text = _dump_json(value)
    _refuse_large(len(text.encode()), bytes_max)
    return text


def read_priority(number: int | None) -> int:
    if number is None or not 1 <= number <= 10:
        raise BadInput(f"priority is 1 (highest) to 10 (lowest), not {number}")
    return number


def read_name_of_batch(word: str) -> str:
    if len(word) > _BATCH_NAME_MOST or not word.isprintable():
        raise BadInput(f"the name of a batch is one line of at most {_BATCH_NAME_MOST} characters")
    return _check_text("the name of a batch", word.strip())


def read_time(text: str, *, now: datetime) -> datetime:
    moment = parse_time(text, now=now)
    if moment.year < _EARLIEST:
        raise BadTime(f"{text!r} is before {_EARLIEST}", "write it like '2026-11-18 10:00' (UTC) or +10m")
    return moment


def _payload_text(words: str, bytes_max: int, stdin: Callable[[int], bytes]) -> str:
    if words != "-" and not words.startswith("@"):
        return _check_text("--payload", words)
    if words == "-":
        raw = stdin(bytes_max + 1)
    else:
        try:
            with Path(words[1:]).expanduser().open("rb") as file:
                raw = file.read(bytes_max + 1)
        except OSError as error:
            raise BadPayload(f"the payload file {words[1:]} cannot be read: {error.strerror}") from error
    # At most one byte more than allowed was read, which is enough to tell.
    _refuse_large(len(raw), bytes_max)
    try:
        return raw.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise BadPayload(f"the payload is not UTF-8: byte {error.start} is {raw[error.start]:#04x}") from error


def _dump_json(value: object) -> str:
    import json

    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise BadPayload("a number in the payload is too large for JSON") from error
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can only express as an escape
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text


def _assign(value: dict[str, object], assignment: str) -> None:
    """Set `key=value`; a dot descends into an object. A value that is not JSON is text."""
    path, equals, word = _check_text("--set", assignment).partition("=")
    keys = path.split(".")
    if not equals or not all(keys):
        raise BadInput(f"{assignment!r} does not say what to set", "write it like file_id=abc")
    for key in keys[:-1]:
        inner = value.setdefault(key, {})
        if not isinstance(inner, dict):
            raise BadPayload(f"--set {path}: {key} is not an object in the payload")
        value = inner
    try:
        value[keys[-1]] = read_json(word)
    except BadPayload:
        value[keys[-1]] = word


def _refuse_large(size: int, bytes_max: int) -> None:
    if size > bytes_max:
        detail = f"the payload is larger than {bytes_max} bytes (payload_bytes_max)"
        raise BadPayload(detail, "put the data into a file and its path into the payload")


def _read_ids(text: str) -> tuple[int, ...]:
    words = [word.strip().removeprefix("#") for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) < 19 for word in words):
        raise BadInput(f"{text!r} is not a list of jobs", "write their ids like 41,42")
    return tuple(dict.fromkeys(map(int, words)))


def _read_timeout(text: str) -> int:
    seconds = parse_length(text).total_seconds()
    if seconds < 1:
        raise BadTime(f"{text!r} is too short", "a timeout is 1s or longer")
    return int(seconds)


# ── Selectors ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_selector(
    *,
    now: datetime,
    ids: Sequence[int | str] = (),
    statuses: Sequence[str] = (),
    since: str | None = None,
    older_than: str | None = None,
    match: Sequence[str] = (),
    **chosen: Any,
) -> Selector:
    """`ids` are such as 42, batch:7 or document:3; `chosen` has the fields of `CHOSEN_BY`, as written."""
    named: dict[str, dict[int, None]] = {field: {} for field in _NAMES.values()}
    for field, number in map(read_name, ids):
        named[field][number] = None
    columns = {column.chosen_by: column for column in CHOSEN_BY}
    return Selector(
        ids=tuple(named["ids"]),
        batch_ids=tuple(named["batch_ids"]),
        document_ids=tuple(named["document_ids"]),
        statuses=read_statuses(Status, statuses),
        since=None if since is None else as_text(read_past(since, now=now)),
        older_than=None if older_than is None else as_text(read_past(older_than, now=now)),
        match=tuple(_read_match(text) for text in match),
        **{name: _read_chosen(columns[name], words) for name, words in chosen.items() if words is not None},
    )


def read_statuses(kind: type[S], words: Sequence[str]) -> tuple[S, ...]:
    return tuple(dict.fromkeys(one_of(kind, word) for word in _split(words)))


def read_name(word: int | str) -> tuple[str, int]:
    """Parse 42, #42, batch:7 or document:3 into a field of `Selector` and a number."""
    what, _, number = str(word).rpartition(":")
    number = number if what else number.removeprefix("#")
    if what not in _NAMES or not (number.isascii() and number.isdigit() and len(number) < 19):
        raise BadInput(f"{word!r} names no job", "write its id as pagemill ls shows it, or batch:7, or document:3")
    if not int(number) and what != "batch":
        raise BadInput(f"{word!r} names no job: ids begin at 1")
    return _NAMES[what], int(number)


def read_document_selector(
    ids: Sequence[int] = (),
    statuses: Sequence[str] = (),
    owners: Sequence[str] = (),
    name: str = "",
    batch_ids: Sequence[int] = (),
    tags: Sequence[str] = (),
) -> DocumentSelector:
    states = read_statuses(IndexStatus, statuses)
    return DocumentSelector(
        tuple(ids), states, tuple(owners), name=name, batch_ids=tuple(batch_ids), tags=read_tags(tags)
    )


def _read_chosen(column: Column, words: Any) -> Any:
    if column.is_number:
        return _check_number(column.flag, words)
    if isinstance(words, str):
        word = _check_text(column.flag, words)
        return FORMER_ERROR_CODES.get(word, word) if column.name == "error_code" else word
    return tuple(_split(words)) if column.divides else tuple(_check_text(column.flag, word) for word in words)


def _read_column(column: Column, word: Any) -> Any:
    if column.is_number:
        return _check_number(column.flag, word)
    return _check_filled(column.flag, word) if column.is_filled else _check_text(column.flag, word)


def _read_match(text: str) -> tuple[str, object]:
    try:
        return parse_match(_check_text("--match", text))
    except RecursionError as error:
        raise BadInput("the value of --match is nested too deeply") from error


def read_past(text: str, *, now: datetime) -> datetime:
    """Parse `2h` (ago) or a time."""
    if text[:1].isdigit():
        is_length = text[-1].isalpha() and text[-1] != "Z"
        return add_duration(now, -parse_duration(text)) if is_length else read_time(text, now=now)
    raise BadTime(f"{text!r} is not a time", "write it like 2h or 30d (ago), or '2026-11-18 10:00' (UTC)")


# ── Words ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_text(label: str, word: str) -> str:
    """Raise `BadInput` if the word is not UTF-8 or has a NUL byte, which cannot be stored."""
    try:
        word.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"{label} is not UTF-8 text: {word!r}") from error
    if "\0" in word:
        raise BadInput(f"{label} holds a NUL byte")
    return word


def _check_number(label: str, number: int) -> int:
    if not 0 <= number <= _LARGEST:
        raise BadInput(f"{label} is a number from 0 to {_LARGEST}, not {number}")
    return number


def _check_filled(label: str, word: str) -> str:
    if not word.strip():
        raise BadInput(f"{label} is empty")
    return _check_text(label, word)


def _split(words: Sequence[str]) -> list[str]:
    """Split at commas: `--status failed,cancelled` is `--status failed --status cancelled`."""
    return [part.strip() for word in words for part in _check_text("a selector", word).split(",") if part.strip()]


def read_pages(text: str | None) -> tuple[int, int | None]:
    """Return the first and last page of 3-5, 3-, -5 or 3; None as last page means no limit."""
    if text is None:
        return 1, None
    found = _PAGES.fullmatch(text.strip())
    if found is None or not (found[1] or found[3]):
        raise BadInput(f"{text!r} names no pages", "write 3, 3-5, 3- or -5")
    first = int(found[1] or 1)
    last = None if found[2] and not found[3] else int(found[3] or first)
    if first < 1 or (last is not None and last < first):
        raise BadInput(f"{text!r} names no pages", "the first is 1, and the last comes after it")
    return first, last
