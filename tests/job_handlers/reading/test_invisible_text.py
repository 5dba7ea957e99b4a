"""Invisible text is where the words are shown, on any kind of page, and does not change what is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pymupdf as partly_typed
import pytest

from job_handlers.reading import pdf
from job_handlers.reading.invisible_text import Fonts, stream_of, widths
from job_handlers.reading.layout import Layout, Word
from tests.job_handlers.reading.documents import jpeg, picture, prose, scan

pymupdf: Any = partly_typed

WORDS = ["Annual", "Ärger", "naïve", "Годовой", "年度報告", "𝔘nusual", "(brackets)\\"]


def plain(document: Any) -> None:
    pass


def turned(document: Any) -> None:
    document[0].set_rotation(90)


def turned_and_cropped(document: Any) -> None:
    document[0].set_cropbox(pymupdf.Rect(30, 40, 500, 700))
    document[0].set_rotation(270)


def with_inherited_resources(document: Any) -> None:
    page = document[0]
    parent = int(document.xref_get_key(page.xref, "Parent")[1].split()[0])
    document.xref_set_key(parent, "Resources", document.xref_get_key(page.xref, "Resources")[1])
    document.xref_set_key(page.xref, "Resources", "null")


def with_fonts_of_its_own(document: Any) -> None:
    page = document[0]
    page.insert_text((72, 830), "Stamp", fontname="helv")
    kind, value = document.xref_get_key(page.xref, "Resources")
    holder = int(value.split()[0]) if kind == "xref" else page.xref
    path = "Font" if kind == "xref" else "Resources/Font"
    fonts = document.get_new_xref()
    document.update_object(fonts, document.xref_get_key(holder, path)[1])
    document.xref_set_key(holder, path, f"{fonts} 0 R")


def with_open_content(document: Any) -> None:
    """End inside a graphics state that is not restored."""
    document.update_stream(document[0].get_contents()[0], document[0].read_contents() + b" q 0.5 0 0 0.5 9 9 cm ")


def make_searchable(original: Path, layout: Layout, password: str = "") -> Path:
    fonts = Fonts()
    fonts.add_fonts_of(layout)
    target = original.with_suffix(".searchable.pdf")

    def draw(number: int, matrix: pdf.Matrix) -> bytes:
        return stream_of(layout, matrix, fonts) if number == 1 else b""

    pdf.add_streams(original, target, password, fonts.sources(), widths(), draw)
    return target


def layout_of(size: tuple[float, float]) -> Layout:
    lines = [[Word(50, 60 + 30 * at, 50 + 9 * len(text), 72 + 30 * at, 90, text)] for at, text in enumerate(WORDS)]
    return Layout(size, lines)


@pytest.mark.parametrize(
    "change",
    [plain, turned, turned_and_cropped, with_inherited_resources, with_fonts_of_its_own, with_open_content],
)
def test_invisible_words_are_at_their_positions_and_nothing_looks_different(
    change: Callable[[Any], None], tmp_path: Path
) -> None:
    original = scan(tmp_path / "first.pdf", [picture(prose(1), dpi=60)] * 2, dpi=60)
    with pymupdf.open(original) as document:
        change(document)
        document.save(tmp_path / "a.pdf")
    with pdf.PagedFile(tmp_path / "a.pdf") as book:
        layout = layout_of(book.size(1))

    target = make_searchable(tmp_path / "a.pdf", layout)

    assert target.read_bytes().startswith((tmp_path / "a.pdf").read_bytes()), "not appended"
    assert target.stat().st_size < (tmp_path / "a.pdf").stat().st_size + 9000
    with pymupdf.open(tmp_path / "a.pdf") as before, pymupdf.open(target) as after:
        assert not after.is_repaired
        for number in range(2):
            assert before[number].get_pixmap().samples == after[number].get_pixmap().samples
        page = after[0]
        box_of_word = {word[4]: pymupdf.Rect(word[:4]) * page.rotation_matrix for word in page.get_text("words")}
        for line in layout.lines:
            word = line[0]
            place = box_of_word[word.text]
            assert (place.x0, place.x1) == pytest.approx((word.x0, word.x1), abs=1.0)
            assert (place.y0 + place.y1) / 2 == pytest.approx((word.y0 + word.y1) / 2, abs=3.0)
        assert ("Stamp" in box_of_word) == (change is with_fonts_of_its_own)


def test_an_encrypted_pdf_stays_encrypted(tmp_path: Path) -> None:
    original = tmp_path / "locked.pdf"
    with pymupdf.open() as document:
        page = document.new_page()
        page.insert_image(page.rect, stream=jpeg(picture("x", dpi=40)))
        document.save(original, encryption=pymupdf.PDF_ENCRYPT_AES_256, user_pw="secret", owner_pw="other")

    target = make_searchable(original, layout_of((595, 842)), "secret")

    with pymupdf.open(target) as document:
        assert document.needs_pass
        assert document.authenticate("secret")
        assert "Annual" in document[0].get_text()


def test_a_repaired_pdf_is_written_completely(tmp_path: Path) -> None:
    whole = scan(tmp_path / "whole.pdf", [picture("x", dpi=40)], dpi=40).read_bytes()
    broken = tmp_path / "broken.pdf"
    broken.write_bytes(whole[: whole.rindex(b"xref")])

    target = make_searchable(broken, layout_of((595, 842)))

    with pymupdf.open(target) as document:
        assert not document.is_repaired
        assert "Annual" in document[0].get_text()
