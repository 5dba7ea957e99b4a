"""Fetch the file of one source, publish it when it is whole and right, and have it read.

    {"source": "https://drive.google.com/file/d/…/view", "credential": "drive", "read": {"languages": ["eng"]}}

`source` is a Drive id or URL, an https URL, or a full path. The job that reads the file, `ingest`, gets what `read`
holds for its payload; with `"ingest": false` the file is published and no more. A file that somebody has fetched
already is published again without being fetched.

Elsewhere: how bytes are kept, checked and tried again, in `fetch`; what a source is, in `sources`.
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
from job_handlers.fetch.errors import FetchError, Timeouts
from job_handlers.fetch.partial_file import FileFacts
from job_handlers.fetch.sources import Reference, credentials, environment, prepare, read_reference
from job_handlers.fetch.transfer import FetchedFile, FileWanted, SourceFile
from job_handlers.settings import HandlersSettings, value_of
from worker_service.handlers import (
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
    SameContent,
    SameFile,
    canonical,
    safe_name,
)

BYTES_MAX = HandlersSettings.download_bytes_max

_WALL_SECONDS = 24 * 3600
_HEX = re.compile(r"[0-9a-fA-F]*")
_PATIENCE = Timeouts()


class Then(Struct, frozen=True):
    """A job for afterwards. In its payload {document_id}, {state}, {error_code} and {batch_id} stand for the facts."""

    job_type: str
    payload: dict[str, Any] | None = None
    on_end: OnEnd = OnEnd.SUCCESS
    """success, or failure."""
    standing: bool = False
    """Each time that the document is read, not only this time."""


class DownloadPayload(Struct, frozen=True):
    source: str
    """A Drive id or URL, an https URL, a full path, or a `file:` URL."""
    name: str = ""
    """What it is to be called; empty: as its source calls it."""
    expected_md5: str = ""
    """In hex; a file with another one is never published."""
    expected_sha256: str = ""
    """The same. Where nobody names a digest, the document's note says so."""
    acknowledge_abuse: bool = False
    """Fetch it although Google holds it for malware."""
    export: str = ""
    """In what to export a document of Google's own: pdf, xlsx or csv."""
    credential: str = ""
    """The name of a file in $CREDENTIALS_DIRECTORY: for Drive it begins with drive, or is adc. Empty: the usual one of
    the source, such as drive."""
    resource_key: str = ""
    """Of an old Drive link; it may as well stand in the URL."""
    ingest: bool = True
    """Have it read; false: only publish it."""
    force: bool = False
    """Read it again although nothing has changed."""
    read: dict[str, Any] = field(default_factory=dict)
    """The rest of the payload of `ingest`: languages and the like. What is left out is as the document remembers it;
    null: as usual again."""
    then: tuple[Then, ...] = ()
    """What is to follow once it is read; beside what others have asked for."""
    standing: bool = False
    """`read` is not said now, but was when a crawl began: it is for documents that nobody has asked for yet."""


def run(context: Context[DownloadPayload], timeouts: Timeouts = _PATIENCE) -> Done:
    payload = context.payload
    source, reference = read_reference(payload.source)
    wanted = _wanted(payload)
    try:
        with closing(source.open_file(reference, payload, wanted, timeouts, context.cancelled)) as file:
            return _done_with(file, reference, context, wanted, timeouts)
    except FetchError as trouble:
        # Before there was anything to fetch: no second look would help.
        raise Permanent(trouble.code, trouble.detail, trouble.remedy) from trouble


def keep_key(payload: DownloadPayload) -> str:
    """The file, whatever its revision: the sidecar tells that."""
    _, reference = read_reference(payload.source)
    return "\n".join([reference.platform, reference.key, payload.export])


def reads(payload: DownloadPayload) -> Sequence[Path]:
    """Beside the credentials: a local file, and what application default credentials name."""
    source, reference = read_reference(payload.source)
    return source.reads(reference, payload.credential)


prepare()
download = Handler(
    "download",
    run,
    DownloadPayload,
    job_class="io",
    limits=Limits(cpu_seconds=None, wall_seconds=_WALL_SECONDS, file_bytes=None, network=True),
    keep_key=keep_key,
    environment=[*environment(), BYTES_MAX.variable],
    credentials=credentials(),
    reads_payload=reads,
)


def _done_with(
    file: SourceFile, reference: Reference, context: Context[DownloadPayload], wanted: FileWanted, timeouts: Timeouts
) -> Done:
    asking = _Asking(file, context, wanted)
    try:
        got = transfer.fetch(asking, context.keep, wanted, context, timeouts)
    except _Known as known:
        return _again(known.facts, known.file, reference, context)
    return _fresh(got, None if asking.has_asked else _same(got, context), reference, context)


def _same(got: FetchedFile, context: Context[DownloadPayload]) -> PublishedFile | None:
    """Where the source told no digest, it is known only now whether somebody has it: one that cannot be read is tried
    again by each who asks for it, and one copy of it is enough."""
    known = context.ask(SameContent(sha256=got.digests.sha256, size=got.size)).files
    return next((one for one in known if (one.sha256, one.size) == (got.digests.sha256, got.size)), None)


def _fresh(
    got: FetchedFile, known: PublishedFile | None, reference: Reference, context: Context[DownloadPayload]
) -> Done:
    name = safe_name(context.payload.name or got.facts.name, got.kind.suffixes)
    result = {
        "name": name,
        "kind": got.kind.name,
        "size": got.size,
        **({"md5": got.digests.md5} if got.digests.md5 else {}),
        "sha256": got.digests.sha256,
        "revision": got.facts.key,
        "bytes_fetched": got.bytes_fetched,
        "restarts": got.restarts,
        **({"note": got.note} if got.note else {}),
    }
    file: File | SameFile
    if known is not None:
        transfer.drop(got)
        result["same_as"] = known.id
        file = SameFile(known.id, role="original", name=name)
    else:
        target = context.staging / name
        transfer.moved_to(got, target)
        file = File(target, role="original", name=name, sha256=got.digests.sha256, md5=got.digests.md5, note=got.note)
    # What an earlier attempt has left was read when nobody had asked whether the file had settled.
    revision = got.facts.key if got.facts.is_settled and got.bytes_fetched == got.size else ""
    return Done(result, files=[file], follow_ups=_follow_ups(reference, name, got.digests.sha256, context, revision))


def _again(facts: FileFacts, known: PublishedFile, reference: Reference, context: Context[DownloadPayload]) -> Done:
    known_as = file_kinds.format_named(known.name)
    name = safe_name(context.payload.name or facts.name or known.name, known_as.suffixes if known_as else ())
    context.log(f"the same content is published already, by job {known.job_id}")
    result = {"name": name, "size": known.size, "md5": known.md5, "sha256": known.sha256, "same_as": known.id}
    return Done(
        {**result, "bytes_fetched": 0},
        files=[SameFile(known.id, role="original", name=name)],
        follow_ups=_follow_ups(reference, name, known.sha256, context),
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
            DeferredAction(one.job_type, canonical(one.payload) if one.payload else "", one.on_end, one.standing)
            for one in payload.then
        ],
        revision=revision,
    )
    return [NewJob("ingest", reference.platform, context.account, owner=context.owner, document=request)]


# --- what is asked before a byte is fetched -----------------------------------------------------------


class _Known(Exception):
    def __init__(self, facts: FileFacts, file: PublishedFile) -> None:
        super().__init__(file.id)
        self.facts, self.file = facts, file


class _Asking:
    """The source; the first time that it tells digests of its own, somebody may have the file already."""

    has_asked = False

    def __init__(self, source: SourceFile, context: Context[DownloadPayload], wanted: FileWanted) -> None:
        self._source, self._context, self._wanted = source, context, wanted
        self.download_into, self.close = source.download_into, source.close

    def facts(self) -> FileFacts:
        facts = self._source.facts()
        # What the payload says of the content proves nothing: who knows a digest may not read the file.
        if not self.has_asked and (facts.sha256 or facts.md5) and facts.size:
            self.has_asked = True
            question = SameContent(sha256=facts.sha256, md5=facts.md5, size=facts.size)
            for file in self._context.ask(question).files:
                is_expected = self._wanted.sha256 in ("", file.sha256) and self._wanted.md5 in ("", file.md5)
                if file.size == facts.size and file.sha256 and is_expected:
                    raise _Known(facts, file)
        return facts


# --- the payload --------------------------------------------------------------------------------------


def _wanted(payload: DownloadPayload) -> FileWanted:
    for name, value, length in (("md5", payload.expected_md5, 32), ("sha256", payload.expected_sha256, 64)):
        if value and (len(value) != length or not _HEX.fullmatch(value)):
            raise Permanent("PAYLOAD_INVALID", f"expected_{name} has {length} hexadecimal digits")
    return FileWanted(payload.expected_md5.lower(), payload.expected_sha256.lower(), value_of(BYTES_MAX))
