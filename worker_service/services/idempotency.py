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


def run_once(session: Session, key: str, wish: str, grant: Callable[[], StoredResponse]) -> StoredResponse:
    """Run `grant` once per key. `wish` is a digest of the request. An error of `grant` frees the key."""
    keys = session.store.idempotency_keys
    if (earlier := keys.find(key)) is None:
        try:
            with keys.granting(key, wish):
                response = grant()
        except IdempotencyConflict:  # the same request arrived at the same time
            if (earlier := keys.find(key)) is None:
                raise
        except PagemillError:
            keys.forget(key, wish)
            raise
        else:
            keys.store_response(key, wish, response.status, response.answer, response.location)
            return response
    return _await_answer(session, key, wish, earlier)


def _await_answer(session: Session, key: str, wish: str, earlier: GrantedRequest) -> StoredResponse:
    if earlier.wish != wish:
        raise Refused("that Idempotency-Key was used for another request", "use a new one")
    deadline = time.monotonic() + _ANSWER_SECONDS_MAX
    for found in poll(session, lambda: session.store.idempotency_keys.find(key), deadline=deadline):
        if found is not None and found.answer is not None and found.status is not None:
            return StoredResponse(found.status, found.answer, found.location)
    raise AnswerUnknown(
        f"this request was accepted at {earlier.at[:19]} UTC, and its answer is not known",
        "look for what it has created; with a new Idempotency-Key it is executed again",
    )
