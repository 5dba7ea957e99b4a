"""Slices of originals, and slicers that misbehave."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import slice_handlers as slicers
from worker_service.cluster.slicer import ORIGINAL, SLICED_BYTES_MIN, Slicer
from worker_service.jobs.documents import KnownDocument
from worker_service.runner.messages import Order

SECONDS = 0.5
SPECS = dict.fromkeys((handler.job_type for handler in slicers.handlers), "tests.cluster.slice_handlers:handlers")


@pytest.fixture
def slicer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slicer]:
    monkeypatch.setattr("worker_service.cluster.slicer.SLICE_SECONDS_MAX", SECONDS)
    slicer = Slicer(SPECS, tmp_path / "slices", "strict")
    yield slicer
    slicer._socket.close()
    with contextlib.suppress(ChildProcessError):
        os.waitpid(slicer.pid, 0)


def order_of(job_type: str, place: Path, part: int = 0, number: int = 1) -> Order:
    original = place / "original.bin"
    if not original.exists():
        original.write_bytes(bytes(range(256)) * (SLICED_BYTES_MIN // 128))
        original.with_name("other").write_bytes(b"what is somebody else's")
    document = KnownDocument(content="00" * 32)
    inputs = {ORIGINAL: original}
    return Order(number, 1, job_type, "local", None, f'{{"part": {part}}}', None, inputs=inputs, document=document)


def test_each_slice_is_a_file_of_its_own(slicer: Slicer, tmp_path: Path) -> None:
    orders = [order_of("tenth", tmp_path, part) for part in (3, 0)]

    parts = [slicer.slice(order) for order in orders if slicer.can_slice(order)]

    whole = orders[0].inputs[ORIGINAL].read_bytes()
    size = len(whole) // 10
    assert [part.read_bytes() for part in parts if part] == [whole[3 * size : 4 * size], whole[:size]]


@pytest.mark.parametrize("how", slicers.SABOTEURS, ids=lambda one: one.__name__)
def test_a_slicer_that_does_harm_is_ended_and_the_original_is_not_sliced_again(
    how: Callable[[Path, Path], None], slicer: Slicer, tmp_path: Path
) -> None:
    order = order_of(how.__name__, tmp_path)

    assert slicer.slice(order) is None

    began = time.monotonic()
    assert slicer.slice(order) is None
    assert time.monotonic() - began < SECONDS
    assert slicer.slice(order_of("tenth", tmp_path)) is not None
    assert [path.name for path in (tmp_path / "slices").iterdir() if path.is_file()] == ["3.bin"]


def test_small_files_and_files_without_a_slicer_are_sent_whole(slicer: Slicer, tmp_path: Path) -> None:
    assert not slicer.can_slice(order_of("noop", tmp_path))
    (tmp_path / "original.bin").write_bytes(b"small")
    assert not slicer.can_slice(order_of("tenth", tmp_path))


def test_files_are_sent_whole_when_the_slicer_process_has_died(slicer: Slicer, tmp_path: Path) -> None:
    os.kill(slicer.pid, signal.SIGKILL)
    os.waitpid(slicer.pid, 0)

    assert slicer.slice(order_of("tenth", tmp_path)) is None
    assert slicer.slice(order_of("tenth", tmp_path)) is None
