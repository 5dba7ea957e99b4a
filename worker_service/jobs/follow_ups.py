"""Parse follow-up actions, and the JSON that users write. Pure."""

from __future__ import annotations

import json
from typing import NoReturn

from worker_service.base.errors import BadInput, BadPayload
from worker_service.jobs.digest import canonical
from worker_service.jobs.documents import DeferredAction, OnEnd

_SHOWN_CHARACTERS = 60


def read_action(word: str, on_end: OnEnd = OnEnd.SUCCESS, *, standing: bool = False) -> DeferredAction:
    """Parse TYPE or TYPE={"url": "…"}."""
    job_type, equals, payload = word.partition("=")
    try:
        value = read_json(payload) if equals else {}
    except BadPayload:
        value = None
    if not job_type or not isinstance(value, dict):
        raise BadInput(f"{word!r} is not an action", "write TYPE, or TYPE={…} with its payload")
    return DeferredAction(job_type, canonical(value) if value else "", on_end, standing)


def read_json(text: str) -> object:
    """Parse JSON. Raise `BadPayload` with the place of the mistake; NaN and Infinity are mistakes."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        if not text.strip():
            raise BadPayload("the payload is empty", "leave it out, or give JSON such as {}") from error
        place = f"line {error.lineno} column {error.colno}"
        shown = text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "…"
        raise BadPayload(f"the payload is not JSON: {error.msg.lower()} at {place}, in {shown}") from error
    except RecursionError as error:
        raise BadPayload("the payload is nested too deeply") from error
    except ValueError as error:
        raise BadPayload(f"the payload is not JSON: {error}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")
