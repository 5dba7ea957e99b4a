"""What somebody types into a search while it is typed."""

from __future__ import annotations

import pytest

from worker_service.web.views.page_view import _locate_in_areas, with_prefix


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("clim", "clim*"),
        ("climate risk", "climate risk*"),
        ("scope-3 emis", "scope-3 emis*"),
        ("(water OR ener", "(water OR ener*"),
        ("cl", "cl"),
        ("climate ", "climate "),
        ("climate*", "climate*"),
        ('"climate ri', '"climate ri'),
        ('"climate risk"', '"climate risk"'),
        ("water AND", "water AND"),
        ("", ""),
    ],
)
def test_the_last_word_may_be_going_on_still(said: str, meant: str) -> None:
    assert with_prefix(said) == meant


def test_words_are_found_in_their_areas_in_whatever_order_the_renderer_returns_them() -> None:
    text = "the European table\n64"
    areas = [[0, 0, 100, 10, 0, 18], [0, 90, 100, 100, 19, 21]]
    words = [
        (0, 92, 9, 98, "64"),
        (0, 2, 9, 8, "the"),
        (10, 2, 30, 8, "European"),
        (40, 2, 60, 8, "table"),
        (0, 40, 5, 45, "x"),
    ]

    assert [text[begin:end] for _, (begin, end) in _locate_in_areas(text, words, areas)] == [
        "64", "the", "European", "table",
    ]  # fmt: skip
