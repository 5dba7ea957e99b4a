"""What a crawl is asked for: its payload, which files are wanted, and the download that such a file becomes. Pure."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct, field

from job_handlers.fetch.sources.tree import Entry, Tree
from job_handlers.file_kinds import FORMATS, format_named
from worker_service.handlers import Context, DeferredAction, NewJob, OnEnd, Permanent, canonical, digest

_SAYS_NOTHING = ("", "application/octet-stream", "binary/octet-stream")


class FilesWanted(Struct, frozen=True):
    """Which files are wanted. None: any."""

    mime: Sequence[str] = ()
    """Patterns such as application/pdf or image/*; empty: what can be read."""
    name: str | None = None
    """A pattern such as *report*.pdf, in either case."""
    size_max: int | None = None
    """In bytes."""
    newer_than: str | None = None
    """UTC, ISO 8601."""
    depth: int | None = None
    """0: the folder itself; None: all the way down."""


class CrawlPayload(Struct, frozen=True):
    folder: str
    """An id or URL of a Drive folder or shared drive, `shared-with-me`, or the absolute path of a directory."""
    wanted: FilesWanted = FilesWanted()
    credential: str = ""
    """Empty: the source's usual one, such as drive."""
    dry_run: bool = False
    """Only count, and show what the crawl would enqueue now."""
    reconcile: bool = False
    """Walk everything again, and find what went without a word."""
    watch_seconds: int | None = None
    """Look again after so long, for ever."""
    download: Mapping[str, Any] = field(default_factory=dict)
    """Passed on in the payload of each download."""
    afresh: str = ""
    """A word of its own makes it another crawl: what others have found in the folder is found again."""


def check(payload: CrawlPayload) -> None:
    """Raise what is wrong with it and no schema can tell."""
    if payload.wanted.newer_than is not None and _moment(payload.wanted.newer_than) is None:
        raise Permanent("PAYLOAD_INVALID", "`newer_than` is a time such as 2026-11-18 or 2026-11-18T10:00:00Z")
    if payload.watch_seconds is not None and payload.watch_seconds < 1:
        raise Permanent("PAYLOAD_INVALID", "`watch_seconds` is at least 1")


def crawl_key(payload: CrawlPayload, tree: Tree, owner: str) -> str:
    """The same from run to run, as long as the same owner looks for the same."""
    wanted = payload.wanted
    return digest(
        [
            tree.platform,
            tree.source,
            tree.root_name,
            owner,
            sorted(wanted.mime),
            wanted.name,
            wanted.size_max,
            wanted.newer_than,
            wanted.depth,
            dict(payload.download),
            *([payload.afresh] if payload.afresh else []),
        ]
    )


def keys_of(context: Context[CrawlPayload]) -> str:
    """What the unique keys of its downloads begin with."""
    return f"download:{context.platform}:{context.owner}:"


def skip_reason(entry: Entry, wanted: FilesWanted) -> str:
    """Why a file is not enqueued; empty: it is."""
    if entry.refusal:
        return entry.refusal
    if entry.kind == "native":
        return "a document of the place's own, without a file"
    mime = _mime(entry)
    named = format_named(entry.name)
    readable = [mime for one in FORMATS if one is named or not one.is_by_name for mime in one.mimes]
    if not any(fnmatch.fnmatchcase(mime, pattern.lower()) for pattern in wanted.mime or readable):
        return f"of the kind {mime or 'unknown'}"
    if wanted.name is not None and not fnmatch.fnmatchcase(entry.name.lower(), wanted.name.lower()):
        return "its name does not match"
    if entry.size == 0:
        return "empty"
    if wanted.size_max is not None and entry.size is not None and entry.size > wanted.size_max:
        return "too large"
    if wanted.newer_than is not None and _is_older(entry.modified, wanted.newer_than):
        return "too old"
    return ""


def download_of(entry: Entry, context: Context[CrawlPayload], tree: Tree, *, is_known: bool) -> NewJob:
    """`is_known`: it was enqueued before, and has changed."""
    payload = context.payload
    body: dict[str, object] = {**payload.download, "source": entry.id, "name": entry.name}
    if tree.source and payload.credential:
        body["credential"] = payload.credential
    if is_known:
        body["standing"] = True
    if entry.key:
        body["resource_key"] = entry.key
    said = {name: value for name, value in payload.download.items() if value}
    if payload.afresh:
        said["afresh"] = payload.afresh
    # A wish for another reading is another wish, and so is one of a batch.
    way = f":{digest(said)}" if said else ""
    return NewJob(
        "download",
        platform=tree.platform,
        account=context.account,
        payload=json.dumps(body, ensure_ascii=False),
        owner=context.owner,
        source=tree.source,
        name=entry.name,
        source_key=entry.id,
        unique_key=f"{keys_of(context)}{entry.id}:{entry.revision}{way}",
        on_failure=_after_failure(payload.download),
    )


def _after_failure(download: Mapping[str, Any]) -> list[DeferredAction]:
    """What follows a document that has failed follows a file as well that never became one."""
    asked = [one for one in download.get("then", ()) if one.get("on_end") == OnEnd.FAILURE]
    return [
        DeferredAction(one["job_type"], canonical(one["payload"]) if one.get("payload") else "", OnEnd.FAILURE)
        for one in asked
    ]


def _mime(entry: Entry) -> str:
    mime = entry.mime.partition(";")[0].strip().lower()
    if mime not in _SAYS_NOTHING:
        return mime
    named = format_named(entry.name)
    return named.mimes[0] if named else mime


def _is_older(modified: str, than: str) -> bool:
    found, wanted = _moment(modified), _moment(than)
    return found is not None and wanted is not None and found <= wanted


def _moment(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
