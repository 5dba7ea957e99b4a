"""Jobs that fail before a child starts: unusable handlers, invalid payloads."""

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
def test_a_job_without_a_usable_handler_or_payload_fails_for_good(
    make_attempt: MakeAttempt, found: HandlerDescription | None, payload: str, code: str, message: str
) -> None:
    job = make_attempt().job._replace(payload=payload)

    assert refusal(job, found) == Ended(job.id, job.fence, How.PERMANENT, code=code, message=message)


@pytest.mark.parametrize("payload", [None, '{"pages": 1}', json.dumps({"pages": "x" * 70_000})])
def test_valid_and_very_long_payloads_are_left_to_the_child(make_attempt: MakeAttempt, payload: str | None) -> None:
    job = make_attempt().job._replace(payload=payload)

    assert refusal(job, HandlerDescription(HandlerFacts("ocr_pages", payload_schema=SCHEMA))) is None
