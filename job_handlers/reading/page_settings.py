"""Which pages of a document are read together, and what makes a page the same page. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct

from worker_service.handlers import Permanent, digest

# How a page was read, where nothing could be.
PARTIAL = "partial"
"""Recognised, though a part of its picture is damaged, or the engine failed on a part of it."""
TOO_LARGE = "too_large"
UNREADABLE = "unreadable"

# One more whenever the same page may now give another result.
LAYER_RULES = 7
OCR_RULES = 11
ROW_RULES = 2

RANGE_PAGES_MAX = 12
_COSTS = (0.1, 2.0)
_WORTH_IT = 0.99
# Before processes are forked, which would each load its library.
digest([])
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


class PageSource(NamedTuple):
    content: str
    """SHA-256 of the file."""
    library: str
    """What takes its pages apart."""


def layer_digest(source: PageSource, number: int) -> str:
    """Of a page whose own text will do. Languages are not in it: they cannot change it."""
    return digest([source.content, number, "layer", LAYER_RULES, source.library])


def ocr_digest(source: PageSource, number: int, languages: Sequence[str], quality: str, engine: str) -> str:
    """Of a page of a file, which nobody need open to know it again."""
    return digest([source.content, number, "ocr", OCR_RULES, list(languages), quality, engine, source.library])


def shown_digest(shown: str, languages: Sequence[str], quality: str, engine: str) -> str:
    """Of what a page shows, in whichever file it stands: its pixels are all that an engine gets to see."""
    return digest([shown, "shown", OCR_RULES, list(languages), quality, engine])


def rows_digest(content: str, number: int, library: str) -> str:
    return digest([content, number, "rows", ROW_RULES, library])


def job_digest(page_digest: str, key: str) -> str:
    """Of a result that is nobody else's: of a page over the limits, which may be read another day."""
    return digest([page_digest, "too large", key])


def written_ranges(numbers: Iterable[int]) -> str:
    """[1, 2, 3, 7] is 1-3,7."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def named(numbers: Sequence[int]) -> str:
    """pages 1-3,7"""
    return f"page{'s' if len(numbers) > 1 else ''} {written_ranges(numbers)}"


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
    """What tells how long a page will take: the more stands on it, the larger it is packed."""

    packing: str
    """Only those that are packed alike can be compared."""
    packed_bytes: int


def costs_of(scans: Mapping[int, Scan]) -> dict[int, float]:
    """By number: of what a page of its kind usually takes. A photograph is large, and soon read."""
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


def parts(numbers: Sequence[int], slots: int, costs: Mapping[int, float]) -> list[list[int]]:
    """Ranges of at most 12, as even as they come, and a multiple of the slots, so that none of them ends idle. Those
    that will run side by side share their pages so that they end together; a page without a cost costs 1."""
    if not numbers:
        return []
    count = -(-len(numbers) // RANGE_PAGES_MAX)
    count = min(-(-count // slots) * slots, len(numbers))
    size, rest = divmod(len(numbers), count)
    ends = [at * size + min(at, rest) for at in range(count + 1)]
    ranges = [list(numbers[begin:end]) for begin, end in pairwise(ends)]
    beside = [ranges[at : at + slots] for at in range(0, count, slots)]
    return [one for some in beside for one in _evened(some, costs)]


def _evened(ranges: list[list[int]], costs: Mapping[int, float]) -> list[list[int]]:
    """The dearest page goes first, each to the range that has least. Where that gains little, neighbours stay together:
    people are told of pages by their ranges."""
    shared: list[list[int]] = [[] for _ in ranges]
    sums = [0.0] * len(ranges)
    numbers = [number for one in ranges for number in one]
    for number in sorted(numbers, key=lambda one: -costs.get(one, 1.0)):
        at = min((at for at, one in enumerate(shared) if len(one) < RANGE_PAGES_MAX), key=sums.__getitem__)
        shared[at].append(number)
        sums[at] += costs.get(number, 1.0)
    longest = max(sum(costs.get(number, 1.0) for number in one) for one in ranges)
    return sorted(map(sorted, shared)) if max(sums) < longest * _WORTH_IT else ranges
