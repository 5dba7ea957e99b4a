"""What is cut out of a file before it goes to a node: by whom nothing can be harmed, whatever is in the file."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests import installed
from tests.nodes import cutters
from tests.system.conftest import ROOT
from worker_service.children.messages import Begin, Ended, GatewayBegin, How, Order
from worker_service.children.nursery import heard
from worker_service.jobs.documents import KnownDocument
from worker_service.nodes.files import digest_of
from worker_service.nodes.portions import BYTES_LEAST, ORIGINAL, PORTION, Cutter
from worker_service.nodes.routes import FarNursery

SECONDS = 0.5
SPECS = dict.fromkeys((one.job_type for one in cutters.handlers), "tests.nodes.cutters:handlers")


@pytest.fixture
def cutter(tmp_path: Path) -> Iterator[Cutter]:
    made = Cutter(SPECS, tmp_path / "portions", "strict", seconds_most=SECONDS)
    yield made
    made.close()


def order_of(job_type: str, place: Path, part: int = 0, number: int = 1) -> Order:
    original = place / "original.bin"
    if not original.exists():
        original.write_bytes(bytes(range(256)) * (BYTES_LEAST // 128))
        original.with_name("other").write_bytes(b"what is somebody else's")
    document = KnownDocument(content="00" * 32)
    inputs = {ORIGINAL: original}
    return Order(number, 1, job_type, "local", None, f'{{"part": {part}}}', None, inputs=inputs, document=document)


def test_each_part_of_a_file_is_a_file_of_its_own(cutter: Cutter, tmp_path: Path) -> None:
    orders = [order_of("tenth", tmp_path, part) for part in (3, 0)]

    parts = [cutter.cut(order) for order in orders if cutter.cuts(order)]

    whole = orders[0].inputs[ORIGINAL].read_bytes()
    size = len(whole) // 10
    assert [part.read_bytes() for part in parts if part] == [whole[3 * size : 4 * size], whole[:size]]


@pytest.mark.parametrize("how", cutters.SABOTEURS, ids=lambda one: one.__name__)
def test_who_cuts_and_does_harm_is_ended_and_nobody_asks_it_again(
    how: Callable[[Path, Path], None], cutter: Cutter, tmp_path: Path
) -> None:
    order = order_of(how.__name__, tmp_path)

    assert cutter.cut(order) is None

    began = time.monotonic()
    assert cutter.cut(order) is None
    assert time.monotonic() - began < SECONDS
    assert cutter.cut(order_of("tenth", tmp_path)) is not None
    assert [one.name for one in (tmp_path / "portions").iterdir() if one.is_file()] == ["3.bin"]


def test_small_files_and_those_that_nobody_cuts_go_whole(cutter: Cutter, tmp_path: Path) -> None:
    assert not cutter.cuts(order_of("noop", tmp_path))
    (tmp_path / "original.bin").write_bytes(b"small")
    assert not cutter.cuts(order_of("tenth", tmp_path))


def test_where_nobody_is_left_who_cuts_files_go_whole(cutter: Cutter, tmp_path: Path) -> None:
    os.kill(cutter.pid, signal.SIGKILL)
    os.waitpid(cutter.pid, 0)

    assert cutter.cut(order_of("tenth", tmp_path)) is None
    assert cutter.cut(order_of("tenth", tmp_path)) is None


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FarNursery]:
    """One node."""
    installed.install(tmp_path / "installed", "pagemill-cutters", {"cutters": "tests.nodes.cutters:handlers"})
    installed.keep_of_the_shipped(tmp_path / "installed")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "installed"), str(ROOT)]))
    node = f"n1={sys.executable} -P -m worker_service.nodes.pipes {tmp_path / 'n1'} 4"
    gateway = GatewayBegin("ab", "pipe", (node,), 0, 10.0, tmp_path, dict.fromkeys(SPECS, ()), portions=SPECS)
    made = FarNursery(Begin(tmp_path / "staging", tmp_path / "keep", gateway=gateway), {})
    made.start()
    while not made.has_begun_anew(["n1"]):
        select.select([made], [], [], 0.1)
        made.happened()
    yield made
    made.close()


def got(far: FarNursery, order: Order) -> dict[str, int]:
    """The files that its attempt has found, and their bytes."""
    far.launch(order)
    [ended] = [one for one in heard(far, seconds=20) if isinstance(one, Ended)]
    found: dict[str, int] = json.loads(ended.result or "{}")
    return found


def test_a_node_gets_portions_and_the_whole_file_where_they_would_come_to_more(far: FarNursery, tmp_path: Path) -> None:
    whole = order_of("tenth", tmp_path).inputs[ORIGINAL].stat().st_size

    parts = [got(far, order_of("tenth", tmp_path, part, number=part + 1)) for part in range(3)]
    most = [got(far, order_of("most", tmp_path, number=number)) for number in (4, 5)]
    after = got(far, order_of("tenth", tmp_path, number=6))

    assert parts == [{PORTION: whole // 10}] * 3
    assert most == [{PORTION: whole * 7 // 10}, {ORIGINAL: whole}]
    assert after == {ORIGINAL: whole}
    assert not [*(tmp_path / "staging" / "portions").glob("*.bin")]


def test_an_attempt_whose_original_is_gone_fails_alone(far: FarNursery, tmp_path: Path) -> None:
    order = order_of("tenth", tmp_path)
    order = replace(order, contents={ORIGINAL: digest_of(order.inputs[ORIGINAL])})
    order.inputs[ORIGINAL].unlink()
    far.launch(order)

    [ended] = [one for one in heard(far, seconds=20) if isinstance(one, Ended)]

    assert (ended.how, ended.code) == (How.RETRYABLE, "FILE_ABSENT")
    assert far.is_alive


def test_a_node_gets_the_whole_file_where_cutting_it_goes_wrong(far: FarNursery, tmp_path: Path) -> None:
    assert [*got(far, order_of("die", tmp_path))] == [ORIGINAL]
