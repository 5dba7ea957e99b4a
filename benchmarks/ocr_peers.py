"""Other programs that read the same pages, and the time each took."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks.accuracy import character_errors, word_f1
from benchmarks.corpus import Book
from benchmarks.running import Failed

ROOT = Path(__file__).resolve().parent.parent
OCRMYPDF = ROOT / ".venv-ocrmypdf" / "bin" / "ocrmypdf"
"""Installed by `./run bench ocr`, with its own libraries."""
JOBS = "2"


@dataclass(frozen=True, slots=True)
class Reading:
    """The text of each page, and the time it took."""

    texts: Sequence[str]
    truth: Sequence[str]
    seconds: float
    cpu_seconds: float

    @classmethod
    def of(cls, books: Sequence[Book], texts: Sequence[str], seconds: float, cpu_seconds: float) -> Reading:
        """Return the reading of all pages, or of the first ones."""
        truth = [page for book in books for page in book.truth]
        return cls(texts, truth[: len(texts)], seconds, cpu_seconds)

    @property
    def pages_per_minute(self) -> float:
        return 60 * len(self.texts) / self.seconds

    @property
    def pages_per_second(self) -> float:
        return len(self.texts) / self.seconds

    @property
    def cpu_seconds_per_page(self) -> float:
        return self.cpu_seconds / len(self.texts)

    @property
    def character_errors(self) -> float:
        return character_errors(self.texts, self.truth)

    @property
    def word_f1(self) -> float:
        return word_f1(self.texts, self.truth)


def missing() -> str | None:
    """Return what this machine lacks for the peers."""
    if not OCRMYPDF.exists():
        return "OCRmyPDF is not there: `./run bench ocr` installs it"
    if shutil.which("tesseract") is None or find_spec("tesserocr") is None:
        return "the engine is not there: install tesseract-ocr, and run ./run setup"
    return None


def versions() -> str:
    program = _output(["tesseract", "--version"]).split()[1]
    return f"OCRmyPDF {_output([str(OCRMYPDF), '--version']).strip()} and pytesseract on tesseract {program}"


def engine(books: Sequence[Book]) -> Reading:
    return _read("engine", books)


def pytesseract_loop(books: Sequence[Book], pages: int) -> Reading:
    return _read("pytesseract", books, pages)


def get_text(books: Sequence[Book]) -> Reading:
    return _read("get_text", books)


def ocrmypdf(books: Sequence[Book], place: Path) -> Reading:
    """Read one file after the other with default settings, which write a text beside the PDF."""
    texts: list[str] = []
    seconds = cpu_seconds = 0.0
    for book in books:
        beside, target = place / f"{book.path.stem}.txt", place / book.path.name
        command = [str(OCRMYPDF), "-j", JOBS, "--quiet", "--sidecar", str(beside), str(book.path), str(target)]
        begin, cpu_begin = time.perf_counter(), _cpu_of_ended_children()
        _output(command)
        seconds += time.perf_counter() - begin
        cpu_seconds += _cpu_of_ended_children() - cpu_begin
        texts += beside.read_text().removesuffix("\f").split("\f")
        target.unlink()
    return Reading.of(books, texts, seconds, cpu_seconds)


def _read(name: str, books: Sequence[Book], most: int = -1) -> Reading:
    paths = [str(book.path) for book in books]
    found = json.loads(_output([sys.executable, "-m", "benchmarks.ocr_readers", name, str(most), *paths]))
    return Reading.of(books, found["texts"], found["seconds"], found["cpu_seconds"])


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def _cpu_of_ended_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
