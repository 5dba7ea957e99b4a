"""Digests under which the results of pages are stored, so that no page is read twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from worker_service.handlers import digest

# Methods of pages that could not be read completely.
PARTIAL = "partial"
"""Part of its picture is damaged, or the engine failed on part of it."""
TOO_LARGE = "too_large"
UNREADABLE = "unreadable"

# Increase a number whenever the same page may now give another result.
LAYER_RULES = 10
OCR_RULES = 12
ROW_RULES = 3

# Load the hashing library before processes are forked, each of which would load it again.
digest([])


class PageSource(NamedTuple):
    content: str  # SHA-256 of the file
    library: str  # name and version of the library that reads it


def layer_digest(source: PageSource, number: int) -> str:
    # The languages of OCR cannot change a text layer.
    return digest([source.content, number, "layer", LAYER_RULES, source.library])


def ocr_digest(source: PageSource, number: int, languages: Sequence[str], quality: str, engine: str) -> str:
    # Can be computed without opening the file.
    return digest([source.content, number, "ocr", OCR_RULES, list(languages), quality, engine, source.library])


def pixels_digest(picture_digest: str, languages: Sequence[str], quality: str, engine: str) -> str:
    return digest([picture_digest, "shown", OCR_RULES, list(languages), quality, engine])


def rows_digest(content: str, number: int, library: str) -> str:
    return digest([content, number, "rows", ROW_RULES, library])


def job_digest(page_digest: str, idempotency_key: str) -> str:
    # For a page that could not be read: only the same job finds it, a later job tries again.
    return digest([page_digest, "too large", idempotency_key])
