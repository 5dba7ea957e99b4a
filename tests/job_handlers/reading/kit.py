"""Read documents with the shipped handlers in child processes, without a store."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from worker_service.handlers import DocumentPages, IsCurrent, KnownDocument, KnownPages, NewJob, PageResult, SameContent
from worker_service.jobs.documents import (
    Files,
    IsCurrentAnswer,
    KnownDigests,
    PagesAnswer,
    PublishedFile,
    Question,
    QuestionAnswer,
)
from worker_service.runner.messages import Begin, Ended, How, Order, PagesRead
from worker_service.runner.pool import LocalPool
from worker_service.runner.questions import empty_answer
from worker_service.runner.without_daemon import attempt_events
from worker_service.testing import HandlerRun

HANDLERS = [f"job_handlers.reading.{name}:{name}" for name in ("ingest", "ocr_pages", "extract_rows", "assemble")]
_ATTEMPT_SECONDS = 90.0


@contextmanager
def open_library(directory: Path, *, sandbox: str = "strict", handlers: Sequence[str] = HANDLERS) -> Iterator[Library]:
    credentials = directory / "credentials"
    credentials.mkdir()
    # The variable by which systemd names the directory.
    with patch.dict(os.environ, CREDENTIALS_DIRECTORY=str(credentials)):
        begin = Begin(
            directory / "staging",
            directory / "keep",
            sandbox=sandbox,
            grace_seconds=1.0,
            extra_handlers=list(handlers),
            is_without_installed=True,
        )
        fork_server = LocalPool(begin)
    try:
        refused = [handler.set_aside for handler in fork_server.start() if handler.set_aside]
        assert not refused, refused
        yield Library(fork_server, credentials)
    finally:
        fork_server.close()


@dataclass(slots=True)
class Library:
    """Handlers in one fork server, and the pages that a store would have: by digest, and by number."""

    pool: LocalPool
    credentials: Path
    by_digest: dict[str, PageResult] = field(default_factory=dict)
    by_number: dict[int, PageResult] = field(default_factory=dict)
    runs: list[tuple[str, HandlerRun]] = field(default_factory=list)
    known: KnownDocument = field(default_factory=KnownDocument)
    """The document with the facts of earlier jobs."""
    current_for: float = math.inf
    """Number of answers for which the generation stays the newest."""
    _jobs: int = 0

    def forget(self) -> None:
        self.by_digest, self.by_number, self.runs, self.current_for = {}, {}, [], math.inf
        self.known = KnownDocument()

    def read(self, original: Path, **how: object) -> HandlerRun:
        """Return the run of `assemble`, or of the first job that failed. By default, read English with one engine."""
        settings = json.dumps({"languages": ["eng"], "quality": "fast", **how})
        self.by_number, self.runs, self.known = {}, [], KnownDocument(settings=settings)
        last = self.run("ingest", {}, original)
        for job in last.follow_ups if last.how is How.DONE else ():
            last = self.run_job(job, original)
            if last.how is not How.DONE:
                break
        return last

    def run_job(self, job: NewJob, original: Path) -> HandlerRun:
        return self.run(job.job_type, json.loads(job.payload or "{}"), original)

    def run(
        self,
        job_type: str,
        payload: object,
        original: Path | None,
        *,
        job_id: int | None = None,
        document_id: int | None = 1,
        timeout_seconds: int | None = None,
    ) -> HandlerRun:
        self._jobs += 1
        order = Order(
            job_id or self._jobs,
            self._jobs,
            job_type,
            "local",
            None,
            json.dumps(payload),
            timeout_seconds,
            None,
            document_id,
            None if document_id is None else 1,
            {} if original is None else {"original": original.absolute()},
            document=None if document_id is None else self._known_of(original),
        )
        self.pool.launch(order)
        events = []
        for event in attempt_events(self.pool, seconds=_ATTEMPT_SECONDS, answer=self.answer):
            events.append(event)
            if isinstance(event, PagesRead):
                for page in event.pages:
                    self.keep(page)
        run = HandlerRun(events, next(event for event in events if isinstance(event, Ended)))
        self.runs.append((job_type, run))
        if (facts := run.ended.document) is not None:
            self.known = replace(self.known, kind=facts.kind or self.known.kind, pages=facts.pages or self.known.pages)
        return run

    def _known_of(self, original: Path | None) -> KnownDocument:
        content = "" if original is None else hashlib.sha256(original.read_bytes()).hexdigest()
        return replace(self.known, content=content)

    def keep(self, page: PageResult) -> None:
        if page.text is not None:
            self.by_digest.setdefault(page.digest, page)
        self.by_number[page.number] = replace(self.by_digest[page.digest], number=page.number)
        if page.alias_digest:
            self.by_digest.setdefault(page.alias_digest, self.by_digest[page.digest])

    def answer(self, question: Question[Any]) -> QuestionAnswer:
        is_current = self.current_for > 0
        self.current_for -= 1
        match question:
            case KnownPages(digests):
                return KnownDigests([name for name in digests if name in self.by_digest], not is_current)
            case DocumentPages(first, last):
                return PagesAnswer([self.by_number[at] for at in range(first, last + 1) if at in self.by_number])
            case IsCurrent():
                return IsCurrentAnswer(is_current)
            case SameContent(sha256):
                return Files([PublishedFile(77, 1, "original", "a.pdf", "objects/1-1/a.pdf", 1, sha256, "")])
        return empty_answer(question)

    @property
    def text(self) -> str:
        return "\n".join(page.text or "" for _, page in sorted(self.by_number.items()))

    @property
    def methods(self) -> list[str]:
        return [page.method for _, page in sorted(self.by_number.items())]

    def jobs(self, job_type: str) -> Sequence[HandlerRun]:
        return [run for name, run in self.runs if name == job_type]


def published(run: HandlerRun) -> dict[str, Path]:
    return {file.role: file.path for file in run.published}
