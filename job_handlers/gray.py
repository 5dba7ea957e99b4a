"""A page as gray pixels, made ready to be read: is there ink, is it skewed, turn it, straighten it. Nothing else.

Pillow does what is done to every pixel: it is here with pytesseract anyway, and starts no threads at its import.
Looking for skew is cheap because only narrow strips of a small copy are sheared; only a skewed page is resampled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from PIL import Image, ImageFilter

_SEARCH_WIDTH = 600
_STRIPS = 24
_SKEW_MAX = 10.0
_SKEW_LEAST = 0.4
"""Degrees. The engine copes with less, and each resampling costs a little."""
_SKEW_GAIN = 1.15
_INK_WIDTH = 310
_INK_MARGIN = 0.03
_INK_DEPTH = 40
"""How much darker than paper."""
_INK_LEAST = 0.00015
_PAPER = 255


@dataclass(frozen=True, slots=True)
class Gray:
    width: int
    height: int
    samples: bytes
    """One byte a pixel, without padding; 255 is white."""


def image_of(gray: Gray) -> Image.Image:
    return Image.frombuffer("L", (gray.width, gray.height), gray.samples, "raw", "L", 0, 1)


def is_blank(gray: Gray) -> bool:
    """By ink, not by text: specks and the shadow along an edge are none."""
    image = image_of(gray)
    step = max(gray.width // _INK_WIDTH, 1)
    small = image.reduce(step) if step > 1 else image
    left, top = int(small.width * _INK_MARGIN), int(small.height * _INK_MARGIN)
    inner = small.crop((left, top, max(small.width - left, left + 1), max(small.height - top, top + 1)))
    counts = inner.histogram()
    total = sum(counts)
    paper = _most(counts)
    if paper < 128:
        # Light writing on dark paper.
        counts, paper = counts[::-1], _PAPER - paper
    ink = sum(counts[: max(paper - _INK_DEPTH, 0)])
    return ink < total * _INK_LEAST


def skew_of(gray: Gray) -> float:
    """Degrees by which the writing leans clockwise; 0 where it does not, or not enough to matter."""
    image = image_of(gray)
    step = max(gray.width // _SEARCH_WIDTH, 1)
    small = image.reduce(step) if step > 1 else image
    strips = small.resize((_STRIPS, small.height), Image.Resampling.BOX)
    strip_width = small.width / _STRIPS
    upright = _sharpness(strips, 0.0, strip_width)
    best, angle = upright, 0.0
    coarse = [half / 2 for half in range(-int(_SKEW_MAX * 2), int(_SKEW_MAX * 2) + 1) if half]
    for tried in coarse:
        sharp = _sharpness(strips, tried, strip_width)
        if sharp > best:
            best, angle = sharp, tried
    for tried in [angle + tenth / 10 for tenth in range(-4, 5) if tenth]:
        sharp = _sharpness(strips, tried, strip_width)
        if sharp > best:
            best, angle = sharp, tried
    if abs(angle) < _SKEW_LEAST or best < upright * _SKEW_GAIN:
        return 0.0
    return round(angle, 2)


def straightened(gray: Gray, skew: float) -> Gray:
    turned = image_of(gray).rotate(skew, Image.Resampling.BICUBIC, fillcolor=_PAPER)
    return Gray(turned.width, turned.height, turned.tobytes())


def turned(gray: Gray, degrees: int) -> Gray:
    """Clockwise, by right angles."""
    if not degrees:
        return gray
    how = {90: Image.Transpose.ROTATE_270, 180: Image.Transpose.ROTATE_180, 270: Image.Transpose.ROTATE_90}[degrees]
    image = image_of(gray).transpose(how)
    return Gray(image.width, image.height, image.tobytes())


def softened(gray: Gray) -> Gray:
    """For scans so coarse that their noise is as large as their strokes."""
    image = image_of(gray).filter(ImageFilter.GaussianBlur(0.6))
    return Gray(image.width, image.height, image.tobytes())


def _most(counts: list[int]) -> int:
    return max(range(len(counts)), key=counts.__getitem__)


def _sharpness(strips: Image.Image, angle: float, strip_width: float) -> float:
    """Lines of writing make the sums of rows rise and fall; most so along the lines."""
    slope = math.tan(math.radians(angle)) * strip_width
    shift = -slope * (strips.width - 1) / 2
    if angle:
        strips = strips.transform(
            strips.size, Image.Transform.AFFINE, (1, 0, 0, slope, 1, shift), Image.Resampling.BILINEAR, fillcolor=_PAPER
        )
    rows = strips.resize((1, strips.height), Image.Resampling.BOX).tobytes()
    return float(sum([(one - other) ** 2 for one, other in pairwise(rows)]))
