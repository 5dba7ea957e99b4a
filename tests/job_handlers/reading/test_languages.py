"""The languages of OCR: their names, and the packages with their data."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pymupdf as partly_typed
import pytest
from PIL import ImageOps

from job_handlers.reading import ocr
from job_handlers.reading.ocr import language_codes
from tests.job_handlers.reading.documents import picture, prose
from tests.job_handlers.reading.kit import Library
from worker_service.handlers import Choices
from worker_service.testing import How

pymupdf: Any = partly_typed


@pytest.mark.parametrize(
    ("word", "code"),
    [
        ("german", "deu"), ("Deutsch", "deu"), ("de", "deu"), ("ger", "deu"), ("frnech", "fra"), ("chi-sim", "chi_sim"),
        ("chinese", "chi_sim"), ("DEU", "deu"), ("script/latin", "script/Latin"), ("latin", "lat"), ("klingon", None),
    ],
)  # fmt: skip
def test_languages_are_found_by_other_names_and_codes(word: str, code: str | None) -> None:
    choices = Choices(["eng"], dict.fromkeys(language_codes.all_codes(), ""), language_codes.CODE_OF_NAME)

    assert choices.closest(word) == code


def test_each_name_belongs_to_a_known_language() -> None:
    assert all(
        language_codes.is_known(code) for code in (*language_codes.CODE_OF_NAME.values(), *language_codes.all_codes())
    )
    assert language_codes.install_command(["chi_sim", "script/Latin"]) == (
        "apt-get install tesseract-ocr-chi-sim tesseract-ocr-script-latn"
    )


@pytest.mark.skipif(shutil.which("apt-cache") is None, reason="not a Debian")
def test_each_package_exists_in_debian() -> None:
    listed = subprocess.run(["apt-cache", "pkgnames", "tesseract-ocr-"], capture_output=True, text=True, check=False)
    if "tesseract-ocr-deu" not in listed.stdout.split():
        pytest.skip("no lists of packages")

    packages = set(language_codes.install_command(language_codes.all_codes()).split()[2:])

    assert packages <= set(listed.stdout.split())


def test_a_page_in_another_script_is_named_in_the_note(library: Library, tmp_path: Path) -> None:
    russian = "Совет директоров рассмотрел годовой отчёт и утверждает его полностью, включая эту страницу. " * 12
    with pymupdf.open() as document:
        page = document.new_page()
        page.insert_textbox(pymupdf.Rect(60, 60, 535, 800), russian, fontsize=13, fontname="china-s")
        pixmap = page.get_pixmap(dpi=150, colorspace=pymupdf.csGRAY)
        pixmap.save(tmp_path / "scan.png")

    run = library.read(tmp_path / "scan.png")

    assert run.how is How.DONE, run.ended
    assert library.by_number[1].confidence == 0
    unread = json.loads(library.by_number[1].layout or "")["unread"]
    assert unread["script"] == "Cyrillic"
    assert run.ended.document is not None
    assert "seems to be in Cyrillic letters" in (run.ended.document.note or "")
    assert (run.ended.document.note or "").endswith(": page 1")


def test_a_page_recognised_with_little_confidence_is_named_in_the_note(library: Library, tmp_path: Path) -> None:
    ImageOps.mirror(picture(prose(1, 60), dpi=150)).save(tmp_path / "mirrored.png", dpi=(150, 150))

    run = library.read(tmp_path / "mirrored.png")

    assert run.how is How.DONE, run.ended
    confidence = library.by_number[1].confidence
    assert confidence is not None
    assert 0 < confidence < 50
    assert run.ended.document is not None
    assert run.ended.document.note == "recognised with less than 50 % confidence: page 1"


def test_a_script_without_a_language_names_the_one_to_install() -> None:
    assert ocr.unread_script("Latin", ["eng"]) is None
    assert ocr.unread_script(None, ["eng"]) is None
    assert ocr.unread_script("Cyrillic", ["eng", "rus"]) is None
    arabic = ocr.unread_script("Arabic", ["eng"])
    assert arabic is not None
    assert arabic.language.startswith(("script/Arabic", "ara"))
    assert all(language_codes.is_known(code) for codes in language_codes._CODES_OF_SCRIPT.values() for code in codes)
