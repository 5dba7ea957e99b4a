"""Paths as text. A path that is not UTF-8 becomes a file: URL that preserves every byte."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

FILE_URL = "file:///"

_LEGACY_ENCODING = "cp1252"


def path_to_text(path: Path) -> str:
    """Return text from which `path_of` returns the path."""
    # A path with surrounding space becomes a URL, because users paste these texts.
    text = str(path)
    return text if _is_text(text) and text.strip() == text else path.as_uri()


def path_of(text: str) -> Path:
    return Path(os.fsdecode(unquote_to_bytes(urlsplit(text).path)) if text.startswith(FILE_URL) else text)


def display_path(path: Path | str) -> str:
    """Return the path for display. Parts that are not UTF-8 are decoded as Windows-1252."""
    text = str(path)
    return text if _is_text(text) else "/".join(map(_decode_part, os.fsencode(text).split(b"/")))


def _decode_part(part: bytes) -> str:
    try:
        return part.decode()
    except UnicodeDecodeError:
        return part.decode(_LEGACY_ENCODING, "replace")


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
