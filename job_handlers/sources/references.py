"""What a person means by a source: a file or folder of Google Drive, a URL, or a path on this machine. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qs, unquote, urlsplit

from worker_service.handlers import Permanent

Platform = Literal["gdrive", "https", "local"]

_DRIVE_HOSTS = ("drive.google.com", "docs.google.com", "drive.usercontent.google.com", "sheets.google.com")
_DRIVE_ID = re.compile(r"[A-Za-z0-9_-]{10,120}")
_IN_PATH = re.compile(r"/(?:d|folders|folder)/([A-Za-z0-9_-]{10,120})(?:/|$)")
_RESOURCE_KEY = re.compile(r"[A-Za-z0-9_-]{1,120}")


@dataclass(frozen=True, slots=True)
class Reference:
    platform: Platform
    key: str
    """A Drive id, a URL, an absolute path: names it for ever."""
    resource_key: str = ""
    """Of an old link to Drive."""
    is_folder: bool = False


def read_reference(source: str) -> Reference:
    """Of anything that a person may paste."""
    text = source.strip()
    if text.startswith("/"):
        return Reference("local", text)
    if text.startswith("file:///"):
        return Reference("local", unquote(urlsplit(text).path))
    if text.lower().startswith(("https://", "http://")):
        return _of_url(text)
    if _DRIVE_ID.fullmatch(text):
        return Reference("gdrive", text)
    raise Permanent(
        "SOURCE_UNKNOWN", "a source is a Drive id or URL, an https URL, or a full path that begins with a slash"
    )


def _of_url(text: str) -> Reference:
    try:
        parts = urlsplit(text)
        host = (parts.hostname or "").lower()
    except ValueError as error:
        raise Permanent("URL_INVALID", "the URL cannot be understood") from error
    if host not in _DRIVE_HOSTS:
        return Reference("https", text)
    query = parse_qs(parts.query)
    found = _IN_PATH.search(parts.path)
    named = found[1] if found else next(iter(query.get("id", [])), "")
    if not _DRIVE_ID.fullmatch(named):
        raise Permanent("SOURCE_UNKNOWN", "the Drive URL names no file: open the file, and copy the address from there")
    key = next(iter(query.get("resourcekey", [])), "")
    return Reference("gdrive", named, key if _RESOURCE_KEY.fullmatch(key) else "", is_folder="/folder" in parts.path)
