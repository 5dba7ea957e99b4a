"""What a handler holds while it runs, in the child: its context, the pipes behind it, and the signal that ends it.

What the handler says goes over one pipe and is never taken back; what it is answered comes by another. A signal may
come between any two of its lines, but never in the middle of a message.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

from worker_service.children.messages import (
    FRAME_BYTES_MAX,
    LINE_CHARACTERS_MAX,
    RELAY_BYTES_MAX,
    Asked,
    Checkpointed,
    FromChild,
    Inbox,
    Launch,
    Order,
    PagesRead,
    Progressed,
    Reply,
    ToChild,
    answer_from,
    clipped,
    frame,
    question_text,
    to_child,
)
from worker_service.handlers.contract import Permanent, Retryable, Stopped
from worker_service.jobs.documents import Answer, CrawlPage, PageResult, Question
from worker_service.jobs.model import NewJob

_READ_BYTES = 1 << 16
_PAGES_AT_ONCE = 100
_CHARACTERS_AT_ONCE = 1 << 18
"""In one message; a page that has more goes alone."""

A = TypeVar("A", bound=Answer)


class Cancel:
    """SIGTERM. Who asks for it is left to finish its piece; who does not is interrupted, once."""

    def __init__(self) -> None:
        self.has_come = False
        self.is_asked_for = False
        self._holds = 0
        self._is_due = False

    def listen(self) -> None:
        """An attempt begins."""
        self.is_asked_for = False
        signal.signal(signal.SIGTERM, self._come)

    @contextmanager
    def held(self) -> Iterator[None]:
        """What must not be cut in two. The interruption comes after it."""
        if threading.current_thread() is not threading.main_thread():
            # Others are never interrupted.
            yield
            return
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
        if self._is_due and not self._holds:
            self._is_due = False
            raise Stopped

    def _come(self, number: int, stack: object) -> None:
        first, self.has_come = not self.has_come, True
        if not first or self.is_asked_for:
            return
        if self._holds:
            self._is_due = True
            return
        raise Stopped


class Pipe:
    def __init__(
        self, descriptor: int, answers: int, output: int, held: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._descriptor = descriptor
        self._answers = answers
        self._output = output
        self._held = held
        # A handler may have threads.
        self._saying, self._asking, self._logging = threading.Lock(), threading.Lock(), threading.Lock()
        self._inbox = Inbox(RELAY_BYTES_MAX)
        self._heard: deque[ToChild] = deque()
        self._poll = select.poll()
        self._poll.register(answers, select.POLLIN)
        self._asked = self._answered = 0

    def log(self, text: str) -> None:
        """On the stream that also takes what is printed, so that both keep their order."""
        with self._held(), self._logging:
            _write(self._output, text.encode("utf-8", "replace"))

    def say(self, *messages: FromChild) -> None:
        frames = [frame(message) for message in messages]
        for message, said in zip(messages, frames, strict=True):
            if len(said) > FRAME_BYTES_MAX:
                # A verdict, not a sentence to be cut: half a result is no result.
                name = type(message).__name__
                raise Permanent("TOO_LARGE", f"{name} takes {len(said)} bytes; {FRAME_BYTES_MAX} fit")
        with self._held(), self._saying:
            _write(self._descriptor, b"".join(frames))

    def ask(self, order: Order, kind: str, body: str) -> Reply:
        """One question at a time. What is still owed to one that a signal has interrupted is read first."""
        with self._asking:
            while self._answered < self._asked:
                self._next_reply()
            with self._held():
                self.say(Asked(*order.key, self._asked + 1, kind, body))
                self._asked += 1
            return self._next_reply()

    def next_order(self) -> Order | None:
        """For a child that serves several attempts. None: the nursery is gone."""
        while True:
            while self._heard:
                message = self._heard.popleft()
                if isinstance(message, Launch):
                    return message.order
                self._answered += 1
            # Whoever is asked to end here has nothing to lose.
            received = os.read(self._answers, _READ_BYTES)
            if not received:
                return None
            self._heard += map(to_child, self._inbox.feed(received))

    def _next_reply(self) -> Reply:
        message = self._next()
        if not isinstance(message, Reply):
            raise RuntimeError("an order came where an answer was due")
        self._answered += 1
        return message

    def _next(self) -> ToChild:
        while not self._heard:
            self._poll.poll()
            with self._held():
                received = os.read(self._answers, _READ_BYTES)
                if not received:
                    raise Retryable("nobody is there to answer", code="ASK_FAILED")
                self._heard += map(to_child, self._inbox.feed(received))
        return self._heard.popleft()


class ChildContext:
    """See `worker_service.handlers.Context`."""

    def __init__(
        self, order: Order, payload: Any, *, staging: Path, keep: Path | None, pipe: Pipe, cancel: Cancel
    ) -> None:
        self.payload = payload
        self.is_over = False
        """Its attempt has ended, and its child lives on."""
        self.job_type = order.job_type
        self.platform = order.platform
        self.account = order.account
        self.owner = order.owner
        self.document_id = order.document_id
        self.generation = order.generation
        self.document = order.document
        self.inputs: Mapping[str, Path] = dict(order.inputs)
        self.staging = staging
        self.state = json.loads(order.state) if order.state else None
        self.idempotency_key = str(order.job_id)
        self._order = order
        self._keep = keep
        self._pipe = pipe
        self._cancel = cancel

    @property
    def keep(self) -> Path:
        if self._keep is None:
            raise AttributeError(f"{self.job_type} declares no keep_key, so it has no directory to keep")
        return self._keep

    def progress(self, percent: float, message: str = "") -> None:
        known = percent if math.isfinite(percent) else 0.0
        self._say(Progressed(*self._order.key, min(max(float(known), 0.0), 100.0), _line(message)))

    def log(self, line: str) -> None:
        # Cut before it is split: a line may be the whole of a flood.
        lines = clipped(line, 20 * LINE_CHARACTERS_MAX).splitlines() or [""]
        self._refuse_if_over()
        self._pipe.log("".join(f"{clipped(one, LINE_CHARACTERS_MAX)}\n" for one in lines))

    def cancelled(self) -> bool:
        self._cancel.is_asked_for = True
        return self._cancel.has_come

    def checkpoint(self, state: object, follow_ups: Sequence[NewJob] = (), crawl: CrawlPage | None = None) -> None:
        said = json.dumps(state, allow_nan=False)
        self._say(Checkpointed(*self._order.key, said, list(follow_ups), crawl))

    def save_page(self, page: PageResult) -> None:
        self.save_pages([page])

    def save_pages(self, pages: Sequence[PageResult]) -> None:
        if self.document_id is None:
            raise Permanent("NO_DOCUMENT", f"a job of {self.job_type} without a document has no pages to save")
        self._say(*(PagesRead(*self._order.key, some) for some in _in_messages(map(_sayable_page, pages))))

    def ask(self, question: Question[A]) -> A:
        kind, body = question_text(question)
        self._refuse_if_over()
        reply = self._pipe.ask(self._order, kind, body)
        if reply.code == "TOO_LARGE":
            raise Permanent("TOO_LARGE", reply.message)
        if reply.code:
            raise Retryable(reply.message, code=reply.code)
        return cast("A", answer_from(kind, reply.body))

    def _say(self, *messages: FromChild) -> None:
        self._refuse_if_over()
        self._pipe.say(*messages)

    def _refuse_if_over(self) -> None:
        if self.is_over:
            raise RuntimeError("this context is of an attempt that has ended")


def _write(descriptor: int, said: bytes) -> None:
    left = memoryview(said)
    while left:
        left = left[os.write(descriptor, left) :]


def _line(text: str) -> str:
    return sayable(clipped(text, LINE_CHARACTERS_MAX))


def _in_messages(pages: Iterable[PageResult]) -> Iterator[list[PageResult]]:
    some: list[PageResult] = []
    characters = 0
    for page in pages:
        own = len(page.text or "") + len(page.layout or "")
        if some and (len(some) == _PAGES_AT_ONCE or characters + own > _CHARACTERS_AT_ONCE):
            yield some
            some, characters = [], 0
        some.append(page)
        characters += own
    if some:
        yield some


def _sayable_page(page: PageResult) -> PageResult:
    return page if page.text is None else replace(page, text=sayable(page.text).replace("\0", "�"))


def sayable(text: str) -> str:
    """A file's name may hold half a character; a message cannot."""
    return text.encode("utf-8", "replace").decode()
