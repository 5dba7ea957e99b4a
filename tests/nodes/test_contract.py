"""What a daemon may rely on of its children, whoever runs them: its own nursery, or a gateway and a node behind it, by
pipes or by Ray.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests import installed
from tests.nodes.ray_machines import Machines, needs_ray, with_keys
from tests.system.conftest import ROOT, is_running
from worker_service.children.messages import (
    Begin,
    Ended,
    GatewayBegin,
    Happening,
    How,
    Logged,
    Order,
    Placed,
    Progressed,
    Started,
)
from worker_service.children.nursery import Nursery
from worker_service.nodes.routes import FarNursery

PATIENCE_SECONDS = 30.0
SLOTS = 4
TYPES = ("noop", "talk", "sleep", "fail", "chaos", "fetch")


class Desk:
    def __init__(self, nursery: Nursery, place: Path) -> None:
        self.nursery = nursery
        self.place = place
        self.heard: list[Happening] = []
        self._number = 0

    def launch(self, job_type: str, payload: str = "{}", **more: object) -> Order:
        self._number += 1
        order = Order(self._number, 4, job_type, "local", None, payload, None, **more)  # type: ignore[arg-type]
        self.nursery.launch(order)
        return order

    def of(self, order: Order) -> list[Happening]:
        return [one for one in self.heard if one.key == order.key and not isinstance(one, Placed)]

    def until(self, is_so: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_so():
            left = deadline - time.monotonic()
            assert left > 0, f"it did not happen; heard: {self.heard[-10:]}"
            select.select([self.nursery], [], [], min(left, 0.5))
            self.heard += self.nursery.happened()

    def ended(self, order: Order) -> Ended:
        self.until(lambda: any(isinstance(one, Ended) for one in self.of(order)))
        ended = self.of(order)[-1]
        assert isinstance(ended, Ended)
        assert sum(isinstance(one, Ended) for one in self.of(order)) == 1
        return ended

    def pid(self, order: Order) -> int:
        def told() -> list[int]:
            lines = [line for one in self.of(order) if isinstance(one, Logged) for line in one.lines]
            return [int(line.removeprefix("pid ")) for line in lines if line.startswith("pid ")]

        self.until(told)
        return told()[0]


def begin_of(place: Path, **more: object) -> Begin:
    return Begin(place / "staging", place / "keep", grace_seconds=0.5, **more)  # type: ignore[arg-type]


@contextmanager
def at_home(place: Path) -> Iterator[Nursery]:
    with closing(Nursery(begin_of(place))) as nursery:
        nursery.start()
        yield nursery


@contextmanager
def by_pipes(place: Path) -> Iterator[FarNursery]:
    node = f"n1={sys.executable} -P -m worker_service.nodes.pipes {place / 'n1'} {SLOTS}"
    with _over(place, "pipe", node) as nursery:
        yield nursery


@contextmanager
def over_ray(place: Path) -> Iterator[FarNursery]:
    with closing(Machines(place / "ray", os.environ)) as machines:
        machines.start_head()
        machines.start_node("n1", SLOTS)
        with with_keys(machines.keys), _over(place, "ray", machines.where) as nursery:
            yield nursery


@contextmanager
def _over(place: Path, engine: str, where: str) -> Iterator[FarNursery]:
    (place / "objects").mkdir()
    gateway = GatewayBegin("ab", engine, (where,), 0, 10.0, place / "objects", dict.fromkeys(TYPES, ()))
    with closing(FarNursery(begin_of(place, gateway=gateway), {})) as nursery:
        nursery.start()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (nursery.seen and nursery.seen.nodes and nursery.has_begun_anew([nursery.seen.nodes[0].name])):
            assert time.monotonic() < deadline, nursery.seen
            select.select([nursery], [], [], 0.1)
            nursery.happened()
        yield nursery


WAYS = [at_home, by_pipes, pytest.param(over_ray, marks=needs_ray)]


@pytest.fixture(scope="module", params=WAYS, ids=lambda one: str(one.__name__))
def desk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """One for all of them: none of them kills anybody but children."""
    place = tmp_path_factory.mktemp("children")
    handlers = place / "installed"
    installed.install(handlers, "pagemill-system-tests", {"system": "tests.system.handlers:handlers"})
    installed.keep_of_the_shipped(handlers)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", os.pathsep.join([str(handlers), str(ROOT)]))
        with request.param(place) as nursery:
            yield Desk(nursery, place)


def test_an_order_begins_says_how_far_it_is_and_ends_once(desk: Desk) -> None:
    order = desk.launch("talk")

    ended = desk.ended(order)

    assert ended.how is How.DONE
    kinds = [type(one) for one in desk.of(order)]
    assert kinds[0] is Started
    assert kinds[-1] is Ended
    assert [one.percent for one in desk.of(order) if isinstance(one, Progressed)] == [40.0]
    assert [line for one in desk.of(order) if isinstance(one, Logged) for line in one.lines] == ["a line"]


def test_a_result_comes_with_its_end(desk: Desk) -> None:
    assert desk.ended(desk.launch("noop", '{"n": 3}')).result == '{"seen": 3}'


def test_files_lie_in_the_staging_of_their_attempt_when_the_end_is_told(desk: Desk) -> None:
    order = desk.launch("chaos")

    ended = desk.ended(order)

    [file] = ended.published
    assert (file.path.name, file.path.parent.name) == ("page.txt", f"{order.job_id}-4")
    assert file.path.read_text() == str(order.job_id)
    assert [job.job_type for job in ended.follow_ups] == ["fetch"]


def test_a_file_without_content_is_there_as_any_other(desk: Desk) -> None:
    empty = desk.place / "objects" / "empty.csv"
    empty.parent.mkdir(exist_ok=True)
    empty.touch()

    assert desk.ended(desk.launch("noop", inputs={"original": empty})).how is How.DONE


@pytest.mark.parametrize(
    ("payload", "how", "code"),
    [
        ('{"how": "permanent"}', How.PERMANENT, "NO_SUCH_FILE"),
        ('{"how": "retryable"}', How.RETRYABLE, "RETRYABLE"),
        ('{"how": "snooze"}', How.SNOOZED, ""),
        ('{"how": "crash"}', How.CRASHED, "CRASHED"),
        ("{}", How.RETRYABLE, "HANDLER_ERROR"),
    ],
)
def test_every_way_to_end_is_heard_as_it_was(payload: str, how: How, code: str, desk: Desk) -> None:
    ended = desk.ended(desk.launch("fail", payload))

    assert (ended.how, ended.code if code else "") == (how, code)


def test_a_type_that_nobody_has_is_refused(desk: Desk) -> None:
    assert desk.ended(desk.launch("nobody")).code == "UNKNOWN_TYPE"


def test_what_is_stopped_is_gone_when_its_end_is_heard(desk: Desk) -> None:
    order = desk.launch("sleep")
    pid = desk.pid(order)

    desk.nursery.stop(*order.key)
    ended = desk.ended(order)

    assert ended.how is How.STOPPED
    assert not is_running(pid)


def test_what_is_stopped_at_once_gets_no_grace(desk: Desk) -> None:
    order = desk.launch("sleep", '{"grandchild": true}')
    pid = desk.pid(order)

    desk.nursery.stop(*order.key, now=True)

    assert desk.ended(order).how is How.STOPPED
    assert not is_running(pid)


def test_who_is_stopped_before_it_has_begun_ends_all_the_same(desk: Desk) -> None:
    order = desk.launch("sleep")
    desk.nursery.stop(*order.key, now=True)

    assert desk.ended(order).how is How.STOPPED


def test_many_at_once_each_end_once(desk: Desk) -> None:
    orders = [desk.launch("noop", f'{{"n": {number}}}') for number in range(8)]

    assert [desk.ended(order).result for order in orders] == [f'{{"seen": {number}}}' for number in range(8)]
