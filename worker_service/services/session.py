"""Sessions, pages of rows, and polling."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec import Struct

from worker_service.base.clock import Clock, parse_length, wall_clock
from worker_service.store import opening
from worker_service.store.database import WriteOptions
from worker_service.store.store import Store

if TYPE_CHECKING:
    from worker_service.settings.config import Settings
    from worker_service.store.connection import OnLongWait
    from worker_service.store.history import History
    from worker_service.store.job_queries import JobQueries
    from worker_service.store.library import Library
    from worker_service.store.overview import OverviewQueries
    from worker_service.store.search import PageSearch
    from worker_service.store.waiting_reasons import Gates


IDS_AT_ONCE = 500
_POLL_SECONDS = 0.05
_PAUSE_PER_QUERY_SECOND = 5
"""Shortest pause after a query, in seconds per second of its duration."""


class HasId(Protocol):
    @property
    def id(self) -> int: ...


Row = TypeVar("Row", bound=HasId)
T = TypeVar("T")


class Session(Struct, frozen=True):
    """An open database, with the settings and the user who acts.

    Every surface may use the properties, which only read. Only services use `store`.
    """

    store: Store
    settings: Settings
    actor: str
    clock: Clock = wall_clock

    @property
    def job_queries(self) -> JobQueries:
        return self.store.job_queries

    @property
    def history(self) -> History:
        return self.store.history

    @property
    def overview(self) -> OverviewQueries:
        return self.store.overview

    @property
    def gates(self) -> Gates:
        """Return the queries that explain why a pending job has not started."""
        return self.store.gates

    @property
    def library(self) -> Library:
        return self.store.library

    @property
    def search(self) -> PageSearch:
        return self.store.search

    def change_counter(self) -> int:
        return self.store.database.change_counter()

    def close(self) -> None:
        self.store.close()


def open_session(settings: Settings, *, actor: str | None = None, on_long_wait: OnLongWait | None = None) -> Session:
    return Session(
        opening.open_with_settings(settings, WriteOptions(on_long_wait=on_long_wait)),
        settings,
        actor or _current_user(),
    )


def _current_user() -> str:
    if user := os.environ.get("SUDO_USER"):
        return user
    with suppress(KeyError):
        return pwd.getpwuid(os.getuid()).pw_name
    return str(os.getuid())


# ── Queries ──


def cut_page(rows: Sequence[Row], limit: int) -> tuple[Sequence[Row], int | None]:
    """Return the first `limit` rows, and the `before_id` of the next page, or None if there are no more rows."""
    return rows[:limit], rows[limit - 1].id if len(rows) > limit else None


def chunks(values: Sequence[T]) -> list[Sequence[T]]:
    return [values[start : start + IDS_AT_ONCE] for start in range(0, len(values), IDS_AT_ONCE)]


def deadline_after(timeout: str | None) -> float:
    return float("inf") if timeout is None else time.monotonic() + parse_length(timeout).total_seconds()


def poll(session: Session, query: Callable[[], T], *, deadline: float = float("inf")) -> Iterator[T]:
    """Yield the result at every poll. Query again only after another connection has committed."""
    last_counter: int | None = None
    query_seconds = 0.0
    while True:
        # Read the counter first, so that the next check sees what is committed during this query.
        if (counter := session.change_counter()) != last_counter:
            last_counter, start = counter, time.monotonic()
            result = query()
            query_seconds = time.monotonic() - start
        yield result
        if time.monotonic() >= deadline:
            return
        time.sleep(max(_POLL_SECONDS, _PAUSE_PER_QUERY_SECOND * query_seconds))
