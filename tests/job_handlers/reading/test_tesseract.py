"""Tesseract: its words, turned, large and unevenly lit pages, and missing data."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageChops

from benchmarks.accuracy import character_errors
from job_handlers.reading import layout
from job_handlers.reading.layout import Word
from job_handlers.reading.ocr import OcrSettings, tesseract
from job_handlers.reading.ocr.recognition import recognise
from job_handlers.reading.ocr.tesseract import engine_for, identity, missing
from job_handlers.reading.preprocess import Gray
from tests.full_length import short
from tests.job_handlers.reading.documents import gray_of, picture, plain, prose
from worker_service.handlers import MissingDependency, Permanent

TEXT = "The annual report of the board\n\nRevenue grew by 12 percent in 2024."
ENGLISH = OcrSettings(("eng",), "fast")


def black_and_white(size: float) -> Gray:
    return gray_of(picture(prose(3, words=60), size=size).point(lambda value: 255 if value >= 140 else 0))


def lines_of_table(reader: Any) -> Iterable[list[tuple[object, ...]]]:
    """Return the words of Tesseract's own table: level, page, block, paragraph, line, word, box, confidence, text."""
    cells = [row.split("\t") for row in reader.GetTSVText(0).splitlines()]
    rows = [cell for cell in cells if cell[0] == "5" and cell[11].strip()]
    for _, line in groupby(rows, lambda cell: cell[2:5]):
        boxes = ((*map(int, cell[6:10]), cell[11].strip()) for cell in line)
        yield [(left, top, left + width, top + height, text) for left, top, width, height, text in boxes]


@pytest.mark.parametrize(("text", "noise"), [(TEXT, 0.0), (prose(1, words=40), 60.0), ("", 0.0), ("x", 60.0)])
def test_words_are_those_of_the_engines_own_table(text: str, noise: float) -> None:
    engine: Any = engine_for(ENGLISH)
    tesseract._set_image(engine._reader, gray_of(picture(text, dpi=100, noise=noise)), 100)
    engine._reader.Recognize()

    lines = tesseract._recognised_words(engine._reader)

    places = [[(word.x0, word.y0, word.x1, word.y1, word.text) for word in line] for line in lines if line]
    assert places == list(lines_of_table(engine._reader))


@pytest.mark.parametrize("turn", [180, 270])
def test_a_turned_page_is_read(turn: int) -> None:
    page = recognise(engine_for(ENGLISH), gray_of(picture(TEXT, dpi=150, turn=turn)), 150)

    assert plain(layout.text_of(page.lines)) == plain(TEXT)
    assert page.turn == 360 - turn


def test_missing_data_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert missing() is None
    assert identity(ENGLISH) != identity(OcrSettings(("deu",), "fast"))
    with pytest.raises(MissingDependency, match="tesseract-ocr-chi-tra-vert"):
        engine_for(OcrSettings(("eng", "chi_tra_vert"), "fast"))
    with pytest.raises(Permanent, match=r"'tlh', only for .*: data of your own goes into /"):
        engine_for(OcrSettings(("eng", "tlh"), "fast"))
    with pytest.raises(MissingDependency, match="quality best"):
        engine_for(OcrSettings(("eng",), "best"))

    with monkeypatch.context() as patch:
        patch.setattr(tesseract, "DATA", {"fast": (str(tmp_path),), "best": ()})
        without_data = missing()
        assert without_data is not None
        assert without_data.code == "CAPABILITY_MISSING"
        assert "install tesseract-ocr-eng" in without_data.remedy
        assert identity(ENGLISH) == "none"
        assert tesseract.offers() is None
        for name in ("osd", "eng", "chi_sim"):
            (tmp_path / f"{name}.traineddata").touch()
        assert (tesseract.offers() or "").startswith("trained data for chi_sim, eng (fast), for tesseract ")

    monkeypatch.setattr(tesseract, "tesserocr", None)

    assert "pip install tesserocr" in str(missing())
    assert identity(ENGLISH) == "none"


def test_large_letters_are_read_at_half_the_size_with_the_same_positions() -> None:
    engine, page = engine_for(ENGLISH), black_and_white(11)
    at_full_size = engine.words(page, 300)

    at_half_size = engine.words(page, 300, is_large=True)

    assert [layout.text_of([line]) for line in at_half_size] == [layout.text_of([line]) for line in at_full_size]
    for word, expected in zip(chain(*at_half_size), chain(*at_full_size), strict=True):
        assert layout.with_margin(word, 0) == pytest.approx(layout.with_margin(expected, 0), abs=6)
    assert engine.words(page, 300) == at_full_size


@pytest.mark.parametrize(("size", "is_large"), [(7, False), (11, True)])
def test_only_large_letters_are_read_at_half_the_size(
    size: float, is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_for(ENGLISH)
    is_large_of_calls: list[bool] = []

    def words(*_: object, is_uneven: bool, is_large: bool) -> list[list[Word]]:
        is_large_of_calls.append(is_large)
        return []

    monkeypatch.setattr(engine, "words", words)

    recognise(engine, black_and_white(size), 300)

    assert is_large_of_calls[0] is is_large


@pytest.mark.parametrize("dpi", short([200], full=[200, 300]))
def test_a_few_lines_on_unevenly_lit_paper_are_not_lost(dpi: int) -> None:
    """The paper is darker at its foot, and grainy: one threshold would make all of the page paper."""
    text = "\n\n".join(f"The board reviewed climate risk number {number} with care." for number in range(6))
    page = picture(text, dpi=dpi)
    light = Image.linear_gradient("L").resize(page.size).point([215 + level * 40 // 255 for level in range(256)])
    scan = Image.blend(ImageChops.multiply(page, light), Image.effect_noise(page.size, 35), 0.3)

    recognised = recognise(engine_for(ENGLISH), gray_of(scan), dpi)

    words = " ".join(word.text for line in recognised.lines for word in line)
    assert character_errors([words], [plain(text)]) < 2
