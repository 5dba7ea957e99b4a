"""Server-sent events, from one poller for all clients.

`job` is a change of a job's state, `notice` an event users may be notified of, `progress` a running job's progress.
`job` and `notice` carry an id; a client that reconnects with it (Last-Event-ID) receives what it missed. `reset` means
that too much was missed or is no longer stored, so the client must fetch its data again. `end` means that the server is
stopping. The poller runs only while a client is connected.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from worker_service.base import events
from worker_service.base.sanitize import as_json
from worker_service.services import feed
from worker_service.services.feed import Happened, Place, Step
from worker_service.services.serialize import as_object
from worker_service.web.access import Visitor
from worker_service.web.api.endpoint import ID, Endpoint, Param, streamed
from worker_service.web.error_responses import HttpProblem

_POLL_SECONDS = 0.25
_SIGN_OF_LIFE_SECONDS = 15.0
_LIFE_SECONDS = 600.0
"""Longest life of a stream. The client reconnects, and its access is checked again."""
_STREAMS_MOST = 128
_STREAMS_OF_ONE_MOST = 40
"""Streams one visitor may have, so that others can always connect."""
_WAITING_MOST = 64
"""Polls a slow client may lag behind before its stream reads the database itself."""
_MISSED_MOST = 20_000


class TooManyStreams(HttpProblem):
    code = "too_many_streams"
    status = 503


class TooManyOfYours(HttpProblem):
    code = "too_many_streams"
    status = 429


class Message(Struct, frozen=True):
    owner: str
    about: tuple[int | None, int | None, int | None]
    """Ids of the job, batch and document."""
    place: Place | None
    """Position in the stream after this message; None for `progress`, which has none."""
    text: str
    is_reset: bool = False


@dataclass(slots=True, eq=False)
class Listener:
    visitor: str
    waiting: asyncio.Queue[list[Message]] = field(default_factory=lambda: asyncio.Queue(_WAITING_MOST))
    is_behind: bool = False


class Feed:
    """Distributes events to connected clients. Used only in the server's event loop, so it needs no lock."""

    def __init__(self, app: Starlette) -> None:
        self._app = app
        self._listeners: set[Listener] = set()
        self._poller: asyncio.Task[None] | None = None
        self._begins = asyncio.Lock()
        self._steps: Mapping[int, Step] = {}
        self.has_ended = False

    async def join(self, visitor: str) -> Listener:
        if sum(one.visitor == visitor for one in self._listeners) >= _STREAMS_OF_ONE_MOST:
            raise TooManyOfYours(f"{visitor} has {_STREAMS_OF_ONE_MOST} event streams open", "close one of them")
        if len(self._listeners) >= _STREAMS_MOST:
            raise TooManyStreams(f"{_STREAMS_MOST} event streams are open already", "try again later")
        listener = Listener(visitor)
        self._listeners.add(listener)
        try:
            async with self._begins:
                if self._poller is None or self._poller.done():
                    # Start polling before the stream reads the database, or events between the two reads are lost.
                    self._steps = {}
                    self._poller = asyncio.create_task(self._poll(await run_in_threadpool(self._newest)))
        except BaseException:
            self.leave(listener)
            raise
        return listener

    def leave(self, listener: Listener) -> None:
        self._listeners.discard(listener)
        if not self._listeners and self._poller is not None:
            self._poller.cancel()
            self._poller = None

    def end(self) -> None:
        """Wake every stream so that it sends `end`. Clients then reconnect to the next server."""
        self.has_ended = True
        for listener in self._listeners:
            if listener.waiting.full():
                listener.waiting.get_nowait()
            listener.waiting.put_nowait([])

    async def _poll(self, place: Place) -> None:
        seen = ""
        while True:
            try:
                version = await run_in_threadpool(self._app.state.changes.version)
                if version != seen:
                    place, told = await run_in_threadpool(self._look, place)
                    seen = version
                    self._tell(told)
            except Exception as error:
                # The database may be unavailable for a moment. Streams keep sending comments meanwhile.
                self._app.state.log.warning(events.REQUEST_FAILED, path="/api/events", error=str(error))
                await asyncio.sleep(_SIGN_OF_LIFE_SECONDS)
            await asyncio.sleep(_POLL_SECONDS)

    def _newest(self) -> Place:
        with self._app.state.sessions.opened("events") as session:
            return feed.newest(session)

    def _look(self, place: Place) -> tuple[Place, list[Message]]:
        with self._app.state.sessions.opened("events") as session:
            happened = feed.after(session, place)
            steps = feed.steps(session)
        moved = [step for job_id, step in steps.items() if self._steps.get(job_id) != step]
        self._steps = steps
        if happened.is_lost:
            return happened.place, [
                Message("", (None, None, None), happened.place, _written("reset", {}), is_reset=True)
            ]
        return happened.place, [*messages(place, happened), *map(_of_step, moved)]

    def _tell(self, told: list[Message]) -> None:
        for listener in self._listeners if told else ():
            try:
                listener.waiting.put_nowait(told)
            except asyncio.QueueFull:
                listener.is_behind = True


def messages(since: Place, happened: Happened) -> Iterator[Message]:
    place = since
    for move in happened.moves:
        place = Place(place.notice_id, move.id, move.job_id)
        yield _message("job", move, (move.job_id, move.batch_id, move.document_id), place)
    for notice in happened.notices:
        place = place._replace(notice_id=notice.id)
        yield _message("notice", notice, (notice.job_id, notice.batch_id, notice.document_id), place)


def _of_step(step: Step) -> Message:
    return _message("progress", step, (step.job_id, step.batch_id, step.document_id), None)


def _message(kind: str, value: Any, about: tuple[int | None, int | None, int | None], place: Place | None) -> Message:
    return Message(value.owner, about, place, _written(kind, as_object(value)))


def _written(kind: str, value: object) -> str:
    # `as_json` writes no line breaks, so the data fits on one line.
    return f"event: {kind}\ndata: {as_json(value)}\n\n"


@streamed(
    "GET",
    "/api/events",
    "What happens, as server-sent events: job, notice, progress, reset, end.",
    query=(
        Param("after", "what happened since this id of an event, too"),
        Param("job", "only of this one", ID),
        Param("batch", "only of this one", ID),
        Param("document", "only of this one", ID),
    ),
    headers=(Param("Last-Event-ID", "the same as after, as a browser says it"),),
    media="text/event-stream",
    refusals=(400, 429, 503),
)
async def listen(request: Request, visitor: Visitor, query: Mapping[str, Any]) -> Response:
    said = request.headers.get("last-event-id") or query.get("after")
    place = feed.read_place(said) if said else None
    wanted = tuple(query.get(name) for name in ("job", "batch", "document"))
    heads = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    of: Feed = request.app.state.feed
    listener = await of.join(visitor.name)
    return StreamingResponse(
        _stream(request, visitor, of, listener, place, wanted), headers=heads, media_type="text/event-stream"
    )


async def _stream(
    request: Request,
    visitor: Visitor,
    of: Feed,
    listener: Listener,
    place: Place | None,
    wanted: tuple[int | None, ...],
) -> AsyncIterator[str]:
    ends_at = time.monotonic() + _LIFE_SECONDS

    def is_for_them(one: Message) -> bool:
        return visitor.may_see(one.owner) and all(
            want is None or want == has for want, has in zip(wanted, one.about, strict=True)
        )

    try:
        yield "retry: 2000\n\n"
        listener.is_behind = True
        while time.monotonic() < ends_at and not of.has_ended:
            if listener.is_behind or place is None:
                listener.is_behind = False
                while not listener.waiting.empty():
                    listener.waiting.get_nowait()
                place, texts = await run_in_threadpool(_missed, request, visitor, place, is_for_them)
                for text in texts:
                    yield text
            try:
                told = await asyncio.wait_for(listener.waiting.get(), _SIGN_OF_LIFE_SECONDS)
            except TimeoutError:
                yield ": still here\n\n"
                continue
            for one in told:
                if one.place is None:
                    if is_for_them(one):
                        yield one.text
                    continue
                if one.is_reset:
                    place = one.place
                    yield f"id: {place}\n{one.text}"
                elif place is None or one.place.notice_id > place.notice_id or one.place.event_id > place.event_id:
                    place = one.place.and_further(place or one.place)
                    if is_for_them(one):
                        yield f"id: {place}\n{one.text}"
        if of.has_ended:
            yield _written("end", {})
    finally:
        of.leave(listener)


def _missed(
    request: Request, visitor: Visitor, since: Place | None, is_for_them: Callable[[Message], bool]
) -> tuple[Place, list[str]]:
    with request.app.state.sessions.opened(visitor.name) as session:
        now = feed.newest(session)
        steps = [one.text for one in map(_of_step, feed.steps(session).values()) if is_for_them(one)]
        if since is None:
            # Send an id at once, so that a client that reconnects before the first event misses nothing.
            return now, [f"id: {now}\n{_written('hello', {})}", *steps]
        missed = now.event_id - since.event_id + now.notice_id - since.notice_id
        texts: list[str] = []
        place, is_all, is_lost = since, False, missed > _MISSED_MOST
        while not (is_all or is_lost):
            happened = feed.after(session, place, owner=visitor.owner)
            texts += [f"id: {one.place}\n{one.text}" for one in messages(place, happened) if is_for_them(one)]
            place, is_all, is_lost = happened.place, happened.is_all, happened.is_lost
        if is_lost:
            return now, [f"id: {now}\n{_written('reset', {})}", *steps]
        return place, [*texts, *steps]


ENDPOINTS: tuple[Endpoint, ...] = (listen,)
routes = [one.route for one in ENDPOINTS]
