"""What is known before a child begins: no handler, one that was set aside, a payload that it cannot read."""

from __future__ import annotations

import json

import pytest

from tests.daemon.conftest import MakeAttempt
from worker_service.daemon.claiming import refusal
from worker_service.jobs.workers import HandlerFacts
from worker_service.runner.messages import Ended, HandlerDescription, How

SCHEMA = '{"type": "object", "properties": {"pages": {"type": "integer"}}}'


@pytest.mark.parametrize(
    ("found", "payload", "code", "message"),
    [
        (None, "{}", "HANDLER_SET_ASIDE", "no handler for ocr_pages"),
        (HandlerDescription(HandlerFacts("ocr_pages"), set_aside="it hangs"), "{}", "HANDLER_SET_ASIDE", "it hangs"),
        (
            HandlerDescription(HandlerFacts("ocr_pages", payload_schema=SCHEMA)), '{"pages": "x"}', "PAYLOAD_INVALID",
            'payload.pages: the value is not of type "integer"',
        ),
    ],
)  # fmt: skip
def test_what_cannot_begin_ends_for_good(
    attempt: MakeAttempt, found: HandlerDescription | None, payload: str, code: str, message: str
) -> None:
    job = attempt().job._replace(payload=payload)

    assert refusal(job, found) == Ended(job.id, job.fence, How.PERMANENT, code=code, message=message)


@pytest.mark.parametrize("payload", [None, '{"pages": 1}', json.dumps({"pages": "x" * 70_000})])
def test_what_fits_or_is_too_long_to_look_at_is_left_to_the_child(attempt: MakeAttempt, payload: str | None) -> None:
    job = attempt().job._replace(payload=payload)

    assert refusal(job, HandlerDescription(HandlerFacts("ocr_pages", payload_schema=SCHEMA))) is None
