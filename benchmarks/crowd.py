"""Many nodes in one process, for a head that is real: they speak its wire, take its files, and sleep where they would
read. A range asks and says what `ocr_pages` does of scans that nobody knows, in as many bytes.

`python -m benchmarks.crowd SOCKET SECONDS_A_PAGE`: nodes come by SOCKET, each as two pipes (`dial`). Each line of its
input is answered by how many seconds each slot that was done has waited for its next order, since it was asked last.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import os
import random
import secrets
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from job_handlers.reading import layout
from job_handlers.reading.page_settings import read_ranges
from worker_service.children.messages import (
    RELAY_BYTES_MAX,
    Asked,
    Ended,
    Gone,
    How,
    Inbox,
    Key,
    Launch,
    Order,
    PagesRead,
    Progressed,
    Reply,
    Said,
    Started,
    Stop,
    encoded,
    question_text,
    to_nursery,
)
from worker_service.jobs.documents import KnownPages, PageResult
from worker_service.jobs.model import Usage
from worker_service.nodes import calls
from worker_service.nodes.agent import Agent
from worker_service.nodes.pipes import HEADER

_READ_BYTES = 1 << 20
_WORDS_A_PAGE, _WORDS_A_LINE = 260, 10

Steps = Iterator[float | Asked]
"""What an attempt does next: sleep, or ask."""


class Crowd:
    def __init__(self, place: Path, seconds: float) -> None:
        self.seconds = seconds
        self.waited: list[float] = []
        self._place = place
        self._epoll = select.epoll()
        self._settled: calls.Settled | None = None
        self._nodes: dict[int, Node] = {}
        """By the one of its pipes, and by the other."""
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def serve(self, door: socket.socket) -> None:
        for one in (door.fileno(), 0):
            self._epoll.register(one, select.EPOLLIN)
        while True:
            wait = max(0.0, self._due[0][0] - time.monotonic()) if self._due else -1
            for descriptor, what in self._epoll.poll(wait):
                if descriptor == door.fileno():
                    self._welcome(door)
                elif descriptor == 0:
                    input()
                    print(json.dumps(self.waited), flush=True)
                    self.waited = []
                elif (node := self._nodes.get(descriptor)) is not None:
                    node.flush() if what & select.EPOLLOUT else node.hear()
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2]()

    def later(self, seconds: float, then: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), then))

    def watch(self, node: Node, *, is_full: bool) -> None:
        self._epoll.modify(node.says, select.EPOLLOUT if is_full else 0)

    def leave(self, node: Node) -> None:
        for one in (node.hears, node.says):
            self._epoll.unregister(one)
            os.close(one)
            del self._nodes[one]

    def settled(self, settle: bytes) -> calls.Settled:
        """As a real node answers: what it says of its handlers is true of all."""
        if self._settled is None:
            agent = Agent(self._place)
            answer = calls.answer_from(agent.answer(settle))
            agent.leave()
            if not isinstance(answer, calls.Settled):
                sys.exit(f"a node of this machine says {answer}")
            self._settled = answer
        return self._settled

    def _welcome(self, door: socket.socket) -> None:
        comer, _ = door.accept()
        with comer:
            _, descriptors, _, _ = socket.recv_fds(comer, 1, 2)
        for one in descriptors:
            os.set_blocking(one, False)
        node = Node(self, *descriptors)
        self._nodes |= dict.fromkeys(descriptors, node)
        self._epoll.register(node.hears, select.EPOLLIN)
        self._epoll.register(node.says, 0)


class Node:
    """What `agent` keeps of one head, without a nursery behind it."""

    def __init__(self, crowd: Crowd, hears: int, says: int) -> None:
        self.hears, self.says = hears, says
        self._crowd = crowd
        self._is_gone = False
        self._received, self._unsent = bytearray(), bytearray()
        self._life = secrets.token_hex(8)
        self._commands = self._happenings = self._beat = 0
        self._happened: deque[tuple[int, calls.Happened]] = deque()
        self._listens: int | None = None
        """The number of the call that waits for something to happen."""
        self._is_heard = True
        """Whether that takes what has happened."""
        self._attempts: dict[Key, Steps] = {}
        self._asks: dict[Key, int] = {}
        self._files: dict[str, int] = {}
        self._done_at: deque[float] = deque()
        """Of slots that wait."""

    # --- the line ---

    def hear(self) -> None:
        said = os.read(self.hears, _READ_BYTES)
        if not said:
            self._crowd.leave(self)
            self._is_gone = True
            self._attempts.clear()
            return
        self._received += said
        begin = 0
        while len(self._received) - begin >= HEADER.size:
            length, number = HEADER.unpack_from(self._received, begin)
            end = begin + HEADER.size + length
            if len(self._received) < end:
                break
            self._hear(number, bytes(self._received[begin + HEADER.size : end]))
            begin = end
        del self._received[:begin]

    def flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: os.write(self.says, self._unsent)]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._unsent.clear()
        self._crowd.watch(self, is_full=bool(self._unsent))

    def _answer(self, number: int, answer: calls.Answer) -> None:
        body = calls.encoded(answer)
        self._unsent += HEADER.pack(len(body), number) + body
        if not self._is_gone:
            self.flush()

    # --- calls ---

    def _hear(self, number: int, body: bytes) -> None:
        call = calls.call_from(body)
        if isinstance(call, calls.Listen):
            self._listen(number, call)
        elif isinstance(call, calls.Tell):
            for at, one in enumerate(call.frames, call.first):
                if at == self._commands + 1:
                    self._commands = at
                    self._obey(one)
            self._answer(number, calls.Told(self._commands))
        elif isinstance(call, calls.Has):
            self._answer(number, calls.There(self._files.get(call.key, 0)))
        elif isinstance(call, calls.Put):
            there = self._files.get(call.key, 0)
            if call.at == there:
                there = self._files[call.key] = there + len(call.body)
            self._answer(number, calls.There(there))
        elif isinstance(call, calls.Settle):
            of_all = self._crowd.settled(body)
            slots = of_all.slots if call.slots is None else call.slots
            self._answer(number, msgspec.structs.replace(of_all, life=self._life, slots=slots))
        else:
            self._answer(number, calls.Told(0))

    def _listen(self, number: int, call: calls.Listen) -> None:
        while self._happened and self._happened[0][0] <= call.heard:
            self._happened.popleft()
        self._listens, self._is_heard = number, call.takes
        if self._is_heard and self._happened:
            self._tell_happened()
        else:
            self._crowd.later(call.wait_seconds, lambda: self._tell_happened(number))

    def _tell_happened(self, number: int | None = None) -> None:
        told = self._happened if self._is_heard else ()
        if self._listens is None or number not in (None, self._listens) or (number is None and not told):
            return
        listens, self._listens = self._listens, None
        self._beat += 1
        first = told[0][0] if told else 0
        happened = tuple(one for _, one in told)
        self._answer(listens, calls.Heard(self._life, self._beat, first, happened))

    # --- attempts ---

    def _obey(self, framed: bytes) -> None:
        [body] = Inbox(RELAY_BYTES_MAX).feed(framed)
        message = to_nursery(body)
        if isinstance(message, Launch):
            if self._done_at:
                self._crowd.waited.append(time.monotonic() - self._done_at.popleft())
            key = message.order.key
            self._attempts[key] = self._read(message.order)
            self._go_on(key)
        elif isinstance(message, Reply):
            key = (message.job_id, message.fence)
            if self._asks.get(key) == message.number:
                del self._asks[key]
                self._go_on(key)
        elif isinstance(message, Stop) and (message.job_id, message.fence) in self._attempts:
            del self._attempts[(message.job_id, message.fence)]
            self._end(Ended(message.job_id, message.fence, How.STOPPED, code="STOPPED", message="it was stopped"))
            self._tell_happened()

    def _go_on(self, key: Key) -> None:
        steps = self._attempts.get(key)
        if steps is None:
            return
        step = next(steps, None)
        if isinstance(step, Asked):
            self._asks[key] = step.number
            self._say(step)
        elif step is not None:
            self._crowd.later(step, lambda: self._go_on(key))
        else:
            del self._attempts[key]
            self._end(Ended(*key, How.DONE, result="{}"))
        self._tell_happened()

    def _end(self, ended: Ended) -> None:
        self._done_at.append(time.monotonic())
        self._say(Gone(msgspec.Raw(encoded(ended)), Usage()))

    def _say(self, said: Said | Gone) -> None:
        self._happenings += 1
        self._happened.append((self._happenings, calls.Happened(encoded(said))))

    def _read(self, order: Order) -> Steps:
        """As `ocr_pages` does."""
        key, asked = order.key, itertools.count(1)
        assert order.document is not None
        content = order.document.content
        numbers = read_ranges(str(json.loads(order.payload or "{}")["pages"]), 1_000_000)
        self._say(Started(*key, os.getpid(), 0, "landlock+seccomp"))
        self._say(Progressed(*key, 0.0, f"0 of {len(numbers)} pages done"))
        named = {number: (f"{content[:24]}{number:08}", f"{content[24:48]}{number:08}") for number in numbers}
        of_all = [name for own, _ in named.values() for name in (own, own[::-1])]
        yield Asked(*key, next(asked), *question_text(KnownPages(of_all)))
        for at, (number, (own, shown)) in enumerate(named.items(), 1):
            if at % 2:
                yield Asked(*key, next(asked), *question_text(KnownPages([shown, shown[::-1]])))
            yield self._crowd.seconds * random.uniform(0.5, 1.5)
            page = PageResult(number, shown, f"Page {number}. {_TEXT}", "ocr", 90.0, _LAYOUT, also=own)
            self._say(PagesRead(*key, [page]))
            self._say(Progressed(*key, 100 * at / len(numbers), f"page {number}, {at} of {len(numbers)} done"))
        self._say(Progressed(*key, 100.0, f"{len(numbers)} pages"))


def _words() -> tuple[str, str]:
    chance = random.Random(1)
    words = ["".join(chance.choices("etaoinshrdlu", k=chance.randint(2, 12))) for _ in range(_WORDS_A_PAGE)]
    placed = [
        layout.Word(72.4 + 44 * (at % _WORDS_A_LINE), 80.3 + 14 * (at // _WORDS_A_LINE), 112.8, 92.6, 91.0, word)
        for at, word in enumerate(words)
    ]
    lines = [placed[at : at + _WORDS_A_LINE] for at in range(0, len(placed), _WORDS_A_LINE)]
    return " ".join(words), layout.written(layout.Layout((595.3, 841.9), lines, dpi=300))


_TEXT, _LAYOUT = _words()


def main() -> None:
    path, seconds = sys.argv[1:]
    with TemporaryDirectory() as place, socket.socket(socket.AF_UNIX) as door:
        door.bind(path)
        door.listen(1000)
        with contextlib.suppress(EOFError):
            Crowd(Path(place), float(seconds)).serve(door)


if __name__ == "__main__":
    main()
