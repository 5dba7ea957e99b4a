"""One page goes wrong, and costs only itself."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from job_handlers.reading.page_process import Lost, PageProcess, TooLarge
from tests.kit.system import is_running

# The test runner has threads; the children that fork in earnest have none.
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


def test_pages_after_a_lost_one_are_read_all_the_same(capfd: pytest.CaptureFixture[str]) -> None:
    with PageProcess[str](reader, str, cpu_seconds=1) as process:
        found = dict(process.read_all(range(1, 40)))

    assert list(found) == list(range(1, 40))
    assert isinstance(found[3], TooLarge)
    assert "more than 1 s" in str(found[3])
    assert isinstance(found[5], Lost)
    assert "SIGSEGV" in str(found[5])
    assert isinstance(found[7], TooLarge)
    assert isinstance(found[8], Lost)
    good = [text for number, text in found.items() if number not in (3, 5, 7, 8)]
    assert all(isinstance(text, str) and text.startswith("page ") for text in good)
    assert len({str(text).rpartition(" ")[2] for text in good}) == 4
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_one_page_that_is_lost_is_told_by_an_exception() -> None:
    with PageProcess[str](reader, str, cpu_seconds=1) as process:
        assert process.read(1).startswith("page 1")
        with pytest.raises(Lost):
            process.read(5)
        assert process.read(2).startswith("page 2")


def test_it_opens_what_there_is_to_open_before_it_is_asked(tmp_path: Path) -> None:
    def opens() -> Callable[[int], str]:
        (tmp_path / "opened").write_text(str(os.getpid()))
        return reader()

    with PageProcess[str](opens, str, cpu_seconds=5) as process:
        process.begin()
        until = time.monotonic() + 10
        while not (tmp_path / "opened").exists() and time.monotonic() < until:
            time.sleep(0.01)

        assert process.read(1) == f"page 1 by {(tmp_path / 'opened').read_text()}"


def test_what_fails_to_open_is_told_with_the_first_page(capfd: pytest.CaptureFixture[str]) -> None:
    def fails() -> Callable[[int], str]:
        raise ZeroDivisionError

    with PageProcess[str](fails, str, cpu_seconds=5) as process:
        process.begin()

        with pytest.raises(Lost):
            process.read(1)


def test_large_answers_pass_whole() -> None:
    with PageProcess[bytes](lambda: lambda number: bytes(number), bytes, cpu_seconds=5) as process:
        assert [len(answer) for _, answer in process.read_all([10, 3_000_000, 0])] == [10, 3_000_000, 0]  # type: ignore[arg-type]


def test_nothing_is_left_running_when_the_block_ends(tmp_path: Path) -> None:
    pid = 0

    def sleeps() -> Callable[[int], int]:
        def read(number: int) -> int:
            if number == 2:
                signal.pause()
            return os.getpid()

        return read

    with contextlib.suppress(KeyError), PageProcess[int](sleeps, int, cpu_seconds=1) as process:
        for _, answer in process.read_all([1, 2]):
            assert isinstance(answer, int)
            pid = answer
            raise KeyError

    assert pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_it_ends_with_the_one_that_started_it() -> None:
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

    deadline = time.monotonic() + 30
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.01)

    assert not is_running(pid)
