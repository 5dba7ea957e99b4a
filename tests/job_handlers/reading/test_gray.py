"""Ink, skew and turns, on pages as a scanner sees them."""

from __future__ import annotations

import pytest
from PIL import Image, ImageDraw

from job_handlers.reading.preprocess import Gray, height_of_letters, is_blank, is_grainy, skew_of, straightened, turned
from tests.job_handlers.reading.documents import picture, prose


def gray(image: Image.Image) -> Gray:
    return Gray(image.width, image.height, image.tobytes())


@pytest.mark.parametrize(
    ("skew", "noise"),
    [
        *((skew, 0.0) for skew in (-9.6, -8.0, -4.2, -2.5, -1.3, -0.7, 0.7, 1.1, 1.5, 2.3, 5.0, 7.7, 9.9)),
        # Noise takes the same from every angle: the ends of the range, and those that are hardly there.
        *((skew, 60.0) for skew in (-9.6, -0.7, 0.7, 5.0, 9.9)),
    ],
)
def test_skew_is_found_to_a_tenth_and_taken_away(skew: float, noise: float) -> None:
    page = gray(picture(prose(1), dpi=150, skew=skew, noise=noise))

    found = skew_of(page)

    assert found == pytest.approx(skew, abs=0.11)
    assert skew_of(straightened(page, found)) == 0.0


@pytest.mark.parametrize("noise", [0.0, 60.0])
def test_a_straight_page_is_left_alone(noise: float) -> None:
    assert skew_of(gray(picture(prose(1), dpi=150, noise=noise))) == 0.0
    assert skew_of(gray(Image.new("L", (1000, 1400), 255))) == 0.0


def test_a_page_is_blank_without_ink_and_not_with_one_line_of_it() -> None:
    assert is_blank(gray(Image.new("L", (2480, 3508), 255)))
    assert is_blank(gray(picture("", dpi=150, noise=40)))
    assert is_blank(gray(Image.new("L", (2480, 3508), 90)))
    assert not is_blank(gray(picture("Page 3 of 12", dpi=300)))
    assert not is_blank(gray(picture("Page 3 of 12", dpi=150, noise=40)))
    assert not is_blank(gray(Image.eval(picture("Page 3 of 12"), lambda value: 255 - value)))


@pytest.mark.parametrize("dpi", [150, 300])
def test_paper_is_grainy_by_its_noise_and_not_by_what_is_printed_on_it(dpi: int) -> None:
    assert is_grainy(gray(picture(prose(1), dpi=dpi, noise=60)))
    assert not is_grainy(gray(picture(prose(1), dpi=dpi, noise=12)))
    assert not is_grainy(gray(picture(prose(1), dpi=dpi, size=6)))


X_HEIGHT = 0.45
"""Of the tests' font, in its size."""


@pytest.mark.parametrize("size", [6, 9, 12])
@pytest.mark.parametrize("dpi", [200, 300])
def test_how_high_letters_are_is_told_to_a_pixel(size: int, dpi: int) -> None:
    page = gray(picture(prose(1), dpi=dpi, size=size, skew=0.8).point(lambda value: 255 if value >= 140 else 0))

    assert height_of_letters(page, dpi) == pytest.approx(size * X_HEIGHT * dpi / 72, abs=1.3)


def test_a_footnote_tells_and_a_line_at_the_foot_does_not() -> None:
    large, small = (picture(prose(1), size=size) for size in (12, 6))
    page, note = large.copy(), large.copy()
    page.paste(small.crop((0, 240, 2480, 276)), (0, 3300))
    note.paste(small.crop((0, 240, 2480, 430)), (0, 3150))

    assert height_of_letters(gray(page), 300) == height_of_letters(gray(large), 300)
    assert height_of_letters(gray(note), 300) == height_of_letters(gray(small), 300)


def test_where_there_is_hardly_any_print_nothing_is_told_of_its_size() -> None:
    rules = Image.new("L", (2480, 3508), 255)
    for y in range(200, 3400, 40):
        ImageDraw.Draw(rules).rectangle((200, y, 2200, y + 3), fill=0)

    assert [height_of_letters(gray(page), 300) for page in (picture("Page 3"), rules)] == [0, 0]


def test_the_shadow_along_an_edge_is_no_ink() -> None:
    page = Image.new("L", (2480, 3508), 250)
    ImageDraw.Draw(page).rectangle((0, 0, 40, 3508), fill=20)

    assert is_blank(gray(page))


def test_four_turns_make_a_whole_one() -> None:
    page = gray(picture("Turn me", dpi=40))

    assert (turned(page, 90).width, turned(page, 90).height) == (page.height, page.width)
    assert turned(turned(page, 90), 270) == page
    assert turned(turned(page, 180), 180) == page
    assert turned(turned(page, 90), 90) == turned(page, 180)
