"""One page from its pixels, by the engine that is here."""

from __future__ import annotations

import pytest
from PIL import Image, ImageChops

from job_handlers.reading import ocr
from job_handlers.reading.ocr.recognition import recognise
from job_handlers.reading.preprocess import Gray
from tests.job_handlers.reading import documents
from worker_service.handlers import Problem


def unevenly_lit(text: str, dpi: int) -> Gray:
    """Few lines on paper that is darker at its foot, and grainy: one threshold takes all of it for paper."""
    page = documents.picture(text, dpi=dpi)
    light = Image.linear_gradient("L").resize(page.size).point([215 + level * 40 // 255 for level in range(256)])
    grain = Image.effect_noise(page.size, 35)
    seen = Image.blend(ImageChops.multiply(page, light), grain, 0.3)
    return Gray(seen.width, seen.height, seen.tobytes())


@pytest.mark.parametrize("dpi", [200, 300])
def test_a_few_lines_on_unevenly_lit_paper_are_not_lost(dpi: int) -> None:
    text = "\n\n".join(f"The board reviewed climate risk number {number} with care." for number in range(6))
    engine = ocr.chosen().engine_for(ocr.WayToRead(["eng"], "fast"))

    read = recognise(engine, unevenly_lit(text, dpi), dpi)

    words = " ".join(word.text for line in read.lines for word in line)
    assert documents.character_errors(words, documents.plain(text)) < 0.02


def test_the_first_engine_that_lacks_nothing_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    class Absent:
        missing = staticmethod(lambda: Problem("CAPABILITY_MISSING", "there is no other engine"))
        identity = engine_for = None

    [shipped] = ocr.ENGINES
    monkeypatch.setattr(ocr, "ENGINES", (Absent, shipped))
    assert (ocr.chosen(), ocr.missing()) == (shipped, None)

    monkeypatch.setattr(ocr, "ENGINES", (Absent,))

    assert str(ocr.missing()) == "there is no other engine"
