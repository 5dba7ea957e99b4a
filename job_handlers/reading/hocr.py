"""HOCR, in pixels of the image that was read; pages with their own text use 72 dpi."""

from __future__ import annotations

import html
from collections.abc import Sequence

from job_handlers.reading.layout import Layout, Word
from worker_service.handlers import Block

BEGIN = """<!DOCTYPE html>
<html>
<head>
<meta charset="utf-8"/>
<title>{title}</title>
<meta name="ocr-system" content="pagemill"/>
<meta name="ocr-capabilities" content="ocr_page ocr_carea ocr_line ocrx_word"/>
</head>
<body>
"""
END = "</body>\n</html>\n"


def beginning(title: str) -> str:
    return BEGIN.format(title=html.escape(title))


def page(number: int, layout: Layout, text: str) -> str:
    scale = (layout.dpi or 72) / 72
    width, height = layout.size
    box = f"bbox 0 0 {round(width * scale)} {round(height * scale)}"
    lines = [f'<div class="ocr_page" id="page_{number}" title="{box}; ppageno {number - 1}">']
    for at, block in enumerate([] if layout.lines else layout.blocks, 1):
        corners, shown = _box([block], scale), html.escape(text[block.begin : block.end].strip())
        lines.append(f'<div class="ocr_carea" id="block_{number}_{at}" title="{corners}">{shown}</div>')
    for at, words in enumerate([line for line in layout.lines if line], 1):
        angle = f"; textangle {-layout.skew:g}" if layout.skew else ""
        lines.append(f'<span class="ocr_line" id="line_{number}_{at}" title="{_box(words, scale)}{angle}">')
        lines += [_word(number, at, place, word, scale) for place, word in enumerate(words, 1)]
        lines.append("</span>")
    lines.append("</div>\n")
    return "\n".join(lines)


def _word(page: int, line: int, place: int, word: Word, scale: float) -> str:
    title = f"{_box([word], scale)}; x_wconf {round(word.confidence)}"
    return f'<span class="ocrx_word" id="word_{page}_{line}_{place}" title="{title}">{html.escape(word.text)}</span>'


def _box(things: Sequence[Word | Block], scale: float) -> str:
    x0 = min(one.x0 for one in things)
    y0 = min(one.y0 for one in things)
    x1 = max(one.x1 for one in things)
    y1 = max(one.y1 for one in things)
    return "bbox " + " ".join(str(round(value * scale)) for value in (x0, y0, x1, y1))
