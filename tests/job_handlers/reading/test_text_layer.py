"""Which pages need OCR."""

from __future__ import annotations

import pytest

from job_handlers.reading.text_layer import PageInk, Verdict, classify_page, is_fuller, is_worth_comparing
from tests.job_handlers.reading.documents import prose

TEXT = prose(1)
SHIFTED = "".join(chr(ord(letter) - 29) if letter.isalpha() else letter for letter in TEXT)
MOVED = "".join({"e": "h", "a": "d", "i": "l", "o": "r", "u": "x"}.get(letter, letter) for letter in TEXT)
COVERED = PageInk(covered=1.0)


@pytest.mark.parametrize(
    ("text", "ink", "verdict"),
    [
        (TEXT, PageInk(), Verdict.LAYER),
        (TEXT, COVERED, Verdict.LAYER),
        ("Page 7", PageInk(), Verdict.LAYER),
        ("Page 7", COVERED, Verdict.OCR),
        ("Page 7", PageInk(covered=0.2), Verdict.LAYER),
        (TEXT, PageInk(covered=0.9, invisible=1.0), Verdict.OCR),
        (TEXT, PageInk(covered=0.1, invisible=1.0), Verdict.LAYER),
        ("", PageInk(), Verdict.OCR),
        (" \n ", COVERED, Verdict.OCR),
        ("", PageInk(is_empty=True), Verdict.BLANK),
        ("\ufffd" * 30 + "some words", PageInk(), Verdict.OCR),
        ("\ue012\ue013\ue014" * 100, PageInk(), Verdict.OCR),
        ("(cid:12)(cid:99) " * 40, PageInk(), Verdict.OCR),
        (SHIFTED, PageInk(), Verdict.OCR),
        (MOVED, PageInk(), Verdict.OCR),
        ("!§$%&/()=?*'# " * 20, PageInk(), Verdict.OCR),
    ],
)
def test_a_page_needs_ocr_unless_its_text_is_good(text: str, ink: PageInk, verdict: Verdict) -> None:
    assert classify_page(text, ink) is verdict


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
def test_good_text_of_any_script_needs_no_ocr(text: str) -> None:
    assert classify_page(text, PageInk()) is Verdict.LAYER


CONTENTS = "\n".join(f"Chapter {number}: growth and risk {'.' * 120} {number * 7}" for number in range(1, 30))


def test_leader_dots_do_not_make_a_contents_page_garbage() -> None:
    spaced = CONTENTS.replace(".", ". ")
    table = "\n".join("\t".join(str(number * column) for column in range(40)) for number in range(20))

    assert [classify_page(text, PageInk()) for text in (CONTENTS, spaced, table)] == [Verdict.LAYER] * 3
    assert classify_page("." * 500, PageInk()) is Verdict.OCR


@pytest.mark.parametrize(
    ("own", "recognised", "is_taken"),
    [
        ("a b c 10-7 10-3", "a c", True),
        ("Labels of a chart", "", True),
        ("Help with jobs", "Help with jobs, and all that the picture says", False),
        ("Wkh erdug dssuryhv doo ri lw", "The board approves all of it", False),
        ("", "The board", False),
        ("The board", "The board", True),
    ],
)
def test_the_own_text_of_a_page_is_used_if_it_is_fuller(own: str, recognised: str, is_taken: bool) -> None:
    assert is_fuller(own, recognised) is is_taken


def test_invisible_text_and_garbage_are_not_compared() -> None:
    assert is_worth_comparing("Labels of a chart", PageInk(covered=0.7))
    assert not is_worth_comparing("Text of another engine", PageInk(covered=1.0, invisible=0.9))
    assert not is_worth_comparing("\x03\x04\x05\x06 abc", PageInk())
