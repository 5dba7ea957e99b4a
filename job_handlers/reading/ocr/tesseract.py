"""Recognise images with Tesseract in this process, which takes half the time of its program."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

from msgspec import Struct

from job_handlers.reading.layout import Word
from job_handlers.reading.ocr import language_codes
from job_handlers.reading.preprocess import Gray, halve
from worker_service.handlers import CAPABILITY_MISSING, Choices, HandlerError, MissingDependency, Permanent, Problem

try:
    import tesserocr  # type: ignore[import-untyped]
except ImportError:
    tesserocr = None

Box = tuple[int, int, int, int]

# Where distributions and administrators put trained data. The data of best quality is optional.
DATA = {
    "best": ("/usr/local/share/tessdata_best", "/usr/share/tessdata_best"),
    "fast": (
        "/usr/share/tesseract-ocr/5/tessdata",
        "/usr/share/tesseract-ocr/4.00/tessdata",
        "/usr/share/tessdata",
        "/usr/share/tesseract/tessdata",
        "/usr/local/share/tessdata",
    ),
}
_PLAUSIBLE_DPI = (70, 600)
_BLOCK_BYTES = 1 << 16
_OTSU, _SAUVOLA = "0", "2"
_VERTICAL = 7
_WRITING = range(1, 9)
"""Block types of text."""
_MARGIN = 6
_SCRIPT_SURE = 1.0
"""Wrong scripts reach 0.7 on noisy pages, right ones 1.4 to 273."""
_DIRECTIONS = "\u200e\u200f"


class WayToRead(Struct, frozen=True):
    languages: Sequence[str]
    quality: str
    is_one_of_them: bool = False


def missing() -> Problem | None:
    if tesserocr is None:
        return Problem(CAPABILITY_MISSING, "tesserocr, the OCR engine, cannot be loaded", "pip install tesserocr")
    if not _data_directories("fast"):
        remedy = "apt-get install tesseract-ocr-eng tesseract-ocr-osd"
        return Problem(CAPABILITY_MISSING, "there is no trained data for OCR", remedy)
    return None


def offers() -> str | None:
    of_quality = {quality: languages_of(quality) for quality in DATA}
    told = [f"{', '.join(found)} ({quality})" for quality, found in of_quality.items() if found]
    return f"trained data for {'; '.join(told)}" + ("" if missing() else f", for {_engine_name()}") if told else None


def languages_of(quality: str) -> list[str]:
    places = _data_directories(quality)
    found = {str(file.relative_to(one).with_suffix("")) for one in places for file in one.rglob("*.traineddata")}
    return sorted(found - {"osd", "equ"})


def choices() -> Mapping[str, Choices]:
    to_get = {code: language_codes.install_command([code]) for code in language_codes.all_codes()}
    return {"languages": Choices(_installed_languages(), to_get, language_codes.CALLED)}


def engine_for(wanted: WayToRead) -> Engine:
    return Engine(wanted, _data_for(wanted))


def identity(wanted: WayToRead) -> str:
    """`none` without an engine."""
    try:
        data = _data_for(wanted)
    except HandlerError:
        return "none"
    return " ".join([_engine_name(), *(_checksum_of(data / f"{one}.traineddata") for one in wanted.languages)])


def identities() -> list[str]:
    data = [
        file
        for quality in DATA
        for place in _data_directories(quality)
        for file in sorted(place.rglob("*.traineddata"))
    ]
    return [_engine_name(), *(f"{file.stem} {file.stat().st_size}" for file in data)]


def _checksum_of(path: Path) -> str:
    """Allocating memory for all of it takes longer than the sum."""
    found = 0
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            found = zlib.crc32(block, found)
    return f"{found:08x}"


@cache
def _engine_name() -> str:
    return f"tesseract {tesserocr.tesseract_version().split()[1]} (tesserocr)"


# --- trained data -----------------------------------------------------------------------------------------


def _data_directories(quality: str) -> list[Path]:
    return [Path(one) for one in DATA[quality] if any(Path(one).glob("*.traineddata"))]


def _data_for(wanted: WayToRead) -> Path:
    if (lacks := missing()) is not None:
        raise MissingDependency(lacks.detail, lacks.remedy)
    found = _data_directories(wanted.quality)
    if not found:
        raise MissingDependency(
            f"there is no trained data of quality {wanted.quality}", _how_to_install(wanted.quality)
        )
    for directory in found:
        if all((directory / f"{one}.traineddata").is_file() for one in wanted.languages):
            return directory
    lacking = [one for one in wanted.languages if not (found[0] / f"{one}.traineddata").is_file()]
    there = f"only for {', '.join(_installed_languages())}"
    for one in lacking:
        if not language_codes.is_known(one):
            near = choices()["languages"].closest(one)
            hint = f"did you mean {near}?" if near else f"data of your own goes into {found[0]}"
            raise Permanent("LANGUAGE_UNKNOWN", f"there is no trained data for {one!r}, {there}", hint)
    how = language_codes.install_command(lacking) if wanted.quality == "fast" else _how_to_install(wanted.quality)
    raise MissingDependency(f"there is no trained data for {', '.join(lacking)}, {there}", how)


def _installed_languages() -> list[str]:
    return sorted({language for quality in DATA for language in languages_of(quality)})


def _how_to_install(quality: str) -> str:
    return f"put it into {DATA[quality][0]}"


# --- the engine -------------------------------------------------------------------------------------------


class Engine:
    def __init__(self, wanted: WayToRead, data: Path) -> None:
        self.name = _engine_name()
        self._data = f"{data}/"
        self._reader = tesserocr.PyTessBaseAPI(
            path=self._data, lang="+".join(wanted.languages), psm=tesserocr.PSM.AUTO, oem=tesserocr.OEM.LSTM_ONLY
        )
        self._turner: Any = None

    def words(
        self, gray: Gray, dpi: float, *, is_uneven: bool = False, is_large: bool = False, is_sparse: bool = False
    ) -> list[list[Word]]:
        """Return lines, with an empty one between paragraphs.

        `is_large`: legible at half the size. `is_sparse` returns separate pieces in no order.
        """
        self._reader.SetVariable("thresholding_method", _SAUVOLA if is_uneven else _OTSU)
        if is_sparse:
            self._reader.SetPageSegMode(tesserocr.PSM.SPARSE_TEXT)
        try:
            _set_image(self._reader, gray, dpi)
            if is_large and (blocks := _blocks(self._reader)):
                return self._words_in(blocks, halve(gray), dpi / 2)
            if not self._reader.Recognize():
                return []
            return _recognised_words(self._reader)
        finally:
            self._reader.Clear()
            self._reader.SetPageSegMode(tesserocr.PSM.AUTO)

    def line(self, gray: Gray, dpi: float, *, is_uneven: bool = False) -> list[Word]:
        # The image contains one line, or part of one.
        self._reader.SetVariable("thresholding_method", _SAUVOLA if is_uneven else _OTSU)
        self._reader.SetPageSegMode(tesserocr.PSM.SINGLE_LINE)
        try:
            _set_image(self._reader, gray, dpi)
            return (
                [word for line in _recognised_words(self._reader) for word in line] if self._reader.Recognize() else []
            )
        finally:
            self._reader.Clear()
            self._reader.SetPageSegMode(tesserocr.PSM.AUTO)

    def _words_in(self, blocks: Sequence[Box], half: Gray, dpi: float) -> list[list[Word]]:
        self._reader.SetPageSegMode(tesserocr.PSM.SINGLE_BLOCK)
        try:
            _set_image(self._reader, half, dpi)
            lines: list[list[Word]] = []
            for block in blocks:
                x0, y0, x1, y1 = (side // 2 for side in block)
                self._reader.SetRectangle(x0, y0, min(x1, half.width) - x0, min(y1, half.height) - y0)
                if self._reader.Recognize() and (words := _recognised_words(self._reader)):
                    lines += [[], *words] if lines else words
        finally:
            self._reader.SetPageSegMode(tesserocr.PSM.AUTO)
        return [
            [Word(2 * one.x0, 2 * one.y0, 2 * one.x1, 2 * one.y1, one.confidence, one.text) for one in line]
            for line in lines
        ]

    def turn(self, gray: Gray, dpi: float) -> int | None:
        """Return degrees clockwise."""
        found = self._orientation(gray, dpi)
        return None if found is None else -int(found["orient_deg"]) % 360

    def script(self, gray: Gray, dpi: float) -> str | None:
        found = self._orientation(gray, dpi)
        return found["script_name"] if found is not None and found["script_conf"] >= _SCRIPT_SURE else None

    def _orientation(self, gray: Gray, dpi: float) -> Any:
        if not Path(self._data, "osd.traineddata").is_file():
            return None
        if self._turner is None:
            self._turner = tesserocr.PyTessBaseAPI(path=self._data, lang="osd", psm=tesserocr.PSM.OSD_ONLY)
        _set_image(self._turner, gray, dpi)
        found = self._turner.DetectOrientationScript()
        self._turner.Clear()
        return found


def _blocks(reader: Any) -> list[Box]:
    """Return none unless they are plain boxes beside or below each other."""
    found: list[Box] = []
    at = reader.AnalyseLayout()
    is_more = at is not None
    while is_more:
        kind = at.BlockType()
        if kind == _VERTICAL:
            return []
        if kind in _WRITING:
            x0, y0, x1, y1 = at.BoundingBox(tesserocr.RIL.BLOCK)
            found.append((max(x0 - _MARGIN, 0), max(y0 - _MARGIN, 0), x1 + _MARGIN, y1 + _MARGIN))
        is_more = at.Next(tesserocr.RIL.BLOCK)
    return [] if any(_overlap(one, other) for one, other in combinations(found, 2)) else found


def _overlap(one: Box, other: Box) -> bool:
    across, down = min(one[2], other[2]) - max(one[0], other[0]), min(one[3], other[3]) - max(one[1], other[1])
    return min(across, down) > 2 * _MARGIN


def _recognised_words(reader: Any) -> list[list[Word]]:
    """Tesseract's own table takes three times as long to write."""
    word_level, line_level = tesserocr.RIL.WORD, tesserocr.RIL.TEXTLINE
    lines: list[list[Word]] = []
    begins_line = begins_paragraph = False
    for at in tesserocr.iterate_level(reader.GetIterator(), word_level):
        if at.Empty(word_level):
            continue
        if at.IsAtBeginningOf(line_level):
            begins_line = True
            begins_paragraph = begins_paragraph or at.IsAtBeginningOf(tesserocr.RIL.PARA)
        text = at.GetUTF8Text(word_level).lstrip(_DIRECTIONS).strip()
        if not text:
            continue
        if begins_line:
            if begins_paragraph and lines:
                lines.append([])
            lines.append([])
            begins_line = begins_paragraph = False
        left, top, right, bottom = at.BoundingBox(word_level)
        lines[-1].append(Word(left, top, right, bottom, max(at.Confidence(word_level), 0.0), text))
    return lines


def _set_image(reader: Any, gray: Gray, dpi: float) -> None:
    reader.SetImageBytes(gray.samples, gray.width, gray.height, 1, gray.width)
    reader.SetSourceResolution(_plausible_dpi(dpi))


def _plausible_dpi(dpi: float) -> int:
    return round(min(max(dpi, _PLAUSIBLE_DPI[0]), _PLAUSIBLE_DPI[1]))
