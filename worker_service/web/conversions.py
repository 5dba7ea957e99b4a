"""Convert a file within one request: submit it as an upload does, and wait until it is read."""

from __future__ import annotations

import mimetypes
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request

from worker_service.base.errors import BadInput, Problem
from worker_service.base.path_text import path_to_text
from worker_service.jobs.documents import IndexStatus
from worker_service.jobs.job import Status
from worker_service.jobs.library import Document, DocumentSelector
from worker_service.jobs.markdown import page_markdown
from worker_service.jobs.page_structure import StructuredPage
from worker_service.services.page_blocks import structured_pages
from worker_service.services.session import Session
from worker_service.web.access import settings_of, visitor_of
from worker_service.web.api.events import EventStreams
from worker_service.web.database_sessions import session_of
from worker_service.web.error_responses import BodyTooLarge, HttpProblem
from worker_service.web.incoming_files import IncomingFile, refuse_if_disk_full
from worker_service.web.middleware import announced_bytes, write_slot_of
from worker_service.web.resources.jobs import owner_for
from worker_service.web.resources.read_requests import OptionValues, submit_files


class NotConverted(HttpProblem, code="not_converted", status=422):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail, problem.remedy)
        self.code = problem.code


class ServerStopping(HttpProblem, code="stopping", status=503): ...


class Conversion(Struct, frozen=True):
    document: Document
    pages: Sequence[StructuredPage]

    @property
    def text(self) -> str:
        return "\n\n".join(page.text for page in self.pages)

    @property
    def markdown(self) -> list[str]:
        return [page_markdown(page) for page in self.pages]

    @property
    def media_type(self) -> str:
        return mimetypes.guess_type(self.document.name)[0] or "application/octet-stream"


@asynccontextmanager
async def new_file(request: Request, size: int = 0) -> AsyncIterator[IncomingFile]:
    """Yield an empty file, deleted on exit unless it was kept."""
    workspace = settings_of(request).workspace
    await run_in_threadpool(refuse_if_disk_full, workspace, size)
    incoming = await run_in_threadpool(IncomingFile, workspace)
    try:
        yield incoming
    finally:
        await run_in_threadpool(incoming.close)


@asynccontextmanager
async def received_body(request: Request) -> AsyncIterator[IncomingFile]:
    size_max = settings_of(request).upload_bytes_max
    async with new_file(request, announced_bytes(request)) as incoming:
        async for chunk in request.stream():
            await run_in_threadpool(incoming.write, chunk)
            # A body without a Content-Length is measured only here.
            if incoming.size > size_max:
                raise BodyTooLarge(f"the file is larger than {size_max} bytes (upload_bytes_max)")
        yield incoming


async def convert(
    request: Request, name: str, incoming: IncomingFile, options: OptionValues | None = None
) -> Conversion:
    if not incoming.size:
        raise BadInput("the request contains no file")
    streams: EventStreams = request.app.state.streams
    streams.refuse_too_many(visitor_of(request).name)
    async with write_slot_of(request):
        awaited = await run_in_threadpool(_submit, request, name, incoming, options or {})
    # The request stays open as long as an event stream, and counts as one.
    streams.join(visitor_of(request).name)
    try:
        while True:
            version = streams.version
            conversion = await run_in_threadpool(_find_conversion, request, awaited)
            if conversion is not None:
                return conversion
            await streams.wait_for_change(version)
            if streams.is_stopping:
                raise ServerStopping("the server is stopping", "send the request again: the document is being read")
            if await request.is_disconnected():
                raise ClientDisconnect
    finally:
        streams.leave(visitor_of(request).name)


class _AwaitedDocument(Struct, frozen=True):
    source_key: str
    job_id: int | None
    """None: the document was read before."""


def _submit(request: Request, name: str, incoming: IncomingFile, options: OptionValues) -> _AwaitedDocument:
    owner = owner_for(visitor_of(request), None)
    path = incoming.keep(Path(name).name or "document", owner)
    with session_of(request) as session:
        document = _find_document(session, path_to_text(path))
        has_failed = document is not None and document.status is IndexStatus.FAILED
        [requested] = submit_files(session, [path], options, owner=owner, is_forced=has_failed).requests
    return _AwaitedDocument(path_to_text(path), requested.id)


def _find_conversion(request: Request, awaited: _AwaitedDocument) -> Conversion | None:
    """Return None until the document is read."""
    with session_of(request) as session:
        if awaited.job_id is not None:
            job = session.job_queries.get(awaited.job_id)
            if not job.status.is_ended:
                # Until it has ended, the document is what was read before, perhaps with other options.
                return None
            if job.status is not Status.COMPLETED:
                raise NotConverted(_problem(job.error_code, job.error_message, job.error_remedy))
        document = _find_document(session, awaited.source_key)
        if document is not None and document.status is IndexStatus.SUCCESS:
            return Conversion(document, structured_pages(session, document.id))
        if document is not None and document.status is IndexStatus.FAILED:
            raise NotConverted(_problem(document.error_code, document.error_message, document.error_remedy))
        return None


def _find_document(session: Session, source_key: str) -> Document | None:
    return next(iter(session.library.documents(DocumentSelector(source_keys=[source_key]), most=1)), None)


def _problem(code: str | None, message: str | None, remedy: str | None) -> Problem:
    return Problem(code or "not_converted", message or "the document could not be read", remedy or "")
