"""Recognise one page: deskew it, and turn it if a low confidence, in percent, shows that the result makes no sense."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import chain

from msgspec import Struct, field
from msgspec.structs import replace

from job_handlers.reading import layout, ocr_layout
from job_handlers.reading.layout import Box, Word
from job_handlers.reading.ocr import dot_leaders, isolated_digits
from job_handlers.reading.ocr.second_pass import SecondReader
from job_handlers.reading.ocr.tesseract import Engine
from job_handlers.reading.preprocess import (
    Gray,
    cut_into_bands,
    deskew,
    has_two_tones,
    height_of_letters,
    is_blank,
    is_grainy,
    is_unevenly_lit,
    skew_of,
    soften,
    turn_image,
)
from worker_service.base import language_id

_WEAK_CONFIDENCE = 65.0  # Text lying the wrong way reaches 10 to 50.
_DOUBTFUL_CONFIDENCE = 70.0  # Languages of other scripts are tried below it.
_FOREIGN_CONFIDENCE = 80.0  # Arabic and Han letters read as Latin reach 24 to 79.
_CHARACTERS_LEAST = 20  # With fewer, the confidence says nothing.
_UNEVEN_BELOW_DPI = 250.0  # One threshold loses lines of coarser scans.
_COARSE_DPI = 180.0  # Coarser scans are softened.
_FINE_DPI = 280.0  # Only finer scans may be halved.
_LARGE_LETTERS = 17  # Pixels. Larger letters are legible at half the size, which is read faster.
_VERTICAL_WORDS_SHARE = 0.5  # Of words that are higher than wide.
_SPARSE_GAIN = 1.02  # Separate pieces must be better by this factor, because their order is uncertain.
_SIDE_MAX = 32_000  # Tesseract stores coordinates in signed 16-bit numbers.
_BANDS_LEAST = 4  # Parts of a page that is not read as a whole.
_PAGE_INCHES_LEAST = 5.0  # A resolution that makes the page narrower is probably wrong.


class RecognisedPage(Struct, frozen=True):
    lines: list[list[Word]]
    turn: int = 0
    skew: float = 0.0
    is_blank: bool = False
    straight: Gray | None = None
    """The deskewed and turned page, to which the words' coordinates refer; None if the page is blank."""
    engines: list[str] = field(default_factory=list)
    reread_lines: list[int] = field(default_factory=list)
    languages: list[str] = field(default_factory=list)
    script: str | None = None
    """Script of a page that was read with little confidence."""
    is_partial: bool = False

    @property
    def confidence(self) -> float | None:
        return layout.confidence_of(self.lines)


class PageReader:
    def __init__(
        self,
        language_choices: Sequence[Sequence[str]],
        engine_for: Callable[[Sequence[str]], Engine],
        second_reader_for: Callable[[Sequence[str]], SecondReader | None],
    ) -> None:
        self._language_choices = language_choices
        self._engine = cache(lambda choice: engine_for(language_choices[choice]))
        self._second_reader_for = second_reader_for
        # Index of the last page's choice, which is the likeliest for the next page.
        self._choice = 0
        # A missing engine is reported before the first page.
        self._engine(self._choice)

    def read(self, gray: Gray, dpi: float) -> RecognisedPage:
        if max(gray.width, gray.height) > _SIDE_MAX:
            return self.read_in_parts(gray, dpi)
        try:
            return self._read_whole(gray, dpi)
        except RuntimeError:
            # Engines raise this for a page that their layout analysis cannot handle.
            return self.read_in_parts(gray, dpi)

    def read_in_parts(self, gray: Gray, dpi: float) -> RecognisedPage:
        """Read the page in bands. Leave out those on which the engine fails; raise RuntimeError if it fails on all."""
        lines: list[list[Word]] = []
        reread_lines: list[int] = []
        band_results: list[RecognisedPage] = []
        bands = cut_into_bands(gray, max(min(gray.height // _BANDS_LEAST, gray.width * 3 // 2, _SIDE_MAX), 1))
        for top, band in bands:
            try:
                result = self._read_whole(band, dpi)
            except RuntimeError as error:
                last_error = error
                continue
            band_results.append(result)
            if result.lines:
                if lines:
                    # An empty line begins a paragraph.
                    lines.append([])
                reread_lines += [len(lines) + at for at in result.reread_lines]
                lines += _lines_on_page(result, band, top)
        if not band_results:
            raise last_error
        is_partial = len(band_results) < len(bands)
        return RecognisedPage(
            lines,
            is_blank=not lines and not is_partial,
            straight=gray,
            engines=distinct(result.engines for result in band_results),
            reread_lines=reread_lines,
            languages=distinct(result.languages for result in band_results),
            script=next((result.script for result in band_results if result.script), None),
            is_partial=is_partial,
        )

    def _read_whole(self, gray: Gray, dpi: float) -> RecognisedPage:
        choice, page = self._read_in_best_language(gray, dpi)
        straight = page.straight
        if straight is None:
            # A blank page says nothing of the language of the next.
            return page
        self._choice = choice
        languages = self._language_choices[choice]
        engine, second_reader = self._engine(choice), self._second_reader_for(languages)
        page = replace(page, engines=[engine.name], languages=list(languages))
        if second_reader is not None:
            is_weak = _is_weak(page) or _is_nearly_empty(page)
            lines, changed = second_reader.improve(page.lines, straight, is_weak=is_weak)
            engines = [engine.name, second_reader.name] if changed else page.engines
            page = replace(page, lines=lines, reread_lines=changed, engines=engines)
        if (page.confidence or 0.0) < _FOREIGN_CONFIDENCE:
            page = replace(page, script=engine.script(straight, dpi))
        return page

    def _read_in_best_language(self, gray: Gray, dpi: float) -> tuple[int, RecognisedPage]:
        """Return the index of the best choice of languages, and the page as it is read with these."""
        choice = self._choice
        page = recognise(self._engine(choice), gray, dpi)
        if page.is_blank or len(self._language_choices) == 1:
            return choice, page
        # If there are several choices, each is a single language.
        codes = [languages[0] for languages in self._language_choices]
        if (page.confidence or 0.0) < _DOUBTFUL_CONFIDENCE:
            # Letters of an unknown script are read as others, which may look like small words of some language. So the
            # scripts are compared by their scores, before the language of the text is identified below.
            for code in language_id.one_of_each_script(codes, but=codes[choice]):
                other_choice = codes.index(code)
                other_page = recognise(self._engine(other_choice), gray, dpi)
                if _score(other_page) > _score(page):
                    choice, page = other_choice, other_page
        language = language_id.language_of(layout.text_of(page.lines), codes)
        if language is not None and language != codes[choice]:
            choice = codes.index(language)
            page = recognise(self._engine(choice), gray, dpi)
        return choice, page


def _lines_on_page(result: RecognisedPage, band: Gray, top: int) -> list[list[Word]]:
    # At 72 dpi a point is a pixel.
    lines = layout.to_page_points(result.lines, (band.width, band.height), 72.0, result.turn, result.skew)
    return [[layout.moved(word, 0, top) for word in line] for line in lines]


def distinct(lists: Iterable[Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(chain.from_iterable(lists)))


def recognise(engine: Engine, gray: Gray, dpi: float) -> RecognisedPage:
    if is_blank(gray):
        return RecognisedPage([], is_blank=True)
    is_uneven = (dpi < _UNEVEN_BELOW_DPI or is_unevenly_lit(gray)) and not has_two_tones(gray)
    is_coarse = dpi < _COARSE_DPI
    dpi = min(dpi, min(gray.width, gray.height) / _PAGE_INCHES_LEAST)

    @cache
    def softened() -> Gray:
        # Local thresholds make ink of grain, which is darker than its neighbourhood. Softening blurs grain, and also
        # the strokes of small letters, which are as thin, so other scans are not softened.
        return soften(gray) if is_coarse or is_grainy(gray) else gray

    def read(turn: int, *, is_uneven: bool) -> RecognisedPage:
        return _read_turned(engine, softened() if is_uneven else gray, dpi, turn, is_uneven=is_uneven)

    best = read(0, is_uneven=is_uneven)
    if not is_uneven and (_is_nearly_empty(best) or _is_weak(best)):
        # The page has ink, which the one threshold may have taken for paper.
        is_uneven = True
        best = max(best, read(0, is_uneven=True), key=_score)
    if not _is_weak(best):
        return best
    turn = engine.turn(gray, dpi)
    # If the direction is uncertain, upside down is the most likely.
    degrees_to_try = [180, 90, 270] if turn is None else [turn]
    were_vertical = _runs_vertically(best.lines)
    for degrees in filter(None, degrees_to_try):
        page = read(degrees, is_uneven=is_uneven)
        if _score(page) > _score(best) or (were_vertical and not _is_weak(page)):
            best = page
        if not _is_weak(best):
            break
    return best


def _read_turned(engine: Engine, gray: Gray, dpi: float, turn: int, *, is_uneven: bool) -> RecognisedPage:
    straight = turn_image(gray, turn)
    can_be_halved = dpi >= _FINE_DPI and not is_uneven and has_two_tones(straight)
    is_large = can_be_halved and height_of_letters(straight, dpi) >= _LARGE_LETTERS
    skew = skew_of(straight)
    if skew:
        straight = deskew(straight, skew)

    def read_line(box: Box) -> list[Word]:
        return engine.line(straight, box, dpi, is_uneven=is_uneven)

    words = engine.words(straight, dpi, is_uneven=is_uneven, is_large=is_large)
    lines = dot_leaders.insert_leaders(words, straight, read_line)
    if dot_leaders.misses_text_beside_leaders(lines, straight):
        # The engine took dot leaders for ruling lines and noise, and has lost the titles beside them. Read in separate
        # pieces, more of them survive.
        pieces = engine.words(straight, dpi, is_uneven=is_uneven, is_sparse=True)
        rows = dot_leaders.insert_leaders(dot_leaders.arrange_pieces(pieces), straight, read_line)
        is_better = dot_leaders.score_without_leaders(rows) > _SPARSE_GAIN * dot_leaders.score_without_leaders(lines)
        if is_better and dot_leaders.is_contents_page(rows):
            lines = rows
    lines = isolated_digits.insert_numbers(lines, straight, read_line)
    return RecognisedPage(ocr_layout.tidy_lines(lines, straight.width), turn, skew, straight=straight)


def _is_nearly_empty(page: RecognisedPage) -> bool:
    return sum(len(word.text) for line in page.lines for word in line) < _CHARACTERS_LEAST


def _is_weak(page: RecognisedPage) -> bool:
    """Return whether the page has text that makes no sense."""
    if _is_nearly_empty(page):
        return False
    return (page.confidence or 0.0) < _WEAK_CONFIDENCE or _runs_vertically(page.lines)


def _runs_vertically(lines: Sequence[Sequence[Word]]) -> bool:
    long_words = [word for line in lines for word in line if len(word.text) > 3]
    upright_count = sum(word.y1 - word.y0 > 1.5 * (word.x1 - word.x0) for word in long_words)
    return upright_count > len(long_words) * _VERTICAL_WORDS_SHARE


def _score(page: RecognisedPage) -> float:
    return dot_leaders.score_words([*chain.from_iterable(page.lines)])
