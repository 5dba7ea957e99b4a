"""Which nodes are used where machines are started and ended for us: as it is decided, and as a gateway does it."""

from __future__ import annotations

import math
import os
import select
import sys
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests import installed
from tests.nodes.conftest import MakeNodes, gateway_of
from tests.nodes.test_contract import TYPES, Desk, begin_of
from tests.system.conftest import ROOT, wait_until
from worker_service.children.messages import GatewayBegin, Wishes
from worker_service.nodes.heard import notes_in
from worker_service.nodes.routes import FarNursery
from worker_service.nodes.scaling import Used, to_let_go, to_use

THERE = {"a": 2, "b": 2, "c": 4}
IDLE = Used(may_run=True, idle_seconds=60.0)
BUSY = Used(may_run=True, idle_seconds=0.0)
USELESS = Used(may_run=False, idle_seconds=60.0)


@pytest.mark.parametrize(
    ("used", "wanted", "more"),
    [
        ({}, 0, []),
        ({}, 1, ["a"]),
        ({}, 3, ["a", "b"]),
        ({}, math.inf, ["a", "b", "c"]),
        ({"a": BUSY}, 2, []),
        ({"a": BUSY}, 3, ["b"]),
        ({"a": USELESS}, 1, ["b"]),
        ({"gone": BUSY}, 1, ["a"]),
    ],
)
def test_as_many_nodes_are_used_as_what_is_wanted_needs(used: dict[str, Used], wanted: float, more: list[str]) -> None:
    assert to_use(THERE, used, wanted) == more


@pytest.mark.parametrize(
    ("used", "wanted", "gone"),
    [
        ({"a": IDLE, "b": BUSY}, 2, ["a"]),
        ({"a": IDLE, "b": BUSY}, 3, []),
        ({"a": IDLE, "c": IDLE}, 4, ["a"]),
        ({"a": Used(True, 50.0), "b": Used(True, 70.0)}, 2, ["b"]),
        ({"a": Used(True, 9.0)}, 0, []),
        ({"a": USELESS}, 0, []),
        ({"gone": USELESS, "lost": BUSY}, 9, ["gone"]),
    ],
)
def test_whoever_is_idle_and_not_needed_is_let_go_and_whose_machine_has_gone(
    used: dict[str, Used], wanted: int, gone: list[str]
) -> None:
    assert to_let_go(THERE, used, wanted, idle_most=10.0) == gone


@pytest.fixture(params=[()])
def desk(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """Two nodes of two slots, which are used when there is something for them. `mute`: those that never say a word."""
    mute: Collection[str] = request.param
    installed.install(tmp_path / "installed", "pagemill-system-tests", {"system": "tests.system.handlers:handlers"})
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "installed"), str(ROOT)]))
    (tmp_path / "objects").mkdir()
    node = f"{sys.executable} -P -m worker_service.nodes.pipes {tmp_path}"
    nodes = tuple(f"{one}=sleep 3600*2" if one in mute else f"{one}={node}/{one} 2*2" for one in "ab")
    fit = dict.fromkeys(TYPES, ())
    gateway = GatewayBegin("ab", "pipe", nodes, 0, 1.0, tmp_path / "objects", fit, autoscale=4)
    with closing(FarNursery(begin_of(tmp_path, gateway=gateway), {})) as far:
        far.start()
        yield Desk(far, tmp_path)


def names(far: FarNursery) -> list[tuple[str, str]]:
    select.select([far], [], [], 0.05)
    far.happened()
    return [] if far.seen is None else [(node.name, node.state) for node in far.seen.nodes]


def test_a_gateway_uses_all_nodes_at_first_then_those_that_are_wanted(desk: Desk) -> None:
    far = desk.nursery
    assert isinstance(far, FarNursery)

    wait_until(lambda: names(far) == [("a", "up"), ("b", "up")], "both are there")
    wait_until(lambda: names(far) == [], "nobody is needed")
    assert notes_in(desk.place / "staging") == {}

    far.wish(Wishes(attempts=1))
    wait_until(lambda: names(far) == [("a", "up")], "one is")
    order = desk.launch("sleep")
    desk.pid(order)
    far.wish(Wishes(attempts=3))
    wait_until(lambda: names(far) == [("a", "up"), ("b", "up")], "both are")
    far.wish(Wishes())
    wait_until(lambda: names(far) == [("a", "up")], "one runs something")
    far.stop(*order.key, now=True)
    desk.ended(order)
    wait_until(lambda: names(far) == [], "nobody is needed")


@pytest.mark.parametrize("desk", [("a",)], indirect=True)
def test_where_a_machine_never_comes_up_another_one_is_used(desk: Desk) -> None:
    far = desk.nursery
    assert isinstance(far, FarNursery)

    wait_until(lambda: names(far) == [("a", "down"), ("b", "up")], "one is there")
    wait_until(lambda: names(far) == [("a", "down")], "nobody is needed")
    far.wish(Wishes(attempts=2))

    wait_until(lambda: names(far) == [("a", "down"), ("b", "up")], "the other one is used")


def test_no_thread_is_left_in_a_gateway_of_a_node_that_it_has_left(make_nodes: MakeNodes) -> None:
    nodes = make_nodes()
    daemon = nodes.start()
    for name in ("n1", "n2"):
        nodes.wait_for(name)
    threads = Path(f"/proc/{gateway_of(daemon)}/task")
    own = 2
    of_nodes = len(list(threads.iterdir())) - own

    assert nodes.system.store.steering.wish_of_node("n2", "remove")
    nodes.wait_for("n2", "removed")

    wait_until(lambda: len(list(threads.iterdir())) == own + of_nodes / 2, "those of the other one are left")
