"""Fetch one file, publish it when it is complete and correct, and enqueue the job that reads it.

    {"source": "https://drive.google.com/file/d/…/view", "credential": "drive", "read": {"languages": ["eng"]}}

`source` is a Drive id or URL, an https URL, or a full path. `read` becomes the payload of `ingest`; with
`"ingest": false` the file is only published. Content that is published already is not fetched again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from job_handlers import file_kinds
from job_handlers.fetch import transfer
from job_handlers.fetch.error_rules import FetchError, RetryPolicy, Timeouts
from job_handlers.fetch.partial_file import FileFacts
from job_handlers.fetch.sources import (
    FileRequest,
    Reference,
    SourceFile,
    credentials,
    environment,
    import_sources_before_fork,
    read_reference,
)
from job_handlers.fetch.transfer import FetchedFile
from job_handlers.settings import HandlersSettings, value_of
from worker_service.handlers import (
    BadInput,
    Context,
    DeferredAction,
    DocumentRequest,
    Done,
    File,
    Handler,
    Limits,
    NewJob,
    OnEnd,
    Permanent,
    PublishedFile,
    RepublishedFile,
    SameContent,
    canonical,
    read_tags,
    safe_name,
)

BYTES_MAX = HandlersSettings.download_bytes_max

_WALL_SECONDS = 24 * 3600
_HEX = re.compile(r"[0-9a-fA-F]*")
_TIMEOUTS = Timeouts()


class RequestedFollowUp(Struct, frozen=True):
    """Placeholders of the payload: {document_id}, {state}, {error_code}, {batch_id}."""

    job_type: str
    payload: dict[str, Any] | None = None
    on_end: OnEnd = OnEnd.SUCCESS
    """success or failure."""
    standing: bool = False
    """Each time the document is read, not only now."""


class DownloadPayload(Struct, frozen=True):
    source: str
    """A Drive id or URL, an https URL, a full path, or a `file:` URL."""
    name: str = ""
    """The name of the published file; empty: the name that the source gives."""
    expected_md5: str = ""
    """The digest in hex. A file with another one is never published."""
    expected_sha256: str = ""
    """The digest in hex. If the source names none either, the document's note says so."""
    acknowledge_abuse: bool = False
    """Fetch the file even if Google marks it as malware or spam."""
    export: str = ""
    """The format to export a Google document to: pdf, xlsx or csv."""
    credential: str = ""
    """The name of a file in $CREDENTIALS_DIRECTORY that begins with drive, or adc. Empty: the source's default."""
    resource_key: str = ""
    """The key of an old Drive link, if the URL does not contain it."""
    ingest: bool = True
    """Read the file; false: only publish it."""
    force: bool = False
    """Read it again even if nothing has changed."""
    read: dict[str, Any] = field(default_factory=dict)
    """The payload of `ingest`, such as languages. Other settings stay as before; null resets one."""
    then: tuple[RequestedFollowUp, ...] = ()
    """Jobs to enqueue when the document has been read, besides earlier ones."""
    tags: tuple[str, ...] = ()
    """Tags for the document, besides its own."""
    standing: bool = False
    """True if a crawl asks for a changed file: `read` then applies only to new documents."""


def run(context: Context[DownloadPayload], timeouts: Timeouts = _TIMEOUTS) -> Done:
    payload = context.payload
    source, reference = read_reference(payload.source)
    request = _request(payload)
    try:
        with closing(source.open_file(reference, request, timeouts, context.cancelled)) as file:
            lookup = _KnownContentLookup(file, context, request)
            try:
                fetched = transfer.fetch(lookup, context.keep, request, context, RetryPolicy(timeouts))
            except _AlreadyPublished as published:
                return _publish_again(published.facts, published.file, reference, context)
            # If the source gave no digest, the database can be asked for the same content only now.
            same = None if lookup.has_asked else _find_same_content(fetched, context)
            return _publish(fetched, same, reference, context)
    except FetchError as error:
        # Only `open_file` raises it: `transfer.fetch` turns it into a `HandlerError`. A retry would not help.
        raise Permanent(error.code, error.detail, error.remedy) from error


def keep_key(payload: DownloadPayload) -> str:
    _, reference = read_reference(payload.source)
    return "\n".join([reference.platform, reference.key, payload.export])


def _files_to_read(payload: DownloadPayload) -> Sequence[Path]:
    source, reference = read_reference(payload.source)
    return source.files_to_read(reference, payload.credential)


import_sources_before_fork()
download = Handler(
    "download",
    run,
    DownloadPayload,
    job_class="io",
    limits=Limits(cpu_seconds=None, wall_seconds=_WALL_SECONDS, file_bytes=None, network=True),
    keep_key=keep_key,
    environment=[*environment(), BYTES_MAX.variable],
    credentials=credentials(),
    reads_payload=_files_to_read,
)


def _request(payload: DownloadPayload) -> FileRequest:
    for name, value, length in (("md5", payload.expected_md5, 32), ("sha256", payload.expected_sha256, 64)):
        if value and (len(value) != length or not _HEX.fullmatch(value)):
            raise Permanent("PAYLOAD_INVALID", f"expected_{name} must have {length} hexadecimal digits")
    try:
        read_tags(payload.tags)
    except BadInput as error:
        raise Permanent("PAYLOAD_INVALID", error.detail, error.remedy) from error
    return FileRequest(
        payload.credential,
        payload.resource_key,
        payload.export,
        payload.acknowledge_abuse,
        payload.expected_md5.lower(),
        payload.expected_sha256.lower(),
        value_of(BYTES_MAX),
    )


class _AlreadyPublished(Exception):
    def __init__(self, facts: FileFacts, file: PublishedFile) -> None:
        super().__init__(file.id)
        self.facts, self.file = facts, file


class _KnownContentLookup:
    """A `SourceFile` that raises `_AlreadyPublished` if the database has the content."""

    has_asked = False

    def __init__(self, source: SourceFile, context: Context[DownloadPayload], request: FileRequest) -> None:
        self._source, self._context, self._request = source, context, request
        self.download_into, self.close = source.download_into, source.close

    def facts(self) -> FileFacts:
        facts = self._source.facts()
        # Digests in the payload do not count: knowing a digest does not give the right to read the file.
        if not self.has_asked and (facts.sha256 or facts.md5) and facts.size:
            self.has_asked = True
            question = SameContent(sha256=facts.sha256, md5=facts.md5, size=facts.size)
            for file in self._context.ask(question).files:
                is_expected = self._request.sha256 in ("", file.sha256) and self._request.md5 in ("", file.md5)
                if file.size == facts.size and file.sha256 and is_expected:
                    raise _AlreadyPublished(facts, file)
        return facts


def _find_same_content(fetched: FetchedFile, context: Context[DownloadPayload]) -> PublishedFile | None:
    content = (fetched.digests.sha256, fetched.size)
    files = context.ask(SameContent(sha256=fetched.digests.sha256, size=fetched.size)).files
    return next((file for file in files if (file.sha256, file.size) == content), None)


def _publish(
    fetched: FetchedFile, same: PublishedFile | None, reference: Reference, context: Context[DownloadPayload]
) -> Done:
    name = safe_name(context.payload.name or fetched.facts.name, fetched.kind.suffixes)
    sha256, md5 = fetched.digests.sha256, fetched.digests.md5
    result = {
        "name": name,
        "kind": fetched.kind.name,
        "size": fetched.size,
        **({"md5": md5} if md5 else {}),
        "sha256": sha256,
        "revision": fetched.facts.revision,
        "bytes_fetched": fetched.bytes_fetched,
        "restarts": fetched.restarts,
        **({"note": fetched.note} if fetched.note else {}),
    }
    file: File | RepublishedFile
    if same is not None:
        fetched.part.delete()
        result["same_as"] = same.id
        file = RepublishedFile(same.id, role="original", name=name)
    else:
        target = context.staging / name
        fetched.move_to(target)
        file = File(target, role="original", name=name, sha256=sha256, md5=md5, note=fetched.note)
    # Bytes of an earlier attempt may belong to an earlier revision, fetched before the file was settled.
    is_revision_certain = fetched.facts.is_settled and fetched.bytes_fetched == fetched.size
    revision = fetched.facts.revision if is_revision_certain else ""
    return Done(result, files=[file], follow_ups=_follow_ups(reference, name, sha256, context, revision))


def _publish_again(
    facts: FileFacts, file: PublishedFile, reference: Reference, context: Context[DownloadPayload]
) -> Done:
    kind = file_kinds.format_named(file.name)
    name = safe_name(context.payload.name or facts.name or file.name, kind.suffixes if kind else ())
    context.log(f"job {file.job_id} has published the same content before")
    result = {"name": name, "size": file.size, "md5": file.md5, "sha256": file.sha256, "same_as": file.id}
    return Done(
        {**result, "bytes_fetched": 0},
        files=[RepublishedFile(file.id, role="original", name=name)],
        follow_ups=_follow_ups(reference, name, file.sha256, context),
    )


def _follow_ups(
    reference: Reference, name: str, sha256: str, context: Context[DownloadPayload], revision: str = ""
) -> list[NewJob]:
    payload = context.payload
    if not payload.ingest:
        return []
    request = DocumentRequest(
        source_key=reference.key,
        name=name,
        content=sha256,
        settings=canonical(payload.read),
        is_forced=payload.force,
        is_standing=payload.standing,
        actions=[
            DeferredAction(job.job_type, canonical(job.payload) if job.payload else "", job.on_end, job.standing)
            for job in payload.then
        ],
        tags=read_tags(payload.tags),
        revision=revision,
    )
    return [NewJob("ingest", reference.platform, context.account, owner=context.owner, document=request)]
