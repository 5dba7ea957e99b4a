"""Uploaded files: each becomes the same job as with `pagemill ingest`, several become a batch."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from worker_service.base.errors import BadInput
from worker_service.services.database import Session
from worker_service.web.access import Visitor
from worker_service.web.multipart import ReceivedForm
from worker_service.web.resources.jobs import owner_for, refuse_server_files_in_follow_ups
from worker_service.web.resources.read_requests import ReadRequested, submit_files

_TRUE, _FALSE = ("true", "1", "yes", "on"), ("", "false", "0", "no", "off")
_OWN_FIELDS = ("owner", "force", "csrf")
"""Form fields that are no reading options."""


class Upload(Struct, frozen=True):
    accepted: Sequence[tuple[str, ReadRequested]]
    """Name and read request of each file."""
    empty: Sequence[str]
    """Names of empty files, which were left out."""
    batch_id: int | None


def submit_upload(session: Session, visitor: Visitor, form: ReceivedForm) -> Upload:
    """Submit the files that are not empty. Raise `BadInput` if all are empty."""
    files = [(name, incoming) for name, incoming in form.files if name or incoming.size]
    if not files:
        raise BadInput("the upload contains no file", "curl -F file=@report.pdf")
    empty = [name for name, incoming in files if not incoming.size]
    if len(empty) == len(files):
        raise BadInput(", ".join(f"{name!r} is empty" for name in empty))
    owner = owner_for(visitor, form.one("owner") or None)
    options = {name: values for name, values in form.fields.items() if name not in _OWN_FIELDS}
    refuse_server_files_in_follow_ups(visitor, options)
    force = (form.one("force") or "").lower()
    if force not in (*_TRUE, *_FALSE):
        raise BadInput(f"force must be true or false, not {force!r}")
    paths = [incoming.keep(name, owner) for name, incoming in files if incoming.size]
    made, batch_id = submit_files(session, paths, options, owner=owner, is_forced=force in _TRUE)
    return Upload([(path.name, one) for path, one in zip(paths, made, strict=True)], empty, batch_id)
