"""The text of a page: MuPDF alone and PyMuPDF read the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pymupdf as partly_typed
import pytest

from job_handlers.reading import pdf
from job_handlers.reading.pdf import text

pymupdf: Any = partly_typed


def plain(page: Any) -> None:
    page.insert_text((50, 100), ["first line", "second line"])
    page.insert_text((50, 300), 'another, with "quotes", a \\ and é')


def ligatures(page: Any) -> None:
    page.insert_htmlbox((50, 50, 500, 200), "<p>field, ﬁeld, oﬀice — naïve</p><p>第二段</p>")


def beyond_the_edge(page: Any) -> None:
    plain(page)
    page.insert_text((page.rect.width + 100, 100), "not to be seen")
    page.insert_text((page.rect.width - 20, 500), "cut off at the edge")


def turned(page: Any) -> None:
    plain(page)
    page.set_rotation(90)


def nothing(page: Any) -> None:
    pass


@pytest.mark.parametrize("draw", [plain, ligatures, beyond_the_edge, turned, nothing])
def test_reading_by_mupdf_gives_the_text_of_pymupdf(
    draw: Callable[[Any], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pymupdf.open() as document:
        draw(document.new_page())
        document.save(tmp_path / "page.pdf")

    with pdf.PagedFile(tmp_path / "page.pdf") as file:
        by_mupdf = file.text(1)
        monkeypatch.setattr(text, "_have_area_inside_page", lambda boxes, whole: False)
        by_pymupdf = file.text(1)

    assert (by_mupdf.text, by_mupdf.size) == (by_pymupdf.text, by_pymupdf.size)
    for block, other in zip(by_mupdf.blocks, by_pymupdf.blocks, strict=True):
        assert (block.begin, block.end) == (other.begin, other.end)
        assert (block.x0, block.y0, block.x1, block.y1) == pytest.approx(
            (other.x0, other.y0, other.x1, other.y1), abs=3
        )
    assert "not to be seen" not in by_mupdf.text
    if draw is ligatures:
        assert by_mupdf.text.startswith("field, field, office — naïve")


def test_plain_pages_are_read_without_pymupdf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_text_by_pymupdf", None)
    monkeypatch.setattr(pymupdf.Page, "get_textpage", None)
    with pymupdf.open() as document:
        plain(document.new_page())
        document.save(tmp_path / "page.pdf")

    with pdf.PagedFile(tmp_path / "page.pdf") as file:
        assert file.text(1).text.startswith("first line\nsecond line\n")


def test_a_lone_surrogate_does_not_lose_other_characters(tmp_path: Path) -> None:
    """A font maps the letter f to a lone surrogate."""
    with pymupdf.open() as document:
        page = document.new_page()
        page.insert_text((50, 100), "Half a letter", fontname="helv")
        table = document.get_new_xref()
        document.update_object(table, "<<>>")
        codes = b"1 begincodespacerange <00> <FF> endcodespacerange 1 beginbfrange <00> <FF> <0000> endbfrange"
        letter = b"1 beginbfchar <66> <D800> endbfchar"
        document.update_stream(table, b"begincmap " + codes + b" " + letter + b" endcmap")
        document.xref_set_key(page.get_fonts()[0][0], "ToUnicode", f"{table} 0 R")
        document.save(tmp_path / "page.pdf")

    with pdf.PagedFile(tmp_path / "page.pdf") as file:
        assert file.text(1).text == "Hal\ufffd a letter\n"
