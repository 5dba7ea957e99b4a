"""A node that lies: it can waste its own time, and spoil what it reads. No row, no file outside its attempt's place."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from tests.nodes.liars import CONTENT, SHA256, Liar, end, file, lies
from worker_service import VERSION
from worker_service.children.messages import (
    RELAY_BYTES_MAX,
    Asked,
    Checkpointed,
    Described,
    Ended,
    Gone,
    Happening,
    Hello,
    How,
    Inbox,
    Introduced,
    Launch,
    Order,
    Placed,
    Progressed,
    Stop,
    encoded,
    from_nursery,
)
from worker_service.jobs.documents import DocumentFacts, DocumentRequest
from worker_service.jobs.model import HandlerFacts, NewJob, Usage
from worker_service.nodes import calls
from worker_service.nodes.agent import NODE_FULL
from worker_service.nodes.calls import Happened, Kept
from worker_service.nodes.engine import Handle, Lost
from worker_service.nodes.files import digest_of, key_of
from worker_service.nodes.node import Node, Terms

PATIENCE_SECONDS = 20.0
KEY = (7, 3)
REQUEST = DocumentRequest("1", "paper.pdf")


class Desk:
    """A gateway's place, as a node sees it."""

    def __init__(
        self,
        place: Path,
        liar: Liar,
        *,
        patience_seconds: float = 0.5,
        timeout_seconds: float = 3600,
        is_full: bool = False,
    ) -> None:
        self.is_full = is_full
        self.staging = place / "staging"
        self.staging.mkdir()
        fit: dict[str, Sequence[str]] = {"ocr_pages": ()}
        self.terms = Terms(
            "ab",
            "strict",
            ("ocr_pages",),
            1.0,
            patience_seconds,
            self.staging,
            place / "objects",
            fit,
            is_shared=False,
            seconds={"ocr_pages": int(timeout_seconds)},
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

    def place(self, inputs: Mapping[str, Path] | None = None) -> None:
        self.until(lambda: self.node.room() is not None)
        order = Order(*KEY, "ocr_pages", "local", None, None, None)
        self.node.place(Launch(order, {}), inputs or {})

    def ends(self, inputs: Mapping[str, Path] | None = None) -> Ended:
        """How the one attempt ends that is placed there."""
        self.place(inputs)
        self.until(lambda: any(isinstance(one, Ended) for one in self.heard))
        placed, *_, ended = self.heard
        assert placed == Placed(*KEY, "n1")
        assert isinstance(ended, Ended)
        return ended


MakeDesk = Callable[..., Desk]


@pytest.fixture
def make_desk(tmp_path: Path) -> Iterator[MakeDesk]:
    made: list[Desk] = []

    def make(liar: Liar, **more: Any) -> Desk:
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


class Eager(Liar):
    """Answers at once that nothing has happened, over and over."""

    asked = 0

    def call(self, body: bytes, *, timeout: float) -> bytes:
        self.asked += 1
        return super().call(body, timeout=timeout)


def test_who_answers_before_there_is_something_to_say_is_not_asked_more_often(make_desk: MakeDesk) -> None:
    eager = Eager()
    desk = make_desk(eager, patience_seconds=10.0)
    desk.until(lambda: desk.node.room() is not None)

    began, before = time.monotonic(), eager.asked
    desk.until(lambda: time.monotonic() - began > 0.5)

    assert eager.asked - before <= 4


def test_who_speaks_although_nobody_listens_is_refused(make_desk: MakeDesk) -> None:
    said = Happened(encoded(Progressed(*KEY, 50.0, "half")))
    desk = make_desk(Liar([said]), is_full=True)

    ended = desk.ends()

    assert (ended.code, desk.node.state().state) == ("NODE_LOST", "refused")
    assert [type(one) for one in desk.heard] == [Placed, Ended]


class Generous(Liar):
    """Has as many bytes of each file as anybody wants."""

    given = 0

    def _answer(self, call: calls.Call) -> calls.Answer:
        if not isinstance(call, calls.Get):
            return super()._answer(call)
        self.given += call.most
        return calls.Piece(bytes(call.most))


def test_a_size_below_nothing_makes_no_room_for_another(make_desk: MakeDesk) -> None:
    files = [Kept("page.txt", 10 << 30, SHA256), Kept("hole", -10 << 30, SHA256)]
    generous = Generous([end(KEY, file(), files=files)])
    desk = make_desk(generous)

    assert desk.ends().code == "NODE_LOST"
    assert generous.given == 0


class CutOff(Generous):
    """In the middle of a file, in silence, until somebody hangs up."""

    def __init__(self, says: Sequence[Happened]) -> None:
        super().__init__(says)
        self.may_end = threading.Event()
        self.speaks_on = False

    def call(self, body: bytes, *, timeout: float) -> bytes:
        is_file = isinstance(calls.call_from(body), calls.Get)
        if self.given > calls.PIECE_BYTES_MAX and (is_file or not self.speaks_on):
            if is_file:
                self.may_end.wait(timeout)
            raise Lost("the line is closed")
        return super().call(body, timeout=timeout)


def test_of_a_file_that_was_cut_off_for_ever_nothing_stays_at_the_head(make_desk: MakeDesk) -> None:
    cut = CutOff([end(KEY, file(), files=[Kept("page.txt", 9 * calls.PIECE_BYTES_MAX, SHA256)])])
    desk = make_desk(cut)

    assert desk.ends().code == "NODE_LOST"
    assert (desk.staging / "7-3" / "page.txt").exists()
    cut.may_end.set()

    desk.until(lambda: not (desk.staging / "7-3").exists())


@pytest.mark.parametrize(
    "word", [end(KEY), Happened(encoded(Progressed(*KEY, 50.0, "half")))], ids=["another end", "how far it is"]
)
def test_who_speaks_of_what_has_ended_is_refused(word: Happened, make_desk: MakeDesk) -> None:
    kept = [Kept("page.txt", 9 * calls.PIECE_BYTES_MAX, SHA256)]
    cut = CutOff([end(KEY, file(), files=kept), word])
    cut.given, cut.speaks_on = 2 * calls.PIECE_BYTES_MAX, True
    desk = make_desk(cut)

    ended = desk.ends()

    assert (ended.how, ended.code) == (How.CRASHED, "NODE_LOST")
    assert [type(one) for one in desk.heard] == [Placed, Ended]
    cut.may_end.set()


def test_what_would_fill_the_disk_of_the_head_is_not_taken(
    make_desk: MakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = shutil.disk_usage("/").free
    monkeypatch.setattr("worker_service.nodes.node.RESULT_BYTES_MOST", 2 * free)
    generous = Generous([end(KEY, file(), files=[Kept("page.txt", free, SHA256)])])
    desk = make_desk(generous)

    ended = desk.ends()

    assert generous.given == 0
    assert (ended.how, ended.code) == (How.RETRYABLE, "FILES_NOT_KEPT")
    assert "No space left" in ended.message
    assert [path for path in desk.staging.rglob("*") if path.is_file() and path.parent != desk.staging] == []


class Obedient(Liar):
    """Says nothing while nobody listens."""

    def _answer(self, call: calls.Call) -> calls.Answer:
        if isinstance(call, calls.Listen) and not call.takes:
            time.sleep(0.01)
            return calls.Heard(f"life {self.settled}", call.beat + 1, 0, ())
        return super()._answer(call)


def test_who_is_not_to_say_that_it_has_ended_is_not_given_up(
    make_desk: MakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker_service.nodes.node._MARGIN_SECONDS", 0.0)
    desk = make_desk(Obedient([end(KEY)]), timeout_seconds=0, is_full=True)

    desk.place()
    began, due_after = time.monotonic(), desk.terms.grace_seconds + desk.terms.patience_seconds
    desk.until(lambda: time.monotonic() - began > due_after + 0.5)
    assert desk.node.state().state == "up"
    desk.is_full = False
    desk.until(lambda: any(isinstance(one, Ended) for one in desk.heard))

    ended = desk.heard[-1]
    assert isinstance(ended, Ended)
    assert (ended.how, ended.code) == (How.DONE, "")


class Taking(Liar):
    """What it is brought, and in how large pieces."""

    def _answer(self, call: calls.Call) -> calls.Answer:
        if isinstance(call, calls.Put):
            self.pieces.append(len(call.body))
            return calls.There(call.at + len(call.body))
        return super()._answer(call)

    @cached_property
    def pieces(self) -> list[int]:
        return []


def test_the_first_piece_of_a_file_is_small_for_nobody_knows_the_line_yet(make_desk: MakeDesk, tmp_path: Path) -> None:
    paper = tmp_path / "paper.pdf"
    paper.write_bytes(bytes(4 << 20))
    taking = Taking([end(KEY)])

    make_desk(taking).ends({key_of(paper, digest_of(paper)): paper})

    assert taking.pieces[0] == 64 << 10
    assert max(taking.pieces) > 1 << 20
    assert sum(taking.pieces) == 4 << 20


class Handless(Liar):
    """Cannot open what it has made."""

    def _answer(self, call: calls.Call) -> calls.Answer:
        return calls.Refused("disk", "Too many open files") if isinstance(call, calls.Get) else super()._answer(call)


def test_who_cannot_hand_over_what_it_has_made_is_no_liar_and_loses_it(make_desk: MakeDesk) -> None:
    desk = make_desk(Handless([end(KEY, file(), files=[Kept("page.txt", 16, SHA256)])]))

    ended = desk.ends()

    assert (ended.how, ended.code) == (How.CRASHED, "NODE_LOST")
    assert (desk.node.state().state, desk.node.state().slots) == ("up", 0)
    assert desk.node.state().reason == "it cannot hand over what it has: Too many open files"
    assert not (desk.staging / "7-3").exists()


@pytest.mark.parametrize("why", ["its time is over", "it is to stop"])
def test_who_does_not_end_what_has_to_end_is_given_up(
    why: str, make_desk: MakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker_service.nodes.node._MARGIN_SECONDS", 0.0)
    endless = Liar()
    desk = make_desk(endless, timeout_seconds=1 if why == "its time is over" else 3600)

    desk.place()
    desk.until(lambda: endless.commands)
    if why == "it is to stop":
        desk.node.pass_on(Stop(*KEY))
    desk.until(lambda: any(isinstance(one, Ended) for one in desk.heard))

    ended = desk.heard[-1]
    assert isinstance(ended, Ended)
    assert (ended.code, desk.node.state().state) == ("NODE_LOST", "refused")
    assert "job 7 does not end there, although it has to" in desk.node.state().reason


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


def test_a_node_whose_disk_is_full_loses_what_failed_there_and_rests(make_desk: MakeDesk) -> None:
    full = Happened(encoded(Gone(Raw(encoded(Ended(*KEY, How.CRASHED, code=NODE_FULL, message="no room"))), Usage())))
    desk = make_desk(Liar([full]))

    ended = desk.ends()

    assert (ended.how, ended.code) == (How.CRASHED, "NODE_LOST")
    assert (desk.node.state().state, desk.node.state().slots, desk.node.room()) == ("up", 0, None)
    assert desk.node.state().reason == "its disk is full: no room"


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
        (Liar(slots=-4), "it says what no node of ours would: -4 slots"),
    ],
)
def test_who_cannot_be_a_node_is_refused_in_a_sentence(liar: Liar, reason: str, make_desk: MakeDesk) -> None:
    desk = make_desk(liar)

    desk.until(lambda: desk.node.state().state == "refused")

    assert desk.node.state().reason.startswith(reason)
    assert desk.node.state().slots == 0


# ── What is no fault of the node's ──────────────────────────────────────────────────────────────────────────────


def test_a_head_that_cannot_keep_what_comes_back_does_not_blame_the_node(make_desk: MakeDesk) -> None:
    desk = make_desk(Liar([end(KEY, file(sha256=SHA256), files=[Kept("page.txt", len(CONTENT), SHA256)])]))
    (desk.staging / "7-3").write_text("in the way, as a full disk is")

    ended = desk.ends()

    assert (ended.how, ended.code, ended.published) == (How.RETRYABLE, "FILES_NOT_KEPT", [])
    assert "File exists" in ended.message
    assert desk.node.state().state == "up"


def test_a_file_that_has_changed_at_the_head_is_told_of_and_no_node_is_blamed(
    make_desk: MakeDesk, tmp_path: Path
) -> None:
    changed = tmp_path / "scan.pdf"
    changed.write_bytes(CONTENT + b", and more")
    desk = make_desk(Liar())

    ended = desk.ends({f"{SHA256}.pdf": changed})

    assert (ended.how, ended.code) == (How.RETRYABLE, "FILE_CHANGED")
    assert str(changed) in ended.message
    assert desk.node.state().state == "up"


def test_a_node_that_cannot_take_a_file_that_is_as_it_should_be_is_refused(make_desk: MakeDesk, tmp_path: Path) -> None:
    scan = tmp_path / "scan.pdf"
    scan.write_bytes(CONTENT)
    desk = make_desk(Liar())

    assert desk.ends({f"{SHA256}.pdf": scan}).code == "NOT_BEGUN"
    assert "a file that does not arrive as it was sent" in desk.node.state().reason


class Late(Liar):
    """Too late with its answers to the first pieces of a file."""

    late = 2

    def call(self, body: bytes, *, timeout: float) -> bytes:
        call = calls.call_from(body)
        if not isinstance(call, calls.Put):
            return super().call(body, timeout=timeout)
        self.late -= 1
        if self.late >= 0:
            raise TimeoutError
        return calls.encoded(calls.There(call.size))


class Narrow(Liar):
    """Behind a wire that takes a megabyte a second."""

    put: Mapping[str, Sequence[int]] = {}

    def call(self, body: bytes, *, timeout: float) -> bytes:
        call = calls.call_from(body)
        if not isinstance(call, calls.Put):
            return super().call(body, timeout=timeout)
        self.put = {**self.put, call.key: [*self.put.get(call.key, []), len(call.body)]}
        time.sleep(len(call.body) / 1_000_000)
        return calls.encoded(calls.There(call.at + len(call.body)))


def test_what_is_known_of_a_wire_holds_for_the_next_file_too(make_desk: MakeDesk, tmp_path: Path) -> None:
    files = {f"{SHA256}.{suffix}": tmp_path / suffix for suffix in ("pdf", "png")}
    for path in files.values():
        path.write_bytes(bytes(1_100_000))
    narrow = Narrow()
    desk = make_desk(narrow)

    desk.place(files)
    desk.until(lambda: narrow.commands)

    first, second = narrow.put.values()
    assert first[0] == 64 << 10
    assert max(second) <= 600_000
    assert [sum(first), sum(second)] == [1_100_000] * 2


def test_a_piece_that_takes_too_long_is_sent_again_and_costs_nothing(make_desk: MakeDesk, tmp_path: Path) -> None:
    scan = tmp_path / "scan.pdf"
    scan.write_bytes(CONTENT)
    late = Late()
    desk = make_desk(late)

    desk.place({f"{SHA256}.pdf": scan})
    desk.until(lambda: late.commands)

    assert [type(one) for one in desk.heard] == [Placed]


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
