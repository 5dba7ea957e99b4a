"""The context that a handler gets in its child process, and the pipes to the fork server below it.

SIGTERM never interrupts the middle of a message.
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
from pathlib import Path
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from worker_service.base.sanitize import clip, strip_surrogates
from worker_service.handlers.contract import Permanent, Retryable, Stopped
from worker_service.jobs.attempts import Count
from worker_service.jobs.documents import CrawlPage, PageResult, Question, QuestionAnswer
from worker_service.jobs.embeddings import Embeddings
from worker_service.jobs.job import NewJob
from worker_service.runner.messages import (
    LINE_CHARACTERS_MAX,
    Asked,
    Checkpointed,
    ChildInput,
    ChildMessage,
    Launch,
    Order,
    PagesRead,
    Progressed,
    Reply,
)
from worker_service.runner.protocol import FRAME_BYTES_MAX, RELAY_BYTES_MAX, Inbox, decode_child_input, encode_frame
from worker_service.runner.questions import decode_answer, encode_question

_READ_BYTES = 1 << 16
_PAGES_AT_ONCE = 100
# Of pages in one message. A larger page is sent alone.
_CHARACTERS_AT_ONCE = 1 << 18
A = TypeVar("A", bound=QuestionAnswer)


class Cancellation:
    """SIGTERM raises `Stopped` in the handler, but not in one that asks `cancelled` and so stops by itself."""

    def __init__(self) -> None:
        self.is_requested = False
        self.is_polled = False
        self._deferrals = 0
        # `Stopped` has to be raised at the end of the outermost block.
        self._is_stop_due = False

    def begin_attempt(self) -> None:
        self.is_polled = False
        signal.signal(signal.SIGTERM, self._on_sigterm)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            # Python runs signal handlers only in the main thread.
            yield
            return
        self._deferrals += 1
        try:
            yield
        finally:
            self._deferrals -= 1
        if self._is_stop_due and not self._deferrals:
            self._is_stop_due = False
            raise Stopped

    def _on_sigterm(self, number: int, stack: object) -> None:
        is_first = not self.is_requested
        self.is_requested = True
        if not is_first or self.is_polled:
            return
        if self._deferrals:
            self._is_stop_due = True
            return
        raise Stopped


class Pipe:
    def __init__(
        self, messages: int, answers: int, output: int, deferred: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._messages = messages
        self._answers = answers
        self._output = output
        self._deferred = deferred
        self._send_lock, self._ask_lock, self._log_lock = threading.Lock(), threading.Lock(), threading.Lock()
        self._inbox = Inbox(RELAY_BYTES_MAX)
        self._received: deque[ChildInput] = deque()
        self._poll = select.poll()
        self._poll.register(answers, select.POLLIN)
        self._questions_sent = self._replies_received = 0

    def log(self, text: str) -> None:
        with self._deferred(), self._log_lock:
            _write(self._output, text.encode("utf-8", "replace"))

    def send(self, *messages: ChildMessage) -> None:
        frames = [encode_frame(message) for message in messages]
        for message, encoded in zip(messages, frames, strict=True):
            if len(encoded) > FRAME_BYTES_MAX:
                # Fail instead of truncating: half a result is useless.
                name = type(message).__name__
                raise Permanent("TOO_LARGE", f"{name} takes {len(encoded)} bytes; {FRAME_BYTES_MAX} fit")
        with self._deferred(), self._send_lock:
            _write(self._messages, b"".join(frames))

    def ask(self, order: Order, kind: str, body: str) -> Reply:
        with self._ask_lock:
            # Skip replies to earlier questions, whose wait a signal interrupted.
            while self._replies_received < self._questions_sent:
                self._next_reply()
            with self._deferred():
                self.send(Asked(*order.key, self._questions_sent + 1, kind, body))
                self._questions_sent += 1
            return self._next_reply()

    def next_order(self) -> Order | None:
        while True:
            while self._received:
                message = self._received.popleft()
                if isinstance(message, Launch):
                    return message.order
                # A reply for which the last attempt did not wait.
                self._replies_received += 1
            # This read is not deferred: between two attempts, a SIGTERM interrupts no work.
            received = os.read(self._answers, _READ_BYTES)
            if not received:
                return None
            self._received += map(decode_child_input, self._inbox.feed(received))

    def _next_reply(self) -> Reply:
        while not self._received:
            self._poll.poll()
            with self._deferred():
                received = os.read(self._answers, _READ_BYTES)
                if not received:
                    raise Retryable("the daemon is gone, so it cannot answer", code="ASK_FAILED")
                self._received += map(decode_child_input, self._inbox.feed(received))
        message = self._received.popleft()
        if not isinstance(message, Reply):
            raise RuntimeError("an order came where an answer was due")
        self._replies_received += 1
        return message


class ChildContext:
    def __init__(
        self, order: Order, payload: Any, *, staging: Path, keep: Path | None, pipe: Pipe, cancel: Cancellation
    ) -> None:
        self.payload = payload
        # True once the attempt has ended: the handler must not report for a later one.
        self.is_over = False
        self.job_type = order.job_type
        self.platform = order.platform
        self.account = order.account
        self.owner = order.owner
        self.document_id = order.document_id
        self.generation = order.generation
        self.document = order.document
        self.parent_id = order.parent_id
        self.inputs: Mapping[str, Path] = dict(order.inputs)
        self.staging = staging
        self.state = json.loads(order.state) if order.state else None
        self.idempotency_key = str(order.job_id)
        self.slots = max(order.node_slots, len(os.sched_getaffinity(0)))
        self._order = order
        self._keep = keep
        self._pipe = pipe
        self._cancel = cancel

    @property
    def keep(self) -> Path:
        if self._keep is None:
            raise AttributeError(f"{self.job_type} declares no keep_key, so it has no directory to keep")
        return self._keep

    def progress(
        self,
        percent: float | None = None,
        message: str = "",
        *,
        done: int | None = None,
        total: int | None = None,
        unit: str = "",
        rate: float | None = None,
    ) -> None:
        if percent is None:
            percent = 100 * done / total if done is not None and total else 0.0
        percent = min(max(float(percent), 0.0), 100.0) if math.isfinite(percent) else 0.0
        count = None if done is None else _count(done, total, unit, rate)
        self._send(Progressed(*self._order.key, percent, _line(message), count))

    def log(self, line: str) -> None:
        # Clip before splitting: the text may be huge.
        lines = clip(line, 20 * LINE_CHARACTERS_MAX).splitlines() or [""]
        self._refuse_if_over()
        self._pipe.log("".join(f"{clip(short_line, LINE_CHARACTERS_MAX)}\n" for short_line in lines))

    def cancelled(self) -> bool:
        self._cancel.is_polled = True
        return self._cancel.is_requested

    def checkpoint(
        self,
        state: object,
        follow_ups: Sequence[NewJob] = (),
        crawl: CrawlPage | None = None,
        embeddings: Embeddings | None = None,
    ) -> None:
        state_json = json.dumps(state, allow_nan=False)
        self._send(Checkpointed(*self._order.key, state_json, list(follow_ups), crawl, embeddings))

    def save_page(self, page: PageResult) -> None:
        self.save_pages([page])

    def save_pages(self, pages: Sequence[PageResult]) -> None:
        if self.document_id is None:
            raise Permanent("NO_DOCUMENT", f"a job of {self.job_type} without a document has no pages to save")
        self._send(*(PagesRead(*self._order.key, batch) for batch in _page_batches(map(_with_valid_text, pages))))

    def ask(self, question: Question[A]) -> A:
        kind, body = encode_question(question)
        self._refuse_if_over()
        reply = self._pipe.ask(self._order, kind, body)
        if reply.code == "TOO_LARGE":
            raise Permanent("TOO_LARGE", reply.message)
        if reply.code:
            raise Retryable(reply.message, code=reply.code)
        return cast("A", decode_answer(kind, reply.body))

    def _send(self, *messages: ChildMessage) -> None:
        self._refuse_if_over()
        self._pipe.send(*messages)

    def _refuse_if_over(self) -> None:
        if self.is_over:
            raise RuntimeError("this context is of an attempt that has ended")


def _write(descriptor: int, data: bytes) -> None:
    unwritten = memoryview(data)
    while unwritten:
        unwritten = unwritten[os.write(descriptor, unwritten) :]


def _count(done: float, total: float | None, unit: str, rate: float | None) -> Count | None:
    valid_done = _valid_integer(done)
    valid_rate = rate if rate is not None and math.isfinite(rate) and rate >= 0 else None
    return None if valid_done is None else Count(valid_done, _valid_integer(total), _line(unit), valid_rate)


def _valid_integer(number: float | None) -> int | None:
    # JSON numbers are exact below 2**53.
    return int(number) if number is not None and 0 <= number < 2**53 else None


def _line(text: str) -> str:
    return strip_surrogates(clip(text, LINE_CHARACTERS_MAX))


def _page_batches(pages: Iterable[PageResult]) -> Iterator[list[PageResult]]:
    batch: list[PageResult] = []
    batch_characters = 0
    for page in pages:
        characters = len(page.text or "") + len(page.layout or "")
        if batch and (len(batch) == _PAGES_AT_ONCE or batch_characters + characters > _CHARACTERS_AT_ONCE):
            yield batch
            batch, batch_characters = [], 0
        batch.append(page)
        batch_characters += characters
    if batch:
        yield batch


def _with_valid_text(page: PageResult) -> PageResult:
    return page if page.text is None else replace(page, text=strip_surrogates(page.text).replace("\0", "�"))
