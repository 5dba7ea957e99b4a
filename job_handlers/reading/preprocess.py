"""A page as gray pixels, made ready to be read: is there ink, is it skewed, turn it, straighten it. Nothing else.

Pillow does what is done to every pixel: it is here with pytesseract anyway, and starts no threads at its import.
Looking for skew is cheap because only narrow strips of a small copy are sheared; only a skewed page is resampled.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate, pairwise
from operator import mul

from msgspec import Struct
from PIL import Image, ImageChops, ImageDraw, ImageFilter

_SEARCH_WIDTH = 600
_STRIPS = 24
_SKEW_MAX = 10.0
_SKEW_LEAST = 0.4
"""Degrees. The engine copes with less, and each resampling costs a little."""
_SKEW_GAIN = 1.15
_LIKELY = 3
"""Of the angles that are looked at roughly."""
_INK_WIDTH = 310
_MARKS_WIDTH = 620
_INK_MARGIN = 0.03
_INK_DEPTH = 40
"""How much darker than paper."""
_INK_LEAST = 0.00015
_DEPTH = 70
"""The same of a pixel by itself, so that grain is none."""
_RULE_DARK = 216
"""Of 255: how much of a step has to be ink."""
_RULE_STEP_INCHES = 0.06
_RULE_STEPS_LEAST = 4
_STRETCHES_MOST = 10_000
_DARK = re.compile(b"\xff+")
_LETTERS = re.compile(rb"\xff+(?:\x00{1,8}\xff+)*")
"""Down the page. What is open within a letter is less than what parts two lines."""
_TWO_TONED = 0.99
_SHADE_BLOCKS = 8
_SHADE_MOST = 40
"""Between the paper in the darkest place and in the brightest: with more, one threshold for all loses whole lines."""
_GRAIN = 10
"""Between neighbours, half of which differ by more: the noise of a scanner, and not of printing or of film."""
_PAPER = 255
_LETTER_INCHES = 16 / 300
"""As wide as a letter or two: all in it is one mark, and as high as a small letter where it holds no tall one."""
_LETTERS_BESIDE = 10
_MARKED, _MARKS = 16, 0.6
"""Of 255, so that a thin stroke is a mark and a speck none; and the share of marks that make a row one of letters."""
_LETTERS_HIGH = range(7, 71)
"""At 300 dots per inch: of less are rules and dashes, of more pictures."""
_LETTERS_LEAST = 20
_SMALLEST = 0.03
"""Of all: a running head may be smaller than what is told, and a footnote not."""
_PICTURE_LEAST = 24
_PICTURE_PIXELS_MAX = 40_000_000
_PICTURE_PIXELS_LARGE = 16_000_000
"""More than a page of 400 dpi: half as many each way say no less, and take a quarter of the memory."""
_SQUARES = [value * value for value in range(256)]


Box = tuple[float, float, float, float]


class Gray(Struct, frozen=True):
    width: int
    height: int
    samples: bytes
    """One byte a pixel, without padding; 255 is white."""


class Damaged(Exception):
    """The file of a picture is broken or ends early."""


def gray_of(packed: bytes) -> Gray | None:
    """Unpack a picture of a text. Return None for one that is too small or too large for words; raise `Damaged`."""
    try:
        image: Image.Image = Image.open(io.BytesIO(packed), formats=("PNG", "JPEG", "TIFF", "GIF", "WEBP", "BMP"))
        if min(image.size) < _PICTURE_LEAST or image.width * image.height > _PICTURE_PIXELS_MAX:
            return None
        # A JPEG is never unpacked in colour: of a page of 600 dpi that is 100 MB.
        is_large = image.width * image.height > _PICTURE_PIXELS_LARGE
        image.draft("L", (image.width // 2, image.height // 2) if is_large else image.size)
        if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
            # Gray before it is laid on white: in colour that takes three times as much again.
            image = (image if image.mode in ("RGBA", "LA") else image.convert("RGBA")).convert("LA")
            image = Image.composite(image.getchannel("L"), Image.new("L", image.size, _PAPER), image.getchannel("A"))
        if image.mode.startswith("I;16"):
            # What is above 255 would be white.
            image = image.convert("I").point(lambda shade: shade * (1 / 256))
        made = image.convert("L")
        if made.width * made.height > _PICTURE_PIXELS_LARGE:
            made = made.reduce(2)
    except Image.DecompressionBombError:
        return None
    except (OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError) as error:
        raise Damaged(str(error)) from error
    return Gray(made.width, made.height, made.tobytes())


def shown_by(gray: Gray, dpi: float, size: tuple[float, float]) -> str:
    """SHA-256 of all that reading depends on: one that could be forged would put words into somebody else's page."""
    found = hashlib.sha256(repr((gray.width, gray.height, dpi, size)).encode())
    found.update(gray.samples)
    return found.hexdigest()


def image_of(gray: Gray) -> Image.Image:
    return Image.frombuffer("L", (gray.width, gray.height), gray.samples, "raw", "L", 0, 1)


def with_white_end(gray: Gray) -> Gray:
    """Make the rows below the last one that shows anything white. Decoders fill missing rows with black or gray, which
    would be taken for the paper."""
    end = len(gray.samples)
    row = gray.samples[-1:] * gray.width
    while end and gray.samples.endswith(row, 0, end):
        end -= gray.width
    return Gray(gray.width, gray.height, gray.samples[:end].ljust(len(gray.samples), b"\xff"))


def bands(gray: Gray, height: int) -> list[tuple[int, Gray]]:
    """Cut the page across into pieces of at most `height` pixels, each at the whitest row of its last third. Return
    each with its distance from the top."""
    shades = image_of(gray).resize((1, gray.height), Image.Resampling.BOX).tobytes()
    found: list[tuple[int, Gray]] = []
    top = 0
    while top < gray.height:
        bottom = gray.height
        if bottom - top > height:
            bottom = max(range(top + 2 * height // 3, top + height), key=shades.__getitem__) + 1
        found.append((top, Gray(gray.width, bottom - top, gray.samples[top * gray.width : bottom * gray.width])))
        top = bottom
    return found


def is_blank(gray: Gray) -> bool:
    """By ink, not by text: specks and the shadow along an edge are none."""
    small = _reduced(gray, _INK_WIDTH)
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


def ink_left_out(gray: Gray, boxes: Iterable[Box]) -> float:
    """The share of the ink that stands outside of these."""
    ink, total, _ = _outside(gray, boxes, _INK_WIDTH)
    return ink.histogram()[_PAPER] / max(total, 1)


def marks_left_out(gray: Gray, boxes: Iterable[Box], *, most: int) -> list[Box]:
    """What hangs together outside of these; nothing where that is more than so many: then it is dirt, or a picture."""
    ink, _, step = _outside(gray, boxes, _MARKS_WIDTH)
    whole: list[list[int]] = []
    growing: list[list[int]] = []
    samples, length = ink.tobytes(), ink.width
    for y in range(ink.height if ink.getbbox() else 0):
        for run in _DARK.finditer(samples, y * length, (y + 1) * length):
            x0, x1 = run.start() - y * length, run.end() - y * length
            touched = [box for box in growing if box[0] <= x1 and x0 <= box[2] and box[3] >= y]
            if not touched:
                growing.append(box := [x0, y, x1, y + 1])
                whole.append(box)
                continue
            box = touched[0]
            for other in touched[1:]:
                growing.remove(other)
                whole.remove(other)
                box[:3] = min(box[0], other[0]), min(box[1], other[1]), max(box[2], other[2])
            box[:] = min(box[0], x0), box[1], max(box[2], x1), y + 1
        growing = [box for box in growing if box[3] > y]
        if len(whole) > most:
            return []
    return [(x0 * step, y0 * step, x1 * step, y1 * step) for x0, y0, x1, y1 in whole]


def _outside(gray: Gray, boxes: Iterable[Box], width: int) -> tuple[Image.Image, int, int]:
    """The ink without what is in these, how much there is with it, and how many pixels became one."""
    step = max(gray.width // width, 1)
    small = _reduced(gray, width)
    dark = max(_most(small.histogram()) - _INK_DEPTH, 0)
    ink = small.point([_PAPER if value < dark else 0 for value in range(256)])
    total = ink.histogram()[_PAPER]
    draw = ImageDraw.Draw(ink)
    for box in boxes:
        draw.rectangle([side / step for side in box], fill=0)
    return ink, total, step


def has_two_tones(gray: Gray) -> bool:
    """Black and white, as a fax: whoever softens it moves lines and letters together, and columns with them."""
    counts = image_of(gray).histogram()
    return counts[0] + counts[_PAPER] >= _TWO_TONED * sum(counts)


def height_of_letters(gray: Gray, dpi: float) -> int:
    """In pixels, of small ones such as x, where the print is smallest. 0: there is too little to tell."""
    marks = _ink(gray).reduce((max(round(dpi * _LETTER_INCHES), 1), 1)).point(_at_least(_MARKED))
    rows = marks.reduce((_LETTERS_BESIDE, 1)).point(_at_least(_PAPER * _MARKS)).transpose(Image.Transpose.TRANSPOSE)
    samples, length = rows.tobytes(), rows.width
    heights = sorted(
        found.end() - found.start()
        for begin in range(0, len(samples), length)
        for found in _LETTERS.finditer(samples, begin, begin + length)
        if round((found.end() - found.start()) * 300 / dpi) in _LETTERS_HIGH
    )
    return heights[int(len(heights) * _SMALLEST)] if len(heights) >= _LETTERS_LEAST else 0


def halved(gray: Gray) -> Gray:
    """To half as many pixels each way: of two tones become five, and specks pale."""
    image = image_of(gray).reduce(2)
    return Gray(image.width, image.height, image.tobytes())


def is_unevenly_lit(gray: Gray) -> bool:
    """Or stained: told by how bright the paper is from place to place."""
    small = _reduced(gray, _INK_WIDTH)
    across, down = (
        list(pairwise(length * at // _SHADE_BLOCKS for at in range(_SHADE_BLOCKS + 1))) for length in small.size
    )
    parts = (small.crop((left, top, right, bottom)) for left, right in across for top, bottom in down)
    papers = sorted(tone for part in parts for tone in _tones(part, (3, 4)))
    # Pictures and the edges are left out.
    most = len(papers) // 20
    return papers[-1 - most] - papers[most] >= _SHADE_MOST


def is_grainy(gray: Gray) -> bool:
    image = image_of(gray)
    beside = ImageChops.difference(image.crop((1, 0, *image.size)), image.crop((0, 0, image.width - 1, image.height)))
    counts = list(accumulate(beside.histogram()))
    return bisect_right(counts, counts[-1] // 2) >= _GRAIN


def skew_of(gray: Gray) -> float:
    """Degrees by which the writing leans clockwise; 0 where it does not, or not enough to matter."""
    small = _reduced(gray, _SEARCH_WIDTH)
    strips = small.resize((_STRIPS, small.height), Image.Resampling.BOX)
    strip_width = small.width / _STRIPS
    upright = _sharpness(strips, 0.0, strip_width)
    coarse = [half / 2 for half in range(-int(_SKEW_MAX * 2), int(_SKEW_MAX * 2) + 1) if half]
    # Whole pixels will do to find about where it is, in a third of the time.
    roughly = {tried: _sharpness(strips, tried, strip_width, Image.Resampling.NEAREST) for tried in coarse}
    likely = [tried for tried in sorted(roughly, key=roughly.__getitem__)[-_LIKELY:] if roughly[tried] > upright]
    best, angle = _sharpest(strips, strip_width, likely, (upright, 0.0))
    # Of what is next to upright, less is not enough to matter.
    finer = [angle + tenth / 10 for tenth in range(-4, 5) if tenth] if angle else [-_SKEW_LEAST, _SKEW_LEAST]
    best, angle = _sharpest(strips, strip_width, finer, (best, angle))
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
    """A little: specks of one pixel pale, strokes stay."""
    image = image_of(gray).filter(ImageFilter.GaussianBlur(0.6))
    return Gray(image.width, image.height, image.tobytes())


def cropped(gray: Gray, box: tuple[float, float, float, float]) -> tuple[Gray, int, int]:
    """And from where on."""
    image, left, top = _within(gray, box)
    return Gray(image.width, image.height, image.tobytes()), left, top


def ink_within(gray: Gray, box: tuple[float, float, float, float]) -> tuple[Image.Image, int, int]:
    """255 where there is some, else 0, told by the paper and the darkest ink there; and from where on."""
    image, left, top = _within(gray, box)
    paper, ink = _tones(image, (1, 2), (1, 300))
    dark = paper - max((paper - ink) * 0.45, _INK_DEPTH)
    return image.point([_PAPER if value < dark else 0 for value in range(256)]), left, top


def _within(gray: Gray, box: tuple[float, float, float, float]) -> tuple[Image.Image, int, int]:
    left, top = max(int(box[0]), 0), max(int(box[1]), 0)
    right, bottom = min(math.ceil(box[2]), gray.width), min(math.ceil(box[3]), gray.height)
    return image_of(gray).crop((left, top, max(right, left + 1), max(bottom, top + 1))), left, top


def ruled_lines(gray: Gray, dpi: float) -> list[tuple[float, float, float, float]]:
    """Level and upright lines as long as a few letters; each as the stretches of it that lie in one row of pixels."""
    ink = _ink(gray)
    step = max(round(dpi * _RULE_STEP_INCHES), 4)
    level = _stretches(ink, step)
    upright = _stretches(ink.transpose(Image.Transpose.TRANSPOSE), step)
    return [*level, *((y0, x0, y1, x1) for x0, y0, x1, y1 in upright)]


def _stretches(ink: Image.Image, step: int) -> list[tuple[float, float, float, float]]:
    # A line that leans a little goes on in the next row.
    thick = ImageChops.lighter(ink, ImageChops.offset(ink, 0, 1))
    small = thick.reduce((step, 1))
    dark = small.point(_at_least(_RULE_DARK)).tobytes()
    width = small.width
    found: dict[int, list[tuple[int, int]]] = {}
    for run in _DARK.finditer(dark):
        row = run.start() // width
        begin, end = run.start() - row * width, min(run.end() - row * width, width)
        if end - begin >= _RULE_STEPS_LEAST:
            found.setdefault(row, []).append((begin, end))
    if sum(map(len, found.values())) > _STRETCHES_MOST:
        # Pictures, shadows.
        return []
    return [
        (float(begin * step), float(row), float(end * step), float(row))
        for row, runs in found.items()
        for begin, end in runs
        # What is thicker than a rule is an area.
        if not all(
            any(one <= (begin + end) // 2 < other for one, other in found.get(row + beyond, ()))
            for beyond in range(1, step)
        )
    ]


def _ink(gray: Gray) -> Image.Image:
    """255 where there is some, else 0."""
    dark = _most(_reduced(gray, _INK_WIDTH).histogram()) - _DEPTH
    return image_of(gray).point([_PAPER if value < dark else 0 for value in range(256)])


def _at_least(least: float) -> list[int]:
    return [255 if value >= least else 0 for value in range(256)]


def _reduced(gray: Gray, width: int) -> Image.Image:
    """To about this width."""
    step = max(gray.width // width, 1)
    return image_of(gray).reduce(step) if step > 1 else image_of(gray)


def _tones(image: Image.Image, *shares: tuple[int, int]) -> list[int]:
    """Each with this share of the pixels below it, such as (1, 2)."""
    counts = list(accumulate(image.histogram()))
    return [bisect_right(counts, counts[-1] * part // of) for part, of in shares]


def _most(counts: list[int]) -> int:
    return max(range(len(counts)), key=counts.__getitem__)


def _sharpest(
    strips: Image.Image, strip_width: float, angles: Iterable[float], best: tuple[int, float]
) -> tuple[int, float]:
    """The first of those that are best, with how sharp it is."""
    for angle in angles:
        sharp = _sharpness(strips, angle, strip_width)
        if sharp > best[0]:
            best = sharp, angle
    return best


def _sharpness(
    strips: Image.Image, angle: float, strip_width: float, how: Image.Resampling = Image.Resampling.BILINEAR
) -> int:
    """Lines of writing make the sums of rows rise and fall; most so along the lines."""
    slope = math.tan(math.radians(angle)) * strip_width
    shift = -slope * (strips.width - 1) / 2
    if angle:
        strips = strips.transform(
            strips.size, Image.Transform.AFFINE, (1, 0, 0, slope, 1, shift), how, fillcolor=_PAPER
        )
    rows = strips.reduce((strips.width, 1))
    rise = ImageChops.difference(rows.crop((0, 1, 1, rows.height)), rows.crop((0, 0, 1, rows.height - 1)))
    return sum(map(mul, rise.histogram(), _SQUARES))
