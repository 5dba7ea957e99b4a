"""Whether a job still works on the file and the generation that it was made for. Asks, and changes nothing."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from worker_service.handlers import Context, IsCurrent, Permanent, SameContent


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_content(context: Context[Any], original: Path, content: str) -> None:
    """Refuse a payload that names another file's: it would bring its pages here, or put others in their place."""
    published = context.ask(SameContent(sha256=content)).files
    # Where the store knows its digest, nothing is read.
    is_known = any(str(original).endswith(f"/{one.path}") for one in published)
    if not is_known and sha256_of(original) != content:
        raise Permanent(
            "PAYLOAD_INVALID",
            "`content` is not the SHA-256 of this document's file: have it read with `pagemill reindex`",
        )


def check_current(context: Context[Any]) -> None:
    """Before an expensive piece of work: does anybody still want it?"""
    if not context.ask(IsCurrent()).is_current:
        raise Permanent("STALE_GENERATION", "the document has a newer generation, which will be read instead")
