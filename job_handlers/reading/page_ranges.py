"""Ranges of pages, such as `1-12`, and how the pages of a document are divided into jobs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median_high

from msgspec import Struct

from worker_service.handlers import Permanent

RANGE_PAGES_MAX = 12
_COST_LEAST, _COST_MOST = 0.1, 2.0  # Times the cost of the median page.
_BALANCED_COST_MOST = 0.99
"""Cost of the longest range after balancing, as a share of that before; above it, balancing is not worth it."""
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


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


def read_ranges(text: str, pages_most: int) -> list[int]:
    numbers: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if first < 1 or last < first or len(numbers) + last - first >= pages_most:
            remedy = f"write 1-12, or 3,7-9, at most {pages_most}"
            raise Permanent("PAYLOAD_INVALID", f"{text[:60]!r} names no pages", remedy)
        numbers += range(first, last + 1)
    return numbers


class Scan(Struct, frozen=True):
    """The image of a page that needs OCR, by which its cost is estimated: more text makes a larger image."""

    packing: str
    """Compression. Sizes are only comparable within it."""
    packed_bytes: int


def costs_of(scans: Mapping[int, Scan]) -> dict[int, float]:
    """Return page number → cost relative to the median page."""
    sizes_of_packing: dict[str, list[int]] = {}
    for scan in scans.values():
        sizes_of_packing.setdefault(scan.packing, []).append(scan.packed_bytes)
    median_of_packing = {packing: median_high(sizes) or 1 for packing, sizes in sizes_of_packing.items()}
    return {
        number: min(max(scan.packed_bytes / median_of_packing[scan.packing], _COST_LEAST), _COST_MOST)
        for number, scan in scans.items()
        if scan.packed_bytes
    }


def divide_pages(numbers: Sequence[int], slots: int, costs: Mapping[int, float]) -> list[list[int]]:
    if not numbers:
        return []
    range_count = -(-len(numbers) // RANGE_PAGES_MAX)
    # Round up to whole rounds, in each of which every slot reads one range.
    range_count = min(-(-range_count // slots) * slots, len(numbers))
    size, longer_ranges = divmod(len(numbers), range_count)
    bounds = [at * size + min(at, longer_ranges) for at in range(range_count + 1)]
    ranges = [list(numbers[begin:end]) for begin, end in pairwise(bounds)]
    # Balance the ranges of each round, so that no slot is idle at its end.
    return [pages for at in range(0, range_count, slots) for pages in _balance(ranges[at : at + slots], costs)]


def _balance(ranges: list[list[int]], costs: Mapping[int, float]) -> list[list[int]]:
    """Give each page, the costliest first, to the range with the lowest cost so far."""

    def cost_of(number: int) -> float:
        return costs.get(number, 1.0)

    balanced: list[list[int]] = [[] for _ in ranges]
    sums = [0.0] * len(ranges)
    for number in sorted((number for pages in ranges for number in pages), key=cost_of, reverse=True):
        at = min((at for at, pages in enumerate(balanced) if len(pages) < RANGE_PAGES_MAX), key=sums.__getitem__)
        balanced[at].append(number)
        sums[at] += cost_of(number)
    # If that gains less than 1 %, keep the consecutive pages: `1-12` is easier to read in a list of jobs than `1,4,9`.
    longest = max(sum(map(cost_of, pages)) for pages in ranges)
    return sorted(map(sorted, balanced)) if max(sums) < longest * _BALANCED_COST_MOST else ranges
