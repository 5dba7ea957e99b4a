"""Measure and prepare a page's gray pixels for OCR. Pillow does all per-pixel work. In images of ink, ink is 255."""

from __future__ import annotations

import hashlib
import io
import math
import re
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate, pairwise
from operator import itemgetter, mul

from msgspec import Struct
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from job_handlers.reading.layout import Box

_WHITE, _INK = 255, 255
_INK_WIDTH = 310  # Pixels of a copy that is reduced to find ink.
_INK_DEPTH = 40  # Shades between ink and paper in a reduced copy.
_INK_RUN = re.compile(b"\xff+")


class Gray(Struct, frozen=True):
    width: int
    height: int
    samples: bytes
    """A byte per pixel; 0 is black."""


def image_of(gray: Gray) -> Image.Image:
    return Image.frombuffer("L", (gray.width, gray.height), gray.samples, "raw", "L", 0, 1)


def _gray_of(image: Image.Image) -> Gray:
    return Gray(image.width, image.height, image.tobytes())


# --- pictures --------------------------------------------------------------------------------------------
_PICTURE_SIDE_LEAST = 24  # Pixels.
_PICTURE_PIXELS_MAX = 40_000_000
_PICTURE_PIXELS_LARGE = 16_000_000  # Larger pictures are halved.


class Damaged(Exception):
    """The image file is broken or truncated."""


def decode_picture(packed: bytes) -> Gray | None:
    """Return None if the picture is too small or too large for text; raise `Damaged`."""
    try:
        image: Image.Image = Image.open(io.BytesIO(packed), formats=("PNG", "JPEG", "TIFF", "GIF", "WEBP", "BMP"))
        if min(image.size) < _PICTURE_SIDE_LEAST or image.width * image.height > _PICTURE_PIXELS_MAX:
            return None
        # Decode a JPEG directly to gray: a 600 dpi page in colour takes 100 MB.
        is_large = image.width * image.height > _PICTURE_PIXELS_LARGE
        image.draft("L", (image.width // 2, image.height // 2) if is_large else image.size)
        if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
            # Convert to gray before blending with white: blending in colour takes three times as much memory again.
            image = (image if image.mode in ("RGBA", "LA") else image.convert("RGBA")).convert("LA")
            image = Image.composite(image.getchannel("L"), Image.new("L", image.size, _WHITE), image.getchannel("A"))
        if image.mode.startswith("I;16"):
            # Values above 255 would become white.
            image = image.convert("I").point(lambda shade: shade * (1 / 256))
        image = image.convert("L")
        # `draft` halves only JPEGs.
        if image.width * image.height > _PICTURE_PIXELS_LARGE:
            image = image.reduce(2)
    except Image.DecompressionBombError:
        return None
    except (OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError) as error:
        raise Damaged(str(error)) from error
    return _gray_of(image)


def pixels_hash(gray: Gray, dpi: float, size: tuple[float, float]) -> str:
    """Hash everything the recognised text depends on. A weaker hash could be forged."""
    result = hashlib.sha256(repr((gray.width, gray.height, dpi, size)).encode())
    result.update(gray.samples)
    return result.hexdigest()


def whiten_missing_rows(gray: Gray) -> Gray:
    """Whiten the rows of one shade with which a decoder fills a truncated image."""
    end = len(gray.samples)
    row = gray.samples[-1:] * gray.width
    while end and gray.samples.endswith(row, 0, end):
        end -= gray.width
    return Gray(gray.width, gray.height, gray.samples[:end].ljust(len(gray.samples), b"\xff"))


def cut_into_bands(gray: Gray, height: int) -> list[tuple[int, Gray]]:
    """Return the bands, at most `height` high, with their tops. Cut at the brightest row of a band's last third."""
    row_shades = image_of(gray).resize((1, gray.height), Image.Resampling.BOX).tobytes()
    bands: list[tuple[int, Gray]] = []
    top = 0
    while top < gray.height:
        bottom = gray.height
        if bottom - top > height:
            bottom = max(range(top + 2 * height // 3, top + height), key=row_shades.__getitem__) + 1
        bands.append((top, Gray(gray.width, bottom - top, gray.samples[top * gray.width : bottom * gray.width])))
        top = bottom
    return bands


def halve(gray: Gray) -> Gray:
    return _gray_of(image_of(gray).reduce(2))


def turn_image(gray: Gray, degrees: int) -> Gray:
    """Turn clockwise."""
    if not degrees:
        return gray
    # Pillow turns counterclockwise.
    turns = {90: Image.Transpose.ROTATE_270, 180: Image.Transpose.ROTATE_180, 270: Image.Transpose.ROTATE_90}
    return _gray_of(image_of(gray).transpose(turns[degrees]))


def soften(gray: Gray) -> Gray:
    # A radius of 0.6 pixels: specks of one pixel fade, strokes stay.
    return _gray_of(image_of(gray).filter(ImageFilter.GaussianBlur(0.6)))


def crop(gray: Gray, box: Box) -> tuple[Gray, int, int]:
    image, left, top = _crop_image(gray, box)
    return _gray_of(image), left, top


def _crop_image(gray: Gray, box: Box) -> tuple[Image.Image, int, int]:
    left, top = max(int(box[0]), 0), max(int(box[1]), 0)
    right, bottom = min(math.ceil(box[2]), gray.width), min(math.ceil(box[3]), gray.height)
    return image_of(gray).crop((left, top, max(right, left + 1), max(bottom, top + 1))), left, top


# --- ink -------------------------------------------------------------------------------------------------
_MARKS_WIDTH = 620  # Pixels of a copy that is reduced to find marks.
_SHADOW_SHARE = 0.03  # Of the page at each side, which may be a shadow.
_INK_SHARE_LEAST = 0.00015  # A page with less is blank.
_INK_CONTRAST = 0.45  # Share of the difference between paper and the darkest pixels.


def is_blank(gray: Gray) -> bool:
    small = _reduce_to_width(gray, _INK_WIDTH)
    left, top = int(small.width * _SHADOW_SHARE), int(small.height * _SHADOW_SHARE)
    inner = small.crop((left, top, max(small.width - left, left + 1), max(small.height - top, top + 1)))
    counts = inner.histogram()
    total = sum(counts)
    paper = _most_common(counts)
    if paper < 128:
        # Light text on dark paper: count the shades of its negative.
        counts, paper = counts[::-1], _WHITE - paper
    ink = sum(counts[: max(paper - _INK_DEPTH, 0)])
    return ink < total * _INK_SHARE_LEAST


def unread_ink(gray: Gray, boxes: Iterable[Box]) -> float:
    """Return the share of the page's ink that is outside the boxes."""
    ink, total, _ = _ink_outside(gray, boxes, _INK_WIDTH)
    return ink.histogram()[_INK] / max(total, 1)


class _Mark(Struct):
    x0: int
    y0: int
    x1: int
    y1: int


def unread_marks(gray: Gray, boxes: Iterable[Box], *, marks_most: int) -> list[Box]:
    """Return the boxes of ink outside `boxes`; none if there are more than `marks_most`, which means dirt.

    Marks whose boxes touch are one.
    """
    ink, _, scale = _ink_outside(gray, boxes, _MARKS_WIDTH)
    marks: list[_Mark] = []
    # The marks that reach the row above.
    growing: list[_Mark] = []
    samples, width = ink.tobytes(), ink.width
    for y in range(ink.height if ink.getbbox() else 0):
        for run in _INK_RUN.finditer(samples, y * width, (y + 1) * width):
            begin, end = run.start() - y * width, run.end() - y * width
            touched = [mark for mark in growing if mark.x0 <= end and begin <= mark.x1]
            if not touched:
                mark = _Mark(begin, y, end, y + 1)
                growing.append(mark)
                marks.append(mark)
                continue
            mark = touched[0]
            for other in touched[1:]:
                growing.remove(other)
                marks.remove(other)
                mark.x0, mark.y0, mark.x1 = min(mark.x0, other.x0), min(mark.y0, other.y0), max(mark.x1, other.x1)
            mark.x0, mark.x1, mark.y1 = min(mark.x0, begin), max(mark.x1, end), y + 1
        growing = [mark for mark in growing if mark.y1 > y]
        if len(marks) > marks_most:
            return []
    return [(mark.x0 * scale, mark.y0 * scale, mark.x1 * scale, mark.y1 * scale) for mark in marks]


def _ink_outside(gray: Gray, boxes: Iterable[Box], width: int) -> tuple[Image.Image, int, int]:
    """Return the ink outside the boxes in a reduced copy, how many of its pixels are ink in all, and the scale."""
    scale = max(gray.width // width, 1)
    small = _reduce_to_width(gray, width)
    dark = max(_most_common(small.histogram()) - _INK_DEPTH, 0)
    ink = small.point(_ink_below(dark))
    total = ink.histogram()[_INK]
    draw = ImageDraw.Draw(ink)
    for box in boxes:
        draw.rectangle([side / scale for side in box], fill=0)
    return ink, total, scale


def ink_within(gray: Gray, box: Box) -> tuple[Image.Image, int, int]:
    """Return the ink in the box, and its left and top."""
    image, left, top = _crop_image(gray, box)
    # The median, and a shade that only one pixel in 300 is darker than.
    paper, ink = _shades_at(image, (1, 2), (1, 300))
    dark = paper - max((paper - ink) * _INK_CONTRAST, _INK_DEPTH)
    return image.point(_ink_below(dark)), left, top


# --- light and grain -------------------------------------------------------------------------------------
_TWO_TONED_SHARE = 0.99  # Of black and white pixels.
_SHADE_PARTS = 8  # In each direction.
_SHADE_DIFFERENCE_LEAST = 40  # Such a difference between parts of the paper loses whole lines to one threshold.
_GRAIN_LEAST = 10  # Median difference between adjacent pixels of a noisy scanner.


def has_two_tones(gray: Gray) -> bool:
    """Return whether the page is black and white, like a fax. Softening would merge the lines of such a page."""
    counts = image_of(gray).histogram()
    return counts[0] + counts[_WHITE] >= _TWO_TONED_SHARE * sum(counts)


def is_unevenly_lit(gray: Gray) -> bool:
    small = _reduce_to_width(gray, _INK_WIDTH)
    # Where the parts begin and end.
    columns, rows = (
        list(pairwise(length * at // _SHADE_PARTS for at in range(_SHADE_PARTS + 1))) for length in small.size
    )
    paper_shades: list[int] = []
    for left, right in columns:
        for top, bottom in rows:
            # A quarter of a part may be text.
            paper_shades += _shades_at(small.crop((left, top, right, bottom)), (3, 4))
    paper_shades.sort()
    # Leave out pictures and the page's edges: the darkest and the brightest twentieth.
    left_out = len(paper_shades) // 20
    return paper_shades[-1 - left_out] - paper_shades[left_out] >= _SHADE_DIFFERENCE_LEAST


def is_grainy(gray: Gray) -> bool:
    image = image_of(gray)
    all_but_first, all_but_last = image.crop((1, 0, *image.size)), image.crop((0, 0, image.width - 1, image.height))
    [median_difference] = _shades_at(ImageChops.difference(all_but_first, all_but_last), (1, 2))
    return median_difference >= _GRAIN_LEAST


def _shades_at(image: Image.Image, *shares: tuple[int, int]) -> list[int]:
    """Return the shade below which each share of the pixels lies, such as (3, 4) for three quarters."""
    counts = list(accumulate(image.histogram()))
    return [bisect_right(counts, counts[-1] * numerator // denominator) for numerator, denominator in shares]


# --- size of letters -------------------------------------------------------------------------------------
_INK_DEPTH_FULL_SIZE = 70  # Shades between ink and paper: enough to ignore grain.
_LETTER_INCHES = 16 / 300  # A letter or two, which count as one mark.
_LETTERS_BESIDE = 10  # Marks beside each other that show a row of letters.
_MARK_INK_LEAST, _MARKS_SHARE = 16, 0.6  # Specks have less ink; a row of letters has more marks.
_LETTERS = re.compile(rb"\xff+(?:\x00{1,8}\xff+)*")
"""A row of letters, scanned downwards: ink with small gaps, as within an e."""
_LETTER_HEIGHTS = range(7, 71)  # Pixels at 300 dpi.
_LETTERS_LEAST = 20
_SMALLER_SHARE = 0.03  # Of the letters, such as those of a running head, which may be smaller.


def height_of_letters(gray: Gray, dpi: float) -> int:
    """Return the height in pixels of an x in the smallest print; 0 if there are too few letters."""
    # Each pixel of `marks` is a letter or two of one row of pixels; in `rows`, a pixel is ink if most of ten marks are.
    marks = _ink_of(gray).reduce((max(round(dpi * _LETTER_INCHES), 1), 1)).point(_ink_from(_MARK_INK_LEAST))
    rows = marks.reduce((_LETTERS_BESIDE, 1)).point(_ink_from(_INK * _MARKS_SHARE))
    # Transposed, a column is a sequence of bytes that the pattern can scan.
    columns = rows.transpose(Image.Transpose.TRANSPOSE)
    samples, length = columns.tobytes(), columns.width
    heights = sorted(
        match.end() - match.start()
        for begin in range(0, len(samples), length)
        for match in _LETTERS.finditer(samples, begin, begin + length)
        if round((match.end() - match.start()) * 300 / dpi) in _LETTER_HEIGHTS
    )
    return heights[int(len(heights) * _SMALLER_SHARE)] if len(heights) >= _LETTERS_LEAST else 0


def _ink_of(gray: Gray) -> Image.Image:
    dark = _most_common(_reduce_to_width(gray, _INK_WIDTH).histogram()) - _INK_DEPTH_FULL_SIZE
    return image_of(gray).point(_ink_below(dark))


# --- skew ------------------------------------------------------------------------------------------------
_SKEW_WIDTH = 600  # Pixels of a reduced copy.
_STRIPS = 24  # Vertical strips of the page, shifted against each other to try an angle.
# Degrees.
_SKEW_MAX = 10.0
_SKEW_LEAST = 0.4  # The engine copes with less, and resampling costs quality.
_SKEW_GAIN = 1.15  # Least gain in sharpness.
_REFINED_ANGLES = 3  # Best angles of the coarse search.
_SQUARES = [value * value for value in range(256)]


def skew_of(gray: Gray) -> float:
    """Return the degrees by which the text leans clockwise; 0 if they are too few to matter."""
    small = _reduce_to_width(gray, _SKEW_WIDTH)
    strips = small.resize((_STRIPS, small.height), Image.Resampling.BOX)
    strip_width = small.width / _STRIPS
    upright = _sharpness(strips, 0.0, strip_width)
    coarse = [half / 2 for half in range(-int(_SKEW_MAX * 2), int(_SKEW_MAX * 2) + 1) if half]
    # Nearest-pixel resampling is accurate enough for the coarse search and takes a third of the time.
    rough = {angle: _sharpness(strips, angle, strip_width, Image.Resampling.NEAREST) for angle in coarse}
    likely = [angle for angle in sorted(rough, key=rough.__getitem__)[-_REFINED_ANGLES:] if rough[angle] > upright]
    sharpness, angle = _sharpest(strips, strip_width, likely, (upright, 0.0))
    # Around 0°, try only the smallest angle that matters.
    finer = [angle + tenth / 10 for tenth in range(-4, 5) if tenth] if angle else [-_SKEW_LEAST, _SKEW_LEAST]
    sharpness, angle = _sharpest(strips, strip_width, finer, (sharpness, angle))
    if abs(angle) < _SKEW_LEAST or sharpness < upright * _SKEW_GAIN:
        return 0.0
    return round(angle, 2)


def deskew(gray: Gray, skew: float) -> Gray:
    return _gray_of(image_of(gray).rotate(skew, Image.Resampling.BICUBIC, fillcolor=_WHITE))


def _sharpest(
    strips: Image.Image, strip_width: float, angles: Iterable[float], best: tuple[int, float]
) -> tuple[int, float]:
    return max([best, *((_sharpness(strips, angle, strip_width), angle) for angle in angles)], key=itemgetter(0))


def _sharpness(
    strips: Image.Image, angle: float, strip_width: float, resampling: Image.Resampling = Image.Resampling.BILINEAR
) -> int:
    """Return how strongly the row sums vary, which is most along the lines of text."""
    slope = math.tan(math.radians(angle)) * strip_width
    shift = -slope * (strips.width - 1) / 2
    if angle:
        strips = strips.transform(
            strips.size, Image.Transform.AFFINE, (1, 0, 0, slope, 1, shift), resampling, fillcolor=_WHITE
        )
    rows = strips.reduce((strips.width, 1))
    rise = ImageChops.difference(rows.crop((0, 1, 1, rows.height)), rows.crop((0, 0, 1, rows.height - 1)))
    return sum(map(mul, rise.histogram(), _SQUARES))


# --- ruling lines ----------------------------------------------------------------------------------------
_RULE_STEP_INCHES = 0.06  # Lines are measured in steps of this length.
_RULE_STEPS_LEAST = 4
_INK_OF_RULE_LEAST = 216  # Mean of the ink, 0 to 255, in a step.
_RULES_MOST = 10_000  # More are those of a picture or of shadows.


def ruled_lines(gray: Gray, dpi: float) -> list[Box]:
    ink = _ink_of(gray)
    step_pixels = max(round(dpi * _RULE_STEP_INCHES), 4)
    horizontal = _horizontal_lines(ink, step_pixels)
    vertical = _horizontal_lines(ink.transpose(Image.Transpose.TRANSPOSE), step_pixels)
    return [*horizontal, *((y0, x0, y1, x1) for x0, y0, x1, y1 in vertical)]


def _horizontal_lines(ink: Image.Image, step: int) -> list[Box]:
    # A slightly leaning line continues in the next row.
    thick = ImageChops.lighter(ink, ImageChops.offset(ink, 0, 1))
    # Each pixel of `steps` is a step of a row.
    steps = thick.reduce((step, 1))
    width = steps.width
    runs_of_row: dict[int, list[tuple[int, int]]] = {}
    for run in _INK_RUN.finditer(steps.point(_ink_from(_INK_OF_RULE_LEAST)).tobytes()):
        row = run.start() // width
        begin, end = run.start() - row * width, min(run.end() - row * width, width)
        if end - begin >= _RULE_STEPS_LEAST:
            runs_of_row.setdefault(row, []).append((begin, end))
    if sum(map(len, runs_of_row.values())) > _RULES_MOST:
        return []

    def is_area(row: int, begin: int, end: int) -> bool:
        # The edge of an area of ink, not a line: all of the next rows have ink below its middle.
        middle = (begin + end) // 2
        return all(
            any(left <= middle < right for left, right in runs_of_row.get(below, ()))
            for below in range(row + 1, row + step)
        )

    return [
        (float(begin * step), float(row), float(end * step), float(row))
        for row, runs in runs_of_row.items()
        for begin, end in runs
        if not is_area(row, begin, end)
    ]


# --- shared by the sections above ------------------------------------------------------------------------


def _ink_from(shade: float) -> list[int]:
    # A table for `Image.point`, as is the next.
    return [_INK if value >= shade else 0 for value in range(256)]


def _ink_below(shade: float) -> list[int]:
    return [_INK if value < shade else 0 for value in range(256)]


def _reduce_to_width(gray: Gray, width: int) -> Image.Image:
    step = max(gray.width // width, 1)
    return image_of(gray).reduce(step) if step > 1 else image_of(gray)


def _most_common(counts: list[int]) -> int:
    return max(range(len(counts)), key=counts.__getitem__)
