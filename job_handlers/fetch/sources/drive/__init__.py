"""Google Drive as a `Source`: reads its addresses, and opens files and folders with `file` and `tree`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from job_handlers.fetch.sources import FileRequest, IsStopping, Reference, SourceFile
from job_handlers.fetch.sources.drive import credentials
from worker_service.handlers import Permanent

if TYPE_CHECKING:
    from job_handlers.fetch.error_rules import Timeouts
    from job_handlers.fetch.sources.tree import Tree

PLATFORM = "gdrive"
ADDRESSES = "a Drive id or URL"
FOLDERS = "an id or URL of Google Drive"
IS_FOR_ANY_HOST = False
ENVIRONMENT: Sequence[str] = credentials.ENVIRONMENT
CREDENTIALS: Sequence[str] = ("drive*",)
SHARED_WITH_ME = "shared-with-me"

_HOSTS = ("drive.google.com", "docs.google.com", "drive.usercontent.google.com", "sheets.google.com")
_ID = re.compile(r"[A-Za-z0-9_-]{10,120}")
_ID_IN_PATH = re.compile(r"/(?:d|folders|folder)/([A-Za-z0-9_-]{10,120})(?:/|$)")
_RESOURCE_KEY = re.compile(r"[A-Za-z0-9_-]{1,120}")


def parse_reference(text: str) -> Reference | None:
    if _ID.fullmatch(text):
        return Reference(PLATFORM, text)
    try:
        parts = urlsplit(text)
        if parts.scheme.lower() not in ("https", "http") or (parts.hostname or "").lower() not in _HOSTS:
            return None
    except ValueError:
        return None
    query = parse_qs(parts.query)
    id_in_path = _ID_IN_PATH.search(parts.path)
    file_id = id_in_path[1] if id_in_path else query.get("id", [""])[0]
    if not _ID.fullmatch(file_id):
        raise Permanent(
            "SOURCE_UNKNOWN", "the Drive URL names no file", "open the file, and copy the address from there"
        )
    resource_key = query.get("resourcekey", [""])[0]
    if not _RESOURCE_KEY.fullmatch(resource_key):
        resource_key = ""
    return Reference(PLATFORM, file_id, resource_key, is_folder="/folder" in parts.path)


def source_of_jobs(credential: str) -> str:
    return f"{PLATFORM}:{credential or credentials.DEFAULT}"


def files_to_read(reference: Reference, credential: str) -> Sequence[Path]:
    return credentials.files_to_read(credential)


def open_file(reference: Reference, request: FileRequest, timeouts: Timeouts, is_stopping: IsStopping) -> SourceFile:
    from job_handlers.fetch.sources.drive.client import Drive
    from job_handlers.fetch.sources.drive.file import DriveFile

    if reference.is_folder:
        raise Permanent("SOURCE_UNKNOWN", "the Drive URL names a folder", "pagemill add reads folders, too")
    return DriveFile(
        Drive(request.credential, is_stopping=is_stopping, timeouts=timeouts),
        reference.key,
        request.resource_key or reference.resource_key,
        export=request.export,
        acknowledge_abuse=request.acknowledge_abuse,
    )


@contextmanager
def open_tree(reference: Reference, credential: str, timeouts: Timeouts, is_stopping: IsStopping) -> Iterator[Tree]:
    from job_handlers.fetch.sources.drive.client import Drive
    from job_handlers.fetch.sources.drive.tree import DriveTree

    with closing(Drive(credential, is_stopping=is_stopping, timeouts=timeouts)) as drive:
        yield DriveTree(drive, reference, is_stopping=is_stopping, timeouts=timeouts)
