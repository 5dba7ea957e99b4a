"""Uploads: `curl -F file=@report.pdf`. Each file becomes the same job as with `pagemill ingest`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from worker_service.base.errors import BadInput
from worker_service.base.sanitize import as_json
from worker_service.services.database import Session
from worker_service.services.idempotency import Told
from worker_service.services.serialize import as_object
from worker_service.web.access import Visitor
from worker_service.web.api.documents import WISHED, wished
from worker_service.web.api.endpoint import TEXT, Endpoint, Field, granted, streamed
from worker_service.web.api.jobs import own, refuse_actions
from worker_service.web.database_sessions import opened
from worker_service.web.middleware import turn_of
from worker_service.web.multipart import Received, received
from worker_service.web.read_requests import submit_files

_YES, _NO = ("true", "1", "yes", "on"), ("", "false", "0", "no", "off")
_OURS = ("owner", "force", "csrf")
_BODY: Mapping[str, Field] = {
    "file": Field({"type": "string", "contentMediaType": "application/octet-stream"}, "or several", is_needed=True),
    "owner": Field(TEXT, "the person it belongs to"),
    "force": Field(TEXT, "true: read it again if it was read already"),
    "lang": Field(TEXT, "how to read, by the names of the options of `pagemill ingest`: lang, quality, force-ocr, …"),
}


@streamed(
    "POST",
    "/api/uploads",
    "Send files and have them read, as `pagemill ingest` does: one file is a job, several are a batch, which the "
    "setting owner_policy applies to.",
    body=_BODY,
    body_media="multipart/form-data",
    answer={
        "type": "object",
        "properties": {
            "items": {
                "type": "array",
                "items": {**WISHED, "properties": {**WISHED["properties"], "name": TEXT}},
            },
            "refused": {
                "type": "array",
                "description": "files that were not taken, while the others were",
                "items": {
                    "type": "object",
                    "properties": {"name": TEXT, "code": TEXT, "detail": TEXT},
                    "required": ["name", "code", "detail"],
                },
            },
            "batch": {
                "type": ["integer", "null"],
                "description": "of several files; null: of one file, or nothing is to be done",
            },
        },
        "required": ["items", "refused", "batch"],
    },
    statuses=(201,),
    refusals=(400, 403, 413, 415, 507),
)
async def upload(request: Request, visitor: Visitor, _: Mapping[str, Any]) -> Response:
    async with received(request) as form, turn_of(request):
        return await run_in_threadpool(_granted, request, visitor, form)


def _granted(request: Request, visitor: Visitor, form: Received) -> Response:
    asked = [form.fields, [(name, incoming.content) for name, incoming in form.files]]

    def grant() -> Told:
        taken = take_files(session, visitor, form)
        return Told(201, as_json(as_object(taken), indent=None, is_ascii=False))

    with opened(request) as session:
        return granted(request, session, asked, grant)


def take_files(session: Session, visitor: Visitor, form: Received) -> dict[str, Any]:
    """Submit the files, several as a batch, and list the empty ones. Raise `BadInput` if all are empty."""
    files = [(name, incoming) for name, incoming in form.files if name or incoming.size]
    if not files:
        raise BadInput("the upload contains no file", "curl -F file=@report.pdf")
    refused = [
        {"name": name, "code": "empty_file", "detail": f"{name!r} is empty"}
        for name, incoming in files
        if not incoming.size
    ]
    if len(refused) == len(files):
        raise BadInput(", ".join(one["detail"] for one in refused))
    owner = own(visitor, form.one("owner") or None)
    words = {name: values for name, values in form.fields.items() if name not in _OURS}
    refuse_actions(visitor, words)
    forced = (form.one("force") or "").lower()
    if forced not in (*_YES, *_NO):
        raise BadInput(f"force must be true or false, not {forced!r}")
    is_forced = forced in _YES
    paths = [incoming.keep(name, owner) for name, incoming in files if incoming.size]
    made, batch_id = submit_files(session, paths, words, owner=owner, is_forced=is_forced)
    items = [{"name": path.name, **wished(one, 201).value} for path, one in zip(paths, made, strict=True)]
    return {"items": items, "refused": refused, "batch": batch_id}


ENDPOINTS: tuple[Endpoint, ...] = (upload,)
routes = [one.route for one in ENDPOINTS]
