"""Two ways to an engine; each reads the same words, and what is lacking is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from job_handlers.reading import layout
from job_handlers.reading.layout import Word
from job_handlers.reading.ocr import tesseract
from job_handlers.reading.ocr.engine import WayToRead
from job_handlers.reading.ocr.recognition import recognise
from job_handlers.reading.ocr.tesseract import engine_for, identity, missing
from job_handlers.reading.preprocess import Gray
from tests.job_handlers.reading.documents import character_errors, picture, plain, prose
from worker_service.handlers import MissingDependency, Permanent

TEXT = "The annual report of the board\n\nRevenue grew by 12 percent in 2024."
ENGLISH = WayToRead(("eng",), "fast")

Lack = Callable[[pytest.MonkeyPatch], None]


def black_and_white(size: float) -> Gray:
    image = picture(prose(3, words=150), size=size).point(lambda value: 255 if value >= 140 else 0)
    return Gray(image.width, image.height, image.tobytes())


def page(turn: int = 0) -> Gray:
    image = picture(TEXT, dpi=150, turn=turn)
    return Gray(image.width, image.height, image.tobytes())


def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tesseract._engine_name.cache_clear()


def library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tesseract, "tesserocr", None)
    tesseract._engine_name.cache_clear()


@pytest.fixture(autouse=True)
def _names_are_found_again() -> Iterator[None]:
    yield
    tesseract._engine_name.cache_clear()


@pytest.mark.parametrize("lacking", [nothing, library])
def test_each_engine_reads_the_same_words_at_the_same_places(lacking: Lack, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = engine_for(ENGLISH).words(page(), 150)
    lacking(monkeypatch)

    lines = engine_for(ENGLISH).words(page(), 150)

    assert character_errors(layout.text_of(lines), TEXT) < 0.02
    words = {word.text: word for line in lines for word in line}
    for expected in (word for line in reference for word in line):
        found = words[expected.text]
        assert (found.x0, found.x1) == pytest.approx((expected.x0, expected.x1), abs=8)
        assert (found.y0 + found.y1) / 2 == pytest.approx((expected.y0 + expected.y1) / 2, abs=12)


@pytest.mark.parametrize("text", [TEXT, prose(1, words=100), "", "x"])
@pytest.mark.parametrize("noise", [0.0, 60.0])
def test_words_are_those_of_the_engines_own_table(text: str, noise: float) -> None:
    engine = engine_for(ENGLISH)
    assert isinstance(engine, tesseract._InProcess)
    image = picture(text, dpi=100, noise=noise)
    tesseract._set_image(engine._reader, Gray(image.width, image.height, image.tobytes()), 100)
    engine._reader.Recognize()

    found = tesseract._recognised_words(engine._reader)

    table = tesseract._parse_table(engine._reader.GetTSVText(0).splitlines())
    assert [[places(word) for word in line] for line in found] == [[places(word) for word in line] for line in table]
    sure = [word.confidence for line in found for word in line]
    assert sure == pytest.approx([word.confidence for line in table for word in line], abs=1e-5)


def places(word: Word) -> tuple[object, ...]:
    return word.x0, word.y0, word.x1, word.y1, word.text


def test_engines_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    names = set()
    for lacking in (nothing, library):
        with monkeypatch.context() as patch:
            lacking(patch)
            names.add(identity(ENGLISH))

    assert len(names) == 2
    assert identity(ENGLISH) != identity(WayToRead(("deu",), "fast"))


# How a turn is undone is the same whoever tells it: each engine tells one to either side.
@pytest.mark.parametrize(
    ("lacking", "turn"), [(nothing, 90), (nothing, 180), (nothing, 270), (library, 90), (library, 270)]
)
def test_a_turned_page_is_read_whoever_reads_it(turn: int, lacking: Lack, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking(monkeypatch)

    read = recognise(engine_for(ENGLISH), page(turn), 150)

    assert plain(layout.text_of(read.lines)) == plain(TEXT)
    assert read.turn == 360 - turn


def test_what_is_lacking_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert missing() is None
    with pytest.raises(MissingDependency, match="tesseract-ocr-chi-tra-vert"):
        engine_for(WayToRead(("eng", "chi_tra_vert"), "fast"))
    with pytest.raises(Permanent, match=r"'tlh', only for .*: data of your own goes into /"):
        engine_for(WayToRead(("eng", "tlh"), "fast"))
    with pytest.raises(MissingDependency, match="quality best"):
        engine_for(WayToRead(("eng",), "best"))

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
        told = tesseract.offers() or ""
        assert told.startswith("trained data for chi_sim, eng (fast), for tesseract ")

    library(monkeypatch)
    monkeypatch.setenv("PATH", "/nowhere")

    assert missing() == ("CAPABILITY_MISSING", "there is no OCR engine", "apt-get install tesseract-ocr")
    assert identity(ENGLISH) == "none"


def test_large_letters_are_read_from_half_as_many_pixels_with_their_words_where_they_stand() -> None:
    engine, shown = engine_for(ENGLISH), black_and_white(11)
    whole = engine.words(shown, 300)

    lines = engine.words(shown, 300, is_large=True)

    assert [[word.text for word in line] for line in lines] == [[word.text for word in line] for line in whole]
    for line, expected in zip(lines, whole, strict=True):
        for one, other in zip(line, expected, strict=True):
            assert (one.x0, one.y0, one.x1, one.y1) == pytest.approx((other.x0, other.y0, other.x1, other.y1), abs=6)
    assert engine.words(shown, 300) == whole


@pytest.mark.parametrize(("size", "is_large"), [(7, False), (11, True)])
def test_letters_are_large_where_half_the_pixels_are_enough(
    size: float, is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_for(ENGLISH)
    asked: list[bool] = []

    def words(*_: object, is_uneven: bool, is_large: bool) -> list[list[Word]]:
        asked.append(is_large)
        return []

    monkeypatch.setattr(engine, "words", words)

    recognise(engine, black_and_white(size), 300)

    assert asked[0] is is_large
