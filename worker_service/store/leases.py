"""The daemon's writes to the queue: register, claim, beat, report, and the ways an attempt ends.

Each public method is one transaction. A method that ends an attempt closes the attempt row first, because a trigger
refuses to change the status of a job whose attempt is open. A change that jobs may be waiting for calls `settle` in
the same transaction. Pages are stored ahead, in transactions of their own; readers see them only when the completion
makes their generation current (P5).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from datetime import datetime
from itertools import chain
from math import isfinite
from operator import attrgetter
from typing import TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from worker_service.base.clock import as_text
from worker_service.base.errors import (
    BadInput,
    CancelRequested,
    LeaseLost,
    PublishedFileRemoved,
    Refused,
    RuleBroken,
    WorkerUnknown,
)
from worker_service.jobs.attempts import Checkpoint, Completion, Failure, Report, Usage
from worker_service.jobs.batches import unique_key_in_batch
from worker_service.jobs.documents import (
    CrawlItem,
    CrawlItems,
    CrawlMemory,
    CrawlPage,
    Currency,
    DocumentPages,
    FileAgain,
    Files,
    IsCurrent,
    KnownDigests,
    KnownDocument,
    KnownPages,
    NewFile,
    PageResult,
    PagesAnswer,
    PublishedFile,
    Question,
    QuestionAnswer,
    SameContent,
)
from worker_service.jobs.history import LOG_LINES_MOST
from worker_service.jobs.job import Enqueued, Job, Lease, NewJob, Status
from worker_service.jobs.retries import MAY_HAVE_RUN, MAY_HAVE_RUN_REMEDY, REQUEUES_MAX, may_have_run_detail
from worker_service.jobs.workers import Beat, NodeState, Worker
from worker_service.store.database import Database, chunks
from worker_service.store.intake import Intake, documents_changed, make_ready, settle
from worker_service.store.library import page_from
from worker_service.store.mending import ReplacedText, Row
from worker_service.store.reading import claim_values, job_from
from worker_service.store.scheduler import Scheduler

STALE = "STALE_GENERATION"

_SMALL_LAYOUT_BYTES = 1 << 12

_CRAWL_ITEMS_MAX = 1000

_claim_order = attrgetter("priority", "created_at", "id")

COMPLETED_AT_ONCE = {1: "complete_one", 25: "complete_some", 100: "complete"}
"""Number of jobs a statement completes → its name. The smallest statement that fits is used."""
CLOSING_WIDTH, COMPLETED_WIDTH = 10, 4
# Fills the unused rows of a statement.
_PADDING = (None,) * max(COMPLETED_AT_ONCE) * CLOSING_WIDTH
_NO_CHILD = (None, None, None)

A = TypeVar("A", bound=QuestionAnswer)


class Work(Struct, frozen=True):
    """The document, owner and batch of a job, which its follow-up jobs inherit."""

    document_id: int | None
    generation: int | None
    owner: str
    platform: str
    name: str | None
    batch_id: int | None
    priority: int

    @property
    def place(self) -> dict[str, object]:
        return {"document_id": self.document_id, "generation": self.generation}


class PageTarget(Struct, frozen=True):
    """Destination of the pages that an attempt has read."""

    document_id: int | None = None
    generation: int | None = None
    is_current: bool = False
    """True: store them as pages of the document. False: store them under their digest only, for later attempts."""
    is_wanted: bool = False
    """True while the lease holds and no cancellation has been requested."""

    @property
    def is_kept(self) -> bool:
        return self.generation is not None

    @property
    def place(self) -> dict[str, object]:
        return {"document_id": self.document_id, "generation": self.generation}


class Leases:
    def __init__(self, database: Database, intake: Intake) -> None:
        self._db = database
        self._intake = intake
        self._scheduler = Scheduler(database)

    # ── Workers ──

    def register(self, worker: Worker) -> None:
        """Write the worker's row and its handlers, which also counts as its first heartbeat."""
        self._scheduler.forget()
        with self._db.transaction():
            self._db.write("register", **asdict(replace(worker, handlers=())), now=self._db.now())
            self._db.write("forget_handlers", worker_id=worker.id)
            for handler in worker.handlers:
                self._db.write("register_handler", worker_id=worker.id, **asdict(handler))

    def deregister(self, worker_id: str) -> None:
        """Remove the worker. Raise `Refused` if it still holds leases."""
        with self._db.transaction():
            if not self._db.write("deregister", worker_id=worker_id):
                raise Refused(f"worker {worker_id} still holds leases, or is not registered", "release them first")
            self._db.write("forget_handlers", worker_id=worker_id)
            self._db.write("mark_nodes_of_worker_down", worker_id=worker_id)

    def set_worker_state(self, worker_id: str, *, draining: bool, disk_low: bool) -> None:
        """Record the two reasons why the worker claims no jobs."""
        with self._db.transaction():
            if not self._db.write("set_worker_state", worker_id=worker_id, draining=draining, disk_low=disk_low):
                raise WorkerUnknown(f"worker {worker_id} has no row", "register it first")

    def forget_nodes_of_dead_workers(self) -> None:
        """Delete the nodes of workers that have no row, except draining nodes."""
        with self._db.transaction():
            self._db.write("forget_nodes_of_dead_workers")

    def set_nodes(self, worker_id: str, nodes: Sequence[NodeState]) -> None:
        """Write the state of all nodes of this worker. Its slots of class `node` become the sum of their slots."""
        self._scheduler.forget()
        with self._db.transaction():
            slots = sum(node.slots for node in nodes)
            if not self._db.write("set_node_slots", worker_id=worker_id, slots=slots):
                raise WorkerUnknown(f"worker {worker_id} has no row", "register it first")
            names = json.dumps([node.name for node in nodes])
            self._db.write("forget_nodes", names=names)
            self._db.write("mark_absent_nodes_down", worker_id=worker_id, names=names)
            for node in nodes:
                self._db.write("keep_node", worker_id=worker_id, **asdict(node))

    def set_limits(self, kind: str, most: dict[str, int]) -> None:
        """Replace all limits of a kind ('type', 'class', 'owner', 'payload')."""
        with self._db.transaction():
            self._db.write("forget_limits", kind=kind)
            for name, number in most.items():
                self._db.write("set_limit", kind=kind, name=name, most=number)

    # ── Claim, beat, report ──

    def claim(
        self, worker_id: str, most: int, job_class: str = "cpu", *, behind: int = 0, only: Sequence[str] | None = None
    ) -> list[Job]:
        """Claim up to `most` jobs that have no gate. Each gets fence + 1 and one open attempt (P1, P8, P9).

        A job with text that is not UTF-8 is failed with `NOT_UTF8` instead. `behind` is the number of the worker's
        running jobs that are prefetched behind another job and take no slot. `only` restricts the claim to these
        types and ends it at the first job of another type, so that prefetching never overtakes that job.
        """
        try:
            return self._claim(worker_id, most, job_class, behind, only)
        except UnicodeDecodeError:
            with self._db.replacing_invalid_text():
                return self._claim(worker_id, most, job_class, behind, only)

    def _claim(self, worker_id: str, most: int, job_class: str, behind: int, only: Sequence[str] | None) -> list[Job]:
        claimed: list[Job] = []
        try:
            with self._db.transaction():
                values = claim_values(self._db, worker_id, job_class) | {"behind": behind}
                make_ready(self._db, values["now"])
                while rows := self._scheduler.claim(values, most - len(claimed), only):
                    claimed += self._fail_unreadable(list(map(job_from, rows)))
                    # Claim again only if `_fail_unreadable` has failed some of the jobs.
                    if len(claimed) == most or not self._db.is_replacing:
                        break
                if not claimed and not self._db.write("worker_is_known", worker_id=worker_id):
                    raise WorkerUnknown(f"worker {worker_id} has no row: it was given up for dead and owns nothing")
                if any(job.generation is not None for job in claimed):
                    settle(self._db)
                if claimed:
                    claimed.sort(key=_claim_order)
                    owners = list(dict.fromkeys(job.owner for job in claimed))
                    # Skip the write if the only owner is also the one served last.
                    if len(owners) > 1 or self._db.write("served_last") != [(owners[0],)]:
                        self._scheduler.served(self._db.write("served", owners=json.dumps(owners)))
        except BaseException:
            # The cache may hold rows of the transaction that was rolled back.
            self._scheduler.forget()
            raise
        return claimed

    def _fail_unreadable(self, jobs: list[Job]) -> list[Job]:
        """Fail the jobs with text that is not UTF-8, whose payload is unknown. Return the others."""
        if not self._db.is_replacing:
            return jobs
        for job in jobs:
            if broken := [
                name for name, value in zip(job._fields, job, strict=True) if isinstance(value, ReplacedText)
            ]:
                sentence = f"its {' and '.join(broken)} is not UTF-8 text"
                remedy = "insert the job again, written as UTF-8"
                self._end_failed(job.lease, Failure("NOT_UTF8", sentence, remedy=remedy))
        return [job for job in jobs if not any(isinstance(value, ReplacedText) for value in job)]

    def _end_failed(self, lease: Lease, failure: Failure) -> None:
        self._close(lease, "failed", failure=failure)
        self._db.write("fail", **attempt_key(lease), now=self._db.now(), **error_columns(failure))

    def beat(self, worker_id: str, leases: Sequence[Lease]) -> Beat:
        """Write a heartbeat for the worker and its leases. Return the leases that are lost or must be cancelled."""
        with self._db.transaction():
            if not self._db.write("beat", worker_id=worker_id, now=self._db.now()):
                raise WorkerUnknown(f"worker {worker_id} has no row: it was given up for dead and owns nothing")
            held = json.dumps([[lease.job_id, lease.fence] for lease in leases])
            rows = self._db.write("beat_leases", worker_id=worker_id, leases=held, now=self._db.now())
        alive = {(job_id, fence): bool(is_cancelled) for job_id, fence, is_cancelled in rows}
        return Beat(
            lost=[lease for lease in leases if (lease.job_id, lease.fence) not in alive],
            to_cancel=[lease for lease in leases if alive.get((lease.job_id, lease.fence))],
        )

    def report(self, reports: Sequence[Report]) -> list[Lease]:
        """Write progress (P10: it never falls), log lines and the child process's id. Return the lost leases."""
        lost: list[Lease] = []
        with self._db.transaction():
            for report in reports:
                lease = report.lease
                now, child = self._db.now(), report.child
                if not self._db.write("report", **lease_key(lease), now=now, **_progress_columns(report)):
                    lost.append(lease)
                    continue
                known = (child.pid, child.pid_started, child.sandbox) if child else (None, None, None)
                place = dict(zip(("pid", "pid_started", "sandbox", "node"), (*known, report.node), strict=True))
                self._db.write("heard", **attempt_key(lease), now=now, **place)
                if report.lines:
                    lines = [
                        {"job_id": lease.job_id, "fence": lease.fence, "now": now, "line": line}
                        for line in report.lines
                    ]
                    self._db.write_each("log", lines)
                    self._db.write("trim_log", job_id=lease.job_id, most=LOG_LINES_MOST)
        return lost

    # ── What an attempt writes ──

    def checkpoint(self, lease: Lease, checkpoint: Checkpoint) -> None:
        """Store a job's state for its next attempt together with follow-up jobs and crawl items, or nothing."""
        with self._db.transaction():
            work = self._work_of(lease)
            if work is None:
                raise self._lease_error(lease)
            now = self._db.now()
            self._db.write("keep_checkpoint", **attempt_key(lease), state=checkpoint.state, now=now)
            if checkpoint.crawl is not None:
                self._save_crawl(checkpoint.crawl, work, now)
            self._insert_follow_ups(lease.job_id, work, checkpoint.follow_ups)
            if checkpoint.follow_ups:
                settle(self._db)

    def checkpoint_of(self, job_id: int) -> str | None:
        for (state,) in self._db.read("checkpoint_of", job_id=job_id):
            return str(state)
        return None

    def save_pages(self, pages: Sequence[tuple[Lease, PageResult]]) -> list[Lease]:
        """Store page results in one transaction. Return the leases that are lost or must be cancelled.

        Pages of a job with a requested cancellation are stored too; the next attempt finds them by their digest.
        """
        # Compress before the transaction, so that no other writer waits for it.
        ready = [(lease, page, None if page.text is None else _result_of(page, page.text)) for lease, page in pages]
        with self._db.transaction():
            now = self._db.now()
            targets = {lease: self._target_of(lease) for lease in dict.fromkeys(lease for lease, _ in pages)}
            kept = [(lease, page, result) for lease, page, result in ready if targets[lease].is_kept]
            results = [(*result, now) for _, _, result in kept if result]
            added = [result_id for (result_id,) in self._db.write_each("add_page_results", results)]
            self._db.write("index_results", result_ids=json.dumps(added))
            if aliases := [(page.also, page.digest) for _, page, _ in kept if page.also]:
                self._db.write("add_page_aliases", aliases=msgspec.json.encode(aliases).decode())
            for lease, target in targets.items():
                own = [(page.number, page.digest) for each, page, _ in kept if each == lease]
                if target.is_current:
                    pages_read = {**target.place, "pages": msgspec.json.encode(own).decode()}
                    replaced = self._db.write("pages_to_replace", **pages_read)
                    self._db.write("save_pages", **pages_read)
                    self._db.write("results_wanted", **pages_read)
                    leave_results(self._db, replaced)
                    self._db.write("document_moved", **target.place, now=now)
                elif own:
                    self._db.write(
                        "leave_to_anybody", digests=msgspec.json.encode([digest for _, digest in own]).decode()
                    )
        return [lease for lease, target in targets.items() if not target.is_wanted]

    def _save_crawl(self, crawl: CrawlPage, work: Work, now: str) -> None:
        self._db.write("save_crawl", crawl=crawl.crawl, owner=work.owner, state=crawl.state, now=now)
        gone = [{"crawl": crawl.crawl, "id": item.id, "now": now} for item in crawl.items if item.is_gone]
        seen = [(crawl.crawl, *_facts_of(item), crawl.walk, now) for item in crawl.items if not item.is_gone]
        places = json.dumps([(item.id, item.name, item.parent_id) for item in crawl.items if not item.is_gone])
        self._db.write("links_are_due", crawl=crawl.crawl, places=places)
        self._db.write_each("lose_crawl_item", gone)
        self._db.write_each("save_crawl_item", seen)
        for item in crawl.items:
            named = {"owner": work.owner, "platform": work.platform, "id": item.id, "now": now}
            if not item.is_gone:
                self._db.write("document_back", **named)
                continue
            place = {"id": item.id, "owner": work.owner, "crawl": crawl.crawl, "parent_id": item.parent_id}
            if not self._db.write("crawled_elsewhere", **place):
                self._db.write("document_gone", **named)
                if crawl.keys:
                    key = f"{crawl.keys}{item.id}:"
                    self._db.write("cancel_what_went", first=key, beyond=f"{key}\U0010ffff", **named)

    # ── What it asks ──

    def known_digests(self, job_id: int) -> Sequence[str]:
        """Return the digests, aliases included, of the pages of the job's document that have been read."""
        return [digest for (digest,) in self._db.read("known_digests", job_id=job_id)]

    def answer(self, lease: Lease, question: Question[A]) -> A:
        """Answer a handler's question about its own document or crawl. Writes nothing."""
        return cast(A, self._answer(lease, question))

    def _answer(self, lease: Lease, question: object) -> QuestionAnswer:
        match question:
            case KnownPages(digests):
                rows = self._db.read("known_pages", digests=json.dumps(list(digests)))
                is_stale = bool(self._db.read("stale_work", job_id=lease.job_id))
                return KnownDigests([digest for (digest,) in rows], is_stale)
            case DocumentPages(first, last, with_layout):
                values = {"job_id": lease.job_id, "first": first, "last": last, "with_layout": with_layout}
                return PagesAnswer([page_from(row) for row in self._db.read("document_pages", **values)])
            case SameContent():
                return Files(self._same_content(lease, question))
            case IsCurrent():
                return Currency(not self._db.read("stale_work", job_id=lease.job_id))
            case CrawlItems():
                return self._crawl_memory(question)
            case _:
                raise BadInput(f"{type(question).__name__} is not a question that can be asked")

    def _same_content(self, lease: Lease, question: SameContent) -> Sequence[PublishedFile]:
        asked = {"sha256": question.sha256, "job_id": lease.job_id}
        by_sha256 = self._db.read("same_sha256", **asked) if question.sha256 else []
        if by_sha256 or not question.md5:
            return [PublishedFile(*row) for row in by_sha256]
        rows = self._db.read("same_md5", md5=question.md5, size=question.size, job_id=lease.job_id)
        return [PublishedFile(*row) for row in rows]

    def _crawl_memory(self, question: CrawlItems) -> CrawlMemory:
        crawl = question.crawl
        page = {"crawl": crawl, "after": question.after, "most": _CRAWL_ITEMS_MAX}
        if question.not_seen_in is not None:
            rows = self._db.read("crawl_items_not_seen", walk=question.not_seen_in, **page)
        elif question.with_note is not None:
            rows = self._db.read("crawl_items_with_note", note=question.with_note, **page)
        else:
            rows = self._db.read("crawl_items", crawl=crawl, ids=json.dumps(list(question.ids)))
        state = next((state for (state,) in self._db.read("crawl_state", crawl=crawl)), None)
        return CrawlMemory(state, [CrawlItem(*(*row[:7], bool(row[7]), *row[8:])) for row in rows])

    def inputs(self, document_id: int) -> Sequence[PublishedFile]:
        """Return the newest published file of a document in each role."""
        return [PublishedFile(*row) for row in self._db.read("inputs", document_id=document_id)]

    def known_document(self, document_id: int) -> KnownDocument:
        """Return the facts about a document that are not repeated in the payloads of its jobs."""
        for row in self._db.read("known_document", document_id=document_id):
            return KnownDocument(*row)
        return KnownDocument()

    # ── The ends of an attempt ──

    def complete(self, lease: Lease, result: str | None = None, follow_ups: Sequence[NewJob] = ()) -> None:
        """Complete the job and store its result and follow-up jobs, or change nothing (P5)."""
        if self.complete_many([Completion(lease, result, follow_ups)]):
            raise self._lease_error(lease)

    def complete_many(self, completions: Sequence[Completion]) -> list[Lease]:
        """Complete each job whose lease still holds. Return the leases that are lost."""
        try:
            return self._complete_many(completions)
        except UnicodeDecodeError:
            with self._db.replacing_invalid_text():
                return self._complete_many(completions)

    def _complete_many(self, completions: Sequence[Completion]) -> list[Lease]:
        # If a lease is named twice, only its last completion is written.
        by_lease = {done.lease: done for done in completions}
        width = next((room for room in COMPLETED_AT_ONCE if room >= len(by_lease)), max(COMPLETED_AT_ONCE))
        complete = COMPLETED_AT_ONCE[width]
        completed: dict[tuple[int, int, str], bool] = {}
        with self._db.transaction():
            now = self._db.now()
            for some in chunks([*by_lease.values()], width):
                missing = width - len(some)
                closing = chain(*map(_closing_row, some), _PADDING[: missing * CLOSING_WIDTH])
                self._db.write(f"close_{complete}", (*closing, now))
                rows = chain(*((*done.lease, done.result) for done in some), _PADDING[: missing * COMPLETED_WIDTH])
                ended = self._db.write(complete, (*rows, now))
                completed |= {
                    (job_id, fence, worker_id): has_document for job_id, fence, worker_id, has_document in ended
                }
            with_effects = [
                done
                for done in by_lease.values()
                if done.lease in completed
                and (completed[done.lease] or done.files or done.follow_ups or done.publishes)
            ]
            if with_effects or self._db.write("nothing_follows") != [(1,)]:
                self._db.write("forget_checkpoints", job_ids=json.dumps([job_id for job_id, _, _ in completed]))
                written = []
                for done in with_effects:
                    [row] = self._db.write("work_of", job_id=done.lease.job_id)
                    work = work_from(row)
                    self._write_completion(done, work, now)
                    written.append((done, work))
                # Check only after every follow-up job of this transaction is in the queue.
                for done, work in written:
                    self._fail_unpublished_document(done, work, now)
                settle(self._db)
        return [done.lease for done in completions if done.lease not in completed or by_lease[done.lease] is not done]

    def fail(self, lease: Lease, failure: Failure, *, retry_at: datetime | None) -> None:
        """Put the job back until `retry_at` and count a retry. If None or no retry is left, end it as failed."""
        error = error_columns(failure)
        with self._db.transaction():
            job = self._job_of_lease(lease)
            is_retried = retry_at is not None and job.retry_count < job.max_retries
            self._close(lease, "retry" if is_retried else "failed", failure=failure)
            if retry_at is not None and is_retried:
                self._db.write("fail_for_now", **attempt_key(lease), run_at=as_text(retry_at), **error)
            else:
                self._db.write("fail", **attempt_key(lease), now=self._db.now(), **error)
            settle(self._db)

    def snooze(self, lease: Lease, until: datetime, why: Failure | None = None) -> None:
        """Put the job back until a time without counting a retry. The reason is stored on the attempt."""
        with self._db.transaction():
            self._close(lease, "snoozed", why)
            self._db.write("snooze", **attempt_key(lease), run_at=as_text(until))

    def release(self, lease: Lease) -> None:
        """Put the job back without counting a retry, because its worker is stopping."""
        with self._db.transaction():
            self._close(lease, "released")
            self._db.write("release", **attempt_key(lease))

    def confirm_cancel(self, lease: Lease, usage: Usage = Usage()) -> None:  # noqa: B008  frozen
        """End the job as cancelled. Call only when its processes are proven gone (P7)."""
        with self._db.transaction():
            self._end_cancelled(lease, usage)
            settle(self._db)

    def requeue(self, worker_id: str, *, last_beat: str | None = None) -> list[Job]:
        """Requeue every job of a worker that is proven gone and delete its row. Return the jobs as they are now.

        A job becomes cancelled if its cancellation was requested, failed after too many requeues or if its handler is
        `at_most_once`, and pending otherwise. If `last_beat` is given and the worker has sent a
        heartbeat since, nothing is done.
        """
        gone = Failure("WORKER_DIED", f"worker {worker_id} died while it ran this job")
        with self._db.transaction():
            if last_beat is not None and self._db.write("has_beaten_since", worker_id=worker_id, last_beat=last_beat):
                return []
            orphans = self._db.write("orphans", worker_id=worker_id, requeues_max=REQUEUES_MAX)
            for job_id, fence, _, fate in orphans:
                self._requeue_one(Lease(job_id, fence, worker_id), fate, gone)
            self._db.write("forget_handlers", worker_id=worker_id)
            self._db.write("forget_worker", worker_id=worker_id)
            self._db.write("mark_nodes_of_worker_down", worker_id=worker_id)
            settle(self._db)
            return [job_from(row) for job_id, *_ in orphans for row in self._db.write("get", job_id=job_id)]

    def requeue_one(self, lease: Lease, why: Failure) -> Status:
        """Requeue one job whose attempt is gone, with the rules of `requeue`. Return its new status."""
        with self._db.transaction():
            values = {**lease_key(lease), "requeues_max": REQUEUES_MAX}
            for (fate,) in self._db.write("fate_of", **values):
                self._requeue_one(lease, fate, why)
                settle(self._db)
                return {"pending": Status.PENDING, "cancelled": Status.CANCELLED}.get(fate, Status.FAILED)
            raise self._lease_error(lease)

    def _requeue_one(self, lease: Lease, fate: str, why: Failure) -> None:
        if fate == "pending":
            self._close(lease, "requeued", failure=why)
            self._db.write("requeue", **attempt_key(lease))
        elif fate == "cancelled":
            self._end_cancelled(lease, why.usage)
        else:
            failure = (
                Failure(MAY_HAVE_RUN, may_have_run_detail(why.code, why.message), why.usage, MAY_HAVE_RUN_REMEDY)
                if fate == "at most once"
                else Failure("REQUEUED_TOO_OFTEN", f"{why.message}, for the {REQUEUES_MAX + 1}th time", why.usage)
            )
            self._end_failed(lease, failure)

    def _end_cancelled(self, lease: Lease, usage: Usage) -> None:
        failure = Failure("CANCELLED", "somebody asked it to stop", usage)
        for document_id, generation in self._db.write("stale_work", job_id=lease.job_id):
            sentence = f"generation {generation} of document {document_id} is no longer the newest"
            failure = Failure(STALE, sentence, usage)
        self._close(lease, "cancelled", failure=failure)
        is_stale = failure.code == STALE
        error = error_columns(failure) if is_stale else {}
        self._db.write(
            "confirm_cancel_stale" if is_stale else "confirm_cancel", **attempt_key(lease), now=self._db.now(), **error
        )

    def rest_source(self, source: str, until: datetime, reason: str) -> None:
        """Start no job of this source before `until`."""
        with self._db.transaction():
            self._db.write("rest_source", source=source, until=as_text(until), reason=reason)

    def _close(self, lease: Lease, outcome: str, failure: Failure | None = None) -> None:
        usage = failure.usage if failure else Usage()
        if not self._db.write("close_attempt", **_close_values(lease, outcome, self._db.now(), failure, usage)):
            raise self._lease_error(lease)

    # ── What a completion brings ──

    def _write_completion(self, done: Completion, work: Work, now: str) -> None:
        """Write what a completed job brings: files, document facts, follow-up jobs, a published generation."""
        if done.publishes and work.generation is None:
            raise RuleBroken("only a job that works for a document can publish one: publishes was set without")
        lease = done.lease
        for file in done.files:
            self._add_file(lease, work, file, now)
        if done.files:
            self._db.write("files_are_back", **attempt_key(lease))
        if done.document is not None and work.generation is not None:
            facts = done.document
            self._db.write(
                "learn",
                document_id=work.document_id,
                kind=facts.kind,
                pages=facts.pages,
                content=facts.content,
                note=facts.note,
                now=now,
            )
        inserted = self._insert_follow_ups(lease.job_id, work, done.follow_ups)
        self._assign_originals(lease, done.follow_ups, inserted)
        if work.generation is None:
            return
        if done.publishes:
            forget_files(self._db, "forget_older_files", **work.place)
            if not self._db.write("publish", **work.place, now=now):
                raise RuleBroken(f"generation {work.generation} of document {work.document_id} is no longer the newest")
            documents_changed(self._db, [done_for for done_for in (work.document_id,) if done_for is not None])
            self._db.write("link_is_due", document_id=work.document_id)
        else:
            self._db.write("document_moved", **work.place, now=now)

    def _fail_unpublished_document(self, done: Completion, work: Work, now: str) -> None:
        """Fail the document if no live job is left that could publish it."""
        if done.publishes or work.generation is None:
            return
        values = {**work.place, "now": now, "job_id": done.lease.job_id, "skipped": _skip_reason(done.result)}
        documents_changed(self._db, [document_id for (document_id,) in self._db.write("led_nowhere", **values)])

    def _add_file(self, lease: Lease, work: Work, file: NewFile | FileAgain, now: str) -> None:
        row = {**attempt_key(lease), "document_id": work.document_id, "owner": work.owner, "now": now}
        row |= {"role": file.role, "name": file.name}
        if isinstance(file, NewFile):
            facts = {"path": file.path, "size": file.size, "sha256": file.sha256, "md5": file.md5, "note": file.note}
            self._db.write("add_file", **row, **facts)
        elif not self._db.write("add_file_again", **row, file_id=file.file_id):
            raise PublishedFileRemoved(f"there is no file {file.file_id} any more: publish the content itself")

    def _insert_follow_ups(self, parent_id: int, work: Work, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Insert follow-up jobs.

        They inherit owner, batch and priority unless they set their own, and the document unless they request one.
        """
        if jobs:
            jobs = [_inherit(job, work) for job in jobs]
        return self._intake.insert_many(jobs, parent_id)

    def _assign_originals(self, lease: Lease, jobs: Sequence[NewJob], inserted: Sequence[Enqueued]) -> None:
        """Record the files that the job has published as originals of the documents its follow-up jobs read."""
        asked = [(job.document, each.document_id) for job, each in zip(jobs, inserted, strict=True) if job.document]
        for request, document_id in asked:
            content = request.content or None if len(asked) > 1 else None
            if self._db.write("tie_files", **attempt_key(lease), document_id=document_id, content=content):
                self._db.write("link_is_due", document_id=document_id)

    # ── The lease ──

    def _job_of_lease(self, lease: Lease) -> Job:
        for row in self._db.write("get", job_id=lease.job_id):
            job = job_from(row)
            if job.worker_id == lease.worker_id and job.fence == lease.fence and not job.status.is_ended:
                return job
        raise self._lease_error(lease)

    def _work_of(self, lease: Lease) -> Work | None:
        """Return None if the lease is lost, cancelled, or belongs to an older generation."""
        for row in self._db.write("lease_held", **lease_key(lease)):
            return work_from(row)
        return None

    def _target_of(self, lease: Lease) -> PageTarget:
        for document_id, generation, is_current, is_wanted in self._db.write("page_target", **lease_key(lease)):
            return PageTarget(document_id, generation, bool(is_current), bool(is_wanted))
        return PageTarget()

    def _lease_error(self, lease: Lease) -> LeaseLost:
        for row in self._db.write("get", job_id=lease.job_id):
            job = job_from(row)
            is_its = job.worker_id == lease.worker_id and job.fence == lease.fence
            if is_its and job.status == Status.RUNNING and job.cancel_requested_at:
                if self._db.write("stale_work", job_id=job.id):
                    return CancelRequested(f"job {job.id} works for an older generation: it can only end as cancelled")
                return CancelRequested(f"job {job.id} was asked to stop: it can only end as cancelled")
        return LeaseLost(f"job {lease.job_id}: fence {lease.fence} is no longer current")


def _progress_columns(report: Report) -> dict[str, str | int | float | None]:
    done, total, unit, rate = report.count or (None, None, None, None)
    return {
        "percent": _whole_percent(report.percent),
        "message": report.message,
        "has_progress": report.percent is not None,
        "has_lines": bool(report.lines),
        "done": done,
        "total": total,
        "unit": unit or None,
        "rate": rate,
    }


def _whole_percent(percent: float | None) -> int:
    # NaN and infinity count as no progress.
    return min(100, max(0, int(percent))) if percent is not None and isfinite(percent) else 0


def _close_values(
    lease: Lease,
    outcome: str,
    now: str,
    failure: Failure | None = None,
    usage: Usage = Usage(),  # noqa: B008  frozen
) -> dict[str, object]:
    return {
        **lease_key(lease),
        "outcome": outcome,
        "now": now,
        **error_columns(failure),
        "signal": usage.signal,
        "cpu_seconds": usage.cpu_seconds,
        "memory_peak_bytes": usage.memory_peak_bytes,
    }


def error_columns(failure: Failure | None) -> dict[str, str | None]:
    if failure is None:
        return {"error_code": None, "error_message": None, "error_remedy": None}
    return {"error_code": failure.code, "error_message": failure.message, "error_remedy": failure.remedy or None}


def _closing_row(done: Completion) -> Row:
    usage, child = done.usage, done.child
    place = (child.pid, child.pid_started, child.sandbox) if child else _NO_CHILD
    return (*done.lease, usage.signal, usage.cpu_seconds, usage.memory_peak_bytes, *place, done.node)


def forget_files(db: Database, name: str, /, **values: object) -> int:
    """Delete `file` rows with the statement `name`. Mark unreferenced paths for removal from the workspace."""
    paths = [path for (path,) in db.write(name, **values)]
    if paths:
        db.write("files_are_gone", paths=json.dumps(paths))
    return len(paths)


def leave_results(db: Database, result_ids: Sequence[Row]) -> None:
    """Mark page results for deletion, except those that a page still refers to."""
    if result_ids:
        db.write("leave_results", result_ids=json.dumps([result_id for (result_id,) in result_ids]))


def work_from(row: Row) -> Work:
    document_id, generation, *rest = row
    return Work(document_id if generation is not None else None, generation, *rest)


def attempt_key(lease: Lease) -> dict[str, object]:
    return {"job_id": lease.job_id, "fence": lease.fence}


def lease_key(lease: Lease) -> dict[str, object]:
    return {"job_id": lease.job_id, "fence": lease.fence, "worker_id": lease.worker_id}


def _result_of(page: PageResult, raw_text: str) -> tuple[str, str, str, float | None, bytes | None]:
    # The text comes from a child process. Replace what SQLite cannot store, so that the other pages are still stored.
    text = raw_text.encode("utf-8", "replace").decode()
    layout = None if page.layout is None else _compress_layout(page.layout.encode("utf-8", "replace"))
    confidence = None if page.confidence is None else min(100.0, max(0.0, page.confidence))
    return page.digest, text, page.method, confidence, layout


def _compress_layout(layout: bytes) -> bytes:
    # Most layouts have a few hundred bytes; initialising zlib's default tables takes longer than compressing them.
    window, memory = (12, 5) if len(layout) <= _SMALL_LAYOUT_BYTES else (zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL)
    packer = zlib.compressobj(6, zlib.DEFLATED, window, memory)
    return packer.compress(layout) + packer.flush()


def _inherit(job: NewJob, work: Work) -> NewJob:
    key = job.unique_key
    if key is not None and work.batch_id is not None:
        key = unique_key_in_batch(key, work.batch_id)
    job = replace(
        job,
        owner=job.owner or work.owner,
        batch_id=work.batch_id if job.batch_id is None else job.batch_id,
        priority=job.priority or work.priority,
        unique_key=key,
    )
    if job.document is not None:
        return job
    job = replace(job, name=job.name or work.name)
    return job if work.generation is None else replace(job, document_id=work.document_id, generation=work.generation)


def _facts_of(item: CrawlItem) -> tuple[object, ...]:
    # The order of the parameters of `save_crawl_item`.
    return (item.id, item.parent_id, item.name, item.kind, item.revision, item.size, item.note, item.detail)


def _skip_reason(result: str | None) -> str | None:
    """Return the reason why the handler had nothing to do, or None."""
    found = json.loads(result) if result else None
    reason = found.get("skipped") if isinstance(found, dict) else None
    return None if reason is None else str(reason)
