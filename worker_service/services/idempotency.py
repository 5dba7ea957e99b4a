"""Requests with an Idempotency-Key, executed once. A repetition waits for the first one's answer."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct

from worker_service.base.errors import IdempotencyConflict, PagemillError, Refused
from worker_service.jobs.tokens import GrantedRequest
from worker_service.services.session import Session, poll

_ANSWER_SECONDS_MAX = 5.0


class AnswerUnknown(Refused):
    code = "answer_unknown"


class StoredResponse(Struct, frozen=True):
    status: int
    answer: str
    location: str | None = None


def run_once(session: Session, key: str, request_digest: str, execute: Callable[[], StoredResponse]) -> StoredResponse:
    """Execute the request once per key. A `PagemillError` frees the key."""
    keys = session.store.idempotency_keys
    if (earlier := keys.find(key)) is None:
        try:
            with keys.granting(key, request_digest):
                response = execute()
        except IdempotencyConflict:  # the same request arrived at the same time
            if (earlier := keys.find(key)) is None:
                raise
        except PagemillError:
            keys.forget(key, request_digest)
            raise
        else:
            keys.store_response(key, request_digest, response.status, response.answer, response.location)
            return response
    return _await_answer(session, key, request_digest, earlier)


def _await_answer(session: Session, key: str, request_digest: str, earlier: GrantedRequest) -> StoredResponse:
    if earlier.wish != request_digest:
        raise Refused("that Idempotency-Key was used for another request", "use a new one")
    deadline = time.monotonic() + _ANSWER_SECONDS_MAX
    for request in poll(session, lambda: session.store.idempotency_keys.find(key), deadline=deadline):
        if request is not None and request.answer is not None and request.status is not None:
            return StoredResponse(request.status, request.answer, request.location)
    raise AnswerUnknown(
        f"this request was accepted at {earlier.at[:19]} UTC, and its answer is not known",
        "look for what it has created; with a new Idempotency-Key it is executed again",
    )
