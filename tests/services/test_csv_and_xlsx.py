from __future__ import annotations

import pytest

from worker_service.services.csv_and_xlsx import harmless_cell


@pytest.mark.parametrize(
    "text", ["=b", "+b", "-b", "@SUM(A1)", "\t=b", "\r=b", "\n=b", "\uff1db", "-cmd|' /C calc'!A0", "+2+3"]
)
def test_text_that_begins_like_a_formula_gets_a_quote(text: str) -> None:
    assert str(harmless_cell(text)).startswith("'")


@pytest.mark.parametrize("number", ["-3.5", "+5", "-1,204.50", "-1 234", "-12%", "1-2", 7, None])
def test_a_number_with_a_sign_stays_as_it_is(number: object) -> None:
    assert harmless_cell(number) == number
