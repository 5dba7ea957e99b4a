"""Ink, skew and turns, on pages as a scanner sees them."""

from __future__ import annotations

import pytest
from PIL import Image, ImageDraw

from job_handlers.reading.preprocess import Gray, deskew, is_blank, is_grainy, skew_of, turn_image
from tests.full_length import short
from tests.job_handlers.reading.documents import picture, prose


def gray(image: Image.Image) -> Gray:
    return Gray(image.width, image.height, image.tobytes())


@pytest.mark.parametrize(
    ("skew", "noise"),
    [
        *((skew, 0.0) for skew in short((-8.0, 0.7), full=(-8.0, -1.3, 0.7, 2.3, 5.0))),
        *((skew, 60.0) for skew in short((0.7, 9.9), full=(-9.6, 0.7, 9.9))),
    ],
)
def test_skew_is_found_to_a_tenth_and_taken_away(skew: float, noise: float) -> None:
    page = gray(picture(prose(1), dpi=150, skew=skew, noise=noise))

    found = skew_of(page)

    assert found == pytest.approx(skew, abs=0.11)
    assert skew_of(deskew(page, found)) == 0.0


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


@pytest.mark.parametrize("dpi", short([150], full=[150, 300]))
def test_paper_is_grainy_by_its_noise_and_not_by_what_is_printed_on_it(dpi: int) -> None:
    assert is_grainy(gray(picture(prose(1), dpi=dpi, noise=60)))
    assert not is_grainy(gray(picture(prose(1), dpi=dpi, noise=12)))
    assert not is_grainy(gray(picture(prose(1), dpi=dpi, size=6)))


"""Of the tests' font, in its size."""


def test_the_shadow_along_an_edge_is_no_ink() -> None:
    page = Image.new("L", (2480, 3508), 250)
    ImageDraw.Draw(page).rectangle((0, 0, 40, 3508), fill=20)

    assert is_blank(gray(page))


def test_four_turns_make_a_whole_one() -> None:
    page = gray(picture("Turn me", dpi=40))

    assert (turn_image(page, 90).width, turn_image(page, 90).height) == (page.height, page.width)
    assert turn_image(turn_image(page, 90), 270) == page
    assert turn_image(turn_image(page, 180), 180) == page
    assert turn_image(turn_image(page, 90), 90) == turn_image(page, 180)
