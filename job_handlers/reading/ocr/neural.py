"""Read and find lines with the small PP-OCR networks of the rapidocr wheel.

The wheel's own code would load OpenCV and download models.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

from msgspec import Struct
from PIL import Image

from job_handlers.reading.layout import Box, Word
from job_handlers.reading.preprocess import Gray, image_of
from worker_service.handlers import CAPABILITY_MISSING, Problem

HOW_TO_GET = "pip install 'pagemill[neural]'"
# Tesseract's codes of the Latin-script languages that the networks were trained for.
LANGUAGES = frozenset(
    """
    afr aze bos cat ces cym dan deu eng est eus fil fin fra gle glg hrv hun ind isl ita kmr lat lav lit ltz mlt mri msa
    nld nor oci pol por que ron slk slv spa sqi srp_latn swa swe tur uzb vie
    """.split()
)

_PACKAGES = ("rapidocr", "onnxruntime")
_READING_MODEL, _FINDING_MODEL = "PP-OCRv6_rec_small.onnx", "PP-OCRv6_det_small.onnx"

# Reading a line. The height and the step are those of the network, in pixels.
_LINE_HEIGHT = 48
_STEP = 8
# In line heights.
WIDTH_MOST = 40  # Memory grows with the width.
_MARGIN_ABOVE, _MARGIN_BESIDE = 0.12, 0.3
_MARGIN_PIXELS_LEAST = 2
# A word begins where the middles of two characters are further apart than both, in line heights and in characters.
_WORD_GAP = 0.9
_WORD_GAP_CHARACTERS = 2
# Full-width characters and the comma and full stop of Chinese texts, which the network writes, to ASCII.
_FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: 0x20, 0x3001: 0x2C, 0x3002: 0x2E}

# Finding lines. The page is scaled to a short side of so many pixels, or to fewer if it would be too large.
_SHORT_SIDE = 672
_PIXELS_MOST = 680_000  # 450 bytes of memory each.
_GRID = 32  # Width and height must be multiples of it.
_PIXEL_PROBABILITY, _LINE_PROBABILITY = 0.3, 0.6  # Least probability of text at a pixel, and least mean in a line.
_LINE_PIXELS_LEAST = 3  # Height. Lower islands are specks.
_GROWTH = 0.8  # The network marks the middle of a line; half of this share of its height is added to each side.


def missing() -> Problem | None:
    missing_packages = [package for package in _PACKAGES if importlib.util.find_spec(package) is None]
    if missing_packages:
        detail = f"{' and '.join(missing_packages)} {'is' if len(missing_packages) == 1 else 'are'} not installed"
        return Problem(CAPABILITY_MISSING, detail, HOW_TO_GET)
    if not (_model_directory() / _READING_MODEL).is_file() or not (_model_directory() / _FINDING_MODEL).is_file():
        detail = "this rapidocr carries other models than those that are known"
        return Problem(CAPABILITY_MISSING, detail, HOW_TO_GET)
    return None


def _name_with_versions() -> str:
    with suppress(metadata.PackageNotFoundError):
        return (
            f"PP-OCRv6 small (rapidocr {metadata.version('rapidocr')}, onnxruntime {metadata.version('onnxruntime')})"
        )
    return "PP-OCRv6 small"


# Determined at import, in the fork server: the sandbox of a child process may hide the list of packages.
NAME = _name_with_versions()


@cache
def _model_directory() -> Path:
    # Locate the package without importing it, which takes a second.
    package = importlib.util.find_spec("rapidocr")
    return Path(package.origin if package and package.origin else "/nonexistent").parent / "models"


def read_line(gray: Gray, box: Box, free_space: tuple[float, float] = (-inf, inf)) -> list[Word]:
    """Read a line with margins, beside it only within `free_space`, a range of x. The words' x are approximate."""
    numpy = _numpy()
    x0, y0, x1, y1 = _with_margin(box, gray)
    (box_begin, _, box_end, _), (free_from, free_to) = box, free_space
    x0, x1 = max(x0, min(free_from, box_begin)), min(x1, max(free_to, box_end))
    width = min(max(round((x1 - x0) * _LINE_HEIGHT / (y1 - y0)), _STEP), WIDTH_MOST * _LINE_HEIGHT)
    line = image_of(gray).resize((width, _LINE_HEIGHT), Image.Resampling.BILINEAR, (x0, y0, x1, y1))
    padded_width = -(-width // _STEP) * _STEP
    pixels = numpy.zeros((1, 3, _LINE_HEIGHT, padded_width), numpy.float32)
    pixels[..., :width] = _network_input(line)
    # A row for each position along the line, a column for each character.
    [probabilities] = _run(_READING_MODEL, pixels)
    best = probabilities.argmax(1)
    # A character at adjacent positions counts once; 0 means no character.
    begins_character = best != 0
    begins_character[1:] &= best[1:] != best[:-1]
    positions = begins_character.nonzero()[0].tolist()
    confidences = probabilities.max(1)[positions].tolist()
    characters = [_characters()[number] for number in best[positions].tolist()]
    step = padded_width / len(probabilities) * (x1 - x0) / width
    middles = [x0 + (position + 0.5) * step for position in positions]
    return _words(characters, confidences, middles, box, _WORD_GAP * (y1 - y0))


def find_lines(gray: Gray) -> list[Box]:
    width, height = _size_for_finding(gray)
    small = image_of(gray).resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0)
    pixels = _numpy().empty((1, 3, height, width), "float32")
    pixels[:] = _network_input(small)
    [[probabilities]] = _run(_FINDING_MODEL, pixels)
    x_scale, y_scale = gray.width / width, gray.height / height
    return [
        (x0 * x_scale, y0 * y_scale, x1 * x_scale, y1 * y_scale)
        for x0, y0, x1, y1 in map(_extend_box, _line_boxes(probabilities))
    ]


def _network_input(image: Image.Image) -> Any:
    # Shades from 0 to 255 become numbers from -1 to 1.
    return _numpy().asarray(image, "float32") / 127.5 - 1


def _run(model: str, pixels: Any) -> Any:
    session = _session(model)
    [output] = session.run(None, {session.get_inputs()[0].name: pixels})
    return output


@cache
def _characters() -> list[str]:
    listed = _session(_READING_MODEL).get_modelmeta().custom_metadata_map["character"].splitlines()
    return [character.translate(_FULL_WIDTH) for character in ["", *listed, " "]]


def _numpy() -> Any:
    # OpenBLAS would start a thread for each processor, and reserve memory for them.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import numpy

    return numpy


def _onnxruntime() -> Any:
    _numpy()
    # onnxruntime would report its use to its maker.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    with _silent_stderr():
        import onnxruntime  # type: ignore[import-untyped]
    return onnxruntime


@contextmanager
def _silent_stderr() -> Iterator[None]:
    # The library is written in C++, and bypasses `sys.stderr`.
    stderr = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


@cache
def _session(model: str) -> Any:
    onnxruntime = _onnxruntime()
    options = onnxruntime.SessionOptions()
    # There is a reading process for each processor: threads would compete with the others.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    # The arena would keep the memory of the longest line.
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(_model_directory() / model), options, providers=["CPUExecutionProvider"])


def _with_margin(box: Box, gray: Gray) -> Box:
    x0, y0, x1, y1 = box
    above = max(_MARGIN_ABOVE * (y1 - y0), _MARGIN_PIXELS_LEAST)
    beside = max(_MARGIN_BESIDE * (y1 - y0), _MARGIN_PIXELS_LEAST)
    return max(x0 - beside, 0), max(y0 - above, 0), min(x1 + beside, gray.width), min(y1 + above, gray.height)


def _words(
    characters: Sequence[str], confidences: Sequence[float], middles: Sequence[float], box: Box, word_gap: float
) -> list[Word]:
    """`middles` are the x of the characters."""
    x0, y0, x1, y1 = box
    steps = [after - before for before, after in pairwise(middles)]
    # A single character is taken to be half as wide as high.
    half_width = median(steps) / 2 if steps else (y1 - y0) / 4
    word_gap = max(word_gap, _WORD_GAP_CHARACTERS * 2 * half_width)
    # A word is the indexes of its characters.
    words: list[list[int]] = [[]]
    for at, character in enumerate(characters):
        is_after_gap = at > 0 and steps[at - 1] > word_gap
        if character.isspace() or is_after_gap:
            words.append([])
        if not character.isspace():
            words[-1].append(at)
    return [
        Word(
            max(middles[word[0]] - half_width, x0),
            y0,
            max(min(middles[word[-1]] + half_width, x1), middles[word[0]]),
            y1,
            # A word is as certain as its least certain character.
            100 * min(confidences[at] for at in word),
            "".join(characters[at] for at in word),
        )
        for word in words
        if word
    ]


def _size_for_finding(gray: Gray) -> tuple[int, int]:
    scale = min(_SHORT_SIDE / min(gray.width, gray.height), (_PIXELS_MOST / (gray.width * gray.height)) ** 0.5)
    return max(round(gray.width * scale / _GRID), 1) * _GRID, max(round(gray.height * scale / _GRID), 1) * _GRID


class _Island(Struct):
    """Connected pixels of text."""

    box: tuple[int, int, int, int]
    probability_sum: float = 0.0
    pixels: int = 0

    def add(self, other: _Island) -> None:
        (x0, y0, x1, y1), (left, top, right, bottom) = self.box, other.box
        self.box = min(x0, left), min(y0, top), max(x1, right), max(y1, bottom)
        self.probability_sum += other.probability_sum
        self.pixels += other.pixels


def _line_boxes(probabilities: Any) -> list[Box]:
    # `preprocess.unread_marks` is no help: it joins ink with boxes that it touches, which would join lines of text.
    islands: list[_Island] = []
    # By the number of an island: the number of the island it was joined to, or its own.
    joined_to: list[int] = []

    def root_of(number: int) -> int:
        while joined_to[number] != number:
            number = joined_to[number]
        return number

    # A run is its begin, its end, and the number of its island.
    runs_above: list[tuple[int, int, int]] = []
    for y, row in enumerate(probabilities):
        runs: list[tuple[int, int, int]] = []
        for begin, end in _runs_of_text(row):
            touched = {root_of(number) for left, right, number in runs_above if left <= end and begin <= right}
            number = min(touched, default=len(islands))
            if not touched:
                joined_to.append(number)
                islands.append(_Island((begin, y, end, y + 1)))
            for other in touched - {number}:
                joined_to[other] = number
                islands[number].add(islands[other])
            islands[number].add(_Island((begin, y, end, y + 1), float(row[begin:end].sum()), end - begin))
            runs.append((begin, end, number))
        runs_above = runs
    roots = [island for number, island in enumerate(islands) if joined_to[number] == number]
    return [
        island.box
        for island in roots
        if island.box[3] - island.box[1] >= _LINE_PIXELS_LEAST
        and island.probability_sum >= _LINE_PROBABILITY * island.pixels
    ]


def _runs_of_text(row: Any) -> Iterator[tuple[int, int]]:
    is_text = row > _PIXEL_PROBABILITY
    edges = ((is_text[1:] != is_text[:-1]).nonzero()[0] + 1).tolist()
    edges = [*([0] if is_text[0] else []), *edges, *([len(row)] if is_text[-1] else [])]
    return zip(edges[::2], edges[1::2], strict=True)


def _extend_box(box: Box) -> Box:
    x0, y0, x1, y1 = box
    growth = _GROWTH * min(x1 - x0, y1 - y0) / 2
    return max(x0 - growth, 0), max(y0 - growth, 0), x1 + growth, y1 + growth
