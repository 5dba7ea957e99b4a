"""Measures of Markdown against a document's true structure. Each is a pair of sums, to be divided over all documents.

Texts are compared by their letters and digits alone, so that no tool loses by its emphasis or its quotation marks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from html.parser import HTMLParser
from itertools import combinations

from benchmarks.markdown_truth import Truth
from benchmarks.tables_accuracy import Rows, blocks_in_order, cell_counts

_HEADING = re.compile(r" {0,3}(#{1,6})\s+(.*?)\s*#*\s*")
_ITEM = re.compile(r"\s*(?:[-*+]|\d{1,4}[.)])\s+(.*)")
_MARKUP = re.compile(r"<!--.*?-->|</?\w[^>]*>|\]\([^)]*\)|!?\[|[*_`\\~]", re.DOTALL)
_ALIKE = 0.85


@dataclass(slots=True)
class Parsed:
    headings: list[tuple[int, str]] = field(default_factory=list)
    items: list[str] = field(default_factory=list)
    tables: list[Rows] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    """Plain texts of headings, paragraphs' lines and items."""
    texts: list[str] = field(default_factory=list)
    """The same, with the cells of tables in their places."""


def parse_markdown(text: str) -> Parsed:
    found = Parsed()
    rows: list[list[str]] = []
    html = _TableParser()
    html.feed(text)
    found.tables += html.tables
    for line in [*re.sub(r"<table.*?</table>", "", text, flags=re.DOTALL).split("\n"), ""]:
        if line.lstrip().startswith("|") and line.count("|") > 1:
            cells = [_plain(cell) for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
            if not all(re.fullmatch(r"\s*:?-{2,}:?\s*", cell) for cell in re.split(r"\|", line.strip().strip("|"))):
                rows.append(cells)
                found.texts += cells
            continue
        if rows:
            found.tables.append(rows)
            rows = []
        if heading := _HEADING.fullmatch(line):
            found.headings.append((len(heading[1]), _plain(heading[2])))
            plain = _plain(heading[2])
        elif item := _ITEM.fullmatch(line):
            plain = _plain(item[1])
            found.items.append(plain)
        else:
            plain = _plain(line)
        if plain:
            found.lines.append(plain)
            found.texts.append(plain)
    return found


class _TableParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tables: list[Rows] = []
        self._rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "table":
            self._rows = []
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th") and self._rows:
            self._rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self._rows and self._rows[-1]:
            self._rows[-1][-1] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "table" and self._rows:
            self.tables.append(self._rows)
            self._rows = []


def _plain(text: str) -> str:
    return " ".join(_MARKUP.sub("", text).split())


def _key(text: str) -> str:
    return "".join(filter(str.isalnum, text)).casefold()


def score(markdown: str, truth: Truth) -> Mapping[str, tuple[float, float]]:
    """Return measure → (points, most possible points)."""
    found = parse_markdown(markdown)
    pairs = _matched([text for _, text in found.headings], [text for _, text in truth.headings])
    alike, of = _levels([(found.headings[a][0], truth.headings[b][0]) for a, b in pairs])
    right, own, there = cell_counts(found.tables, truth.tables) if found.tables or truth.tables else (0, 0, 0)
    items = _matched(found.items, truth.items)
    whole = "".join(map(_key, found.texts))
    good, neighbours = blocks_in_order(whole, [_key(one) for one in truth.blocks if len(_key(one)) > 20])
    lines = Counter(map(_key, found.lines))
    return {
        "headings": (2 * len(pairs), len(found.headings) + len(truth.headings)),
        "levels": (alike, of),
        "items": (2 * len(items), len(found.items) + len(truth.items)),
        "cells": (2 * right, own + there),
        "order": (good, neighbours),
        "absent": (_left_out(lines, whole, truth.running), len(truth.running)),
    }


def _matched(found: Sequence[str], true: Sequence[str]) -> list[tuple[int, int]]:
    """Return pairs of equal or almost equal texts, each text once."""
    pairs: list[tuple[int, int]] = []
    left = {at: _key(one) for at, one in enumerate(found)}
    for to, text in enumerate(true):
        key = _key(text)
        near = [(at, own) for at, own in left.items() if own and abs(len(own) - len(key)) <= 0.3 * len(key) + 2]
        best = max(near, key=lambda one: _likeness(one[1], key), default=None)
        if best is not None and _likeness(best[1], key) >= _ALIKE:
            pairs.append((best[0], to))
            del left[best[0]]
    return pairs


def _likeness(one: str, other: str) -> float:
    return 1.0 if one == other else SequenceMatcher(None, one, other, autojunk=False).ratio()


def _levels(pairs: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Compare levels by pairs of headings: above, below or equal. Tools begin at different levels."""
    signs = [((a > b) - (a < b), (c > d) - (c < d)) for (a, c), (b, d) in combinations(pairs, 2)]
    return sum(own == true for own, true in signs), len(signs)


def _left_out(lines: Counter[str], plain: str, running: Sequence[str]) -> int:
    """Return how many running lines are not in the text. A short number counts only as a line of its own."""
    left = 0
    for text, times in Counter(map(_key, running)).items():
        there = plain.count(text) if len(text) > 6 else lines[text]
        left += max(times - there, 0)
    return left
