"""Recognise images with Tesseract in this process, which takes half the time of the `tesseract` command."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

from msgspec import Struct

from job_handlers.reading.layout import Box, Word, moved
from job_handlers.reading.ocr import language_codes
from job_handlers.reading.preprocess import Gray, crop, halve
from worker_service.handlers import CAPABILITY_MISSING, Choices, HandlerError, MissingDependency, Permanent, Problem

try:
    import tesserocr  # type: ignore[import-untyped]
except ImportError:
    tesserocr = None

PixelBox = tuple[int, int, int, int]

# Quality → directories where distributions and administrators put trained data. The data of best quality is optional.
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
_DPI_LEAST, _DPI_MOST = 70, 600
_READ_BYTES = 1 << 16
# Tesseract's numbers of threshold methods: one threshold for the page, and one for each neighbourhood.
_OTSU, _SAUVOLA = "0", "2"
# Tesseract's numbers of block types.
_VERTICAL_TEXT = 7
_TEXT_TYPES = range(1, 9)
_BLOCK_MARGIN_PIXELS = 6
_SCRIPT_CONFIDENCE_LEAST = 1.0  # Wrong scripts reach 0.7 on noisy pages, right ones 1.4 to 273.
_DIRECTION_MARKS = "\u200e\u200f"


class OcrSettings(Struct, frozen=True):
    languages: Sequence[str]
    quality: str
    chooses_language: bool = False
    """True chooses one of the languages for each page."""


def missing() -> Problem | None:
    if tesserocr is None:
        return Problem(CAPABILITY_MISSING, "tesserocr, the OCR engine, cannot be loaded", "pip install tesserocr")
    if not _data_directories("fast"):
        remedy = "apt-get install tesseract-ocr-eng tesseract-ocr-osd"
        return Problem(CAPABILITY_MISSING, "there is no trained data for OCR", remedy)
    return None


def offers() -> str | None:
    languages_by_quality = {quality: languages_of(quality) for quality in DATA}
    offered = [
        f"{', '.join(languages)} ({quality})" for quality, languages in languages_by_quality.items() if languages
    ]
    if not offered:
        return None
    engine = "" if missing() else f", for {_engine_name()}"
    return f"trained data for {'; '.join(offered)}{engine}"


def languages_of(quality: str) -> list[str]:
    codes = {
        str(file.relative_to(directory).with_suffix(""))
        for directory in _data_directories(quality)
        for file in directory.rglob("*.traineddata")
    }
    # These are no languages: data for orientations and for formulas.
    return sorted(codes - {"osd", "equ"})


def choices() -> Mapping[str, Choices]:
    install_commands = {code: language_codes.install_command([code]) for code in language_codes.all_codes()}
    return {"languages": Choices(_installed_languages(), install_commands, language_codes.CODE_OF_NAME)}


def engine_for(settings: OcrSettings) -> Engine:
    return Engine(settings, _data_for(settings))


def identity(settings: OcrSettings) -> str:
    """Return the engine and the data's checksums; `none` if one is missing."""
    try:
        data = _data_for(settings)
    except HandlerError:
        return "none"
    return " ".join([_engine_name(), *(_checksum_of(data / f"{code}.traineddata") for code in settings.languages)])


def engine_and_data_sizes() -> list[str]:
    directories = [directory for quality in DATA for directory in _data_directories(quality)]
    data = [file for directory in directories for file in sorted(directory.rglob("*.traineddata"))]
    return [_engine_name(), *(f"{file.stem} {file.stat().st_size}" for file in data)]


def _checksum_of(path: Path) -> str:
    checksum = 0
    # Reading the whole file at once would take longer: its memory has to be allocated.
    with path.open("rb", buffering=0) as file:
        while block := file.read(_READ_BYTES):
            checksum = zlib.crc32(block, checksum)
    return f"{checksum:08x}"


@cache
def _engine_name() -> str:
    return f"tesseract {tesserocr.tesseract_version().split()[1]} (tesserocr)"


# --- trained data -----------------------------------------------------------------------------------------


def _data_directories(quality: str) -> list[Path]:
    return [Path(name) for name in DATA[quality] if any(Path(name).glob("*.traineddata"))]


def _data_for(settings: OcrSettings) -> Path:
    if (problem := missing()) is not None:
        raise MissingDependency(problem.detail, problem.remedy)
    directories = _data_directories(settings.quality)
    if not directories:
        raise MissingDependency(
            f"there is no trained data of quality {settings.quality}", _how_to_install(settings.quality)
        )
    for directory in directories:
        # The engine reads the data of all its languages from one directory.
        if not _missing_languages(settings, directory):
            return directory
    raise _missing_data(settings, directories[0])


def _missing_languages(settings: OcrSettings, directory: Path) -> list[str]:
    return [code for code in settings.languages if not (directory / f"{code}.traineddata").is_file()]


def _missing_data(settings: OcrSettings, directory: Path) -> HandlerError:
    codes = _missing_languages(settings, directory)
    installed = f"only for {', '.join(_installed_languages())}"
    for code in codes:
        if not language_codes.is_known(code):
            closest = choices()["languages"].closest(code)
            hint = f"did you mean {closest}?" if closest else f"data of your own goes into {directory}"
            return Permanent("LANGUAGE_UNKNOWN", f"there is no trained data for {code!r}, {installed}", hint)
    is_packaged = settings.quality == "fast"
    remedy = language_codes.install_command(codes) if is_packaged else _how_to_install(settings.quality)
    return MissingDependency(f"there is no trained data for {', '.join(codes)}, {installed}", remedy)


def _installed_languages() -> list[str]:
    return sorted({language for quality in DATA for language in languages_of(quality)})


def _how_to_install(quality: str) -> str:
    return f"put it into {DATA[quality][0]}"


# --- the engine -------------------------------------------------------------------------------------------


class Engine:
    def __init__(self, settings: OcrSettings, data: Path) -> None:
        self.name = _engine_name()
        self._data = f"{data}/"  # tesserocr requires the slash.
        self._reader = tesserocr.PyTessBaseAPI(
            path=self._data, lang="+".join(settings.languages), psm=tesserocr.PSM.AUTO, oem=tesserocr.OEM.LSTM_ONLY
        )
        self._orientation_reader: Any = None

    def words(
        self, gray: Gray, dpi: float, *, is_uneven: bool = False, is_large: bool = False, is_sparse: bool = False
    ) -> list[list[Word]]:
        """Return lines, an empty one between paragraphs.

        `is_uneven`: one threshold per neighbourhood. `is_large`: letters are legible at half size. `is_sparse`:
        separate pieces in no order.
        """
        mode = tesserocr.PSM.SPARSE_TEXT if is_sparse else tesserocr.PSM.AUTO
        with self._prepared(gray, dpi, mode, is_uneven=is_uneven):
            # Blocks are found at full size, and read at half the size.
            if is_large and (blocks := _text_blocks(self._reader)):
                return self._words_in_blocks(blocks, halve(gray), dpi / 2)
            return self._recognise()

    def line(self, gray: Gray, box: Box, dpi: float, *, is_uneven: bool) -> list[Word]:
        line_image, left, top = crop(gray, box)
        with self._prepared(line_image, dpi, tesserocr.PSM.SINGLE_LINE, is_uneven=is_uneven):
            return [moved(word, left, top) for line in self._recognise() for word in line]

    @contextmanager
    def _prepared(self, gray: Gray, dpi: float, mode: Any, *, is_uneven: bool) -> Iterator[None]:
        self._reader.SetVariable("thresholding_method", _SAUVOLA if is_uneven else _OTSU)
        self._reader.SetPageSegMode(mode)
        try:
            _set_image(self._reader, gray, dpi)
            yield
        finally:
            self._reader.Clear()

    def _recognise(self) -> list[list[Word]]:
        return _recognised_words(self._reader) if self._reader.Recognize() else []

    def _words_in_blocks(self, blocks: Sequence[PixelBox], half: Gray, dpi: float) -> list[list[Word]]:
        # The blocks given, and the words returned, have the coordinates of the full size.
        self._reader.SetPageSegMode(tesserocr.PSM.SINGLE_BLOCK)
        _set_image(self._reader, half, dpi)
        lines: list[list[Word]] = []
        for block in blocks:
            x0, y0, x1, y1 = (side // 2 for side in block)
            self._reader.SetRectangle(x0, y0, min(x1, half.width) - x0, min(y1, half.height) - y0)
            if block_lines := self._recognise():
                lines += [[], *block_lines] if lines else block_lines
        return [
            [Word(2 * word.x0, 2 * word.y0, 2 * word.x1, 2 * word.y1, word.confidence, word.text) for word in line]
            for line in lines
        ]

    def turn(self, gray: Gray, dpi: float) -> int | None:
        """Return the degrees clockwise by which the image must be turned; None if unknown."""
        orientation = self._orientation(gray, dpi)
        return None if orientation is None else -int(orientation["orient_deg"]) % 360

    def script(self, gray: Gray, dpi: float) -> str | None:
        orientation = self._orientation(gray, dpi)
        is_certain = orientation is not None and orientation["script_conf"] >= _SCRIPT_CONFIDENCE_LEAST
        return orientation["script_name"] if is_certain else None

    def _orientation(self, gray: Gray, dpi: float) -> Any:
        if not Path(self._data, "osd.traineddata").is_file():
            return None
        if self._orientation_reader is None:
            self._orientation_reader = tesserocr.PyTessBaseAPI(path=self._data, lang="osd", psm=tesserocr.PSM.OSD_ONLY)
        _set_image(self._orientation_reader, gray, dpi)
        orientation = self._orientation_reader.DetectOrientationScript()
        self._orientation_reader.Clear()
        return orientation


def _text_blocks(reader: Any) -> list[PixelBox]:
    """Return the blocks of text; none if some overlap or are vertical, and so cannot be read one by one."""
    boxes: list[PixelBox] = []
    block = reader.AnalyseLayout()
    has_block = block is not None
    while has_block:
        block_type = block.BlockType()
        if block_type == _VERTICAL_TEXT:
            return []
        if block_type in _TEXT_TYPES:
            x0, y0, x1, y1 = block.BoundingBox(tesserocr.RIL.BLOCK)
            left, top = max(x0 - _BLOCK_MARGIN_PIXELS, 0), max(y0 - _BLOCK_MARGIN_PIXELS, 0)
            boxes.append((left, top, x1 + _BLOCK_MARGIN_PIXELS, y1 + _BLOCK_MARGIN_PIXELS))
        has_block = block.Next(tesserocr.RIL.BLOCK)
    return [] if any(_overlap(*pair) for pair in combinations(boxes, 2)) else boxes


def _overlap(box: PixelBox, other: PixelBox) -> bool:
    # Both boxes were widened by the margin.
    width, height = min(box[2], other[2]) - max(box[0], other[0]), min(box[3], other[3]) - max(box[1], other[1])
    return min(width, height) > 2 * _BLOCK_MARGIN_PIXELS


def _recognised_words(reader: Any) -> list[list[Word]]:
    # Tesseract's own TSV table takes three times as long to write.
    word_level, line_level = tesserocr.RIL.WORD, tesserocr.RIL.TEXTLINE
    lines: list[list[Word]] = []
    # Both stay True while words without text are skipped.
    begins_line = begins_paragraph = False
    for position in tesserocr.iterate_level(reader.GetIterator(), word_level):
        if position.Empty(word_level):
            continue
        if position.IsAtBeginningOf(line_level):
            begins_line = True
            begins_paragraph = begins_paragraph or position.IsAtBeginningOf(tesserocr.RIL.PARA)
        text = position.GetUTF8Text(word_level).lstrip(_DIRECTION_MARKS).strip()
        if not text:
            continue
        if begins_line:
            if begins_paragraph and lines:
                lines.append([])
            lines.append([])
            begins_line = begins_paragraph = False
        left, top, right, bottom = position.BoundingBox(word_level)
        lines[-1].append(Word(left, top, right, bottom, max(position.Confidence(word_level), 0.0), text))
    return lines


def _set_image(reader: Any, gray: Gray, dpi: float) -> None:
    reader.SetImageBytes(gray.samples, gray.width, gray.height, 1, gray.width)
    reader.SetSourceResolution(round(min(max(dpi, _DPI_LEAST), _DPI_MOST)))
