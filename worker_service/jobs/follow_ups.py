"""Parse actions that start follow-up jobs, and fill the placeholders of their payloads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NoReturn

from worker_service.base.errors import BadInput, BadPayload
from worker_service.jobs.digest import canonical
from worker_service.jobs.documents import DeferredAction, OnEnd

SAMPLE_FACTS: Mapping[str, object] = {
    "document_id": 1, "batch_id": 1, "job_id": 1, "generation": 1,
    "owner": "owner", "name": "name", "state": "success", "error_code": "CODE",
}  # fmt: skip
"""Example by placeholder."""
_PLACEHOLDER = re.compile(r"\{(\w+)\}")

_SHOWN_CHARACTERS = 60


def read_action(word: str, on_end: OnEnd = OnEnd.SUCCESS, *, standing: bool = False) -> DeferredAction:
    """Parse TYPE or TYPE=PAYLOAD, where the payload is a JSON object."""
    job_type, equals, payload = word.partition("=")
    try:
        value = read_json(payload) if equals else {}
    except BadPayload:
        value = None
    if not job_type or not isinstance(value, dict):
        raise BadInput(f"{word!r} is not an action", "write TYPE, or TYPE={…} with its payload")
    return DeferredAction(job_type, canonical(value) if value else "", on_end, standing)


def read_json(text: str) -> object:
    """Refuse NaN and Infinity, which are not JSON."""
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


def fill_placeholders(payload: str, facts: Mapping[str, object]) -> str:
    """Replace {name} by facts. A text that is only a placeholder becomes the fact itself, such as a number."""
    texts = {name: "" if fact is None else str(fact) for name, fact in facts.items()}

    def fill(value: object) -> object:
        if isinstance(value, dict):
            return {key: fill(item) for key, item in value.items()}
        if isinstance(value, list):
            return [fill(item) for item in value]
        if not isinstance(value, str):
            return value
        text = _PLACEHOLDER.sub(lambda match: texts.get(match[1], match[0]), value)
        if "/" in text and names_file(text) and not names_file(value):
            # The author of the action may not be allowed to name files, and any user may have chosen the fact.
            return value
        whole = _PLACEHOLDER.fullmatch(value)
        return facts[whole[1]] if whole is not None and whole[1] in facts else text

    return canonical(fill(json.loads(payload)))


def names_file(text: str) -> bool:
    """Return whether a handler could read the text as a file of this machine."""
    return text.strip().lower().startswith(("/", "~", ".", "file:"))
