"""In which language a page is written, where nobody has said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from job_handlers.reading import layout, ocr
from job_handlers.reading.layout import Word
from job_handlers.reading.ocr.recognition import PageReader
from job_handlers.reading.preprocess import Gray
from tests.job_handlers.reading import documents
from worker_service.base import language_id

ENGLISH = "The board of the company is of the view that it was right to pay the dividend, and that it will be so."
GERMAN = "Der Vorstand hat die Prüfung der Bücher für das Jahr nicht auf den März gelegt, und die Größe ist gewachsen."
FRENCH = "Le conseil est d'avis que les comptes de la société ne sont pas à jour, et que la banque en est prévenue."
RUSSIAN = "Это не так, и он сказал, что они были в городе, но все это было на самом деле для нее и не только."


def gray_of(text: str) -> Gray:
    page = documents.picture(text, dpi=150)
    return Gray(page.width, page.height, page.tobytes())


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (ENGLISH, "eng"),
        (GERMAN, "deu"),
        (FRENCH, "fra"),
        (RUSSIAN, "rus"),
        # As it is recognised for English.
        (GERMAN.translate(str.maketrans("üößä", "iofa")), "deu"),
        ("Annual Report 2026", None),
        ("", None),
    ],
)
def test_a_text_tells_its_language_by_its_small_words(text: str, code: str | None) -> None:
    assert language_id.language_of(text, sorted(language_id.KNOWN_LANGUAGES)) == code


def test_a_language_that_is_not_among_those_asked_for_is_not_told() -> None:
    assert language_id.language_of(GERMAN, ["eng", "fra"]) is None
    assert language_id.language_of(ENGLISH, []) is None


def test_each_page_is_read_in_its_language_where_nobody_has_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ocr.neural, "missing", lambda: "no second opinion")
    wanted = ocr.ocr_settings(None, "auto")
    assert (wanted.languages[0], "deu" in wanted.languages, wanted.chooses_language) == ("eng", True, True)
    reader = ocr.reader_for(wanted)

    read = [reader.read(gray_of(text), 150) for text in (ENGLISH, GERMAN, "2026", ENGLISH)]

    # A page that does not tell is as the one before.
    assert [one.languages for one in read] == [["eng"], ["deu"], ["deu"], ["eng"]]
    assert documents.plain(layout.text_of(read[1].lines)) == documents.plain(GERMAN)
    assert ocr.identity_of(wanted) != ocr.identity_of(ocr.ocr_settings(("eng",), "auto"))
    assert ocr.ocr_settings(("deu",), "auto").chooses_language is False


class Speaker:
    """An engine that can read what is written in its language, and nothing else."""

    name = "speaker"

    def __init__(self, language: str, page: Sequence[str], calls: Counter[str]) -> None:
        self._language, self._page, self._calls = language, page, calls

    def words(
        self, gray: Gray, dpi: float, *, is_uneven: bool = False, is_large: bool = False, is_sparse: bool = False
    ) -> list[list[Word]]:
        self._calls[self._language] += 1
        language, text = self._page
        is_mine = language_id.script_of(language) == language_id.script_of(self._language)
        confidence = 95.0 if language == self._language else 85.0 if is_mine else 68.0
        return [[Word(0, 0, 9, 9, confidence, word if is_mine else "TO") for word in text.split()]]

    def line(self, gray: Gray, dpi: float, *, is_uneven: bool = False) -> list[Word]:
        return [word for line in self.words(gray, dpi) for word in line]

    def turn(self, gray: Gray, dpi: float) -> int | None:
        return 0

    def script(self, gray: Gray, dpi: float) -> str | None:
        return None


@pytest.mark.parametrize(
    ("language", "text", "calls"),
    [
        ("eng", ENGLISH, {"eng": 1}),
        ("deu", GERMAN, {"eng": 1, "deu": 1}),
        # In other letters: of each script one is tried, and then the one that the words tell.
        ("rus", RUSSIAN, {"eng": 1, "bul": 1, "ell": 1, "rus": 1}),
    ],
)
def test_a_page_costs_a_second_reading_only_where_the_first_was_in_another_language(
    language: str, text: str, calls: dict[str, int]
) -> None:
    counted: Counter[str] = Counter()
    among = ["eng", "bul", "deu", "ell", "rus"]

    def speaker(languages: Sequence[str]) -> Any:
        return Speaker(languages[0], (language, text), counted)

    reader = PageReader([[one] for one in among], speaker, lambda _: None)

    found = reader.read(gray_of(ENGLISH), 150)

    assert (found.languages, layout.text_of(found.lines)) == ([language], text)
    assert counted == calls
