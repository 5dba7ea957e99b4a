"""Page digests, page ranges, and how pages are divided into jobs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct

from worker_service.handlers import Permanent, digest

# Methods of pages that could not be read completely.
PARTIAL = "partial"
"""Part of its picture is damaged, or the engine failed on part of it."""
TOO_LARGE = "too_large"
UNREADABLE = "unreadable"

# Increase a number whenever the same page may now give another result.
LAYER_RULES = 10
OCR_RULES = 12
ROW_RULES = 3

RANGE_PAGES_MAX = 12
_COSTS = (0.1, 2.0)
_WORTH_IT = 0.99
# Load the hashing library before processes are forked, each of which would load it again.
digest([])
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


class PageSource(NamedTuple):
    content: str
    library: str


def layer_digest(source: PageSource, number: int) -> str:
    """Languages cannot change it."""
    return digest([source.content, number, "layer", LAYER_RULES, source.library])


def ocr_digest(source: PageSource, number: int, languages: Sequence[str], quality: str, engine: str) -> str:
    """Can be looked up without opening the file."""
    return digest([source.content, number, "ocr", OCR_RULES, list(languages), quality, engine, source.library])


def pixels_digest(shown: str, languages: Sequence[str], quality: str, engine: str) -> str:
    return digest([shown, "shown", OCR_RULES, list(languages), quality, engine])


def rows_digest(content: str, number: int, library: str) -> str:
    return digest([content, number, "rows", ROW_RULES, library])


def job_digest(page_digest: str, key: str) -> str:
    """Only this job finds the page again: it may be read another day."""
    return digest([page_digest, "too large", key])


def format_ranges(numbers: Iterable[int]) -> str:
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def pages_in_words(numbers: Sequence[int]) -> str:
    return f"page{'s' if len(numbers) > 1 else ''} {format_ranges(numbers)}"


def read_ranges(text: str, most: int) -> list[int]:
    numbers: list[int] = []
    for part in text.split(","):
        found = _RANGE.fullmatch(part.strip())
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if first < 1 or last < first or len(numbers) + last - first >= most:
            raise Permanent("PAYLOAD_INVALID", f"{text[:60]!r} names no pages", f"write 1-12, or 3,7-9, at most {most}")
        numbers += range(first, last + 1)
    return numbers


class Scan(Struct, frozen=True):
    """A page with more text is larger, and takes longer to recognise."""

    packing: str
    """Sizes are only comparable within a packing."""
    packed_bytes: int


def costs_of(scans: Mapping[int, Scan]) -> dict[int, float]:
    """Return page number → cost relative to the median page."""
    sizes: dict[str, list[int]] = {}
    for scan in scans.values():
        sizes.setdefault(scan.packing, []).append(scan.packed_bytes)
    usual = {packing: sorted(found)[len(found) // 2] or 1 for packing, found in sizes.items()}
    least, most = _COSTS
    return {
        number: min(max(scan.packed_bytes / usual[scan.packing], least), most)
        for number, scan in scans.items()
        if scan.packed_bytes
    }


def divide_pages(numbers: Sequence[int], slots: int, costs: Mapping[int, float]) -> list[list[int]]:
    """Divide into even ranges, so many that no slot is idle at the end."""
    if not numbers:
        return []
    count = -(-len(numbers) // RANGE_PAGES_MAX)
    count = min(-(-count // slots) * slots, len(numbers))
    size, rest = divmod(len(numbers), count)
    ends = [at * size + min(at, rest) for at in range(count + 1)]
    ranges = [list(numbers[begin:end]) for begin, end in pairwise(ends)]
    beside = [ranges[at : at + slots] for at in range(0, count, slots)]
    return [one for some in beside for one in _balance(some, costs)]


def _balance(ranges: list[list[int]], costs: Mapping[int, float]) -> list[list[int]]:
    """Share out the pages: the costliest first, each to the range with the lowest sum.

    Ranges stay if that gains less than 1 %, because users see pages by their ranges.
    """
    shared: list[list[int]] = [[] for _ in ranges]
    sums = [0.0] * len(ranges)
    numbers = [number for one in ranges for number in one]
    for number in sorted(numbers, key=lambda one: -costs.get(one, 1.0)):
        at = min((at for at, one in enumerate(shared) if len(one) < RANGE_PAGES_MAX), key=sums.__getitem__)
        shared[at].append(number)
        sums[at] += costs.get(number, 1.0)
    longest = max(sum(costs.get(number, 1.0) for number in one) for one in ranges)
    return sorted(map(sorted, shared)) if max(sums) < longest * _WORTH_IT else ranges
