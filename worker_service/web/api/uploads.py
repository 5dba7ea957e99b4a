"""Uploads: `curl -F file=@report.pdf`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import asdict
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from worker_service.services.session import Session
from worker_service.web.access import Visitor
from worker_service.web.api.endpoint import ApiResponse, endpoint, respond_once, stored_response
from worker_service.web.database_sessions import session_of
from worker_service.web.middleware import write_slot_of
from worker_service.web.multipart import ReceivedForm, receive_form
from worker_service.web.parameters import about
from worker_service.web.resources.read_requests import ReadRequest, submit_upload


class UploadForm(Struct, frozen=True):
    """May also have further reading options of `pagemill add`."""

    file: Annotated[
        str, Meta(description="May be repeated.", extra_json_schema={"contentMediaType": "application/octet-stream"})
    ]
    owner: Annotated[str, about("The owner.")] = ""
    force: Annotated[str, about("true: read it again if it was read already.")] = ""
    notify: Annotated[
        str, about("Report the end of the batch: `me`, or an address that the setting `notify_allow` permits.")
    ] = ""
    replaces: Annotated[str, about("Job whose failure these files replace: it is dismissed.")] = ""
    lang: Annotated[str, about("Reading options, as for `pagemill add`: lang, quality, force-ocr, …")] = ""


class UploadedFile(ReadRequest, frozen=True, kw_only=True):
    name: str


class RefusedFile(Struct, frozen=True):
    name: str
    code: str
    detail: str


class UploadedFiles(Struct, frozen=True):
    items: Sequence[UploadedFile]
    refused: Annotated[Sequence[RefusedFile], about("Files that were not accepted; the others were.")]
    batch: Annotated[int | None, about("Batch of several files; null for one file, or if there is nothing to do.")]


@endpoint(
    "POST",
    "/api/uploads",
    answer=UploadedFiles,
    body=UploadForm,
    body_media="multipart/form-data",
    statuses=(201,),
    refusals=(507,),
)
async def upload(request: Request, visitor: Visitor) -> Response:
    """Upload files and read them, as `pagemill add` does. Several files become a batch."""
    async with receive_form(request) as form, write_slot_of(request):
        return await run_in_threadpool(_submit, request, visitor, form)


def _submit(request: Request, visitor: Visitor, form: ReceivedForm) -> Response:
    identity = [form.fields, [(name, incoming.digest) for name, incoming in form.files]]
    with session_of(request) as session:
        return respond_once(request, session, identity, lambda: stored_response(_response(session, visitor, form)))


def _response(session: Session, visitor: Visitor, form: ReceivedForm) -> ApiResponse[UploadedFiles]:
    upload = submit_upload(session, visitor, form)
    items = [UploadedFile(**asdict(request), name=name) for name, request in upload.accepted]
    refused = [RefusedFile(name, "empty_file", f"{name!r} is empty") for name in upload.empty_names]
    return ApiResponse(UploadedFiles(items, refused, upload.batch_id), 201)
