"""What somebody types into a search while it is typed."""

from __future__ import annotations

import pytest

from worker_service.web.views.page_view import with_prefix


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
