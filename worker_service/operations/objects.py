"""Values as JSON objects: the same for the command line and HTTP."""

from __future__ import annotations

import math
from typing import Any

from worker_service.jobs.model import Job
from worker_service.operations.jobs import state_of


def job_object(job: Job) -> dict[str, object]:
    """Its row, and in a word how it stands."""
    return {**as_object(job), "state": state_of(job)}


def as_object(value: Any) -> dict[str, object]:
    """A value between the rooms as a JSON object: times as ISO 8601, payload and result as what they hold."""
    names = getattr(value, "__struct_fields__", None) or value.__match_args__
    return {name: _json_value(name, getattr(value, name)) for name in names}


def _json_value(name: str, value: object) -> object:
    if isinstance(value, str) and (name.endswith("_at") or name in ("at", "since", "until")):
        return iso(value)
    if isinstance(value, str) and name in ("payload", "result"):
        import json

        try:
            return json.loads(value, parse_float=_finite)
        except (ValueError, RecursionError):
            return value
    return value


def _finite(digits: str) -> float | str:
    """1e999 is JSON, and no float; it is shown as it was written, for JSON has no word for infinity."""
    number = float(digits)
    return number if math.isfinite(number) else digits


def iso(text: str | None) -> str | None:
    """``2026-11-18 10:00:00.000`` as ``2026-11-18T10:00:00.000Z``."""
    return None if text is None else text.replace(" ", "T") + "Z"
