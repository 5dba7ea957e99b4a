"""Write documents as Markdown, passages, DoclingDocument, PAWLs, OpenContracts, ALTO 4 and hOCR."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import count
from typing import Any, NamedTuple
from xml.sax.saxutils import quoteattr

import msgspec
from msgspec import Struct

from worker_service.jobs.blocks import Block, Role
from worker_service.jobs.library import Document
from worker_service.jobs.markdown import covered_cells, document_markdown, flowing_text, without_marker
from worker_service.jobs.page_structure import Rows, Span, StructuredPage
from worker_service.services.page_blocks import passages_of_document, structured_pages
from worker_service.services.page_images import NoPageImage, PageRenderer, page_image
from worker_service.services.session import Session

_DOCLING_VERSION = "1.8.0"
_DOCLING_LABEL_BY_ROLE = {
    Role.HEADING: "section_header", Role.PARAGRAPH: "text", Role.ITEM: "list_item", Role.CAPTION: "caption",
    Role.FOOTNOTE: "footnote", Role.CODE: "code", Role.HEAD: "page_header", Role.FOOT: "page_footer",
    Role.NUMBER: "page_footer",
}  # fmt: skip
_FURNITURE_ROLES = (Role.HEAD, Role.FOOT, Role.NUMBER)
_MEDIA_TYPE_BY_KIND = {"pdf": "application/pdf", "image": "image/png", "html": "text/html", "text": "text/plain"}
_ALTO_BEGIN = """<?xml version="1.0" encoding="UTF-8"?>
<alto xmlns="http://www.loc.gov/standards/alto/ns-v4#">
<Description><MeasurementUnit>inch1200</MeasurementUnit></Description>
<Layout>
"""
_ALTO_UNITS_PER_POINT = 1200 / 72

_HOCR_BEGIN = """<!DOCTYPE html>
<html>
<head>
<meta charset="utf-8"/>
<title>{}</title>
<meta name="ocr-system" content="pagemill"/>
<meta name="ocr-capabilities" content="ocr_page ocr_carea ocr_line ocrx_word"/>
</head>
<body>
"""

_BLOCK_MARGIN = 1
"""Distance in points by which the centre of a word may be outside its block."""


class _PageWord(NamedTuple):
    """A word with its box in points from the top left of the page."""

    x0: float
    y0: float
    x1: float
    y1: float
    text: str
    confidence: float
    """Confidence of OCR in per cent; 100 for text that was not recognised."""

    @property
    def box(self) -> tuple[float, float, float, float]:
        return self.x0, self.y0, self.x1, self.y1

    @property
    def middle_y(self) -> float:
        return (self.y0 + self.y1) / 2


# ── DoclingDocument ───────────────────────────────────────────────────────────────────────────────────────────────────


class _DoclingBuilder:
    def __init__(self) -> None:
        self.texts: list[dict[str, Any]] = []
        self.tables: list[dict[str, Any]] = []
        self.pictures: list[dict[str, Any]] = []
        self.groups: list[dict[str, Any]] = []
        self.body: list[dict[str, str]] = []
        self._current_list: dict[str, Any] | None = None

    def add(self, page: StructuredPage, block: Block) -> None:
        if block.role is not Role.ITEM:
            self._current_list = None
        if block.role is Role.TABLE and block.begin in page.tables:
            self._add_table(page, block)
        elif block.role is Role.PICTURE:
            self._add_picture(page, block)
        elif page.text_of(block).strip():
            self._add_text(page, block)

    def _add_table(self, page: StructuredPage, block: Block) -> None:
        rows = page.tables[block.begin]
        cells = list(_docling_cells(rows, page.spans.get(block.begin, ())))
        data = {"table_cells": cells, "num_rows": len(rows), "num_cols": max(map(len, rows))}
        item = self._item(page, block, f"#/tables/{len(self.tables)}", "table", "#/body")
        self.tables.append({**item, "data": data, "captions": [], "references": [], "footnotes": []})
        self.body.append({"$ref": item["self_ref"]})

    def _add_picture(self, page: StructuredPage, block: Block) -> None:
        item = self._item(page, block, f"#/pictures/{len(self.pictures)}", "picture", "#/body")
        alt = block.alt or flowing_text(page.text_of(block))
        annotations = [{"kind": "description", "text": alt, "provenance": "alternative text"}] if alt else []
        self.pictures.append({**item, "captions": [], "references": [], "footnotes": [], "annotations": annotations})
        self.body.append({"$ref": item["self_ref"]})

    def _add_text(self, page: StructuredPage, block: Block) -> None:
        original = page.text_of(block).strip("\n")
        parent = self._parent_of(block)
        label = _DOCLING_LABEL_BY_ROLE[block.role]
        item = self._item(page, block, f"#/texts/{len(self.texts)}", label, parent["self_ref"])
        item |= {"orig": original, "text": original if block.role is Role.CODE else flowing_text(original)}
        if block.role is Role.HEADING:
            item["level"] = block.level or 1
        if block.role is Role.ITEM:
            marker, item["text"] = without_marker(item["text"])
            item |= {"marker": marker or "-", "enumerated": any(map(str.isalnum, marker))}
        if block.role is Role.CODE:
            item |= {"captions": [], "references": [], "footnotes": [], "code_language": "unknown"}
        self.texts.append(item)
        (self.body if parent["self_ref"] == "#/body" else parent["children"]).append({"$ref": item["self_ref"]})

    def _parent_of(self, block: Block) -> dict[str, Any]:
        if block.role is not Role.ITEM:
            return {"self_ref": "#/body"}
        if self._current_list is None:
            reference = f"#/groups/{len(self.groups)}"
            self._current_list = {
                "self_ref": reference, "parent": {"$ref": "#/body"}, "children": [], "content_layer": "body",
                "name": "list", "label": "list",
            }  # fmt: skip
            self.groups.append(self._current_list)
            self.body.append({"$ref": reference})
        return self._current_list

    def _item(
        self, page: StructuredPage, block: Block, reference: str, label: str, parent_reference: str
    ) -> dict[str, Any]:
        box = {"l": block.x0, "t": block.y0, "r": block.x1, "b": block.y1, "coord_origin": "TOPLEFT"}
        place = {"page_no": page.number, "bbox": box, "charspan": [0, block.end - block.begin]}
        return {
            "self_ref": reference,
            "parent": {"$ref": parent_reference},
            "children": [],
            "content_layer": "furniture" if block.role in _FURNITURE_ROLES else "body",
            "label": label,
            "prov": [place] if block.is_placed else [],
        }


def _docling_cells(rows: Rows, spans: Sequence[Span]) -> Iterator[dict[str, Any]]:
    sizes = {(row, column): (down, across) for row, column, down, across in spans}
    covered = covered_cells(spans)
    for row, texts in enumerate(rows):
        for column, text in enumerate(texts):
            if (row, column) in covered:
                continue
            down, across = sizes.get((row, column), (1, 1))
            yield {
                "text": text, "row_span": down, "col_span": across, "start_row_offset_idx": row,
                "end_row_offset_idx": row + down, "start_col_offset_idx": column,
                "end_col_offset_idx": column + across, "column_header": row == 0,
            }  # fmt: skip


def docling_json(document: Document, pages: Sequence[StructuredPage]) -> Iterator[str]:
    builder = _DoclingBuilder()
    for page in pages:
        for block in page.blocks:
            builder.add(page, block)
    root = {"name": "_root_", "label": "unspecified"}
    exported = {
        "schema_name": "DoclingDocument",
        "version": _DOCLING_VERSION,
        "name": document.name.rpartition(".")[0] or document.name,
        "origin": {
            "mimetype": _MEDIA_TYPE_BY_KIND.get(document.kind or "", "application/octet-stream"),
            "binary_hash": int(document.content[:16] or "0", 16),  # 64 bits of the SHA-256
            "filename": document.name,
        },
        "furniture": {"self_ref": "#/furniture", "children": [], "content_layer": "furniture", **root},
        "body": {"self_ref": "#/body", "children": builder.body, "content_layer": "body", **root},
        "groups": builder.groups,
        "texts": builder.texts,
        "pictures": builder.pictures,
        "tables": builder.tables,
        "key_value_items": [],
        "form_items": [],
        "pages": {
            str(page.number): {"size": {"width": page.size[0], "height": page.size[1]}, "page_no": page.number}
            for page in pages
        },
    }
    yield json.dumps(exported, ensure_ascii=False)


# ── Words with positions ──────────────────────────────────────────────────────────────────────────────────────────────


def _words_of_pages(
    session: Session, document: Document, pages: Sequence[StructuredPage]
) -> Iterator[tuple[StructuredPage, list[_PageWord]]]:
    """Yield pages with the words of OCR, or with those that the renderer finds in the text layer."""
    with closing(PageRenderer(session.settings)) as renderer:
        for page in pages:
            words = [
                _PageWord(x0, y0, x1, y1, text, confidence)
                for line in msgspec.json.decode(page.lines)
                for x0, y0, x1, y1, confidence, text in line
            ]
            if not words and any(block.is_placed for block in page.blocks):
                with suppress(NoPageImage):
                    image = page_image(session, renderer, document.id, page.number)
                    words = [_PageWord(word.x0, word.y0, word.x1, word.y1, word.text, 100.0) for word in image.words]
            yield page, words


def pawls_json(session: Session, document: Document, pages: Sequence[StructuredPage]) -> Iterator[str]:
    yield "["
    for index, (page, words) in enumerate(_words_of_pages(session, document, pages)):
        yield (",\n" if index else "") + json.dumps(_pawls_page(page, words), ensure_ascii=False)
    yield "]\n"


def _pawls_page(page: StructuredPage, words: Sequence[_PageWord]) -> dict[str, Any]:
    tokens = [
        {
            "x": word.x0, "y": word.y0, "width": round(word.x1 - word.x0, 2), "height": round(word.y1 - word.y0, 2),
            "text": word.text,
        }
        for word in words
    ]  # fmt: skip
    return {"page": {"width": page.size[0], "height": page.size[1], "index": page.number - 1}, "tokens": tokens}


def opencontracts_export(session: Session, document: Document, pages: Sequence[StructuredPage]) -> dict[str, Any]:
    pawls_pages: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for page, words in _words_of_pages(session, document, pages):
        pawls_pages.append(_pawls_page(page, words))
        token_indexes = {word: index for index, word in enumerate(words)}
        for block, block_words in _blocks_with_words(page, words):
            text = page.text_of(block).strip()
            place = {
                "bounds": {"left": block.x0, "top": block.y0, "right": block.x1, "bottom": block.y1},
                "tokensJsons": [
                    {"pageIndex": page.number - 1, "tokenIndex": token_indexes[word]} for word in block_words
                ],
                "rawText": text,
            }
            annotation = {
                "id": str(len(annotations)), "annotationLabel": _DOCLING_LABEL_BY_ROLE.get(block.role, str(block.role)),
                "rawText": text, "page": page.number - 1, "annotation_json": {str(page.number - 1): place},
                "parent_id": None, "annotation_type": "TOKEN_LABEL", "structural": True,
            }  # fmt: skip
            annotations.append(annotation)
    return {
        "title": document.name.rpartition(".")[0] or document.name,
        "description": "",
        "content": "\n\n".join(page.text for page in pages),
        "pageCount": len(pages),
        "pawlsFileContent": pawls_pages,
        "docLabels": [],
        "labelledText": annotations,
        "relationships": [],
    }


def alto_xml(session: Session, document: Document, pages: Sequence[StructuredPage]) -> Iterator[str]:
    yield _ALTO_BEGIN
    for page, words in _words_of_pages(session, document, pages):
        width, height = (round(edge * _ALTO_UNITS_PER_POINT) for edge in page.size)
        ids = f'ID="page_{page.number}" PHYSICAL_IMG_NR="{page.number}"'
        size = f'WIDTH="{width}" HEIGHT="{height}"'
        yield f'<Page {ids} {size}>\n<PrintSpace HPOS="0" VPOS="0" {size}>\n'
        for block_number, block_words in enumerate(_word_groups(page, words), 1):
            yield f'<TextBlock ID="block_{page.number}_{block_number}" {_alto_box(*_bounds_of(block_words))}>\n'
            yield from (_alto_line(line) for line in _lines_of(block_words))
            yield "</TextBlock>\n"
        yield "</PrintSpace>\n</Page>\n"
    yield "</Layout>\n</alto>\n"


def hocr_html(session: Session, document: Document, pages: Sequence[StructuredPage]) -> Iterator[str]:
    """Boxes are in pixels of the image that was read; without OCR, in points."""
    yield _HOCR_BEGIN.format(html.escape(document.name))
    for page, words in _words_of_pages(session, document, pages):
        scale, number = (page.dpi or 72) / 72, page.number
        # hOCR measures angles counter-clockwise, `skew` is clockwise.
        angle = f"; textangle {-page.skew:g}" if page.skew else ""
        properties = f"{_hocr_box((0, 0, *page.size), scale)}; ppageno {number - 1}"
        yield f'<div class="ocr_page" id="page_{number}" title="{properties}">\n'
        line_numbers, word_numbers = count(1), count(1)
        for block_number, block_words in enumerate(_word_groups(page, words), 1):
            box = _hocr_box(_bounds_of(block_words), scale)
            yield f'<div class="ocr_carea" id="block_{number}_{block_number}" title="{box}">\n'
            for line in _lines_of(block_words):
                box = f"{_hocr_box(_bounds_of(line), scale)}{angle}"
                yield f'<span class="ocr_line" id="line_{number}_{next(line_numbers)}" title="{box}">'
                for word in line:
                    properties = f"{_hocr_box(word.box, scale)}; x_wconf {round(word.confidence)}"
                    text, word_id = html.escape(word.text), f"word_{number}_{next(word_numbers)}"
                    yield f'<span class="ocrx_word" id="{word_id}" title="{properties}">{text}</span> '
                yield "</span>\n"
            yield "</div>\n"
        yield "</div>\n"
    yield "</body>\n</html>\n"


def _hocr_box(box: Sequence[float], scale: float) -> str:
    return "bbox " + " ".join(str(round(edge * scale)) for edge in box)


def _word_groups(page: StructuredPage, words: Sequence[_PageWord]) -> list[list[_PageWord]]:
    """Return the words of each block, and last the words in no block."""
    groups = [block_words for _, block_words in _blocks_with_words(page, words)]
    grouped = {word for block_words in groups for word in block_words}
    words_in_no_block = [word for word in words if word not in grouped]
    return [*groups, words_in_no_block] if words_in_no_block else groups


def _bounds_of(words: Sequence[_PageWord]) -> tuple[float, float, float, float]:
    x0, y0, x1, y1 = zip(*(word.box for word in words), strict=True)
    return min(x0), min(y0), max(x1), max(y1)


def _blocks_with_words(page: StructuredPage, words: Sequence[_PageWord]) -> Iterator[tuple[Block, list[_PageWord]]]:
    """Yield the blocks that have words. A word belongs to the first block around its centre."""
    remaining = list(words)
    for block in page.blocks:
        if block.role is Role.PICTURE:
            continue
        if block_words := [word for word in remaining if _is_inside(word, block)]:
            remaining = [word for word in remaining if not _is_inside(word, block)]
            yield block, block_words


def _is_inside(word: _PageWord, block: Block) -> bool:
    return (
        block.x0 - _BLOCK_MARGIN <= (word.x0 + word.x1) / 2 <= block.x1 + _BLOCK_MARGIN
        and block.y0 - _BLOCK_MARGIN <= word.middle_y <= block.y1 + _BLOCK_MARGIN
    )


def _lines_of(words: Sequence[_PageWord]) -> Iterator[list[_PageWord]]:
    line: list[_PageWord] = []
    for word in words:
        if line and not line[-1].y0 < word.middle_y < line[-1].y1:
            yield line
            line = []
        line.append(word)
    if line:
        yield line


def _alto_line(line: Sequence[_PageWord]) -> str:
    box = _alto_box(*_bounds_of(line))
    strings = "<SP/>".join(f"<String CONTENT={quoteattr(word.text)} {_alto_box(*word.box)}/>" for word in line)
    return f"<TextLine {box}>{strings}</TextLine>\n"


def _alto_box(x0: float, y0: float, x1: float, y1: float) -> str:
    left, top, right, bottom = (round(edge * _ALTO_UNITS_PER_POINT) for edge in (x0, y0, x1, y1))
    return f'HPOS="{left}" VPOS="{top}" WIDTH="{right - left}" HEIGHT="{bottom - top}"'


# ── Formats by name ───────────────────────────────────────────────────────────────────────────────────────────────────


class DocumentFormat(Struct, frozen=True):
    media_type: str
    ending: str
    write: Callable[[Session, Document, Sequence[StructuredPage]], Iterator[str]]


def _passage_lines(session: Session, document: Document, pages: Sequence[StructuredPage]) -> Iterator[str]:
    about_document = {"document": document.name, "owner": document.owner}
    for passage in passages_of_document(session, document, pages):
        yield msgspec.json.encode({**about_document, **msgspec.structs.asdict(passage)}).decode() + "\n"


FORMATS: Mapping[str, DocumentFormat] = {
    "md": DocumentFormat("text/markdown; charset=utf-8", ".md", lambda _, __, pages: document_markdown(pages)),
    "jsonl": DocumentFormat("application/jsonl; charset=utf-8", ".passages.jsonl", _passage_lines),
    "docling": DocumentFormat(
        "application/json", ".docling.json", lambda _, document, pages: docling_json(document, pages)
    ),
    "pawls": DocumentFormat("application/json", ".pawls.json", pawls_json),
    "alto": DocumentFormat("application/xml; charset=utf-8", ".alto.xml", alto_xml),
    "hocr": DocumentFormat("text/html; charset=utf-8", ".hocr", hocr_html),
}


def write_format(session: Session, document: Document, format_name: str) -> Iterator[str]:
    """Raise `BadInput` here, before the first part is sent, if the document is too long."""
    return FORMATS[format_name].write(session, document, structured_pages(session, document.id))
