"""Use a pool without a daemon: describe the handlers, or run one attempt. For commands, tests and page images."""

from __future__ import annotations

import select
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from worker_service.jobs.documents import Question, QuestionAnswer
from worker_service.runner.messages import Asked, AttemptEvent, Begin, Ended, HandlerDescription
from worker_service.runner.pool import LocalPool
from worker_service.runner.questions import decode_question, empty_answer


@contextmanager
def open_pool(
    begin: Begin, *, extra_path: Sequence[Path] = ()
) -> Iterator[tuple[LocalPool, Sequence[HandlerDescription]]]:
    pool = LocalPool(begin, extra_path=extra_path)
    try:
        yield pool, pool.start()
    finally:
        pool.close()


def describe(
    commands: Mapping[str, Mapping[str, object]], sandbox: str, handlers_dir: Path | None
) -> Sequence[HandlerDescription]:
    with tempfile.TemporaryDirectory(prefix="pagemill-", ignore_cleanup_errors=True) as directory:
        # It runs no jobs: no handler has the empty name, so none is preloaded.
        begin = Begin(
            Path(directory) / "staging",
            Path(directory) / "keep",
            commands=commands,
            sandbox=sandbox,
            types=[""],
            handlers_dir=handlers_dir,
        )
        with open_pool(begin) as (_, described):
            return described


def attempt_events(
    pool: LocalPool,
    *,
    seconds: float | None = None,
    answer: Callable[[Question[QuestionAnswer]], QuestionAnswer] = empty_answer,
) -> Iterator[AttemptEvent]:
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        seconds_left = None if deadline is None else deadline - time.monotonic()
        if seconds_left is not None and seconds_left <= 0:
            raise TimeoutError(f"the handler was still running after {seconds:g} s: pass timeout_seconds")
        select.select([pool], [], [], seconds_left)
        for event in pool.take_events():
            yield event
            if isinstance(event, Asked):
                pool.answer(event, answer(decode_question(event.kind, event.body)))
            if isinstance(event, Ended):
                return
