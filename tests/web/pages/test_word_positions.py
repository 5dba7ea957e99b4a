from __future__ import annotations

from worker_service.web.views.page_view import _locate_in_areas


def test_words_are_located_in_any_order_of_the_renderer() -> None:
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
