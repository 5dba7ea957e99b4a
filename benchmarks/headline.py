"""The headline page: the rows that describe pagemill best, as a table and as a chart, from the published results."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import table
from benchmarks.table import Row

HEADLINES = (
    ("ocr", "ocrmypdf_clean"),
    ("ocr", "ocrmypdf_noisy_200"),
    ("ocr", "pytesseract"),
    ("ocr", "engine"),
    ("ocr", "errors_real_auto"),
    ("ocr", "digital"),
    ("search", "search"),
    ("search", "question_p95"),
    ("tables", "cells_ruled_plumber"),
    ("daemon", "fresh"),
    ("daemon", "begun_p50"),
    ("daemon", "idle_cpu"),
    ("queue", "claim_depth"),
    ("queue", "cycle"),
    ("download", "plain"),
    ("web", "flower_list"),
    ("web", "flower_memory"),
)
_ROW_HEIGHT, _LABEL_WIDTH, _BAR_WIDTH_MAX, _WIDTH = 46, 410, 340, 910
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#222}.s{font-size:11px;fill:#666}.o{fill:#2f6fab}.p{fill:#b9c4cf}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.s{fill:#999}.o{fill:#6aa5dc}.p{fill:#56616c}}"
)


def write_headlines(directory: Path) -> None:
    rows = _published(directory)
    (directory / "headline.svg").write_text(_as_svg(rows))
    table.put_into(directory / "README.md", "headline", table.as_markdown_table(rows))


def _published(directory: Path) -> list[Row]:
    results: dict[str, dict[str, dict[str, Any]]] = {}
    for name in dict.fromkeys(name for name, _ in HEADLINES):
        content = json.loads((directory / f"{name}.json").read_text())
        results[name] = {row["key"]: row for row in content["rows"]}
    return [table.row_from_json(results[name][key]) for name, key in HEADLINES]


def _as_svg(rows: list[Row]) -> str:
    """Draw a pair of bars per row: pagemill and its peer, the longer one at full width."""
    parts = []
    for number, row in enumerate(rows):
        top = number * _ROW_HEIGHT
        ours, peer = median(row.ours), median(row.peer)
        longest = max(ours, peer)
        parts.append(f'<text x="0" y="{top + 15}">{escape(row.what.replace("`", ""))}</text>')
        parts.append(f'<text class="s" x="0" y="{top + 31}">beside: {escape(row.beside)}</text>')
        for kind, figure, y in (("o", ours, top + 4), ("p", peer, top + 20)):
            width = max(2, _BAR_WIDTH_MAX * figure / longest)
            parts.append(f'<rect class="{kind}" x="{_LABEL_WIDTH}" y="{y}" width="{width:.0f}" height="13" rx="2"/>')
            text = f"{table.short(figure)} {row.unit}"
            parts.append(f'<text class="s" x="{_LABEL_WIDTH + width + 6:.0f}" y="{y + 11}">{escape(text)}</text>')
    height = len(rows) * _ROW_HEIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="Headline figures of pagemill beside their peers"><style>{_STYLE}</style>{"".join(parts)}</svg>\n'
    )
