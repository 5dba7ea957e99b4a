"""Ink, skew and turns of scanned pages."""

from __future__ import annotations

import pytest
from PIL import Image, ImageDraw

from job_handlers.reading.preprocess import deskew, is_blank, is_grainy, skew_of, turn_image
from tests.full_length import short
from tests.job_handlers.reading.documents import gray_of, picture, prose


@pytest.mark.parametrize(
    ("skew", "noise"),
    [
        *((skew, 0.0) for skew in short((-8.0, 0.7), full=(-8.0, -1.3, 0.7, 2.3, 5.0))),
        *((skew, 60.0) for skew in short((0.7, 9.9), full=(-9.6, 0.7, 9.9))),
    ],
)
def test_skew_is_found_to_a_tenth_of_a_degree_and_removed(skew: float, noise: float) -> None:
    page = gray_of(picture(prose(1), dpi=150, skew=skew, noise=noise))

    measured = skew_of(page)

    assert measured == pytest.approx(skew, abs=0.11)
    assert skew_of(deskew(page, measured)) == 0.0


@pytest.mark.parametrize("noise", [0.0, 60.0])
def test_a_straight_page_is_left_alone(noise: float) -> None:
    assert skew_of(gray_of(picture(prose(1), dpi=150, noise=noise))) == 0.0
    assert skew_of(gray_of(Image.new("L", (1000, 1400), 255))) == 0.0


def test_a_page_is_blank_unless_it_has_a_line_of_ink() -> None:
    assert is_blank(gray_of(Image.new("L", (2480, 3508), 255)))
    assert is_blank(gray_of(picture("", dpi=150, noise=40)))
    assert is_blank(gray_of(Image.new("L", (2480, 3508), 90)))
    assert not is_blank(gray_of(picture("Page 3 of 12", dpi=300)))
    assert not is_blank(gray_of(picture("Page 3 of 12", dpi=150, noise=40)))
    assert not is_blank(gray_of(Image.eval(picture("Page 3 of 12"), lambda value: 255 - value)))


@pytest.mark.parametrize("dpi", short([150], full=[150, 300]))
def test_noise_makes_paper_grainy_and_small_print_does_not(dpi: int) -> None:
    assert is_grainy(gray_of(picture(prose(1), dpi=dpi, noise=60)))
    assert not is_grainy(gray_of(picture(prose(1), dpi=dpi, noise=12)))
    assert not is_grainy(gray_of(picture(prose(1), dpi=dpi, size=6)))


def test_the_shadow_along_an_edge_is_no_ink() -> None:
    page = Image.new("L", (2480, 3508), 250)
    ImageDraw.Draw(page).rectangle((0, 0, 40, 3508), fill=20)

    assert is_blank(gray_of(page))


def test_turns_add_up_to_a_full_turn() -> None:
    page = gray_of(picture("Turn me", dpi=40))

    assert (turn_image(page, 90).width, turn_image(page, 90).height) == (page.height, page.width)
    assert turn_image(turn_image(page, 90), 270) == page
    assert turn_image(turn_image(page, 180), 180) == page
    assert turn_image(turn_image(page, 90), 90) == turn_image(page, 180)
