"""Accuracy of table cells and of the order of blocks.

Found tables are paired with true ones by the texts they share, then rows with rows and columns with columns, in order,
so that an extra row costs only its own cells. A cell is right if its text, ignoring white space, is in the right row
and column. Empty cells do not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

Rows = Sequence[Sequence[str | None]]


def cell_counts(found: Sequence[Rows], truth: Sequence[Rows]) -> tuple[int, int, int]:
    """Return the numbers of right, found and true cells of a page."""
    own, true = [_plain(one) for one in found], [_plain(one) for one in truth]
    pairs = sorted(
        ((_shared(one, other), at, to) for at, one in enumerate(own) for to, other in enumerate(true)), reverse=True
    )
    used: set[int] = set()
    taken: set[int] = set()
    right = 0
    for shared, at, to in pairs:
        if shared and at not in used and to not in taken:
            used.add(at)
            taken.add(to)
            right += _right(own[at], true[to])
    return right, sum(map(_size, own)), sum(map(_size, true))


def f1(right: int, found: int, there: int) -> float:
    return 2 * right / (found + there) if found + there else 1.0


def blocks_in_order(text: str, blocks: Sequence[str]) -> tuple[int, int]:
    """Return how many neighbouring blocks follow each other in the text, and how many there are.

    The first words of each block are looked for after the last words of the block before.
    """
    plain = "".join(text.split())
    # Letters and what engines take for others aside, so that a misread one costs nothing here.
    begins = [plain.find("".join(one.split())[:18]) for one in blocks]
    ends = [plain.find("".join(one.split())[-18:]) for one in blocks]
    good = sum(
        0 <= end < begin and not any(end < other < begin for other in begins)
        for end, begin in zip(ends, begins[1:], strict=False)
    )
    return good, max(len(blocks) - 1, 0)


def _plain(table: Rows) -> list[list[str]]:
    rows = [["".join((cell or "").split()) for cell in row] for row in table]
    return [row for row in rows if any(row)]


def _size(table: Sequence[Sequence[str]]) -> int:
    return sum(map(bool, (cell for row in table for cell in row)))


def _shared(one: Sequence[Sequence[str]], other: Sequence[Sequence[str]]) -> int:
    mine, theirs = (Counter(cell for row in table for cell in row if cell) for table in (one, other))
    return (mine & theirs).total()


def _right(own: Sequence[Sequence[str]], true: Sequence[Sequence[str]]) -> int:
    wide, there = max(map(len, own)), max(map(len, true))
    columns = [[[row[at] if at < len(row) else "" for row in table] for at in range(count)]
               for table, count in ((own, wide), (true, there))]  # fmt: skip
    alike = [[sum((Counter(a) & Counter(b)).values()) - min(a.count(""), b.count("")) for b in columns[1]]
             for a in columns[0]]  # fmt: skip
    matched = _aligned(alike)
    scores = [
        [
            sum(
                bool(row[a]) and row[a] == (line[b] if b < len(line) else "")
                for a, b in matched
                if a < len(row)
            )
            for line in true
        ]
        for row in own
    ]  # fmt: skip
    return sum(scores[a][b] for a, b in _aligned(scores))


def _aligned(scores: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return the order-preserving pairs with the greatest sum."""
    height, width = len(scores), len(scores[0]) if scores else 0
    best = [[0] * (width + 1) for _ in range(height + 1)]
    for a in range(height - 1, -1, -1):
        for b in range(width - 1, -1, -1):
            best[a][b] = max(best[a + 1][b], best[a][b + 1], best[a + 1][b + 1] + scores[a][b])
    pairs, a, b = [], 0, 0
    while a < height and b < width:
        if best[a][b] == best[a + 1][b + 1] + scores[a][b] and scores[a][b]:
            pairs.append((a, b))
            a, b = a + 1, b + 1
        elif best[a][b] == best[a + 1][b]:
            a += 1
        else:
            b += 1
    return pairs
