"""Recognise one page: deskew it, and turn it if the result makes no sense."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import chain

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from job_handlers.reading import layout, ocr_layout
from job_handlers.reading.layout import Word
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

_WEAK = 65.0
"""Text lying the wrong way reaches 10 to 50."""
_DOUBTFUL = 70.0
_FOREIGN = 80.0
"""Arabic and Han letters read as Latin reach 24 to 79."""
_CHARACTERS_LEAST = 20
_UNEVEN_BELOW_DPI = 250.0
"""One threshold loses lines of coarser scans."""
_COARSE_DPI, _FINE_DPI = 180.0, 280.0
_LARGE = 17
"""Small letters, in pixels. Half of them will do."""
_UPRIGHT_SHARE = 0.5
_SPARSE = 1.02
"""Must be better by this factor, because the order of the pieces is uncertain."""
_SIDE_MAX = 32_000
"""Tesseract stores coordinates in signed 16-bit numbers."""
_PARTS = 4
_PAGE_INCHES_LEAST = 5.0
"""A resolution that makes the page narrower is probably wrong."""


class RecognisedPage(Struct, frozen=True):
    lines: list[list[Word]]
    turn: int = 0
    skew: float = 0.0
    is_blank: bool = False
    seen: Gray | None = None
    """Deskewed and turned; the words' coordinates refer to it."""
    readers: list[str] = field(default_factory=list)
    second: list[int] = field(default_factory=list)
    languages: list[str] = field(default_factory=list)
    script: str | None = None
    """Script of a page that was read with little confidence."""
    is_partial: bool = False

    @property
    def confidence(self) -> float | None:
        return layout.confidence_of(self.lines)


class Reader:
    def __init__(
        self,
        languages: Sequence[Sequence[str]],
        engine: Callable[[Sequence[str]], Engine],
        second: Callable[[Sequence[str]], SecondReader | None],
    ) -> None:
        """`languages` lists alternatives."""
        self._languages = languages
        self._engine = cache(lambda at: engine(languages[at]))
        self._second = second
        self._likeliest = 0
        self._engine(0)

    def read(self, gray: Gray, dpi: float) -> RecognisedPage:
        if max(gray.width, gray.height) > _SIDE_MAX:
            return self.read_in_parts(gray, dpi)
        try:
            return self._read_whole(gray, dpi)
        except RuntimeError:
            # Engines raise this for a page that their layout analysis cannot handle.
            return self.read_in_parts(gray, dpi)

    def read_in_parts(self, gray: Gray, dpi: float) -> RecognisedPage:
        """Leave out the bands on which the engine fails; raise RuntimeError if it fails on all."""
        lines: list[list[Word]] = []
        second: list[int] = []
        read: list[RecognisedPage] = []
        parts = cut_into_bands(gray, max(min(gray.height // _PARTS, gray.width * 3 // 2, _SIDE_MAX), 1))
        for top, band in parts:
            try:
                found = self._read_whole(band, dpi)
            except RuntimeError as error:
                last = error
                continue
            read.append(found)
            if found.lines:
                lines += [[]] if lines else []
                second += [len(lines) + at for at in found.second]
                lines += _upright(found, band, top)
        if not read:
            raise last
        return RecognisedPage(
            lines,
            is_blank=not lines and len(read) == len(parts),
            seen=gray,
            readers=distinct(one.readers for one in read),
            second=second,
            languages=distinct(one.languages for one in read),
            script=next((one.script for one in read if one.script), None),
            is_partial=len(read) < len(parts),
        )

    def _read_whole(self, gray: Gray, dpi: float) -> RecognisedPage:
        at, found = self._first_reading(gray, dpi)
        if found.seen is None:
            return found
        self._likeliest = at
        engine, second = self._engine(at), self._second(self._languages[at])
        readers, changed = [engine.name], list[int]()
        lines = found.lines
        if second is not None:
            lines, changed = second.improve(lines, found.seen, is_weak=_is_weak(found) or _is_nearly_empty(found))
            readers += [second.name] if changed else []
        languages = list(self._languages[at])
        found = replace(found, lines=lines, second=changed, readers=readers, languages=languages)
        if (found.confidence or 0.0) < _FOREIGN and found.seen is not None:
            found = replace(found, script=engine.script(found.seen, dpi))
        return found

    def _first_reading(self, gray: Gray, dpi: float) -> tuple[int, RecognisedPage]:
        at = self._likeliest
        found = recognise(self._engine(at), gray, dpi)
        if found.is_blank or len(self._languages) == 1:
            return at, found
        known = [some[0] for some in self._languages]
        if (found.confidence or 0.0) < _DOUBTFUL:
            # Letters the engine does not know are read as others, and small words may appear by chance.
            for other in language_id.one_of_each_script(known, but=known[at]):
                again = recognise(self._engine(known.index(other)), gray, dpi)
                at, found = max((at, found), (known.index(other), again), key=lambda one: _score(one[1]))
        told = language_id.language_of(layout.text_of(found.lines), known)
        if told is not None and told != known[at]:
            at = known.index(told)
            found = recognise(self._engine(at), gray, dpi)
        return at, found


def _upright(found: RecognisedPage, band: Gray, top: int) -> list[list[Word]]:
    # At 72 dpi a point is a pixel.
    placed = layout.to_page_points(found.lines, (band.width, band.height), 72.0, found.turn, found.skew)
    return [[msgspec.structs.replace(one, y0=one.y0 + top, y1=one.y1 + top) for one in line] for line in placed]


def distinct(some: Iterable[Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(chain.from_iterable(some)))


def recognise(engine: Engine, gray: Gray, dpi: float) -> RecognisedPage:
    if is_blank(gray):
        return RecognisedPage([], is_blank=True)
    is_uneven = (dpi < _UNEVEN_BELOW_DPI or is_unevenly_lit(gray)) and not has_two_tones(gray)
    is_coarse = dpi < _COARSE_DPI
    dpi = min(dpi, min(gray.width, gray.height) / _PAGE_INCHES_LEAST)

    @cache
    def prepared(is_uneven: bool) -> Gray:
        # Grain is darker than its neighbourhood and so becomes ink; strokes of small letters are as thin as grain.
        return soften(gray) if is_uneven and (is_coarse or is_grainy(gray)) else gray

    def read(turn: int, is_uneven: bool) -> RecognisedPage:
        return _read_turned(engine, prepared(is_uneven), dpi, turn, is_uneven)

    first = read(0, is_uneven)
    if not is_uneven and (_is_nearly_empty(first) or _is_weak(first)):
        # There is ink: the threshold may have taken it for paper.
        is_uneven = True
        first = max(first, read(0, is_uneven), key=_score)
    if not _is_weak(first):
        return first
    turn = engine.turn(gray, dpi)
    # If the direction is uncertain, upside down is the most likely.
    turns = [180, 90, 270] if turn is None else [turn]
    best = first
    for turn in turns:
        if not turn:
            continue
        again = read(turn, is_uneven)
        if _score(again) > _score(best) or (_runs_vertically(first.lines) and not _is_weak(again)):
            best = again
        if not _is_weak(best):
            break
    return best


def _read_turned(engine: Engine, gray: Gray, dpi: float, turn: int, is_uneven: bool) -> RecognisedPage:
    straight = turn_image(gray, turn)
    is_large = (
        dpi >= _FINE_DPI and not is_uneven and has_two_tones(straight) and height_of_letters(straight, dpi) >= _LARGE
    )
    skew = skew_of(straight)
    if skew:
        straight = deskew(straight, skew)
    words = partial(engine.words, straight, dpi, is_uneven=is_uneven)
    line = partial(engine.line, dpi=dpi, is_uneven=is_uneven)
    tell_apart = partial(dot_leaders.separate_leaders, gray=straight, read=line)
    lines = tell_apart(words(is_large=is_large))
    if dot_leaders.misses_text_beside(lines, straight):
        # Dot leaders are taken for lines and noise, and the titles beside them are lost with them.
        rows = tell_apart(dot_leaders.arrange_rows(words(is_sparse=True)))
        least = _SPARSE * dot_leaders.score_beside(lines)
        if dot_leaders.is_contents_page(rows) and dot_leaders.score_beside(rows) > least:
            lines = rows
    lines = isolated_digits.insert_figures(lines, straight, line)
    return RecognisedPage(ocr_layout.tidy_lines(lines, straight.width), turn, skew, seen=straight)


def _is_nearly_empty(read: RecognisedPage) -> bool:
    return sum(len(word.text) for line in read.lines for word in line) < _CHARACTERS_LEAST


def _is_weak(read: RecognisedPage) -> bool:
    if _is_nearly_empty(read):
        return False
    return (read.confidence or 0.0) < _WEAK or _runs_vertically(read.lines)


def _runs_vertically(lines: Sequence[Sequence[Word]]) -> bool:
    long = [word for line in lines for word in line if len(word.text) > 3]
    upright = sum(word.y1 - word.y0 > 1.5 * (word.x1 - word.x0) for word in long)
    return bool(long) and upright > len(long) * _UPRIGHT_SHARE


def _score(read: RecognisedPage) -> float:
    return sum(len(word.text) * max(word.confidence - 30, 0) for line in read.lines for word in line)
