"""Requests with an Idempotency-Key: each runs once, and repetitions get the stored response."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from worker_service.base.clock import as_text
from worker_service.base.errors import IdempotencyConflict
from worker_service.jobs.tokens import GrantedRequest
from worker_service.store.database import StorePart

_RETENTION = timedelta(days=30)


class IdempotencyKeys(StorePart):
    def find(self, key: str) -> GrantedRequest | None:
        for row in self._db.read("find_request", key=key):
            return GrantedRequest(*row)
        return None

    @contextmanager
    def granting(self, key: str, wish: str) -> Iterator[None]:
        """Store the key in the first transaction of this block. `wish` is a digest of the request."""
        is_stored = False

        def store_key() -> None:
            nonlocal is_stored
            if not is_stored and not self._db.write("note_request", key=key, wish=wish, now=self._db.now()):
                raise IdempotencyConflict("this was asked for with the same Idempotency-Key at the same time")
            is_stored = True

        with self._db.with_before_commit(store_key):
            yield

    def store_response(self, key: str, wish: str, status: int, answer: str, location: str | None) -> None:
        with self._db.transaction():
            now = self._db.now()
            response = {"status": status, "answer": answer, "location": location}
            self._db.write("answer_request", key=key, wish=wish, now=now, **response)
            self._db.write("forget_old_requests", before=as_text(self._db.clock() - _RETENTION))

    def forget(self, key: str, wish: str) -> None:
        with self._db.transaction():
            self._db.write("forget_request", key=key, wish=wish)
