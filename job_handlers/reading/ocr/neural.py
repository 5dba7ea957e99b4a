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

from PIL import Image

from job_handlers.reading.layout import Word
from job_handlers.reading.preprocess import Box, Gray, image_of
from worker_service.handlers import CAPABILITY_MISSING, Problem

HOW_TO_GET = "pip install 'pagemill[neural]'"
# The Latin-script languages the networks were trained for, by Tesseract's codes.
LANGUAGES = frozenset(
    """
    afr aze bos cat ces cym dan deu eng est eus fil fin fra gle glg hrv hun ind isl ita kmr lat lav lit ltz mlt mri msa
    nld nor oci pol por que ron slk slv spa sqi srp_latn swa swe tur uzb vie
    """.split()
)

_PACKAGES = ("rapidocr", "onnxruntime")
_LINES, _FINDS = "PP-OCRv6_rec_small.onnx", "PP-OCRv6_det_small.onnx"
_HEIGHT = 48
_STEP = 8
WIDTH_MOST = 40
"""Line heights: memory grows with the width."""
_ABOVE, _BESIDE = 0.12, 0.3
"""Line heights."""
_GAP = 0.9
"""Share of the line height between words."""
_FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: 0x20, 0x3001: 0x2C, 0x3002: 0x2E}

_SIDE = 672
_PIXELS_MOST = 680_000
"""450 bytes of memory each."""
_TEXT, _SURE = 0.3, 0.6
_GROWN = 0.8
"""The network marks the middle of a line, which extends this much to each side."""


def missing() -> Problem | None:
    lacking = [one for one in _PACKAGES if importlib.util.find_spec(one) is None]
    if lacking:
        detail = f"{' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} not installed"
        return Problem(CAPABILITY_MISSING, detail, HOW_TO_GET)
    if not (_models() / _LINES).is_file() or not (_models() / _FINDS).is_file():
        detail = "this rapidocr carries other models than those that are known"
        return Problem(CAPABILITY_MISSING, detail, HOW_TO_GET)
    return None


def name() -> str:
    return _NAME


def _name_with_versions() -> str:
    with suppress(metadata.PackageNotFoundError):
        return (
            f"PP-OCRv6 small (rapidocr {metadata.version('rapidocr')}, onnxruntime {metadata.version('onnxruntime')})"
        )
    return "PP-OCRv6 small"


# Found out in the fork server: the sandbox of a child process may hide the list of packages.
_NAME = _name_with_versions()


@cache
def _models() -> Path:
    # Locate the package without importing it, which takes a second.
    found = importlib.util.find_spec("rapidocr")
    return Path(found.origin if found and found.origin else "/nonexistent").parent / "models"


class LineReader:
    def __init__(self) -> None:
        self._session: Any = None
        self._characters: list[str] = []

    def read(self, gray: Gray, box: Box, between: tuple[float, float] = (-inf, inf)) -> list[Word]:
        """Positions along the line are approximate."""
        session, numpy = self._ready()
        x0, y0, x1, y1 = _with_margin(box, gray)
        x0, x1 = max(x0, min(between[0], box[0])), min(x1, max(between[1], box[2]))
        width = min(max(round((x1 - x0) * _HEIGHT / (y1 - y0)), _STEP), WIDTH_MOST * _HEIGHT)
        line = image_of(gray).resize((width, _HEIGHT), Image.Resampling.BILINEAR, (x0, y0, x1, y1))
        room = -(-width // _STEP) * _STEP
        pixels = numpy.zeros((1, 3, _HEIGHT, room), numpy.float32)
        pixels[..., :width] = numpy.asarray(line, numpy.float32) / 127.5 - 1
        [[places]] = session.run(None, {session.get_inputs()[0].name: pixels})
        best = places.argmax(1)
        # A character at adjacent positions counts once; 0 means no character.
        begins = best != 0
        begins[1:] &= best[1:] != best[:-1]
        at = begins.nonzero()[0].tolist()
        sure = places.max(1)[at].tolist()
        text = [self._characters[one].translate(_FULL_WIDTH) for one in best[at].tolist()]
        pixel = room / len(places) * (x1 - x0) / width
        return _words(text, sure, [x0 + (one + 0.5) * pixel for one in at], box, _GAP * (y1 - y0))

    def _ready(self) -> tuple[Any, Any]:
        numpy = _numpy()
        if self._session is None:
            self._session = _session(_LINES)
            listed = self._session.get_modelmeta().custom_metadata_map["character"].splitlines()
            self._characters = ["", *listed, " "]
        return self._session, numpy


class LineFinder:
    def __init__(self) -> None:
        self._session: Any = None

    def boxes(self, gray: Gray) -> list[Box]:
        numpy = _numpy()
        if self._session is None:
            self._session = _session(_FINDS)
        width, height = _size_for_finding(gray)
        small = image_of(gray).resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0)
        pixels = numpy.empty((1, 3, height, width), numpy.float32)
        pixels[:] = numpy.asarray(small, numpy.float32) / 127.5 - 1
        [[[found]]] = self._session.run(None, {self._session.get_inputs()[0].name: pixels})
        across, down = gray.width / width, gray.height / height
        return [
            (x0 * across, y0 * down, x1 * across, y1 * down)
            for x0, y0, x1, y1 in map(_extend_box, _islands(found > _TEXT, found))
        ]


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
    kept = os.dup(2)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    os.close(nothing)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


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
    return onnxruntime.InferenceSession(str(_models() / model), options, providers=["CPUExecutionProvider"])


def _with_margin(box: Box, gray: Gray) -> Box:
    x0, y0, x1, y1 = box
    above, beside = max(_ABOVE * (y1 - y0), 2), max(_BESIDE * (y1 - y0), 2)
    return max(x0 - beside, 0), max(y0 - above, 0), min(x1 + beside, gray.width), min(y1 + above, gray.height)


def _words(text: Sequence[str], sure: Sequence[float], x: Sequence[float], box: Box, gap: float) -> list[Word]:
    # A word is as sure as its least certain character.
    apart = [after - before for before, after in pairwise(x)]
    half = median(apart) / 2 if apart else (box[3] - box[1]) / 4
    gap = max(gap, 4 * half)
    words: list[list[int]] = [[]]
    for at, character in enumerate(text):
        if character.isspace() or (at and apart[at - 1] > gap):
            words.append([])
        if not character.isspace():
            words[-1].append(at)
    return [
        Word(
            max(x[one[0]] - half, box[0]),
            box[1],
            max(min(x[one[-1]] + half, box[2]), x[one[0]]),
            box[3],
            100 * min(sure[at] for at in one),
            "".join(text[at] for at in one),
        )
        for one in words
        if one
    ]


def _size_for_finding(gray: Gray) -> tuple[int, int]:
    side = min(gray.width, gray.height)
    scale = min(_SIDE / side, (_PIXELS_MOST / (gray.width * gray.height)) ** 0.5)
    return max(round(gray.width * scale / 32), 1) * 32, max(round(gray.height * scale / 32), 1) * 32


def _islands(mask: Any, found: Any) -> list[Box]:
    roots: list[int] = []
    boxes: list[list[float]] = []

    def root(one: int) -> int:
        while roots[one] != one:
            one = roots[one]
        return one

    above: list[tuple[int, int, int]] = []
    for y, row in enumerate(mask):
        edges = (row[1:] != row[:-1]).nonzero()[0] + 1
        ends = [*([0] if row[0] else []), *edges.tolist(), *([len(row)] if row[-1] else [])]
        here: list[tuple[int, int, int]] = []
        for x0, x1 in zip(ends[::2], ends[1::2], strict=True):
            touched = {root(one) for a0, a1, one in above if a0 <= x1 and x0 <= a1}
            mine = min(touched, default=len(roots))
            if mine == len(roots):
                roots.append(mine)
                boxes.append([x0, y, x1, y + 1, 0.0, 0.0])
            box = boxes[mine]
            for other in touched - {mine}:
                roots[other] = mine
                theirs = boxes[other]
                box[:4] = min(box[0], theirs[0]), min(box[1], theirs[1]), max(box[2], theirs[2]), max(box[3], theirs[3])
                box[4:] = box[4] + theirs[4], box[5] + theirs[5]
            box[:4] = min(box[0], x0), box[1], max(box[2], x1), y + 1
            box[4:] = box[4] + float(found[y, x0:x1].sum()), box[5] + x1 - x0
            here.append((x0, x1, mine))
        above = here
    whole = [box for at, box in enumerate(boxes) if roots[at] == at]
    return [(box[0], box[1], box[2], box[3]) for box in whole if box[3] - box[1] > 2 and box[4] >= _SURE * box[5]]


def _extend_box(box: Box) -> Box:
    x0, y0, x1, y1 = box
    by = _GROWN * min(x1 - x0, y1 - y0) / 2
    return max(x0 - by, 0), max(y0 - by, 0), x1 + by, y1 + by
