"""Parse a job as users write it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from worker_service.base.clock import parse_length
from worker_service.base.errors import BadInput, BadPayload, BadTime
from worker_service.jobs.documents import OnEnd
from worker_service.jobs.follow_ups import read_action, read_json
from worker_service.jobs.job import NewJob
from worker_service.jobs.selector import SETTABLE_COLUMNS
from worker_service.services.parse import (
    check_filled,
    check_number,
    check_text,
    is_id,
    read_column,
    read_priority,
    read_time,
)
from worker_service.settings.config import Settings


def read_job(
    words: Mapping[str, Any], settings: Settings, *, now: datetime, read_stdin: Callable[[int], bytes]
) -> NewJob:
    """Parse `words`, values by column name; `assignments` among them change the payload."""
    word_by_name = {name: word for name, word in words.items() if word is not None}
    default = NewJob(check_filled("the job type", word_by_name["job_type"]))
    fields: dict[str, Any] = {}
    for column in SETTABLE_COLUMNS:
        if column.name not in word_by_name:
            continue
        word, has_default = word_by_name[column.name], getattr(default, column.name) is not None
        # If there is a default, ignore an empty word: a variable in a crontab line may be empty.
        if word != "" or not has_default:
            fields[column.name] = read_column(column, word)
    reader_by_name: dict[str, Callable[[Any], Any]] = {
        "unique_key": partial(check_filled, "--unique"),
        "concurrency_key": partial(check_filled, "--key"),
        "priority": read_priority,
        "run_at": partial(read_time, now=now),
        "after": _read_ids,
        "max_retries": partial(check_number, "--max-retries"),
    }
    fields |= {name: read(word_by_name[name]) for name, read in reader_by_name.items() if name in word_by_name}
    if "timeout" in word_by_name:
        fields["timeout_seconds"] = _read_timeout(word_by_name["timeout"])
    fields["on_failure"] = [read_action(word, OnEnd.FAILURE) for word in word_by_name.get("on_failure", ())]
    fields["after_any"] = word_by_name.get("after_any", False)
    assignments = word_by_name.get("assignments", ())
    payload = read_payload(word_by_name.get("payload"), assignments, settings.payload_bytes_max, read_stdin)
    return replace(default, payload=payload, **fields)


def read_payload(
    word: str | None, assignments: Sequence[str], bytes_max: int, read_stdin: Callable[[int], bytes]
) -> str | None:
    """`word` is JSON, @FILE, or - for stdin."""
    if word is None and not assignments:
        return None
    text = "{}" if word is None else _payload_text(word, bytes_max, read_stdin)
    _refuse_large(len(text.encode()), bytes_max)
    payload = read_json(text)
    if not assignments:
        return text
    if not isinstance(payload, dict):
        raise BadPayload("--set needs a payload that is an object, such as {}")
    for assignment in assignments:
        _assign(payload, assignment)
    text = _dump_json(payload)
    _refuse_large(len(text.encode()), bytes_max)
    return text


def _payload_text(word: str, bytes_max: int, read_stdin: Callable[[int], bytes]) -> str:
    if word != "-" and not word.startswith("@"):
        return check_text("--payload", word)
    # One byte more than allowed is enough to recognise a payload that is too large.
    if word == "-":
        raw = read_stdin(bytes_max + 1)
    else:
        try:
            with Path(word[1:]).expanduser().open("rb") as file:
                raw = file.read(bytes_max + 1)
        except OSError as error:
            raise BadPayload(f"the payload file {word[1:]} cannot be read: {error.strerror}") from error
    _refuse_large(len(raw), bytes_max)
    try:
        return raw.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise BadPayload(f"the payload is not UTF-8: byte {error.start} is {raw[error.start]:#04x}") from error


def _dump_json(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise BadPayload("a number in the payload is too large for JSON") from error
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can only express as an escape
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text


def _assign(payload: dict[str, object], assignment: str) -> None:
    """Set a field, such as a=1, or a.b=1 in an inner object. A value that is not JSON is text."""
    path, equals, word = check_text("--set", assignment).partition("=")
    keys = path.split(".")
    if not equals or not all(keys):
        raise BadInput(f"{assignment!r} does not say what to set", "write it like file_id=abc")
    target = payload
    for key in keys[:-1]:
        inner = target.setdefault(key, {})
        if not isinstance(inner, dict):
            raise BadPayload(f"--set {path}: {key} is not an object in the payload")
        target = inner
    try:
        target[keys[-1]] = read_json(word)
    except BadPayload:
        target[keys[-1]] = word


def _refuse_large(size: int, bytes_max: int) -> None:
    if size > bytes_max:
        detail = f"the payload is larger than {bytes_max} bytes (payload_bytes_max)"
        raise BadPayload(detail, "put the data into a file and its path into the payload")


def _read_ids(text: str) -> tuple[int, ...]:
    words = [word.strip().removeprefix("#") for word in text.split(",")]
    if not all(map(is_id, words)):
        raise BadInput(f"{text!r} is not a list of jobs", "write their ids like 41,42")
    return tuple(dict.fromkeys(map(int, words)))


def _read_timeout(text: str) -> int:
    seconds = parse_length(text).total_seconds()
    if seconds < 1:
        raise BadTime(f"{text!r} is too short", "a timeout is 1s or longer")
    return int(seconds)
