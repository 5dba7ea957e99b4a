from __future__ import annotations

from worker_service.services.page_images import PlacedWord
from worker_service.web.views.page_view import TextArea, _locate_in_areas


def test_words_are_located_in_any_order_of_the_renderer() -> None:
    text = "the European table\n64"
    areas = [TextArea(0, 0, 100, 10, 0, 18), TextArea(0, 90, 100, 100, 19, 21)]
    words = [
        PlacedWord(0, 92, 9, 98, "64"),
        PlacedWord(0, 2, 9, 8, "the"),
        PlacedWord(10, 2, 30, 8, "European"),
        PlacedWord(40, 2, 60, 8, "table"),
        PlacedWord(0, 40, 5, 45, "x"),
    ]

    assert [text[begin:end] for _, (begin, end) in _locate_in_areas(text, words, areas)] == [
        "64", "the", "European", "table",
    ]  # fmt: skip
