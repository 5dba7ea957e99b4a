"""Pages with known text: born digital, scanned cleanly, scanned badly, skewed, and real scans.

PyMuPDF draws the generated pages in its own fonts, and Pillow degrades them as a scanner does. Text and truth come from
one list of lines; the same seed gives the same pages. The real scans are in `scans/`, with truth typed by hand.
"""

from __future__ import annotations

import io
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import pymupdf
from PIL import Image, ImageChops, ImageFilter

WORDS = """
annual report risk climate revenue the of and in to shareholder committee board financial statement assets liabilities
cash flow operating income quarter growth strategy market energy emissions water supply chain governance audit policy
remuneration dividend share capital interest rate currency exposure hedge derivative goodwill impairment lease provision
pension tax deferred equity subsidiary associate joint venture segment customer product service innovation technology
digital employee health safety diversity training community environment sustainability target baseline scope reduction
renewable efficiency waste recycling biodiversity compliance ethics human rights supplier procurement material
assessment stakeholder engagement transparency disclosure framework standard regulation although because whether
during between increase decrease remained significant approximately previous following expected measured reported agreed
approved river village harbour morning question answer window mountain thousand yellow journey kitchen bridge
winter journal quickly zinc oxide fjord wharf buoyant jacket awkward rhythm sphinx quartz vex jumbo fuzzy gypsum
haphazard wavy knight
""".split()
_NAMES = (
    "Almeida Brunner Castellano Dvorak Eriksen Fitzgerald Grünewald Hoffmann Ivanova Jørgensen Keller Lindqvist".split()
)

_WIDTH, _HEIGHT = 595, 842
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 533, 64, 780
_BOLD = {"tiro": "tibo", "helv": "hebo", "cour": "cobo", "charis": "charis-bold"}
_CHARIS = {"charis": "p", "charis-bold": "b"}
"""A font that PyMuPDF has for HTML, by the tags that select it."""

Bodies = Sequence[tuple[str, float]]
"""Fonts and their sizes in points."""

USUAL: Bodies = (("tiro", 10.5), ("helv", 10.0), ("tiro", 11.0), ("helv", 9.5))
HELD_BACK: Bodies = (("charis", 10), ("cour", 11), ("charis", 8), ("cour", 9), ("charis", 12), ("charis", 6.5),
                     ("cour", 14), ("charis", 9))  # fmt: skip
"""Fonts and sizes for which no threshold was chosen, including small print."""


@dataclass(frozen=True, slots=True)
class Look:
    """How a page was degraded between the printer and the file."""

    name: str
    dpi: int = 0
    """0: born digital."""
    noise: int = 0
    """Maximum deviation of a pixel, of 255."""
    blur: float = 0.0
    shade: int = 0
    """Additional darkness of the paper along one edge."""
    skew: float = 0.0
    """Maximum rotation in degrees in either direction; at least half of it is used."""
    jpeg_quality: int = 90
    threshold: int = 0
    """For black and white: darker pixels are ink."""
    specks: int = 0
    """Specks and holes per million pixels."""


DIGITAL = Look("born digital")
CLEAN = Look("clean 300 dpi", 300)
NOISY_150 = Look("noisy 150 dpi", 150, noise=60, blur=0.4, shade=30, jpeg_quality=75)
NOISY_200 = Look("noisy 200 dpi", 200, noise=70, blur=0.6, shade=40, jpeg_quality=70)
BLACK_AND_WHITE = Look("black and white 300 dpi", 300, noise=40, blur=0.7, threshold=140)
SPECKED = Look("black and white 300 dpi with specks", 300, noise=50, blur=0.9, skew=0.6, threshold=125, specks=300)
GRAINY_200 = Look("noisy 200 dpi", 200, noise=85, blur=0.5, shade=55, jpeg_quality=65)
SKEWED = Look("skewed 200 dpi", 200, noise=20, blur=0.3, skew=4.0, jpeg_quality=80)


@dataclass(frozen=True, slots=True)
class Book:
    """A file, and the true text of each of its pages."""

    path: Path
    truth: Sequence[str]

    @property
    def pages(self) -> int:
        return len(self.truth)


LINES_MOST = 100
REAL = Path(__file__).with_name("scans")
REAL_HELD_BACK = REAL / "held-back"
"""Scans for which no threshold was chosen."""

_AGE_SECONDS = 60.0
_DOTS_LEAST = 6


def books(
    directory: Path, looks: Sequence[Look], count: int, pages: int, *, seed: str, lines: int = LINES_MOST,
    bodies: Bodies = USUAL,
) -> list[Book]:  # fmt: skip
    """Write `count` files whose pages have these looks in turns. No two pages are alike."""
    directory.mkdir(parents=True)
    of_pages = [looks[at % len(looks)] for at in range(pages)]
    return [_book(directory / f"report-{at:03}.pdf", of_pages, f"{seed}/{at}", lines, bodies) for at in range(count)]


def contents(
    directory: Path, looks: Sequence[Look], pages: int, *, seed: str, lines: int = LINES_MOST, bodies: Bodies = USUAL
) -> Book:
    """Write tables of contents with dot leaders before the page numbers. The truth contains each dot."""
    directory.mkdir(parents=True)
    of_pages = [looks[at % len(looks)] for at in range(pages)]
    return _book(directory / "contents.pdf", of_pages, f"{seed}/contents", lines, bodies, _contents)


def _book(
    path: Path, looks: Sequence[Look], seed: str, lines_most: int, bodies: Bodies, lines_of: Writer | None = None
) -> Book:
    truth = []
    with _new_document() as document:
        for number, look in enumerate(looks, 1):
            chance = random.Random(f"{seed}/{number}")
            lines = list(islice((lines_of or _lines)(chance, number, bodies), lines_most))
            truth.append("\n".join(line.text for line in lines))
            _draw(document, lines, look, chance)
        _save(document, path, {})
    return Book(path, truth)


def scans(directory: Path, count: int, pages: int, *, seed: str, place: Path = REAL) -> list[Book]:
    """Write `count` files of the same scanned pages, the shortest texts first.

    Pages differ in size between the files, so that none is known from another file.
    """
    directory.mkdir(parents=True)
    texts = sorted(place.glob("*.txt"), key=lambda text: text.stat().st_size)
    images = [image for text in texts for image in place.glob(f"{text.stem}.*") if image != text][:pages]
    return [_bound(directory / f"scans-{at:03}.pdf", images, f"{seed}/{at}") for at in range(count)]


def _bound(path: Path, images: Sequence[Path], seed: str) -> Book:
    """Write each scan as a page of nearly its paper's size, so that it is not known already. No pixel is changed."""
    hair = 1 + random.Random(seed).random() / 1000
    with _new_document() as document:
        for image in images:
            with Image.open(image) as scan:
                width, height = (72 * pixels / dpi for pixels, dpi in zip(scan.size, scan.info["dpi"], strict=True))
            page = document.new_page(width=hair * width, height=hair * height)
            page.insert_image(page.rect, filename=image)
        _save(document, path, {"title": seed})
    return Book(path, [image.with_suffix(".txt").read_text() for image in images])


def _save(document: Any, path: Path, metadata: dict[str, str]) -> None:
    document.set_metadata(metadata)
    document.save(path, garbage=1, deflate=True, no_new_id=True)
    # A download waits until a local file has been left alone for some seconds; a report is older than that.
    os.utime(path, (path.stat().st_mtime - _AGE_SECONDS,) * 2)


# ── What stands on a page ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Line:
    text: str
    font: str
    size: float
    y: float
    shown: str = ""
    """The drawn text, if it differs from the truth."""


Writer = Callable[[random.Random, int, Bodies], Iterator[_Line]]


def _lines(chance: random.Random, number: int, bodies: Bodies) -> Iterator[_Line]:
    """Yield a running head, then headings and paragraphs until the page is full, in one column."""
    body, size = bodies[chance.randrange(len(bodies))]
    yield _Line(f"{chance.choice(_NAMES)} Group, Annual Report {chance.randint(1998, 2026)}", body, 8.5, 44)
    y = float(_TOP)
    while y < _BOTTOM - 5 * size:
        if y == _TOP or chance.random() < 0.3:
            y += 1.4 * size
            heading = " ".join(chance.choices(WORDS, k=chance.randint(2, 5))).capitalize()
            yield _Line(f"{chance.randint(1, 9)}.{chance.randint(1, 20)} {heading}", _BOLD[body], size + 3, y)
            y += 1.9 * size
        for line in _broken(_paragraph(chance), body, size):
            if y > _BOTTOM:
                break
            yield _Line(line, body, size, y)
            y += 1.35 * size
        y += 0.6 * size
    yield _Line(f"Page {number}", body, 9, 812)


def _contents(chance: random.Random, number: int, bodies: Bodies) -> Iterator[_Line]:
    body, size = bodies[chance.randrange(len(bodies))]
    yield _Line("Contents", _BOLD[body], size + 3, _TOP)
    mark = chance.choice((".", ". ", " ."))
    high = chance.choice((1.35, 1.6, 2.0)) * size
    y, page = _TOP + 3 * size, 1
    while y < _BOTTOM:
        title = " ".join(chance.choices(WORDS, k=chance.randint(1, 6))).capitalize()
        named = chance.choice((f"{chance.randint(1, 9)}.{chance.randint(1, 20)} {title}", title))
        room = (_RIGHT - _LEFT) / size - sum(map(partial(_length, font=body), (named, " ", " ", str(page))))
        dots = max(int(room / _length(mark, body)), 0)
        if dots >= _DOTS_LEAST:
            shown = f"{named} {(mark * dots).strip()} {page}"
            yield _Line(f"{named} {'.' * dots} {page}", body, size, y, shown)
        y += high
        page += chance.randint(0, 9)
    yield _Line(f"Page {number}", body, 9, 812)


def _paragraph(chance: random.Random) -> str:
    return " ".join(_sentence(chance) for _ in range(chance.randint(3, 8)))


def _sentence(chance: random.Random) -> str:
    words = chance.choices(WORDS, k=chance.randint(6, 18))
    if chance.random() < 0.5:
        figure = chance.choice(["{0:,}", "{0}%", "EUR {0:,} million", "({0})", "20{1:02}"])
        words.insert(chance.randrange(1, len(words)), figure.format(chance.randint(2, 99_999), chance.randint(0, 30)))
    if chance.random() < 0.25:
        words[-1] += f", as {chance.choice(_NAMES)} said"
    words[0] = words[0].capitalize()
    return " ".join(words) + "."


def _broken(text: str, font: str, size: float) -> Iterator[str]:
    """Yield lines that fit, without dividing words."""
    line: list[str] = []
    length, space, most = 0.0, _length(" ", font), (_RIGHT - _LEFT) / size
    for word in text.split():
        if line and length + _length(word, font) > most:
            yield " ".join(line)
            line, length = [], 0.0
        line.append(word)
        length += _length(word, font) + space
    yield " ".join(line)


@cache
def _length(word: str, font: str) -> float:
    """Return the width of a word at a size of one point."""
    return float(_font(font).text_length(word, 1))


@cache
def _font(name: str) -> Any:
    return pymupdf.Font(fontbuffer=_charis(name)) if name in _CHARIS else pymupdf.Font(name)  # type: ignore[no-untyped-call]


@cache
def _charis(name: str) -> bytes:
    with _new_document() as document:
        page = document.new_page()
        page.insert_htmlbox(page.rect, "<{0} style='font-family: serif'>.</{0}>".format(_CHARIS[name]))
        return bytes(document.extract_font(page.get_fonts()[0][0])[3])


# ── What it looks like ──────────────────────────────────────────────────────────────────────────────────────────


def _new_document() -> Any:
    return pymupdf.open()  # type: ignore[no-untyped-call]


def _draw(document: Any, lines: Sequence[_Line], look: Look, chance: random.Random) -> None:
    if not look.dpi:
        _print(document.new_page(width=_WIDTH, height=_HEIGHT), lines)
        return
    with _new_document() as original:
        printed = original.new_page(width=_WIDTH, height=_HEIGHT)
        _print(printed, lines)
        drawn = printed.get_pixmap(dpi=look.dpi, colorspace=pymupdf.csGRAY)
        image = Image.frombytes("L", (drawn.width, drawn.height), drawn.samples)
    scan = io.BytesIO()
    image = _spoiled(image, look, chance)
    if look.threshold:
        image.convert("1").save(scan, "PNG")
    else:
        image.save(scan, "JPEG", quality=look.jpeg_quality)
    page = document.new_page(width=_WIDTH, height=_HEIGHT)
    page.insert_image(page.rect, stream=scan.getvalue())


def _print(page: Any, lines: Sequence[_Line]) -> None:
    for font in _CHARIS.keys() & {line.font for line in lines}:
        page.insert_font(fontname=font, fontbuffer=_charis(font))
    shape = page.new_shape()
    for line in lines:
        shape.insert_text((_LEFT, line.y), line.shown or line.text, fontname=line.font, fontsize=line.size)
    shape.commit()


def _spoiled(image: Image.Image, look: Look, chance: random.Random) -> Image.Image:
    if look.skew:
        angle = chance.choice((-1, 1)) * chance.uniform(look.skew / 2, look.skew)
        image = image.rotate(angle, Image.Resampling.BICUBIC, fillcolor=255)
    if look.blur:
        image = image.filter(ImageFilter.GaussianBlur(look.blur))
    if look.shade:
        shadow = Image.linear_gradient("L").resize(image.size).point(lambda depth: depth * look.shade // 255)
        image = ImageChops.subtract(image, shadow)
    if look.noise:
        grain = Image.frombytes("L", image.size, chance.randbytes(image.width * image.height))
        # Around its middle, so that paper gets darker and ink lighter.
        image = ImageChops.add(image, grain.point(lambda value: value * look.noise // 255), offset=-look.noise // 2)
    if look.threshold:
        image = image.point(lambda value: 255 if value >= look.threshold else 0)
    for _ in range(image.width * image.height * look.specks // 1_000_000):
        size = chance.randint(1, 2), chance.randint(1, 2)
        place = chance.randrange(image.width), chance.randrange(image.height)
        image.paste(chance.choice((0, 0, 255)), (*place, place[0] + size[0], place[1] + size[1]))
    return image
