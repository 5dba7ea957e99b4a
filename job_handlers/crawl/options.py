"""The payload of a crawl, the files it wants, and their download jobs."""

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

_UNSPECIFIC_MIMES = ("", "application/octet-stream", "binary/octet-stream")


class FilesWanted(Struct, frozen=True):
    mime: Sequence[str] = ()
    """Patterns such as application/pdf or image/*; empty: all readable formats."""
    name: str | None = None
    """A pattern such as *report*.pdf; case does not matter."""
    size_max: int | None = None
    """The largest file, in bytes."""
    newer_than: str | None = None
    """UTC, ISO 8601."""
    depth: int | None = None
    """Levels of subfolders; 0: none. By default all."""


class CrawlPayload(Struct, frozen=True):
    folder: str
    """Id or URL of a Drive folder or shared drive, `shared-with-me`, or the absolute path of a directory."""
    wanted: FilesWanted = FilesWanted()
    credential: str = ""
    """The name of a file in $CREDENTIALS_DIRECTORY; empty: the source's default, such as drive."""
    dry_run: bool = False
    """Count, and show what would be enqueued now; enqueue nothing."""
    reconcile: bool = False
    """Rescan the whole folder and detect files that were deleted without notice."""
    download: Mapping[str, Any] = field(default_factory=dict)
    """Added to the payload of each download."""
    afresh: str = ""
    """A text that no other crawl has: files that other crawls have found are enqueued again."""


def check_payload(payload: CrawlPayload) -> None:
    if payload.wanted.newer_than is not None and _parse_time(payload.wanted.newer_than) is None:
        raise Permanent("PAYLOAD_INVALID", "`newer_than` must be a time such as 2026-11-18 or 2026-11-18T10:00:00Z")


def crawl_key(payload: CrawlPayload, tree: Tree, owner: str) -> str:
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


def unique_key_prefix(context: Context[CrawlPayload]) -> str:
    return f"download:{context.platform}:{context.owner}:"


def skip_reason(entry: Entry, wanted: FilesWanted) -> str:
    """Return why the file is not enqueued, or ''."""
    if entry.refusal:
        return entry.refusal
    if entry.kind == "native":
        return "an online document without a file"
    mime = _mime(entry)
    patterns = [pattern.lower() for pattern in wanted.mime] or _readable_mimes(entry.name)
    if not any(fnmatch.fnmatchcase(mime, pattern) for pattern in patterns):
        return f"of type {mime or 'unknown'}"
    if wanted.name is not None and not fnmatch.fnmatchcase(entry.name.lower(), wanted.name.lower()):
        return "its name does not match"
    if entry.size == 0:
        return "empty"
    if wanted.size_max is not None and entry.size is not None and entry.size > wanted.size_max:
        return "too large"
    if wanted.newer_than is not None and _is_older(entry.modified, wanted.newer_than):
        return "too old"
    return ""


def download_job(entry: Entry, context: Context[CrawlPayload], tree: Tree, *, is_changed: bool) -> NewJob:
    payload = context.payload
    body: dict[str, object] = {**payload.download, "source": entry.id, "name": entry.name}
    if tree.source and payload.credential:
        body["credential"] = payload.credential
    if is_changed:
        # Then `read` in the payload applies only to new documents.
        body["standing"] = True
    if entry.key:
        body["resource_key"] = entry.key
    options = {name: value for name, value in payload.download.items() if value}
    if payload.afresh:
        options["afresh"] = payload.afresh
    # A download of the same file with other options, or for a crawl afresh, is another job.
    suffix = f":{digest(options)}" if options else ""
    return NewJob(
        "download",
        platform=tree.platform,
        account=context.account,
        payload=json.dumps(body, ensure_ascii=False),
        owner=context.owner,
        source=tree.source,
        name=entry.name,
        source_key=entry.id,
        unique_key=f"{unique_key_prefix(context)}{entry.id}:{entry.revision}{suffix}",
        on_failure=_after_failure(payload.download),
    )


def _after_failure(download: Mapping[str, Any]) -> list[DeferredAction]:
    """Return the actions for a failed download, which leaves no document to have them."""
    return [
        DeferredAction(action["job_type"], canonical(action["payload"]) if action.get("payload") else "", OnEnd.FAILURE)
        for action in download.get("then", ())
        if action.get("on_end") == OnEnd.FAILURE
    ]


def _readable_mimes(name: str) -> list[str]:
    # A format that is known only by its name shares its MIME types with other files.
    format_of_name = format_named(name)
    formats = [known for known in FORMATS if known is format_of_name or not known.is_by_name]
    return [mime for known in formats for mime in known.mimes]


def _mime(entry: Entry) -> str:
    mime = entry.mime.partition(";")[0].strip().lower()
    if mime not in _UNSPECIFIC_MIMES:
        return mime
    format_of_name = format_named(entry.name)
    return format_of_name.mimes[0] if format_of_name else mime


def _is_older(modified: str, limit_text: str) -> bool:
    modified_at, limit = _parse_time(modified), _parse_time(limit_text)
    return modified_at is not None and limit is not None and modified_at <= limit


def _parse_time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
