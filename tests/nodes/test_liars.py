"""A node that lies: it can waste its own time, and spoil what it reads. No row, no file outside its attempt's place."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.nodes.liars import CONTENT, SHA256, Liar, end, file, lies
from worker_service import VERSION
from worker_service.children.messages import (
    RELAY_BYTES_MAX,
    Asked,
    Checkpointed,
    Described,
    Ended,
    Happening,
    Hello,
    How,
    Inbox,
    Introduced,
    Launch,
    Order,
    Placed,
    Progressed,
    encoded,
    from_nursery,
)
from worker_service.jobs.documents import DocumentFacts, DocumentRequest
from worker_service.jobs.model import HandlerFacts, NewJob
from worker_service.nodes.calls import Happened, Kept
from worker_service.nodes.engine import Handle, Lost
from worker_service.nodes.node import Node, Terms

PATIENCE_SECONDS = 20.0
KEY = (7, 3)
REQUEST = DocumentRequest("1", "paper.pdf")


class Desk:
    """A gateway's place, as a node sees it."""

    is_full = False

    def __init__(self, place: Path, liar: Liar, *, patience_seconds: float = 0.5) -> None:
        self.staging = place / "staging"
        self.staging.mkdir()
        fit: dict[str, Sequence[str]] = {"ocr_pages": ()}
        self.terms = Terms(
            "ab", "strict", ("ocr_pages",), 1.0, patience_seconds, self.staging, place / "objects", fit, is_shared=False
        )
        self._liar = liar
        self._inbox, self._heard = Inbox(RELAY_BYTES_MAX), list[Happening]()
        self._guard = threading.Lock()
        self.node = Node(self, "n1", 2)

    def host(self, node: str) -> Handle:
        return self._liar

    def tell(self, said: bytes, *, is_waited_for: bool = True) -> None:
        with self._guard:
            for body in self._inbox.feed(said):
                one = from_nursery(body, self.staging)
                assert isinstance(one, Happening)
                self._heard.append(one)

    def ring(self) -> None:
        return

    def keeps(self, launch: Launch) -> bool:
        return False

    def cuts(self, order: Order) -> bool:
        return False

    def cut(self, order: Order) -> Path | None:
        return None

    @property
    def heard(self) -> list[Happening]:
        with self._guard:
            return list(self._heard)

    def until(self, is_so: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_so():
            self.node.look()
            assert time.monotonic() < deadline, (self.node.state(), self.heard)
            time.sleep(0.005)

    def ends(self) -> Ended:
        """How the one attempt ends that is placed there."""
        self.until(lambda: self.node.room() is not None)
        order = Order(*KEY, "ocr_pages", "local", None, None, None)
        self.node.place(Launch(order, {}), {})
        self.until(lambda: any(isinstance(one, Ended) for one in self.heard))
        placed, *_, ended = self.heard
        assert placed == Placed(*KEY, "n1")
        assert isinstance(ended, Ended)
        return ended


MakeDesk = Callable[..., Desk]


@pytest.fixture
def make_desk(tmp_path: Path) -> Iterator[MakeDesk]:
    made: list[Desk] = []

    def make(liar: Liar, **more: float) -> Desk:
        made.append(Desk(tmp_path, liar, **more))
        return made[-1]

    yield make
    for desk in made:
        desk.node.close().join(10.0)


def test_what_an_honest_node_says_is_passed_on(make_desk: MakeDesk) -> None:
    said = Happened(encoded(Progressed(*KEY, 50.0, "half")))
    desk = make_desk(Liar([said, end(KEY, file(sha256=SHA256), files=[Kept("page.txt", len(CONTENT), SHA256)])]))

    ended = desk.ends()

    assert (ended.how, [one.path for one in ended.published]) == (How.DONE, [desk.staging / "7-3" / "page.txt"])
    assert (desk.staging / "7-3" / "page.txt").read_bytes() == CONTENT
    assert [type(one) for one in desk.heard] == [Placed, Progressed, Ended]


LIES = lies(KEY)


@pytest.mark.parametrize("lie", LIES)
def test_who_lies_is_refused_and_what_it_had_goes_elsewhere(lie: str, make_desk: MakeDesk) -> None:
    desk = make_desk(LIES[lie])

    ended = desk.ends()

    assert (ended.how, ended.code, ended.published) == (How.CRASHED, "NODE_LOST", [])
    assert {one.key for one in desk.heard} == {KEY}
    desk.until(lambda: desk.node.state().state == "refused")
    assert "it says what no node of ours would" in desk.node.state().reason
    assert [path for path in desk.staging.rglob("*") if path.is_file() and path.parent != desk.staging] == []
    assert desk.node.room() is None


@pytest.mark.parametrize(
    ("says", "what"),
    [
        (Happened(encoded(Asked(*KEY, 1, "CrawlItems", '{"crawl": "gdrive:ann"}'))), "ask CrawlItems"),
        (
            Happened(encoded(Checkpointed(*KEY, "1", [NewJob("command")]))),
            "ask for jobs of command, not among the types",
        ),
        (
            end(KEY, follow_ups=[NewJob(one) for one in ("b", "ocr_pages", "a")]),
            "ask for jobs of a, b, not",
        ),
        (end(KEY, follow_ups=[NewJob("ocr_pages", document=REQUEST)]), "ask for a document to be read"),
        (end(KEY, publishes=True), "publish a document"),
        (end(KEY, document=DocumentFacts(content="0" * 64)), "publish a document"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_what_no_attempt_on_a_node_may_is_not_done(says: Happened, what: str, make_desk: MakeDesk) -> None:
    desk = make_desk(Liar([says, end(KEY)]))

    ended = desk.ends()

    assert (ended.how, ended.code) == (How.PERMANENT, "NOT_ON_NODES")
    assert what in ended.message
    assert [type(one) for one in desk.heard] == [Placed, Ended]


@pytest.mark.parametrize(
    ("liar", "reason"),
    [
        (Liar(version="0.0.1"), f"it is pagemill 0.0.1, and the head {VERSION}: install the same"),
        (Liar(landlock=0), "its kernel has no Landlock"),
        (Liar(hello=encoded(Hello(1, ()))), "it has no handler for ocr_pages: install it there"),
        (
            Liar(hello=encoded(Hello(1, (Introduced(Described(HandlerFacts("ocr_pages", missing="no tesseract"))),)))),
            "ocr_pages: no tesseract",
        ),
        (Liar(hello=b"{}"), "it says what no node of ours would"),
    ],
)
def test_who_cannot_be_a_node_is_refused_in_a_sentence(liar: Liar, reason: str, make_desk: MakeDesk) -> None:
    desk = make_desk(liar)

    desk.until(lambda: desk.node.state().state == "refused")

    assert desk.node.state().reason.startswith(reason)
    assert desk.node.state().slots == 0


class Slow(Liar):
    """Settles when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may, self.closed = threading.Event(), threading.Event(), threading.Event()

    def call(self, body: bytes, *, timeout: float) -> bytes:
        self.asked.set()
        self.may.wait(timeout)
        return super().call(body, timeout=timeout)

    def close(self) -> None:
        self.closed.set()


def test_who_settles_after_we_have_left_is_left_alone(make_desk: MakeDesk) -> None:
    slow = Slow()
    desk = make_desk(slow)
    slow.asked.wait(PATIENCE_SECONDS)

    desk.node.close()
    slow.may.set()

    assert slow.closed.wait(PATIENCE_SECONDS), "nobody holds its house for somebody who has gone"
    assert desk.node.state().state == "removed"


class Nobody:
    def call(self, body: bytes, *, timeout: float) -> bytes:
        raise Lost("the line is closed")

    def holds_back(self) -> str:
        return ""

    def close(self) -> None:
        return


def test_a_node_that_cannot_be_reached_is_down_and_says_why(make_desk: MakeDesk) -> None:
    desk = make_desk(Nobody())

    desk.until(lambda: desk.node.state().reason)

    assert (desk.node.state().state, desk.node.state().reason) == ("down", "the line is closed")
