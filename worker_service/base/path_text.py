"""The path of a file, written where text is wanted: in a payload, in a row, for eyes.

On Linux a name is bytes, which need not be text. What is UTF-8 is written as it is, any other path as a file: URL that
tells every byte, so that what was written leads back to the file.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

FILE_URL = "file:///"

_USUAL_BEFORE_UTF_8 = "cp1252"


def written(path: Path) -> str:
    """A full path. People paste these, so that space around it would mean nothing."""
    text = str(path)
    return text if _is_text(text) and text.strip() == text else path.as_uri()


def path_of(text: str) -> Path:
    """What was written, or what people write."""
    return Path(os.fsdecode(unquote_to_bytes(urlsplit(text).path)) if text.startswith(FILE_URL) else text)


def legible(path: Path | str) -> str:
    """For eyes. What is no UTF-8 is taken for what Windows wrote before."""
    text = str(path)
    return text if _is_text(text) else "/".join(map(_legible, os.fsencode(text).split(b"/")))


def _legible(part: bytes) -> str:
    try:
        return part.decode()
    except UnicodeDecodeError:
        return part.decode(_USUAL_BEFORE_UTF_8, "replace")


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
