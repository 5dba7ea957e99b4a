"""Nodes that lie: each answers as a node does, but for what it was told to say.

`python -m tests.nodes.liars --lie NAME` is one in the place of `pagemill node`, behind two pipes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from worker_service import VERSION
from worker_service.children.messages import (
    RELAY_BYTES_MAX,
    Described,
    Ended,
    Gone,
    Hello,
    How,
    Inbox,
    Introduced,
    Key,
    Launch,
    Placed,
    Progressed,
    Publication,
    Started,
    encoded,
    to_nursery,
)
from worker_service.jobs.model import HandlerFacts, Usage
from worker_service.nodes import calls
from worker_service.nodes.calls import Happened, Kept
from worker_service.nodes.pipes import HEADER, read

CONTENT = b"what it has read"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Liar:
    """Answers as a node does, but for what it was told to say."""

    says: Sequence[Happened] = ()
    version: str = VERSION
    landlock: int = 6
    slots: int = 4
    content: bytes = CONTENT
    garbage: bytes | None = None
    job_type: str = "ocr_pages"
    hello: bytes | None = None
    commands: list[bytes] = field(default_factory=list)
    settled: int = 0

    def call(self, body: bytes, *, timeout: float) -> bytes:
        call = calls.call_from(body)
        if isinstance(call, calls.Listen) and self.commands and self.garbage is not None:
            return self.garbage
        return calls.encoded(self._answer(call))

    def holds_back(self) -> str:
        return ""

    def close(self) -> None:
        return

    def _answer(self, call: calls.Call) -> calls.Answer:
        if isinstance(call, calls.Settle):
            self.settled += 1
            return calls.Settled(f"life {self.settled}", self.version, self.slots, self.landlock, self._introduces())
        if isinstance(call, calls.Tell):
            self.commands += call.frames
            return calls.Told(call.first + len(call.frames) - 1)
        if isinstance(call, calls.Listen):
            time.sleep(0.01)
            has_said = not self.commands or call.heard >= len(self.says)
            told = () if has_said else tuple(self.says)
            return calls.Heard(f"life {self.settled}", call.beat + 1, 1, told)
        if isinstance(call, calls.Get):
            return calls.Piece(self.content)
        return calls.There(0)

    def _introduces(self) -> bytes:
        handlers = (Introduced(Described(HandlerFacts(self.job_type))),)
        return encoded(Hello(1, handlers)) if self.hello is None else self.hello


def end(
    key: Key,
    *published: Publication,
    files: Sequence[Kept] = (),
    usage: Usage = Usage(),  # noqa: B008  frozen
    **more: object,
) -> Happened:
    ended = Ended(*key, How.DONE, published=published, **more)  # type: ignore[arg-type]
    return Happened(encoded(Gone(msgspec.Raw(encoded(ended)), usage)), tuple(files))


def file(path: str = "page.txt", sha256: str = "") -> Publication:
    return Publication(Path(path), sha256=sha256)


def lies(key: Key) -> dict[str, Liar]:
    """By what is wrong with them. All are about one attempt."""
    job_id, fence = key
    outside = "../../stolen"
    return {
        "another job": Liar([Happened(encoded(Progressed(job_id + 1, fence, 50.0, "half")))]),
        "another fence": Liar([Happened(encoded(Progressed(job_id, fence + 1, 50.0, "half")))]),
        "no words": Liar([Happened(b"{}")]),
        "words of a daemon": Liar([Happened(encoded(Placed(*key, "n2")))]),
        "no message": Liar(garbage=b"\xc1" * 100),
        "an answer to something else": Liar(garbage=calls.encoded(calls.Piece(b""))),
        "a path that leaves its place": Liar([end(key, file(outside), files=[Kept(outside, 16, SHA256)])]),
        "a path of its own": Liar([end(key, file("/etc/passwd"), files=[Kept("/etc/passwd", 16, SHA256)])]),
        "a digest that is none": Liar([end(key, file(sha256="beef"), files=[Kept("page.txt", 16, SHA256)])]),
        "another digest than it says": Liar([end(key, file(sha256="0" * 64), files=[Kept("page.txt", 16, SHA256)])]),
        "another content than it says": Liar([end(key, file(), files=[Kept("page.txt", 16, "0" * 64)])]),
        "more than it says": Liar([end(key, file(), files=[Kept("page.txt", 3, SHA256)])]),
        "less than it says": Liar([end(key, file(), files=[Kept("page.txt", 99, SHA256)])], content=b""),
        "a file of which it says nothing": Liar([end(key, file())]),
        "it cost less than nothing": Liar([end(key, usage=Usage(cpu_seconds=-1e300))]),
        "it cost more than can be counted": Liar([end(key, usage=Usage(memory_peak_bytes=2**63))]),
        "a process that cannot be": Liar([Happened(encoded(Started(*key, 2**63, 1, "strict")))]),
        "more at once than passes": Liar([end(key, result=f'"{"x" * RELAY_BYTES_MAX}"')]),
        "ten gigabytes": Liar([end(key, file(), files=[Kept("page.txt", 10 << 30, SHA256)])]),
    }


def serve(lie: str, job_type: str) -> None:
    """The lie is about whichever attempt it is given."""
    liar, is_lying = Liar(job_type=job_type), False
    hears = os.fdopen(os.dup(0), "rb")
    while True:
        number, body = read(hears)
        answer = liar.call(body, timeout=0.0)
        os.write(1, HEADER.pack(len(answer), number) + answer)
        if liar.commands and not is_lying:
            is_lying = True
            [body] = Inbox(RELAY_BYTES_MAX).feed(liar.commands[0])
            launch = to_nursery(body)
            assert isinstance(launch, Launch)
            told = lies(launch.order.key)[lie]
            liar.says, liar.content, liar.garbage = told.says, told.content, told.garbage


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lie", required=True)
    parser.add_argument("--job-type", default="chaos")
    parser.add_argument("--state")
    given = parser.parse_args()
    try:
        serve(given.lie, given.job_type)
    except EOFError:
        sys.exit(0)
