"""A real store, a strict Drive behind Google's own client, and crawls that are killed after their nth checkpoint.

A crawl acts by its checkpoints alone, so an exception after one has the effect of a SIGKILL.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from job_handlers.crawl.crawl import crawl_tree
from job_handlers.crawl.options import CrawlPayload
from job_handlers.fetch.sources import Reference
from job_handlers.fetch.sources.drive.client import Drive
from job_handlers.fetch.sources.drive.pacer import Pacer
from job_handlers.fetch.sources.drive.tree import DriveTree
from job_handlers.fetch.sources.local import LocalTree
from tests.drive_server import DriveServer, Item
from tests.job_handlers.fetch.kit import LogContext, drive_for
from tests.job_handlers.fetch.quick_handlers import SOON
from tests.store.kit import ByHand, lay_out
from worker_service.base.clock import wall_clock
from worker_service.handlers import CrawlPage, HandlerError, NewJob, Permanent, Snooze, Stopped
from worker_service.jobs.attempts import Checkpoint, Completion, Failure
from worker_service.jobs.documents import DocumentRequest, Question
from worker_service.jobs.job import Job, Status
from worker_service.jobs.selector import Selector
from worker_service.jobs.workers import HandlerFacts, Worker
from worker_service.store.opening import open_store
from worker_service.store.store import Store

QUICK = replace(SOON, first_wait_seconds=0.01)
ALICE = "alice"
PDF = b"%PDF-1.7\n"
_WORKER = "w1"


class Sigkill(BaseException):
    pass


@dataclass(kw_only=True)
class Attempt(LogContext):
    store: Store
    job: Job
    payload: CrawlPayload
    state: Any
    stop_after: int
    checkpoints: int = 0

    @property
    def platform(self) -> str:
        return self.job.platform

    @property
    def account(self) -> str | None:
        return self.job.account

    @property
    def owner(self) -> str:
        return self.job.owner

    def checkpoint(self, state: object, follow_ups: Sequence[NewJob] = (), crawl: CrawlPage | None = None) -> None:
        self.store.attempts.checkpoint(self.job.lease, Checkpoint(json.dumps(state), follow_ups, crawl))
        self.checkpoints += 1
        if self.checkpoints == self.stop_after:
            raise Sigkill

    def ask(self, question: Question[Any]) -> Any:
        return self.store.attempts.answer(self.job.lease, question)


@dataclass(frozen=True)
class CrawlEnd:
    result: Mapping[str, Any]
    error: HandlerError | None
    checkpoints: int
    lines: Sequence[str]
    job_id: int

    @property
    def counts(self) -> Mapping[str, Any]:
        return {name: value for name, value in self.result.items() if name != "crawl"}

    def __getattr__(self, name: str) -> int:
        return int(self.result.get(name, 0))


class Crawls:
    def __init__(self, server: DriveServer, place: Path) -> None:
        lay_out(place / "crawls.db")
        self.server = server
        self.store = open_store(place / "crawls.db")
        self.by_hand = ByHand(place / "crawls.db")
        self._google = Drive(timeouts=QUICK, pacer=Pacer(1e6))
        types = [HandlerFacts(name, "io", missing=None, at_most_once=False) for name in ("crawl", "download")]
        self.store.workers.register(Worker(_WORKER, "here", "boot", 1, "0", 1000, 1000, types))

    def close(self) -> None:
        self._google.close()
        self.store.close()

    # ── Crawls ──

    def run(self, folder: Item | str | Path, *, owner: str = ALICE, stop_after: int = 0, **payload: Any) -> CrawlEnd:
        return self.resume(self.enqueue(folder, owner=owner, **payload), stop_after=stop_after)

    def enqueue(self, folder: Item | str | Path, *, owner: str = ALICE, **more: Any) -> int:
        folder_text = folder.id if isinstance(folder, Item) else str(folder)
        platform = "local" if folder_text.startswith("/") else "gdrive"
        payload = json.dumps({"folder": folder_text, **more})
        return self.store.intake.enqueue(NewJob("crawl", platform=platform, payload=payload, owner=owner)).job_id

    def resume(self, job_id: int, *, stop_after: int = 0, is_stopping_at_once: bool = False) -> CrawlEnd:
        """Run an attempt, and another if it is killed."""
        attempt = self._claim(job_id, stop_after)
        attempt.is_stopping = is_stopping_at_once
        try:
            return self._attempt(attempt)
        except Sigkill:
            self.store.leases.release(attempt.job.lease)
            return self._attempt(self._claim(job_id, 0))

    def kill(self, job_id: int, *, stop_after: int, fails: bool = False) -> None:
        """Run an attempt that is killed."""
        attempt = self._claim(job_id, stop_after)
        with pytest.raises(Sigkill):
            self._attempt(attempt)
        if fails:
            self.store.leases.fail(attempt.job.lease, Failure("CRASHED", "for good"), retry_at=None)
        else:
            self.store.leases.release(attempt.job.lease)

    def _claim(self, job_id: int, stop_after: int) -> Attempt:
        self.store.job_control.pause("type", "download")
        claimed = {job.id: job for job in self.store.leases.claim(_WORKER, 100, "io")}
        job = claimed.pop(job_id)
        for other in claimed.values():
            self.store.leases.release(other.lease)
        state = self.store.attempts.checkpoint_of(job_id)
        payload = msgspec.json.decode(job.payload or "", type=CrawlPayload)
        saved = None if state is None else json.loads(state)
        return Attempt(store=self.store, job=job, payload=payload, state=saved, stop_after=stop_after)

    def tree_at(self, folder_id: str) -> DriveTree:
        reference = Reference("gdrive", folder_id)
        return DriveTree(self._google, reference, is_stopping=lambda: False, timeouts=QUICK)

    def _attempt(self, attempt: Attempt) -> CrawlEnd:
        folder, lease = attempt.payload.folder, attempt.job.lease
        tree = LocalTree(Path(folder)) if folder.startswith("/") else self.tree_at(folder)
        try:
            done = crawl_tree(cast("Any", attempt), tree)
        except Snooze as later:
            self.store.leases.snooze(lease, wall_clock())
            return CrawlEnd({}, later, attempt.checkpoints, attempt.lines, attempt.job.id)
        except HandlerError as error:
            code = getattr(error, "code", "")
            retry_at = None if isinstance(error, Permanent) else wall_clock()
            self.store.leases.fail(lease, Failure(code, str(error)), retry_at=retry_at)
            return CrawlEnd({}, error, attempt.checkpoints, attempt.lines, attempt.job.id)
        except Stopped:
            self.store.leases.release(lease)
            raise
        self.store.leases.complete_many([Completion(lease, json.dumps(done.result))])
        return CrawlEnd(cast("dict[str, Any]", done.result), None, attempt.checkpoints, attempt.lines, attempt.job.id)

    # ── Results ──

    def downloads(self, owner: str = ALICE, status: Status | None = None) -> list[str]:
        names = (json.loads(job.payload or "")["name"] for job in self._download_jobs(owner, status))
        return sorted(names)

    def keys(self, owner: str) -> Counter[str]:
        jobs = self._download_jobs(owner)
        return Counter((job.unique_key or "").replace(f":{owner}:", "::") + f" {job.status}" for job in jobs)

    def _download_jobs(self, owner: str, status: Status | None = None) -> Sequence[Job]:
        statuses = () if status is None else (status,)
        selector = Selector(job_types=("download",), owners=(owner,), statuses=statuses)
        return self.store.job_queries.list(selector, most=100_000)

    def stored_items(self, owner: str) -> list[dict[str, object]]:
        return self.by_hand(
            "SELECT i.id, parent_id, name, kind, revision, note, detail, walk, gone_at IS NOT NULL AS gone "
            f"FROM crawl_item i JOIN crawl c ON c.key = i.crawl WHERE c.owner = '{owner}' ORDER BY i.id"
        )

    def finish_downloads(self, owner: str = ALICE) -> None:
        self.store.job_control.unpause("type", "download")
        while jobs := self.store.leases.claim(_WORKER, 100, "io"):
            for job in jobs:
                self.store.leases.complete(job.lease)

    def document(self, item: Item, owner: str = ALICE) -> int:
        request = DocumentRequest(item.id, item.name)
        return self.store.intake.record_document(request, platform="gdrive", owner=owner)

    def is_gone(self, item: Item, owner: str = ALICE) -> bool:
        query = f"SELECT gone_at IS NOT NULL FROM document WHERE source_key = '{item.id}' AND owner = '{owner}'"
        return bool(self.by_hand.value(query))

    # ── Costs ──

    def calls(self) -> int:
        number = sum(request.on != "token" for request in self.server.log)
        self.server.log.clear()
        return number


@contextmanager
def crawls_in(monkeypatch: pytest.MonkeyPatch, place: Path) -> Iterator[Crawls]:
    with drive_for(monkeypatch, place) as server:
        crawls = Crawls(server, place)
        try:
            yield crawls
        finally:
            crawls.close()
