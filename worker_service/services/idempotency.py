"""Requests with an Idempotency-Key: executed once, however often they arrive.

That a request was granted is written in the same transaction as its first effect, its answer right after. In between
the answer is unknown, and a client that repeats the request then waits, and gets `AnswerUnknown` after a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct

from worker_service.base.errors import IdempotencyConflict, PagemillError, Refused
from worker_service.jobs.tokens import GrantedRequest
from worker_service.services.database import Session

_WAIT_SECONDS = 5.0
_POLL_SECONDS = 0.02


class AnswerUnknown(Refused):
    code = "answer_unknown"


class StoredResponse(Struct, frozen=True):
    status: int
    answer: str
    location: str | None = None


def run_once(session: Session, key: str, wish: str, grant: Callable[[], StoredResponse]) -> StoredResponse:
    """Run `grant` once per key and return its answer.

    `key` is scoped to its caller; `wish` is a digest of the request. A rejected request may be retried with the same
    key.
    """
    requests = session.store.requests
    if (before := requests.find(key)) is not None:
        return _answer(session, key, wish, before)
    try:
        with requests.granting(key, wish):
            told = grant()
    except IdempotencyConflict:
        if (before := requests.find(key)) is None:
            raise
        return _answer(session, key, wish, before)
    except PagemillError:
        requests.forget(key, wish)
        raise
    requests.answered(key, wish, told.status, told.answer, told.location)
    return told


def _answer(session: Session, key: str, wish: str, found: GrantedRequest) -> StoredResponse:
    if found.wish != wish:
        raise Refused("that Idempotency-Key was used for another wish", "take a new one")
    until = time.monotonic() + _WAIT_SECONDS
    while found.answer is None or found.status is None:
        if time.monotonic() > until:
            raise AnswerUnknown(
                f"this was granted at {found.at[:19]} UTC, and what was answered is not known",
                "look for what it has made; with a new Idempotency-Key it is done once more",
            )
        time.sleep(_POLL_SECONDS)
        found = session.store.requests.find(key) or found
    return StoredResponse(found.status, found.answer, found.location)
