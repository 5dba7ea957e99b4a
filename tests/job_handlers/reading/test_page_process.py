"""A page that fails costs only itself."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from job_handlers.reading.page_process import Lost, PageProcess, TooLarge
from tests.kit.system import is_running, wait_until

# The test runner has threads; the processes that fork in production have none.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


def reader() -> Callable[[int], str]:
    def read(number: int) -> str:
        if number == 3:
            while True:
                # In C, with Python's lock held.
                sum(range(10**7))
        if number == 5:
            faulthandler.disable()
            os.kill(os.getpid(), signal.SIGSEGV)
        if number == 7:
            raise MemoryError
        if number == 8:
            raise ZeroDivisionError
        return f"page {number} by {os.getpid()}"

    return read


def test_pages_after_a_lost_page_are_still_read(capfd: pytest.CaptureFixture[str]) -> None:
    with PageProcess[str](reader, str, cpu_seconds=1) as process:
        answers = dict(process.read_all(range(1, 40)))

    assert list(answers) == list(range(1, 40))
    assert isinstance(answers[3], TooLarge)
    assert "more than 1 s" in str(answers[3])
    assert isinstance(answers[5], Lost)
    assert "SIGSEGV" in str(answers[5])
    assert isinstance(answers[7], TooLarge)
    assert isinstance(answers[8], Lost)
    texts = [text for number, text in answers.items() if number not in (3, 5, 7, 8)]
    assert all(isinstance(text, str) and text.startswith("page ") for text in texts)
    assert len({str(text).rpartition(" ")[2] for text in texts}) == 4
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_reading_one_lost_page_raises_an_exception() -> None:
    with PageProcess[str](reader, str, cpu_seconds=1) as process:
        assert process.read(1).startswith("page 1")
        with pytest.raises(Lost):
            process.read(5)
        assert process.read(2).startswith("page 2")


def test_begin_opens_the_file_before_the_first_request(tmp_path: Path) -> None:
    def opens() -> Callable[[int], str]:
        (tmp_path / "opened").write_text(str(os.getpid()))
        return reader()

    with PageProcess[str](opens, str, cpu_seconds=5) as process:
        process.begin()
        wait_until((tmp_path / "opened").exists, "the file is opened")

        assert process.read(1) == f"page 1 by {(tmp_path / 'opened').read_text()}"


def test_a_file_that_fails_to_open_loses_the_first_page(capfd: pytest.CaptureFixture[str]) -> None:
    def fails() -> Callable[[int], str]:
        raise ZeroDivisionError

    with PageProcess[str](fails, str, cpu_seconds=5) as process:
        process.begin()

        with pytest.raises(Lost):
            process.read(1)


def test_large_answers_arrive_complete() -> None:
    with PageProcess[bytes](lambda: lambda number: bytes(number), bytes, cpu_seconds=5) as process:
        assert [len(answer) for _, answer in process.read_all([10, 3_000_000, 0])] == [10, 3_000_000, 0]  # type: ignore[arg-type]


def test_the_process_ends_with_the_block() -> None:
    def read(number: int) -> int:
        if number == 2:
            signal.pause()
        return os.getpid()

    with PageProcess[int](lambda: read, int, cpu_seconds=1) as process:
        process.request(1, 2)
        _, pid = process.receive()

    assert isinstance(pid, int)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_process_ends_with_its_parent() -> None:
    reading, writing = os.pipe()
    middle = os.fork()
    if middle == 0:
        process = PageProcess[int](lambda: lambda number: os.getpid(), int, cpu_seconds=5)
        os.write(writing, str(process.read(1)).encode())
        os._exit(0)
    os.waitpid(middle, 0)
    pid = int(os.read(reading, 20))
    os.close(reading)
    os.close(writing)

    wait_until(lambda: not is_running(pid), "the page process has ended")
