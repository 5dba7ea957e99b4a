"""Which pages need to be looked at."""

from __future__ import annotations

import pytest

from job_handlers.reading.layers import Drawn, Verdict, judge
from tests.job_handlers.reading.documents import prose

TEXT = prose(1)
SHIFTED = "".join(chr(ord(one) - 29) if one.isalpha() else one for one in TEXT)
MOVED = "".join({"e": "h", "a": "d", "i": "l", "o": "r", "u": "x"}.get(one, one) for one in TEXT)
COVERED = Drawn(covered=1.0)


@pytest.mark.parametrize(
    ("text", "drawn", "verdict"),
    [
        (TEXT, Drawn(), Verdict.LAYER),
        (TEXT, COVERED, Verdict.LAYER),
        ("Page 7", Drawn(), Verdict.LAYER),
        ("Page 7", COVERED, Verdict.OCR),
        ("Page 7", Drawn(covered=0.2), Verdict.LAYER),
        (TEXT, Drawn(covered=0.9, invisible=1.0), Verdict.OCR),
        (TEXT, Drawn(covered=0.1, invisible=1.0), Verdict.LAYER),
        ("", Drawn(), Verdict.OCR),
        (" \n ", COVERED, Verdict.OCR),
        ("", Drawn(is_empty=True), Verdict.BLANK),
        ("\ufffd" * 30 + "some words", Drawn(), Verdict.OCR),
        ("\ue012\ue013\ue014" * 100, Drawn(), Verdict.OCR),
        ("(cid:12)(cid:99) " * 40, Drawn(), Verdict.OCR),
        (SHIFTED, Drawn(), Verdict.OCR),
        (MOVED, Drawn(), Verdict.OCR),
        ("!§$%&/()=?*'# " * 20, Drawn(), Verdict.OCR),
    ],
)
def test_a_page_is_read_by_its_text_only_where_that_will_do(text: str, drawn: Drawn, verdict: Verdict) -> None:
    assert judge(text, drawn) is verdict


@pytest.mark.parametrize(
    "text",
    [
        "Die Größe des Ärgers über die Straße wächst jährlich, so daß alle Bürger es spüren müssen. " * 5,
        "Годовой отчёт о рисках, связанных с изменением климата, и о стратегии компании. " * 5,
        "年度报告：气候变化带来的风险与公司的战略，董事会的意见。" * 5,
        "التقرير السنوي عن مخاطر تغير المناخ واستراتيجية الشركة " * 5,
        "12,345.67  98.1 %\n1 204  (3,311)\n" * 20,
        "“Quoted” — and dashed – text with bullets • such as this one, in plain English of the usual kind. " * 5,
    ],
)
def test_good_text_of_any_script_is_left_as_it_is(text: str) -> None:
    assert judge(text, Drawn()) is Verdict.LAYER
