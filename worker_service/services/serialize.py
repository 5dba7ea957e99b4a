"""Convert values to objects for JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from enum import IntEnum
from pathlib import PurePath
from typing import Any

from msgspec import UNSET

from worker_service.base.clock import as_text
from worker_service.jobs.job import Job

JSON_TEXT_FIELDS = ("payload", "result", "asked", "actions")
"""Fields of rows that hold JSON as text, which becomes part of the object."""


def as_object(value: Any) -> Any:
    """Convert a value and all in it. UNSET fields are left out; a job also gets its `state`."""
    if value is None or (isinstance(value, str | int | float) and not isinstance(value, IntEnum)):
        return value
    if isinstance(value, IntEnum):
        return value.name.lower()
    if isinstance(value, datetime):
        return iso(as_text(value))
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return {key: item if key in JSON_TEXT_FIELDS else as_object(item) for key, item in value.items()}
    # msgspec lists the fields of a Struct in the first attribute; named tuples and dataclasses have the second.
    names = getattr(value, "__struct_fields__", None) or getattr(value, "__match_args__", None)
    if names is None:
        return [as_object(item) for item in value]
    fields = {name: getattr(value, name) for name in names}
    answer = {name: _field_as_object(name, field) for name, field in fields.items() if field is not UNSET}
    if isinstance(value, Job):
        from worker_service.services.jobs import state_of  # lists of documents need no jobs

        answer["state"] = state_of(value)
    return answer


def _field_as_object(name: str, value: object) -> Any:
    if not isinstance(value, str):
        return as_object(value)
    if name.endswith("_at") or name in ("at", "since", "until"):
        return iso(value)
    if name in JSON_TEXT_FIELDS:
        import json

        try:
            return json.loads(value, parse_float=_finite)
        except (ValueError, RecursionError):
            return value
    return value


def _finite(digits: str) -> float | str:
    """Parse a number. Keep the digits of 1e999, which would be infinite as a float."""
    number = float(digits)
    return number if math.isfinite(number) else digits


def iso(text: str | None) -> str | None:
    """Convert `2026-11-18 10:00:00.000` to `2026-11-18T10:00:00.000Z`."""
    return None if text is None else text.replace(" ", "T") + "Z"
