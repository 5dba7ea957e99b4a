"""A gateway that has ended is started again: soon where somebody has killed it, ever later where it ends by itself."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.nodes.test_contract import begin_of
from tests.system.conftest import is_running, wait_until
from worker_service.children.messages import GatewayBegin
from worker_service.children.nursery import Nursery
from worker_service.nodes import routes
from worker_service.nodes.routes import Children, FarNursery

MakeChildren = Callable[[type[FarNursery]], Children]


class EndsByItself(FarNursery):
    module = "this"


@pytest.fixture
def make_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeChildren]:
    """Without a node: nothing tells that a gateway was of any use."""
    monkeypatch.setattr(routes, "_FIRST_SECONDS", 0.01)
    monkeypatch.setattr(routes, "_KILLED_SECONDS", 0.1)
    made: list[Children] = []

    def make(kind: type[FarNursery]) -> Children:
        begin = begin_of(tmp_path, gateway=GatewayBegin("ab", "pipe", (), 0, 10.0, tmp_path))
        made.append(Children(Nursery(begin_of(tmp_path)), kind(begin, {}), [], lambda reason: None))
        return made[-1]

    yield make
    for one in made:
        one.far.close()
        one.near.close()


def another(children: Children, before: int | None) -> int:
    """The pid of the next gateway."""

    def is_there() -> bool:
        children.happened()
        return children.far.pid not in (None, before)

    wait_until(is_there, "another gateway is started")
    assert children.far.pid is not None
    return children.far.pid


def test_however_often_a_gateway_is_killed_the_next_one_is_started_at_once(make_children: MakeChildren) -> None:
    children, pid = make_children(FarNursery), None

    began = time.monotonic()
    for _ in range(12):
        pid = another(children, pid)
        os.kill(pid, signal.SIGKILL)

    # By twice as long each time it would be 40 s.
    assert time.monotonic() - began < 10


def test_one_that_ends_by_itself_is_started_ever_later(make_children: MakeChildren) -> None:
    children, seen = make_children(EndsByItself), set[int | None]()

    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        children.happened()
        seen.add(children.far.pid)
        select.select([children.far], [], [], 0.01)

    assert 2 <= len(seen - {None}) <= 8


def test_nobody_waits_until_a_gateway_has_started(make_children: MakeChildren) -> None:
    children = make_children(FarNursery)

    another(children, None)

    assert children.far.threads is None, "it has not said a word yet"
    wait_until(lambda: (children.happened(), children.far.threads == 1)[1], "it has")


def test_one_that_never_says_a_word_is_ended(make_children: MakeChildren, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "_FIRST_WORD_SECONDS", 0.1)
    children = make_children(FarNursery)
    pid = another(children, None)

    os.kill(pid, signal.SIGSTOP)

    another(children, pid)
    assert not is_running(pid)
