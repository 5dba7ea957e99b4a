"""The second engine, and pages that both engines read. Skipped if the extra `neural` is not installed."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pymupdf as partly_typed
import pytest

from benchmarks.accuracy import character_errors, word_f1
from benchmarks.corpus import REAL
from job_handlers.reading import layout, ocr, pdf
from job_handlers.reading.ocr import neural
from job_handlers.reading.ocr.second_pass import SecondReader
from job_handlers.reading.page_recognition import PagePicture, recognise_page
from job_handlers.reading.preprocess import Gray
from tests.full_length import only_in_full
from tests.job_handlers.reading.documents import gray_of, picture
from tests.job_handlers.reading.kit import Library
from worker_service.runner.messages import How

pymupdf: Any = partly_typed

MIB = 1 << 20

needs_neural = pytest.mark.skipif(neural.missing() is not None, reason=f"not installed: {neural.missing()}")


@cache
def real_scan(name: str) -> tuple[Gray, float, str]:
    """Return the pixels of a scanned page, its resolution, and its true text."""
    path = REAL / name
    with pdf.PagedFile(path) as book:
        return *book.picture(1), path.with_suffix(".txt").read_text()


@cache
def recognised_text(name: str, quality: str) -> str:
    gray, dpi, _ = real_scan(name)
    size = 72 * gray.width / dpi, 72 * gray.height / dpi
    return recognise_page(ocr.reader_for(ocr.OcrSettings(("eng",), quality)), PagePicture(1, size, gray, dpi)).text


@needs_neural
def test_a_line_is_read_with_the_positions_of_its_words() -> None:
    page = gray_of(picture("Revenue rose by 12.5 % in 2026, as Jørgensen said.", dpi=200))
    [(x0, y0, x1, y1)] = neural.find_lines(page)

    words = neural.read_line(page, (x0, y0, x1, y1))

    assert " ".join(word.text for word in words) == "Revenue rose by 12.5 % in 2026, as Jørgensen said."
    assert min(word.confidence for word in words) > 60
    assert all(x0 <= word.x0 < word.x1 <= following.x0 + 4 for word, following in pairwise(words))


# The floors are a point below what was measured (the F1 of words in percent, wrong characters in percent).
@needs_neural
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
    texts, truth = [recognised_text(name, quality)], [real_scan(name)[2]]

    assert 100 * word_f1(texts, truth) >= words_least
    assert character_errors(texts, truth) <= errors_most


@needs_neural
def test_lines_and_words_that_the_first_engine_missed_are_inserted_in_their_places() -> None:
    texts = [f"Paragraph {letter} of the annual report was approved." for letter in "ABCDEF"]
    page = gray_of(picture("\n\n".join(texts), dpi=150))
    complete = [line for line in ocr.reader_for(ocr.OcrSettings(("eng",), "fast")).read(page, 150).lines if line]
    assert [layout.text_of([line]) for line in complete] == texts

    incomplete = [*complete[:2], [*complete[3][:2], *complete[3][4:]], complete[4][:3]]
    improved, changed = SecondReader(is_thorough=False).improve(incomplete, page, is_weak=False)

    assert [layout.text_of([line]) for line in improved] == texts
    assert changed == [2, 3, 4, 5]
    assert SecondReader(is_thorough=False).improve(complete, page, is_weak=False) == (complete, [])


@needs_neural
@pytest.mark.parametrize("gap", [0.4, 1.2])
def test_a_sign_in_the_next_column_does_not_become_part_of_a_number(gap: float) -> None:
    """`gap` is the distance in points. The first engine may have read them as one line or as two."""
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
        pixmap = sheet.get_pixmap(dpi=200, colorspace=pymupdf.csGRAY)
    page = Gray(pixmap.width, pixmap.height, bytes(pixmap.samples))

    for lines in ([first[:1], first[1:]], [first]):
        improved, _ = SecondReader(is_thorough=False).improve(lines, page, is_weak=False)

        assert [word.text for line in improved for word in line] == ["140,813", "$", "97,250"]


@needs_neural
def test_the_layout_names_the_engines_and_the_lines_of_the_second_one(library: Library, tmp_path: Path) -> None:
    """In the sandbox, with the limits of an attempt. Warnings of onnxruntime are not logged."""
    original = tmp_path / "stampede.png"
    original.write_bytes((REAL / "stampede.png").read_bytes())

    assert library.read(original, quality="auto").how is How.DONE

    [page] = library.by_number.values()
    page_layout = layout.decode(page.layout or "")
    first = ocr.tesseract.identity(ocr.OcrSettings(("eng",), "fast")).rpartition(" ")[0]
    assert page_layout.readers == [first, neural.NAME]
    lines = [" ".join(word.text for word in line) for line in page_layout.lines]
    assert "In accordance with custom, im-" in [lines[at] for at in page_layout.second]
    runs = library.jobs("ocr_pages")
    assert 0 < max(run.ended.usage.memory_peak_bytes or 0 for run in runs) <= 450 * MIB
    assert [line for run in runs for line in run.lines if "onnx" in line] == []


@needs_neural
def test_the_networks_are_loaded_only_if_a_word_is_uncertain_and_run_in_one_thread() -> None:
    program = (
        "import sys, os\n"
        "from job_handlers.reading import ocr\n"
        "from tests.job_handlers.reading.test_neural import real_scan\n"
        "from tests.job_handlers.reading.documents import gray_of, picture\n"
        "reader = ocr.reader_for(ocr.OcrSettings(('eng',), 'auto'))\n"
        "reader.read(gray_of(picture('The annual report of the board.', dpi=200)), 200)\n"
        "assert 'onnxruntime' not in sys.modules\n"
        "reader.read(*real_scan('title.png')[:2])\n"
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


@needs_neural
def test_the_second_engine_reads_only_languages_that_it_was_trained_for() -> None:
    assert ocr.ocr_settings(("eng", "rus"), "auto").quality == "fast"
    assert ocr.ocr_settings(("eng", "deu"), "auto").quality == "auto"
    assert neural.NAME in (ocr.offers() or "")
    assert neural.NAME in ocr.identity_of(ocr.ocr_settings(("eng",), "auto"))
    assert neural.NAME not in ocr.identity_of(ocr.ocr_settings(("eng",), "fast"))
