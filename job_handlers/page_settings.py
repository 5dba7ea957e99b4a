"""What a document is read with, which pages of it, and what makes a page the same page. Pure.

The settings travel in the payloads of `ingest`, `ocr_pages`, `extract_rows` and `assemble`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal

from worker_service.handlers import Permanent, digest

Quality = Literal["fast", "best"]

# How a page was read, where nothing could be.
TOO_LARGE = "too_large"
UNREADABLE = "unreadable"

# One more whenever the same page may now give another result.
LAYER_RULES = 2
OCR_RULES = 2
ROW_RULES = 1

RANGE_PAGES_MAX = 12
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_LANGUAGE = re.compile(r"[A-Za-z][A-Za-z0-9_]{1,30}(?:/[A-Za-z0-9_]{1,30})?")


def layer_digest(content: str, number: int, library: str) -> str:
    """Of a page whose own text will do. Languages are not in it: they cannot change it."""
    return digest([content, number, "layer", LAYER_RULES, library])


def ocr_digest(content: str, number: int, languages: Sequence[str], quality: str, engine: str, library: str) -> str:
    return digest([content, number, "ocr", OCR_RULES, list(languages), quality, engine, library])


def rows_digest(content: str, number: int, library: str) -> str:
    return digest([content, number, "rows", ROW_RULES, library])


def job_digest(page_digest: str, key: str) -> str:
    """Of a result that is nobody else's: of a page over the limits, which may be read another day."""
    return digest([page_digest, "too large", key])


def check_languages(languages: Sequence[str]) -> None:
    for language in languages:
        if not _LANGUAGE.fullmatch(language):
            raise Permanent("PAYLOAD_INVALID", f"{language[:40]!r} is not a language: write eng, or deu")
    if not languages:
        raise Permanent("PAYLOAD_INVALID", "languages is empty: name one at least, such as eng")


def written_ranges(numbers: Iterable[int]) -> str:
    """[1, 2, 3, 7] is 1-3,7."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def read_ranges(text: str, most: int) -> list[int]:
    numbers: list[int] = []
    for part in text.split(","):
        found = _RANGE.fullmatch(part.strip())
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if first < 1 or last < first or len(numbers) + last - first >= most:
            raise Permanent("PAYLOAD_INVALID", f"{text[:60]!r} names no pages: write 1-12, or 3,7-9, at most {most}")
        numbers += range(first, last + 1)
    return numbers


def parts(numbers: Sequence[int], slots: int) -> list[Sequence[int]]:
    """Ranges of at most 12, as even as they come, and a multiple of the slots, so that none of them ends idle."""
    if not numbers:
        return []
    count = -(-len(numbers) // RANGE_PAGES_MAX)
    count = min(-(-count // slots) * slots, len(numbers))
    size, rest = divmod(len(numbers), count)
    ends = [at * size + min(at, rest) for at in range(count + 1)]
    return [numbers[begin:end] for begin, end in pairwise(ends)]
