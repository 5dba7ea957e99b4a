"""The languages of OCR: what people call them, and which package has the data of one."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from job_handlers.reading.ocr import languages
from worker_service.handlers import Choices


@pytest.mark.parametrize(
    ("word", "code"),
    [
        ("german", "deu"), ("Deutsch", "deu"), ("de", "deu"), ("ger", "deu"), ("frnech", "fra"), ("chi-sim", "chi_sim"),
        ("chinese", "chi_sim"), ("DEU", "deu"), ("script/latin", "script/Latin"), ("latin", "lat"), ("klingon", None),
    ],
)  # fmt: skip
def test_what_people_call_a_language_is_understood(word: str, code: str | None) -> None:
    choices = Choices(["eng"], dict.fromkeys(languages.known(), ""), languages.CALLED)

    assert choices.meant(word) == code


def test_each_name_is_that_of_a_language_there_is() -> None:
    assert all(languages.is_known(code) for code in (*languages.CALLED.values(), *languages.known()))
    assert languages.how_to_get(["chi_sim", "script/Latin"]) == (
        "apt-get install tesseract-ocr-chi-sim tesseract-ocr-script-latn"
    )


@pytest.mark.skipif(shutil.which("apt-cache") is None, reason="not a Debian")
def test_each_package_is_one_of_debians() -> None:
    listed = subprocess.run(["apt-cache", "pkgnames", "tesseract-ocr-"], capture_output=True, text=True, check=False)
    if "tesseract-ocr-deu" not in listed.stdout.split():
        pytest.skip("no lists of packages")

    wanted = set(languages.how_to_get(languages.known()).split()[2:])

    assert wanted <= set(listed.stdout.split())
