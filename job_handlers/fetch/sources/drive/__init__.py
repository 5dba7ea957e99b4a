"""Google Drive as a source: what its addresses mean. `client` alone knows Google; `credentials` the files of keys."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from job_handlers.fetch.sources import IsStopping, Reference
from job_handlers.fetch.sources.drive import credentials
from worker_service.handlers import Permanent

if TYPE_CHECKING:
    from job_handlers.fetch.download import DownloadPayload
    from job_handlers.fetch.errors import Timeouts
    from job_handlers.fetch.sources.tree import Tree
    from job_handlers.fetch.transfer import FileWanted, SourceFile

PLATFORM = "gdrive"
ADDRESSES = "a Drive id or URL"
FOLDERS = "an id or URL of Google Drive"
IS_FOR_ANY_HOST = False
ENVIRONMENT: Sequence[str] = credentials.ENVIRONMENT
CREDENTIALS: Sequence[str] = ("drive*",)
SHARED_WITH_ME = "shared-with-me"
"""Stands for a folder."""

_HOSTS = ("drive.google.com", "docs.google.com", "drive.usercontent.google.com", "sheets.google.com")
_ID = re.compile(r"[A-Za-z0-9_-]{10,120}")
_IN_PATH = re.compile(r"/(?:d|folders|folder)/([A-Za-z0-9_-]{10,120})(?:/|$)")
_RESOURCE_KEY = re.compile(r"[A-Za-z0-9_-]{1,120}")


def reference(text: str) -> Reference | None:
    if _ID.fullmatch(text):
        return Reference(PLATFORM, text)
    try:
        parts = urlsplit(text)
        if parts.scheme.lower() not in ("https", "http") or (parts.hostname or "").lower() not in _HOSTS:
            return None
    except ValueError:
        return None
    query = parse_qs(parts.query)
    found = _IN_PATH.search(parts.path)
    named = found[1] if found else next(iter(query.get("id", [])), "")
    if not _ID.fullmatch(named):
        raise Permanent(
            "SOURCE_UNKNOWN", "the Drive URL names no file", "open the file, and copy the address from there"
        )
    key = next(iter(query.get("resourcekey", [])), "")
    return Reference(PLATFORM, named, key if _RESOURCE_KEY.fullmatch(key) else "", is_folder="/folder" in parts.path)


def rests_with(credential: str) -> str:
    return f"{PLATFORM}:{credential or credentials.USUAL}"


def reads(reference: Reference, credential: str) -> Sequence[Path]:
    return credentials.files_of(credential)


def open_file(
    reference: Reference, payload: DownloadPayload, wanted: FileWanted, timeouts: Timeouts, is_stopping: IsStopping
) -> SourceFile:
    from job_handlers.fetch.sources.drive.client import Drive
    from job_handlers.fetch.sources.drive.file import DriveFile

    if reference.is_folder:
        raise Permanent("SOURCE_UNKNOWN", "the Drive URL names a folder", "have it crawled (pagemill crawl URL)")
    return DriveFile(
        Drive(payload.credential, is_stopping=is_stopping, timeouts=timeouts),
        reference.key,
        payload.resource_key or reference.resource_key,
        export=payload.export,
        is_abuse_fine=payload.acknowledge_abuse,
    )


@contextmanager
def open_tree(reference: Reference, credential: str, timeouts: Timeouts, is_stopping: IsStopping) -> Iterator[Tree]:
    from job_handlers.fetch.sources.drive.client import Drive
    from job_handlers.fetch.sources.drive.tree import DriveTree

    with closing(Drive(credential, is_stopping=is_stopping, timeouts=timeouts)) as service:
        yield DriveTree(service, reference, is_stopping=is_stopping, timeouts=timeouts)
