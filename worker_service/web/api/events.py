"""Server-sent events, read by each stream from its own cursor when the database has changed."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any

from msgspec import Struct
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from worker_service.base import events
from worker_service.base.sanitize import as_json
from worker_service.services import event_feed as feed
from worker_service.services.event_feed import EventCursor, JobProgress, NewEvents
from worker_service.services.serialize import as_object
from worker_service.services.session import Session
from worker_service.web.access import Visitor
from worker_service.web.api.endpoint import endpoint
from worker_service.web.error_responses import HttpProblem
from worker_service.web.parameters import Id, about

_POLL_SECONDS = 0.25
_SILENCE_SECONDS_MAX = 15.0
_STREAM_SECONDS = 600.0
"""Length of a stream. The client reconnects, and is authenticated again."""
_STREAMS_MAX = 128
_STREAMS_PER_VISITOR_MAX = 40
_MISSED_EVENTS_MAX = 20_000
"""If there are more, the client gets `reset` instead."""


class TooManyStreams(HttpProblem, code="too_many_streams", status=503): ...


class VisitorHasTooManyStreams(HttpProblem, code="too_many_streams", status=429): ...


class EventsQuery(Struct, frozen=True):
    after: Annotated[str, about("Id of an event: first send the events after it.")] | None = None
    job: Annotated[Id, about("Only events of this job.")] | None = None
    batch: Annotated[Id, about("Only events of this batch.")] | None = None
    document: Annotated[Id, about("Only events of this document.")] | None = None


class EventStreams:
    """Counts the open streams and polls the database version for them."""

    def __init__(self, app: Starlette) -> None:
        self._app = app
        self._open_by_visitor: Counter[str] = Counter()
        self._poller: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self.version = ""

    @property
    def is_stopping(self) -> bool:
        return bool(self._app.state.is_stopping())

    def refuse_too_many(self, visitor: str) -> None:
        if self._open_by_visitor[visitor] >= _STREAMS_PER_VISITOR_MAX:
            raise VisitorHasTooManyStreams(
                f"{visitor} has {_STREAMS_PER_VISITOR_MAX} event streams open", "close one of them"
            )
        if self._open_by_visitor.total() >= _STREAMS_MAX:
            raise TooManyStreams(f"{_STREAMS_MAX} event streams are open already", "try again later")

    def join(self, visitor: str) -> None:
        self._open_by_visitor[visitor] += 1
        if self._poller is None:
            self._poller = asyncio.create_task(self._poll())

    def leave(self, visitor: str) -> None:
        self._open_by_visitor[visitor] -= 1
        self._open_by_visitor += Counter()  # drops visitors without streams
        if not self._open_by_visitor and self._poller is not None:
            self._poller.cancel()
            self._poller = None

    async def wait_for_change(self, known_version: str) -> bool:
        """Wait for another version, a stop or `_SILENCE_SECONDS_MAX`. Return whether there is another version."""
        if self.version == known_version:
            with suppress(TimeoutError):
                async with asyncio.timeout(_SILENCE_SECONDS_MAX):
                    await self._changed.wait()
        return self.version != known_version

    async def _poll(self) -> None:
        while not self.is_stopping:
            try:
                version = await run_in_threadpool(self._app.state.database_version.read)
                if version != self.version:
                    self.version = version
                    self._wake_streams()
                await asyncio.sleep(_POLL_SECONDS)
            except Exception as error:
                # The database may be unavailable for a moment. The streams stay open, and send comments.
                self._app.state.log.warning(events.REQUEST_FAILED, path="/api/events", error=str(error))
                await asyncio.sleep(_SILENCE_SECONDS_MAX)
        self._wake_streams()

    def _wake_streams(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class EventReader:
    def __init__(self, app: Starlette, visitor: Visitor, query: EventsQuery, cursor: EventCursor | None) -> None:
        self._app = app
        self._visitor = visitor
        self._query = query
        self._cursor = cursor
        self._sent_progress: Mapping[int, JobProgress] = {}

    def read(self) -> list[str]:
        with self._app.state.sessions.borrow(self._visitor.name) as session:
            newest, running = feed.newest_cursor(session), feed.progress_of_running_jobs(session)
            texts = self._read_changes(session, newest)
        changed = [progress for job_id, progress in running.items() if self._sent_progress.get(job_id) != progress]
        self._sent_progress = running
        return [*texts, *(_event_text("progress", progress) for progress in changed if self._is_wanted(progress))]

    def _read_changes(self, session: Session, newest: EventCursor) -> list[str]:
        cursor, self._cursor = self._cursor, newest
        if cursor is None:
            # Send an id at once, so that a client that reconnects before the first event misses nothing.
            return [_event_text("hello", {}, newest)]
        missed_events = (newest.event_id - cursor.event_id) + (newest.notice_id - cursor.notice_id)
        if missed_events > _MISSED_EVENTS_MAX:
            return [_event_text("reset", {}, newest)]
        texts: list[str] = []
        is_all = False
        while not is_all:
            new_events = feed.events_after(session, cursor, owner=self._visitor.owner)
            self._cursor = new_events.cursor
            if new_events.is_lost:
                return [_event_text("reset", {}, new_events.cursor)]
            for kind, value, value_cursor in _with_cursors(cursor, new_events):
                if self._is_wanted(value):
                    texts.append(_event_text(kind, value, value_cursor))
            cursor, is_all = new_events.cursor, new_events.is_all
        return texts

    def _is_wanted(self, value: Any) -> bool:
        query = self._query
        return (
            self._visitor.may_see(value.owner)
            and query.job in (None, value.job_id)
            and query.batch in (None, value.batch_id)
            and query.document in (None, value.document_id)
        )


def _with_cursors(cursor: EventCursor, new_events: NewEvents) -> Iterator[tuple[str, Any, EventCursor]]:
    """Yield kind, event and the cursor after it."""
    for move in new_events.moves:
        cursor = EventCursor(cursor.notice_id, move.id, move.job_id)
        yield "job", move, cursor
    for notice in new_events.notices:
        cursor = cursor._replace(notice_id=notice.id)
        yield "notice", notice, cursor


def _event_text(kind: str, value: object, cursor: EventCursor | None = None) -> str:
    # `as_json` writes no line breaks, so the data fits on one line.
    head = "" if cursor is None else f"id: {cursor}\n"
    return f"{head}event: {kind}\ndata: {as_json(as_object(value))}\n\n"


@endpoint(
    "GET",
    "/api/events",
    headers={"Last-Event-ID": "The same as after; browsers send it when they reconnect."},
    media="text/event-stream",
)
async def listen(request: Request, visitor: Visitor, query: EventsQuery) -> Response:
    """Stream server-sent events: job, notice, progress, reset, end."""
    after = request.headers.get("last-event-id") or query.after
    reader = EventReader(request.app, visitor, query, feed.parse_cursor(after) if after else None)
    streams: EventStreams = request.app.state.streams
    streams.refuse_too_many(visitor.name)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_stream(streams, visitor, reader), headers=headers, media_type="text/event-stream")


async def _stream(streams: EventStreams, visitor: Visitor, reader: EventReader) -> AsyncIterator[str]:
    # Join here: if the client disconnects before the response begins, this generator never runs, and never leaves.
    streams.join(visitor.name)
    ends_at = time.monotonic() + _STREAM_SECONDS
    try:
        yield "retry: 2000\n\n"
        while time.monotonic() < ends_at and not streams.is_stopping:
            version = streams.version
            for text in await run_in_threadpool(reader.read):
                yield text
            if not await streams.wait_for_change(version):
                yield ": still here\n\n"
        if streams.is_stopping:
            yield _event_text("end", {})
    finally:
        streams.leave(visitor.name)
