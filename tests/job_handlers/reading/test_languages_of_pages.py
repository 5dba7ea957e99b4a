"""The language of a page, if the user has given none."""

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


def page_of(text: str) -> Gray:
    return documents.gray_of(documents.picture(text, dpi=150))


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
def test_the_language_of_a_text_is_identified_by_its_small_words(text: str, code: str | None) -> None:
    assert language_id.language_of(text, sorted(language_id.KNOWN_LANGUAGES)) == code


def test_only_the_given_languages_are_identified() -> None:
    assert language_id.language_of(GERMAN, ["eng", "fra"]) is None
    assert language_id.language_of(ENGLISH, []) is None


def test_each_page_is_read_in_its_language_if_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ocr.neural, "missing", lambda: "no second opinion")
    settings = ocr.ocr_settings(None, "auto")
    assert (settings.languages[0], "deu" in settings.languages, settings.chooses_language) == ("eng", True, True)
    reader = ocr.reader_for(settings)

    pages = [reader.read(page_of(text), 150) for text in (ENGLISH, GERMAN, "2026", ENGLISH)]

    # A page without words is read in the language of the page before.
    assert [page.languages for page in pages] == [["eng"], ["deu"], ["deu"], ["eng"]]
    assert documents.plain(layout.text_of(pages[1].lines)) == documents.plain(GERMAN)
    assert ocr.identity_of(settings) != ocr.identity_of(ocr.ocr_settings(("eng",), "auto"))
    assert ocr.ocr_settings(("deu",), "auto").chooses_language is False


class EngineOfOneLanguage:
    """Reads any text in another script as "TO", and text in another language with less confidence."""

    name = "engine of one language"

    def __init__(self, language: str, page_language: str, text: str, calls: Counter[str]) -> None:
        self._language, self._page_language, self._text, self._calls = language, page_language, text, calls

    def words(
        self, gray: Gray, dpi: float, *, is_uneven: bool = False, is_large: bool = False, is_sparse: bool = False
    ) -> list[list[Word]]:
        self._calls[self._language] += 1
        if self._language == self._page_language:
            confidence = 95.0
        elif language_id.script_of(self._language) == language_id.script_of(self._page_language):
            confidence = 85.0
        else:
            return [[Word(0, 0, 9, 9, 68.0, "TO") for _ in self._text.split()]]
        return [[Word(0, 0, 9, 9, confidence, word) for word in self._text.split()]]

    def turn(self, gray: Gray, dpi: float) -> int | None:
        return 0

    def script(self, gray: Gray, dpi: float) -> str | None:
        return None


@pytest.mark.parametrize(
    ("language", "text", "calls"),
    [
        ("eng", ENGLISH, {"eng": 1}),
        ("deu", GERMAN, {"eng": 1, "deu": 1}),
        # In another script: one language of each script is tried, then the one that the words show.
        ("rus", RUSSIAN, {"eng": 1, "bul": 1, "ell": 1, "rus": 1}),
    ],
)
def test_a_page_is_read_again_only_if_its_language_is_another(language: str, text: str, calls: dict[str, int]) -> None:
    counted: Counter[str] = Counter()

    def engine_for(languages: Sequence[str]) -> Any:
        return EngineOfOneLanguage(languages[0], language, text, counted)

    reader = PageReader([["eng"], ["bul"], ["deu"], ["ell"], ["rus"]], engine_for, lambda _: None)

    page = reader.read(page_of(ENGLISH), 150)

    assert (page.languages, layout.text_of(page.lines)) == ([language], text)
    assert counted == calls
