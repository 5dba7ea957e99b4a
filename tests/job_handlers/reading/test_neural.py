"""The second recogniser, and pages that both have read. Skipped where the extra `neural` is not installed."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pymupdf as partly_typed
import pytest
from PIL import Image

from benchmarks.accuracy import character_errors, word_f1
from benchmarks.corpus import REAL
from job_handlers.reading import layout, ocr, pdf
from job_handlers.reading.ocr import neural
from job_handlers.reading.ocr.second_pass import SecondReader
from job_handlers.reading.page_recognition import PagePicture, recognise_page
from job_handlers.reading.preprocess import Gray
from tests.full_length import only_in_full
from tests.job_handlers.reading import documents
from tests.job_handlers.reading.kit import Library
from worker_service.runner.messages import How

pymupdf: Any = partly_typed

MIB = 1 << 20

needs_it = pytest.mark.skipif(neural.missing() is not None, reason=f"the extra is absent: {neural.missing()}")


def gray_of(image: Image.Image) -> Gray:
    plain = image.convert("L")
    return Gray(plain.width, plain.height, plain.tobytes())


@cache
def real(name: str) -> tuple[Gray, float, str]:
    """A page that was once on paper, its resolution, and what stands on it."""
    path = REAL / name
    with pdf.PagedFile(path) as book:
        return *book.picture(1), path.with_suffix(".txt").read_text()


@cache
def read(name: str, quality: str) -> str:
    gray, dpi, _ = real(name)
    size = 72 * gray.width / dpi, 72 * gray.height / dpi
    return recognise_page(ocr.reader_for(ocr.OcrSettings(("eng",), quality)), PagePicture(1, size, gray, dpi)).text


@needs_it
def test_a_line_is_read_with_the_places_of_its_words() -> None:
    page = gray_of(documents.picture("Revenue rose by 12.5 % in 2026, as Jørgensen said.", dpi=200))
    [(x0, y0, x1, y1)] = neural.LineFinder().boxes(page)

    words = neural.LineReader().read(page, (x0, y0, x1, y1))

    assert " ".join(word.text for word in words) == "Revenue rose by 12.5 % in 2026, as Jørgensen said."
    assert min(word.confidence for word in words) > 60
    assert all(x0 <= one.x0 < one.x1 <= other.x0 + 4 for one, other in pairwise(words))


# The floors are a point below what was measured (the F1 of words in percent, wrong characters in percent).
@needs_it
@pytest.mark.parametrize(
    ("name", "quality", "words_least", "errors_most"),
    [
        ("trenches.png", "auto", 98.9, 1.0),
        pytest.param("held-back/scolding.png", "auto", 98.0, 1.2, marks=only_in_full),
    ],
)
def test_real_scans_are_read_as_well_as_they_were(
    name: str, quality: str, words_least: float, errors_most: float
) -> None:
    found, truth = [read(name, quality)], [real(name)[2]]

    assert 100 * word_f1(found, truth) >= words_least
    assert character_errors(found, truth) <= errors_most


@needs_it
def test_what_the_first_has_missed_is_found_and_put_where_it_stands() -> None:
    said = [f"Paragraph {at} of the annual report was approved." for at in "ABCDEF"]
    page = gray_of(documents.picture("\n\n".join(said), dpi=150))
    whole = [line for line in ocr.reader_for(ocr.OcrSettings(("eng",), "fast")).read(page, 150).lines if line]
    assert [layout.text_of([line]) for line in whole] == said

    gaps = [*whole[:2], [*whole[3][:2], *whole[3][4:]], whole[4][:3]]
    found, changed = SecondReader(is_thorough=False).improve(gaps, page, is_weak=False)

    assert [layout.text_of([line]) for line in found] == said
    assert changed == [2, 3, 4, 5]
    unchanged, none = SecondReader(is_thorough=False).improve(whole, page, is_weak=False)
    assert (unchanged, none) == (whole, [])


@needs_it
@pytest.mark.parametrize("gap", [0.4, 1.2])
def test_of_a_number_the_sign_in_the_next_column_is_no_part(gap: float) -> None:
    """Which stands so near, in points, whether it was taken for the same line or not."""
    first: list[layout.Word] = []
    with pymupdf.open() as document:
        sheet = document.new_page(width=300, height=60)
        x = 40.0
        for text, confidence, room in (("140,813", 40.0, gap), ("$", 96.0, 8.0), ("97,250", 96.0, 0.0)):
            sheet.insert_text((x, 40), text, fontsize=11)
            end = x + pymupdf.get_text_length(text, fontsize=11)
            places = [round(side * 200 / 72) for side in (x, 32, end, 41)]
            first.append(layout.Word(places[0], places[1], places[2], places[3], confidence, text))
            x = end + room
        drawn = sheet.get_pixmap(dpi=200, colorspace=pymupdf.csGRAY)
    page = Gray(drawn.width, drawn.height, bytes(drawn.samples))

    for lines in ([first[:1], first[1:]], [first]):
        found, _ = SecondReader(is_thorough=False).improve(lines, page, is_weak=False)

        assert [word.text for line in found for word in line] == ["140,813", "$", "97,250"]


@needs_it
def test_a_page_tells_who_read_it_and_what_of_it_the_second_read(library: Library, tmp_path: Path) -> None:
    """In the sandbox, with the limits of an attempt. What its library complains of on its way is not the page's."""
    original = tmp_path / "stampede.png"
    original.write_bytes((REAL / "stampede.png").read_bytes())

    assert library.read(original, quality="auto").how is How.DONE

    [page] = library.by_number.values()
    told = layout.decode(page.layout or "")
    first = ocr.tesseract.identity(ocr.OcrSettings(("eng",), "fast")).rpartition(" ")[0]
    assert told.readers == [first, neural.name()]
    lines = [" ".join(word.text for word in one) for one in told.lines]
    assert "In accordance with custom, im-" in [lines[at] for at in told.second]
    runs = library.jobs("ocr_pages")
    assert 0 < max(run.ended.usage.memory_peak_bytes or 0 for run in runs) <= 450 * MIB
    assert [line for run in runs for line in run.lines if "onnx" in line] == []


@needs_it
def test_it_is_loaded_only_where_there_is_something_to_ask() -> None:
    """And does its work in one thread."""
    program = (
        "import sys, os\n"
        "from job_handlers.reading import ocr\n"
        "from tests.job_handlers.reading.test_neural import gray_of, real\n"
        "from tests.job_handlers.reading import documents\n"
        "reader = ocr.reader_for(ocr.OcrSettings(('eng',), 'auto'))\n"
        "reader.read(gray_of(documents.picture('The annual report of the board.', dpi=200)), 200)\n"
        "assert 'onnxruntime' not in sys.modules\n"
        "reader.read(*real('title.png')[:2])\n"
        "assert 'onnxruntime' in sys.modules and 'cv2' not in sys.modules and 'rapidocr' not in sys.modules\n"
        "def ticks(task):\n"
        "    return sum(map(int, open(f'/proc/self/task/{task}/stat').read().rpartition(')')[2].split()[11:13]))\n"
        "print(sum(ticks(task) > 1 for task in os.listdir('/proc/self/task')))\n"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (done.stdout, done.returncode) == ("1\n", 0), done.stderr


def test_without_the_extra_auto_is_fast_and_best_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    english = ("eng",)
    monkeypatch.setattr(neural, "_PACKAGES", ("rapidocr", "no_such_package"))

    assert str(neural.missing()) == "no_such_package is not installed: pip install 'pagemill[neural]'"
    assert ocr.ocr_settings(english, "auto") == ocr.ocr_settings(english, "fast")
    assert "no second opinion: no_such_package is not installed" in (ocr.offers() or "")
    quality = ocr.choices()["quality"]
    assert (list(quality.available), quality.how_to_install) == (
        ["fast", "auto"],
        {"best": "pip install 'pagemill[neural]'"},
    )


@needs_it
def test_a_language_that_the_second_cannot_read_is_left_to_the_first() -> None:
    assert ocr.ocr_settings(("eng", "rus"), "auto").quality == "fast"
    assert ocr.ocr_settings(("eng", "deu"), "auto").quality == "auto"
    assert neural.name() in (ocr.offers() or "")
    assert neural.name() in ocr.identity_of(ocr.ocr_settings(("eng",), "auto"))
    assert neural.name() not in ocr.identity_of(ocr.ocr_settings(("eng",), "fast"))
