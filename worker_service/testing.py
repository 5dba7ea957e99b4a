"""Test a handler: run it in a real child process, with its limits and its sandbox, and without a database.

    def test_it_reads_a_page(tmp_path):
        run = run_handler(handler, {"page": 1}, directory=tmp_path)

        assert run.result == {"words": 12}

The handler must be an attribute of a module, so that the child can import it. `HandlerRun` has everything that the
attempt reported.

`answers` answers questions of the handler: it is a function of the question, or a mapping from types of questions to
answers or such functions. Without an answer, a question finds only pages that the handler has saved.

    run_handler(handler, document_id=7, answers={SameContent: Files([published])}, directory=tmp_path)
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, Unpack

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from worker_service.base.entry_points import EntryPoint
from worker_service.base.files import sha256_of
from worker_service.handlers.contract import Handler
from worker_service.handlers.registry import load
from worker_service.jobs.documents import (
    CrawlPage,
    DocumentPages,
    KnownDigests,
    KnownDocument,
    KnownPages,
    PageResult,
    PagesAnswer,
    Question,
    QuestionAnswer,
    RepublishedFile,
)
from worker_service.jobs.job import NewJob
from worker_service.runner.messages import (
    Asked,
    AttemptEvent,
    Begin,
    Checkpointed,
    Ended,
    How,
    Logged,
    Order,
    PagesRead,
    Progressed,
    Publication,
)
from worker_service.runner.questions import decode_question, empty_answer
from worker_service.runner.without_daemon import attempt_events, open_pool

__all__ = ["Answers", "HandlerRun", "How", "JobFields", "Publication", "run_handler", "run_stopped_and_again"]

Answers = (
    Mapping[type[Question[Any]], QuestionAnswer | Callable[[Any], QuestionAnswer | None]]
    | Callable[[Any], QuestionAnswer | None]
)

_WAIT_SECONDS = 60.0
_WRAPPER = "pagemill_stopped_handler"


class HandlerRun(Struct, frozen=True):
    events: Sequence[AttemptEvent]
    ended: Ended

    @property
    def how(self) -> How:
        return self.ended.how

    @property
    def result(self) -> Any:
        return None if self.ended.result is None else json.loads(self.ended.result)

    @property
    def files(self) -> Sequence[Path]:
        return self.ended.files

    @property
    def published(self) -> Sequence[Publication]:
        return self.ended.published

    @property
    def published_again(self) -> Sequence[RepublishedFile]:
        return self.ended.published_again

    @property
    def pages(self) -> list[PageResult]:
        return [page for event in self.events if isinstance(event, PagesRead) for page in event.pages]

    @property
    def checkpoints(self) -> list[Checkpointed]:
        return [event for event in self.events if isinstance(event, Checkpointed)]

    @property
    def crawl_pages(self) -> list[CrawlPage]:
        return [checkpoint.crawl for checkpoint in self.checkpoints if checkpoint.crawl is not None]

    @property
    def follow_ups(self) -> list[NewJob]:
        return [*(job for checkpoint in self.checkpoints for job in checkpoint.follow_ups), *self.ended.follow_ups]

    @property
    def questions(self) -> list[Question[QuestionAnswer]]:
        return [decode_question(event.kind, event.body) for event in self.events if isinstance(event, Asked)]

    @property
    def lines(self) -> list[str]:
        return [line for event in self.events if isinstance(event, Logged) for line in event.lines]

    @property
    def progress(self) -> list[tuple[float, str]]:
        """Progress reports as the daemon gets them, at most ten per second."""
        return [(event.percent, event.message) for event in self.events if isinstance(event, Progressed)]

    @property
    def state(self) -> str | None:
        return self.checkpoints[-1].state if self.checkpoints else None


class JobFields(TypedDict, total=False):
    account: str | None
    platform: str
    state: str | None
    timeout_seconds: int | None
    job_id: int
    fence: int
    document_id: int | None
    generation: int | None
    inputs: Mapping[str, Path] | None
    document: KnownDocument | None
    parent_id: int | None


def run_handler(
    handler: Handler[Any] | str,
    payload: object = None,
    *,
    directory: Path,
    commands: Mapping[str, Mapping[str, object]] | None = None,
    sandbox: str = "strict",
    answers: Answers | None = None,
    **job: Unpack[JobFields],
) -> HandlerRun:
    """Run one attempt. `handler` may also be the job type of an installed handler. All files are in `directory`."""
    runner = _Runner(directory, commands or {}, sandbox, _Answerer(answers))
    return runner.run(_order(handler, payload, job), None if isinstance(handler, str) else _spec_of(handler))


def run_stopped_and_again(
    handler: Handler[Any],
    payload: object = None,
    *,
    directory: Path,
    step: int,
    sandbox: str = "strict",
    answers: Answers | None = None,
    **job: Unpack[JobFields],
) -> tuple[HandlerRun, HandlerRun]:
    """Kill the attempt after `step` calls, then run the job again with its last checkpoint and saved pages.

    Calls are progress, log, checkpoint, save_page, save_pages and ask. The second run of a good handler ends as if
    there had been no first.
    """
    wrapper = directory / "path" / f"{_WRAPPER}.py"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    spec, job_type = _spec_of(handler), handler.job_type
    wrapper.write_text(
        f"from worker_service.testing import stopped_at\nhandler = stopped_at({spec!r}, {job_type!r}, {step})\n"
    )
    order = _order(handler, payload, job)
    runner = _Runner(directory, {}, sandbox, _Answerer(answers))
    first = runner.run(order, f"{_WRAPPER}:handler", [wrapper.parent])
    return first, runner.run(replace(order, fence=2, state=first.state), spec)


def stopped_at(spec: str, job_type: str, step: int) -> Handler[Any]:
    """Return a handler that is killed after `step` calls. The wrapper module calls this in the child process."""
    handlers = load(EntryPoint("handler", spec, ""), {}).handlers
    handler = next(handler for handler in handlers if handler.job_type == job_type)

    def run(context: Any) -> Any:
        return handler.run(_KilledAfter(context, step))

    return replace(handler, run=run)


class _KilledAfter:
    def __init__(self, context: Any, step: int) -> None:
        self._context = context
        self._calls_left = step

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._context, name)
        if name not in ("progress", "log", "checkpoint", "save_page", "save_pages", "ask"):
            return attribute

        def call_and_count(*values: Any, **named: Any) -> Any:
            answer = attribute(*values, **named)
            self._calls_left -= 1
            if self._calls_left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return call_and_count


@dataclass(slots=True)
class _Answerer:
    answers: Answers | None
    pages: list[PageResult] = field(default_factory=list)

    def __call__(self, question: Question[QuestionAnswer]) -> QuestionAnswer:
        return self._chosen_answer(question) or self._default_answer(question)

    def _chosen_answer(self, question: Question[QuestionAnswer]) -> QuestionAnswer | None:
        answers = self.answers
        if isinstance(answers, Mapping):
            answer_or_function = answers.get(type(question))
            if answer_or_function is None or isinstance(answer_or_function, QuestionAnswer):
                return answer_or_function
            return answer_or_function(question)
        return None if answers is None else answers(question)

    def _default_answer(self, question: Question[Any]) -> QuestionAnswer:
        if isinstance(question, KnownPages):
            saved_digests = {page.digest for page in self.pages}
            return KnownDigests([digest for digest in question.digests if digest in saved_digests])
        if isinstance(question, DocumentPages):
            # A later page replaces an earlier one of the same number, as in the table.
            page_by_number = {page.number: page for page in self.pages}
            page_with_text = {page.digest: page for page in self.pages if page.text is not None}
            pages = [
                replace(page_with_text.get(page.digest, page), number=number)
                for number, page in sorted(page_by_number.items())
                if question.first <= number <= question.last
            ]
            return PagesAnswer(pages if question.with_layout else [replace(page, layout=None) for page in pages])
        return empty_answer(question)


@dataclass(slots=True)
class _Runner:
    directory: Path
    commands: Mapping[str, Mapping[str, object]]
    sandbox: str
    answerer: _Answerer

    def run(self, order: Order, spec: str | None, path: Sequence[Path] = ()) -> HandlerRun:
        begin = Begin(
            self.directory / "staging",
            self.directory / "keep",
            commands=self.commands,
            sandbox=self.sandbox,
            types=[order.job_type],
            grace_seconds=1.0,
            extra_handlers=[] if spec is None else [spec],
            is_without_installed=spec is not None,
        )
        with open_pool(begin, extra_path=[*path, *_import_paths_of_tests()]) as (pool, _):
            pool.launch(order)
            seconds = (order.timeout_seconds or 0) + _WAIT_SECONDS
            events: list[AttemptEvent] = []
            for event in attempt_events(pool, seconds=seconds, answer=self.answerer):
                events.append(event)
                if isinstance(event, PagesRead):
                    self.answerer.pages += event.pages
        return HandlerRun(events, next(event for event in events if isinstance(event, Ended)))


def _order(handler: Handler[Any] | str, payload: object, job: JobFields) -> Order:
    text = payload if payload is None or isinstance(payload, str) else msgspec.json.encode(payload).decode()
    fields: dict[str, Any] = {"job_id": 1, "fence": 1, "platform": "local", "account": None, "timeout_seconds": None}
    fields |= job
    fields["inputs"] = {role: path.absolute() for role, path in (job.get("inputs") or {}).items()}
    if job.get("document_id") is not None:
        original = fields["inputs"].get("original")
        fields["generation"] = 1 if job.get("generation") is None else job["generation"]
        fields["document"] = job.get("document") or KnownDocument("" if original is None else sha256_of(original))
    job_type = handler if isinstance(handler, str) else handler.job_type
    return Order(job_type=job_type, payload=text, **fields)


def _spec_of(handler: Handler[Any]) -> str:
    """Return module:attribute of the handler, or of the list or tuple that contains it."""
    module_name = getattr(handler.run, "__module__", "")
    attributes = vars(sys.modules[module_name]) if module_name in sys.modules else {}
    for name, value in attributes.items():
        values = value if isinstance(value, list | tuple) else (value,)
        if any(value is handler for value in values):
            return f"{module_name}:{name}"
    raise LookupError(f"no attribute of the module of {handler.job_type}'s run is this handler: give it a name there")


def _import_paths_of_tests() -> list[Path]:
    return [
        Path(entry).absolute() for entry in sys.path if entry and not entry.startswith((sys.prefix, sys.base_prefix))
    ]
