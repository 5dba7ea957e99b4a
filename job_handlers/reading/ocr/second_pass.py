"""Reread uncertain lines with a second engine, and merge both readings.

The first engine is Tesseract. The second, `neural`, is worse at spaces, and guesses a likely text where it sees little.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, pairwise
from math import inf
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from job_handlers.reading import layout
from job_handlers.reading.layout import Box, Word
from job_handlers.reading.ocr import neural
from job_handlers.reading.ocr.dot_leaders import is_leader
from job_handlers.reading.preprocess import Gray, unread_ink

# Confidences are percentages. Those of the rules were measured on 37,000 words that both engines read, 900 of them
# differently.
_REREAD_BELOW = ((95.0, 85.0), (85.0, 92.0), (0.0, 96.0))
"""Least confidence of a page, and the confidence below which its words are reread, about 1 % on a clean page."""
_ABOVE_ANY_CONFIDENCE = 101.0
_UNSURE_SHARE_TO_REREAD_LINE = 0.6  # Of the words of the line.

_RELIABLE = 85.0  # Mean of a line that the second engine read well.
_SEEN_BY_FIRST_ONLY = 80.0  # In such a line, less certain words that only the first engine sees are dirt.
_SEEN_BY_SECOND_ONLY = 90.0  # Less certain words are guesses.
_SECOND_CERTAIN = 95.0  # Outweighs any confidence of the first engine.
_SECOND_LIKELY = 80.0  # Outweighs a first engine that is not more confident.
_GUESSED_SPACES, _GUESSED_NUMBER = 80.0, 50.0  # A less confident first engine has guessed.

_MISSED_CHARACTERS_LEAST = 2  # A missed line with fewer is dirt.
_UNREAD_INK_SHARE = 0.003  # Of the page's ink.
# Lengths in line heights.
_MARGIN_BESIDE = 0.3
_UNREAD_WIDTH_LEAST = 1.2
_GAP_IN_LINE_MOST = 6.0  # A wider gap separates columns.
_TOUCHING_GAP = 0.1
_OVERLAP_IN_ROW = 0.6  # Share of the height of the lower of two boxes.
_OVERLAP_OF_WORDS = 0.4  # Share of the width of the narrower of two words.

_PLAIN_CHARACTERS = str.maketrans("‘’“”″–—−", '\'\'"""---')
_DIGIT = re.compile(r"\d")


class Reading(NamedTuple):
    text: str
    """Without spaces, and with plain quotation marks and dashes."""
    confidence: float


class _Place(NamedTuple):
    """The words of both engines at one place of a line. One list may be empty."""

    first: list[Word]
    second: list[Word]


class _ImprovedLine(Struct):
    words: list[Word]
    is_changed: bool


class SecondReader:
    def __init__(self, *, is_thorough: bool) -> None:
        """`is_thorough` rereads every line, and searches every page for missed ones."""
        self.name = neural.NAME
        self._is_thorough = is_thorough

    def improve(self, lines: Sequence[list[Word]], gray: Gray, *, is_weak: bool) -> tuple[list[list[Word]], list[int]]:
        """Return the lines, and the indexes of the changed ones. `is_weak`: the first engine read badly, or little."""
        page_confidence = layout.confidence_of(lines) or 0.0
        reread_limit = _ABOVE_ANY_CONFIDENCE if self._is_thorough else _reread_limit(page_confidence)
        words_of_page = [*chain.from_iterable(lines)]
        improved: list[_ImprovedLine] = []
        for line in lines:
            words = _reread_unsure_words(line, words_of_page, gray, reread_limit)
            improved.append(_ImprovedLine(words, is_changed=layout.text_of([line]) != layout.text_of([words])))
        if self._is_thorough or is_weak or _has_unread_ink(gray, improved):
            for box in _unread_boxes(improved, neural.find_lines(gray)):
                missed_words = neural.read_line(gray, box)
                if _is_certainly_text(missed_words):
                    _insert_words(improved, missed_words)
        return [line.words for line in improved], [at for at, line in enumerate(improved) if line.is_changed]


# --- which words are reread -------------------------------------------------------------------------------


def _reread_unsure_words(
    line: list[Word], words_of_page: Sequence[Word], gray: Gray, reread_limit: float
) -> list[Word]:
    merged: list[Word] = []
    merged_to = 0
    for span in _split_to_readable_width(line, _unsure_spans(line, reread_limit)):
        box = _box_of_span(line, span)
        second_reading = neural.read_line(gray, box, _free_space(box, words_of_page))
        merged += [*line[merged_to : span.start], *merge_readings(line[span.start : span.stop], second_reading)]
        merged_to = span.stop
    return [*merged, *line[merged_to:]]


def _reread_limit(page_confidence: float) -> float:
    return next(limit for confidence_least, limit in _REREAD_BELOW if page_confidence >= confidence_least)


def _unsure_spans(line: Sequence[Word], reread_limit: float) -> list[range]:
    # A span is a range of indexes of words. None crosses a dot leader.
    spans: list[range] = []
    begin = 0
    for end in [*(at for at, word in enumerate(line) if is_leader(word)), len(line)]:
        spans += _unsure_spans_between(line, begin, end, reread_limit)
        begin = end + 1
    return spans


def _unsure_spans_between(line: Sequence[Word], begin: int, end: int, reread_limit: float) -> list[range]:
    """Return spans of unsure words and their neighbours; touching ones are joined."""
    unsure = [at for at in range(begin, end) if line[at].confidence < reread_limit]
    if len(unsure) > _UNSURE_SHARE_TO_REREAD_LINE * (end - begin):
        return [range(begin, end)]
    spans: list[range] = []
    for at in unsure:
        span = range(max(at - 1, begin), min(at + 2, end))
        if spans and span.start <= spans[-1].stop:
            span = range(spans.pop().start, span.stop)
        spans.append(span)
    return spans


def _split_to_readable_width(line: Sequence[Word], spans: Sequence[range]) -> Iterator[range]:
    for span in spans:
        begin = span.start
        while begin < span.stop:
            end = begin + 1
            while end < span.stop and _is_narrow_enough(_box_of_span(line, range(begin, end + 1))):
                end += 1
            yield range(begin, end)
            begin = end


def _is_narrow_enough(box: Box) -> bool:
    x0, y0, x1, y1 = box
    # The line reader adds margins on both sides, together less than one line height.
    return x1 - x0 <= (neural.WIDTH_MOST - 1) * (y1 - y0)


def _box_of_span(line: Sequence[Word], span: range) -> Box:
    _, y0, _, y1 = layout.bounds_of(line)
    x0, _, x1, _ = layout.bounds_of(line[span.start : span.stop])
    return x0, y0, x1, y1


def _free_space(box: Box, words: Sequence[Word]) -> tuple[float, float]:
    """Return the x at which the word before the box ends, and that at which the word after it begins."""
    x0, y0, x1, y1 = box
    middle = (x0 + x1) / 2
    row = [word for word in words if _is_in_row(word.y0, word.y1, y0, y1)]
    previous_ends = [word.x1 for word in row if word.x1 < middle and word.x0 < x0]
    next_begins = [word.x0 for word in row if word.x0 > middle and word.x1 > x1]
    return max(previous_ends, default=-inf), min(next_begins, default=inf)


# --- which reading is better ------------------------------------------------------------------------------


def merge_readings(first: Sequence[Word], second: Sequence[Word]) -> list[Word]:
    if not second:
        return list(first)
    is_second_reliable = _mean_confidence(second) >= _RELIABLE
    merged: list[Word] = []
    for place in _join_shifted_readings(_align(first, second)):
        merged += _better_words(place, is_second_reliable=is_second_reliable)
    # Losing a whole line is never the better reading.
    return merged or list(first)


def _better_words(place: _Place, *, is_second_reliable: bool) -> Sequence[Word]:
    first_words, second_words = place
    if not second_words:
        return [word for word in first_words if not (is_second_reliable and word.confidence < _SEEN_BY_FIRST_ONLY)]
    if not first_words:
        return [word for word in second_words if word.confidence >= _SEEN_BY_SECOND_ONLY]
    first, second = _reading_of(first_words), _reading_of(second_words)
    if first.text == second.text:
        # The first engine is usually better at spaces and quotation marks.
        is_second_better = first.confidence < _GUESSED_SPACES and second.confidence >= _SECOND_CERTAIN
        has_other_spaces = len(second_words) != len(first_words)
        # Numbers of two columns are not one number.
        joins_numbers = len(second_words) < len(first_words) and _DIGIT.search(first.text) is not None
        if is_second_better and has_other_spaces and not joins_numbers:
            return second_words
        return [replace(word, confidence=max(word.confidence, second.confidence)) for word in first_words]
    if _DIGIT.search(first.text) or _DIGIT.search(second.text):
        if not is_better_number(second, first):
            return first_words
        # Numbers of two columns stay apart, with the second engine's characters.
        is_joined = len(second_words) < len(first_words) and len(first.text) == len(second.text)
        return _divide_among(first_words, second) if is_joined else second_words
    is_better = second.confidence >= _SECOND_CERTAIN or second.confidence >= max(first.confidence, _SECOND_LIKELY)
    return second_words if is_better else first_words


def is_better_number(second: Reading, first: Reading) -> bool:
    if second.text.isalnum() and not second.text.isdigit() and first.text.isalpha():
        # "Florida" reread as "F1orida": a word, not a code.
        return False
    differing = [(a, b) for a, b in zip(first.text, second.text, strict=False) if a != b]
    differs_in_letters_or_digits = all(a.isalnum() and b.isalnum() for a, b in differing)
    has_same_form = len(first.text) == len(second.text) and differs_in_letters_or_digits
    if has_same_form and _DIGIT.search(first.text):
        # "342" reread as "542": a likely text says nothing about a number.
        return first.confidence < _GUESSED_NUMBER and second.confidence >= _SECOND_CERTAIN
    # "17" reread as "117": one of them has lost a part of the number.
    return second.confidence >= min(first.confidence, _SECOND_CERTAIN)


def _reading_of(words: Sequence[Word]) -> Reading:
    return Reading(_text_without_spaces(words), min(word.confidence for word in words))


def _divide_among(words: Sequence[Word], reading: Reading) -> list[Word]:
    ends = [0, *accumulate(len(_text_without_spaces([word])) for word in words)]
    return [
        replace(word, confidence=reading.confidence, text=reading.text[begin:end])
        for word, (begin, end) in zip(words, pairwise(ends), strict=True)
    ]


def _align(first: Sequence[Word], second: Sequence[Word]) -> list[_Place]:
    """Group the words that overlap, such as a joined word and its parts."""
    words_and_engines = [*((word, True) for word in first), *((word, False) for word in second)]
    places: list[_Place] = []
    for word, is_of_first in sorted(words_and_engines, key=lambda pair: pair[0].x0):
        if not places or not any(_share_x_range(word, other) for words in places[-1] for other in words):
            places.append(_Place([], []))
        (places[-1].first if is_of_first else places[-1].second).append(word)
    return places


def _join_shifted_readings(places: Sequence[_Place]) -> list[_Place]:
    # Positions of the second engine are approximate: adjacent words of different engines may be the same word.
    joined: list[_Place] = []
    for place in places:
        if joined and _are_shifted_readings(joined[-1], place):
            left = joined.pop()
            joined.append(_Place(left.first or place.first, left.second or place.second))
        else:
            joined.append(place)
    return joined


def _are_shifted_readings(left: _Place, right: _Place) -> bool:
    is_first_then_second = not left.second and not right.first
    is_second_then_first = not left.first and not right.second
    if not (is_first_then_second or is_second_then_first):
        return False
    last, following = (left.first or left.second)[-1], (right.first or right.second)[0]
    return following.x0 < last.x1 + _TOUCHING_GAP * (last.y1 - last.y0)


def _share_x_range(word: Word, other: Word) -> bool:
    common = min(word.x1, other.x1) - max(word.x0, other.x0)
    return common > _OVERLAP_OF_WORDS * max(min(word.x1 - word.x0, other.x1 - other.x0), 1.0)


def _text_without_spaces(words: Sequence[Word]) -> str:
    return "".join(word.text for word in words).translate(_PLAIN_CHARACTERS).replace("''", '"')


def _mean_confidence(words: Sequence[Word]) -> float:
    return sum(word.confidence * len(word.text) for word in words) / sum(len(word.text) for word in words)


# --- lines that the first engine has missed ----------------------------------------------------------------


def _has_unread_ink(gray: Gray, lines: Sequence[_ImprovedLine]) -> bool:
    words = [word for line in lines for word in line.words]
    boxes = [layout.with_margin(word, _MARGIN_BESIDE * (word.y1 - word.y0)) for word in words]
    return unread_ink(gray, boxes) > _UNREAD_INK_SHARE


def _unread_boxes(lines: Sequence[_ImprovedLine], boxes: Sequence[Box]) -> list[Box]:
    words = [word for line in lines for word in line.words]
    unread = [box for box in boxes if _uncovered_width(box, words) > _UNREAD_WIDTH_LEAST * (box[3] - box[1])]
    return sorted(unread, key=lambda box: (box[1], box[0]))


def _uncovered_width(box: Box, words: Sequence[Word]) -> float:
    x0, y0, x1, y1 = box
    margin = _MARGIN_BESIDE * (y1 - y0)
    width, covered_to = 0.0, x0
    for left, right in sorted(
        (word.x0 - margin, word.x1 + margin) for word in words if _is_in_row(word.y0, word.y1, y0, y1)
    ):
        if right > covered_to:
            width += max(min(left, x1) - covered_to, 0)
            covered_to = min(right, x1)
    return width + x1 - covered_to


def _is_certainly_text(words: Sequence[Word]) -> bool:
    return len(_text_without_spaces(words)) >= _MISSED_CHARACTERS_LEAST and _mean_confidence(words) >= _RELIABLE


def _insert_words(lines: list[_ImprovedLine], words: list[Word]) -> None:
    """Merge the words of a missed line into the line beside them, or insert them below the line above."""
    x0, y0, x1, y1 = layout.bounds_of(words)
    insert_at = 0
    for at, line in enumerate(lines):
        if not line.words:
            continue
        left, top, right, bottom = layout.bounds_of(line.words)
        if _is_in_row(top, bottom, y0, y1) and max(left - x1, x0 - right) < _GAP_IN_LINE_MOST * (y1 - y0):
            overlapping = [word for word in line.words if min(word.x1, x1) > max(word.x0, x0)]
            beside = [word for word in line.words if word not in overlapping]
            merged = [*beside, *merge_readings(overlapping, words)]
            lines[at] = _ImprovedLine(sorted(merged, key=lambda word: word.x0), is_changed=True)
            return
        is_above = bottom <= (y0 + y1) / 2
        if is_above and min(x1, right) > max(x0, left):
            insert_at = at + 1
    lines.insert(insert_at, _ImprovedLine(words, is_changed=True))


def _is_in_row(top: float, bottom: float, y0: float, y1: float) -> bool:
    return min(y1, bottom) - max(y0, top) > _OVERLAP_IN_ROW * min(y1 - y0, bottom - top)
