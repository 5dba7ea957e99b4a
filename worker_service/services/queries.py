"""Pages of a list, parts of a long list of ids, and polling for changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from worker_service.base.clock import parse_length
from worker_service.services.database import Session

IDS_AT_ONCE = 500
_POLL_SECONDS = 0.05
_REST = 5
"""Shortest pause after a query, as a multiple of its duration."""


class HasId(Protocol):
    @property
    def id(self) -> int: ...


Row = TypeVar("Row", bound=HasId)
T = TypeVar("T")


def cut_page(found: Sequence[Row], limit: int) -> tuple[Sequence[Row], int | None]:
    """Return the page and the `before_id` of the next one, or None. `found` has up to `limit + 1` rows."""
    return found[:limit], found[limit - 1].id if len(found) > limit else None


def chunks(values: Sequence[T]) -> list[Sequence[T]]:
    return [values[start : start + IDS_AT_ONCE] for start in range(0, len(values), IDS_AT_ONCE)]


def deadline_after(timeout: str | None) -> float:
    return float("inf") if timeout is None else time.monotonic() + parse_length(timeout).total_seconds()


def poll(session: Session, query: Callable[[], T], *, deadline: float = float("inf")) -> Iterator[T]:
    """Yield the result of `query` many times a second until the deadline, at least once.

    `query` runs again only after a commit by another connection.
    """
    seen: int | None = None
    seconds = 0.0
    while True:
        # Read the counter first, so that the next check sees what is committed during this query.
        if (counter := session.change_counter()) != seen:
            seen, start = counter, time.monotonic()
            found = query()
            seconds = time.monotonic() - start
        yield found
        if time.monotonic() >= deadline:
            return
        time.sleep(max(_POLL_SECONDS, _REST * seconds))
