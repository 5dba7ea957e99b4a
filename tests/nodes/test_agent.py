"""What a node answers, whatever it is asked: commands once, files by their content, and nothing late."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import installed
from tests.system.conftest import ROOT, wait_until
from worker_service import VERSION
from worker_service.children.messages import Garbled, Gone, Launch, Logged, Order, Progressed, Started, frame, from_node
from worker_service.liveness import holders
from worker_service.nodes import calls
from worker_service.nodes.agent import Agent
from worker_service.nodes.calls import Get, Has, Heard, Listen, Put, Refused, Settle, Settled, Tell, There, Told
from worker_service.nodes.files import NAMES_MOST, SPARE_BYTES, Brought, Inputs, key_of

TYPES = ("noop", "sleep", "chaos")
PIECE_BYTES = 4 << 20


def settle(**changed: object) -> Settle:
    values: dict[str, object] = {
        "words": calls.VERSION,
        "version": VERSION,
        "house": "ab",
        "slots": 2,
        "sandbox": "strict",
        "types": TYPES,
        "grace_seconds": 1.0,
        "fence_seconds": 30.0,
    }
    return Settle(**(values | changed))  # type: ignore[arg-type]


def ask(agent: Agent, call: calls.Call) -> calls.Answer:
    return calls.answer_from(agent.answer(calls.encoded(call)))


@pytest.fixture(autouse=True)
def handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "installed"
    installed.install(place, "pagemill-system-tests", {"system": "tests.system.handlers:handlers"})
    installed.keep_of_the_shipped(place)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(place), str(ROOT)]))


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path / "node", slots=4)
    yield made
    made.leave()


class Head:
    """The other end, that hears and acknowledges as a head does."""

    def __init__(self, agent: Agent, **changed: object) -> None:
        self.agent = agent
        settled = ask(agent, settle(**changed))
        assert isinstance(settled, Settled), settled
        self.life, self.heard, self.beat = settled.life, 0, 0
        self.happened: list[calls.Happened] = []

    def listen(self) -> Heard:
        answer = ask(self.agent, Listen(self.life, self.heard, self.beat, 0.2))
        assert isinstance(answer, Heard), answer
        if answer.life == self.life:
            self.beat = answer.beat
            self.happened += answer.happened[max(0, self.heard + 1 - answer.first) :]
            self.heard = max(self.heard, answer.first + len(answer.happened) - 1) if answer.happened else self.heard
        return answer

    def until(self, is_so: Callable[[], object], what: str) -> None:
        wait_until(lambda: (self.listen(), is_so())[1], what)

    def tell(self, first: int, *orders: Order) -> Told:
        told = ask(self.agent, Tell(self.life, first, tuple(frame(Launch(order, {})) for order in orders)))
        assert isinstance(told, Told), told
        return told

    def ends(self, orders: list[Order]) -> list[int]:
        """The jobs that have ended, in their order."""
        by_key = {order.key: order for order in orders}
        said = [from_node(one.body, by_key) for one in self.happened]
        return [word.job_id for message, word in said if isinstance(message, Gone)]


def order(number: int, job_type: str = "noop", payload: str = "{}", **more: object) -> Order:
    return Order(number, 1, job_type, "local", None, payload, None, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "code", "sentence"),
    [
        (settle(version="0.0.1"), "version", f"this node is pagemill {VERSION} and the head 0.0.1: install the same"),
        (settle(words=99), "version", "install the same"),
        (settle(house="../x"), "garbled", "the name of a house that is none"),
        (settle(fence_seconds=1e9), "garbled", "a fence of"),
        (Has("a" * 64, 1), "not_settled", "nobody has settled here yet"),
    ],
)
def test_who_asks_for_what_cannot_be_is_told_so(call: calls.Call, code: str, sentence: str, tmp_path: Path) -> None:
    answer = ask(Agent(tmp_path / "node"), call)

    assert isinstance(answer, Refused)
    assert answer.code == code
    assert sentence in answer.message
    assert not (tmp_path / "node").exists()


def test_nonsense_is_answered_in_words(tmp_path: Path) -> None:
    answer = calls.answer_from(Agent(tmp_path / "node").answer(b"\xc1\xff"))

    assert isinstance(answer, Refused)
    assert answer.code == "garbled"


def test_what_nobody_waits_for_comes_with_what_somebody_does(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker_service.nodes.agent._GATHER_SECONDS", 30.0)
    head, talking, began = Head(agent), order(1, "talk"), time.monotonic()
    head.tell(1, talking)

    answer = ask(agent, Listen(head.life, 0, 0, 30.0))

    assert isinstance(answer, Heard)
    said = [type(from_node(one.body, {talking.key: talking})[0]) for one in answer.happened]
    assert said == [Started, Progressed, Logged, Gone]
    assert time.monotonic() - began < 20


def test_commands_and_happenings_that_come_twice_are_heard_once(agent: Agent) -> None:
    head, orders = Head(agent), [order(1), order(2)]

    assert head.tell(1, *orders).heard == 2
    assert head.tell(1, *orders).heard == 2
    assert head.tell(4, order(4)).heard == 2
    head.until(lambda: len(head.ends(orders)) == 2, "both have ended")
    # The next call acknowledges what this one brought.
    head.listen()
    head.heard = 0
    again = head.listen()

    assert sorted(head.ends(orders)[:2]) == [1, 2]
    # What was acknowledged is forgotten.
    assert again.first > 1 or not again.happened


def test_what_comes_after_the_fence_is_not_begun_although_nobody_has_noticed(agent: Agent) -> None:
    head = Head(agent, fence_seconds=0.3)
    before = head.life
    time.sleep(0.35)

    late = ask(agent, Tell(before, 1, (frame(Launch(order(1), {})),)))

    assert late == Told(0) or (isinstance(late, Refused) and late.code == "ending")
    wait_until(lambda: head.listen().life != before, "it has begun anew")
    assert head.happened == []


def test_nothing_of_an_agent_is_left_when_it_has_left(agent: Agent, tmp_path: Path) -> None:
    head = Head(agent)
    head.tell(1, order(1, "sleep"))
    lock = tmp_path / "node" / "ab" / "lock"
    head.until(lambda: head.happened, "it has begun")
    # This process, the nursery, the child.
    assert len(holders(lock)) == 3

    agent.leave()

    assert holders(lock) == []


def test_an_input_is_read_where_it_was_brought(agent: Agent, tmp_path: Path) -> None:
    head = Head(agent)
    body = b"%PDF-" + os.urandom(1000)
    key = key_of(Path("a.PDF"), hashlib.sha256(body).hexdigest())
    assert key.endswith(".pdf")

    assert ask(agent, Has(key, len(body))) == There(0)
    assert ask(agent, Put(key, len(body), 0, body[:100])) == There(100)
    # The answer was lost, and it is said again.
    assert ask(agent, Put(key, len(body), 0, body[:100])) == There(100)
    assert ask(agent, Has(key, len(body))) == There(100)
    assert ask(agent, Put(key, len(body), 100, body[100:])) == There(len(body))
    assert ask(agent, Has(key, len(body))) == There(len(body))

    mine = order(1, inputs={"original": Path(key)})
    head.tell(1, mine)
    head.until(lambda: head.ends([mine]), "it has ended")


def test_an_order_whose_input_is_gone_is_not_begun(agent: Agent) -> None:
    head, mine = Head(agent), order(1, inputs={"original": Path("a" * 64 + ".pdf")})

    head.tell(1, mine)

    head.until(lambda: head.ends([mine]), "it has ended")
    assert b"INPUT_GONE" in head.happened[-1].body


@pytest.mark.parametrize("path", ["../../lock", "/etc/passwd"])
def test_nothing_is_handed_out_but_what_an_attempt_publishes(agent: Agent, path: str) -> None:
    Head(agent)

    answer = ask(agent, Get(1, 1, path, 0, 100))

    assert isinstance(answer, Refused)


def test_what_is_not_what_it_should_be_is_thrown_away(tmp_path: Path) -> None:
    inputs = Inputs(tmp_path / "inputs")

    assert inputs.put("a" * 64, 3, 0, b"abc") == 0

    assert list((tmp_path / "inputs").iterdir()) == []
    with pytest.raises(Garbled):
        inputs.has("../" + "a" * 61, 3)


def test_a_file_goes_on_wherever_it_was_cut_off_by_a_crash(tmp_path: Path) -> None:
    body = bytes(range(64))
    key = hashlib.sha256(body).hexdigest()

    for cut in range(1, len(body)):
        place = tmp_path / f"{cut}"
        Inputs(place).put(key, len(body), 0, body[:cut])
        again = Inputs(place)
        assert again.has(key, len(body)) == cut
        assert again.put(key, len(body), cut, body[cut:]) == len(body)
        assert [(one.name, one.read_bytes()) for one in place.iterdir()] == [(key, body)]


def test_a_file_that_lies_there_is_not_replaced_for_an_attempt_may_be_reading_it(tmp_path: Path) -> None:
    inputs, body = Inputs(tmp_path / "inputs"), b"abcdef"
    key = hashlib.sha256(body).hexdigest()
    inputs.put(key, 6, 0, body)
    before = inputs.use(key).stat()

    assert inputs.put(key, 6, 0, body[:3]) == 6
    assert inputs.put(key, 6, 0, body) == 6

    # Its jail lets an attempt open this file, and not another one of the same name.
    assert (tmp_path / "inputs" / key).stat().st_ino == before.st_ino
    assert [one.name for one in (tmp_path / "inputs").iterdir()] == [key]


def test_what_was_not_used_for_longest_goes_first_and_what_is_used_stays(tmp_path: Path) -> None:
    inputs = Inputs(tmp_path / "inputs", bytes_most=25)
    bodies = [bytes([number]) * 10 for number in range(4)]
    keys = [hashlib.sha256(body).hexdigest() for body in bodies]
    for at, (key, body) in enumerate(zip(keys[:2], bodies[:2], strict=True)):
        inputs.put(key, 10, 0, body)
        os.utime(tmp_path / "inputs" / key, (at, at))
    inputs.use(keys[0])

    inputs.put(keys[2], 10, 0, bodies[2])

    assert [inputs.has(key, 10) for key in keys[:3]] == [10, 0, 10]
    inputs.leave(keys[0])
    inputs.put(keys[3], 10, 0, bodies[3])
    assert sum(inputs.has(key, 10) for key in keys) == 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """With room for three pieces beside what is spared."""
    place = tmp_path / "disk"
    place.mkdir()
    size = f"size={SPARE_BYTES + 3 * PIECE_BYTES + (1 << 20)}"
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", place], check=False).returncode:
        pytest.skip("only root mounts a disk")
    yield place
    subprocess.run(["umount", place], check=True)


def test_on_a_small_disk_what_was_not_used_for_longest_makes_room(small_disk: Path) -> None:
    inputs = Inputs(small_disk / "inputs")
    bodies = [bytes([number]) * PIECE_BYTES for number in range(5)]
    keys = [hashlib.sha256(body).hexdigest() for body in bodies]

    for at, (key, body) in enumerate(zip(keys, bodies, strict=True)):
        assert inputs.put(key, PIECE_BYTES, 0, body) == PIECE_BYTES
        os.utime(small_disk / "inputs" / key, (at, at))

    assert [inputs.has(key, PIECE_BYTES) > 0 for key in keys] == [False, False, True, True, True]
    (small_disk / "somebody else's").write_bytes(bytes(2 << 20))
    with pytest.raises(OSError, match="No space left"):
        inputs.put(keys[0], 5 * PIECE_BYTES, 0, b"")
    # What finds no room in any case costs no other file.
    assert {one.name for one in (small_disk / "inputs").iterdir()} == set(keys[2:])


def test_the_head_forgets_what_a_node_must_have_thrown_away(tmp_path: Path) -> None:
    brought = Brought(bytes_most=25)
    for key in "aba":
        brought.add(key, 10)

    brought.add("c", 10)

    assert [key in brought for key in "abc"] == [True, False, True]
    for number in range(2 * NAMES_MOST):
        brought.add(str(number), 0)
    assert len(brought) == NAMES_MOST


def test_while_the_head_takes_nothing_what_has_happened_waits_at_the_node(agent: Agent) -> None:
    head, mine = Head(agent), order(1)
    head.tell(1, mine)

    answer = ask(agent, Listen(head.life, 0, 0, 0.3, takes=False))

    assert isinstance(answer, Heard)
    assert (answer.life, answer.happened) == (head.life, ())
    head.until(lambda: head.ends([mine]), "it has ended")
