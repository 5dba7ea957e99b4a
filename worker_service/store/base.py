"""What a store promises, in sentences, in eleven parts: one for each kind of caller. `Store` has them all.

Every write after a claim carries the lease (P2); where the fence has moved on, or the row has ended, nothing is
written and `LeaseLost` is raised (the verbs that take many report it by lease). Each verb is one transaction.
Decisions (when to try again, who is dead) arrive as values; the store guards, it does not decide.
`tests/store/test_contract.py` holds every store to this.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Protocol, TypeVar

from worker_service.jobs.batches import (
    Batch,
    BatchAdded,
    BatchFacts,
    BatchMoved,
    BatchOfJobs,
    BatchState,
    NewBatch,
    OwnerPolicy,
)
from worker_service.jobs.documents import (
    Answer,
    AskedAction,
    DeferredAction,
    DocumentRequest,
    KnownDocument,
    OwnersAction,
    PageResult,
    PublishedFile,
    Question,
)
from worker_service.jobs.library import (
    Document,
    DocumentSelector,
    KeywordCount,
    OwnerSize,
    Pace,
    PageSummary,
    Provenance,
    PublishedPath,
    Removed,
    SearchResult,
    Weight,
)
from worker_service.jobs.model import (
    Action,
    AttemptRow,
    Beat,
    Changed,
    Check,
    Checkpoint,
    Completion,
    Counts,
    Enqueued,
    Episode,
    ErrorCount,
    Event,
    Failure,
    Gate,
    HandlerFacts,
    Job,
    JobMove,
    Lease,
    LeaseRow,
    LiveCounts,
    LogLine,
    NewJob,
    NodeRow,
    NodeState,
    NodeWork,
    Notice,
    Pause,
    PlatformCount,
    Report,
    ScheduleRun,
    Status,
    Taken,
    TypeCounts,
    Usage,
    WorkDone,
    Worker,
    WorkerState,
)
from worker_service.jobs.names import LinkFacts, Links
from worker_service.jobs.selector import Selector
from worker_service.tokens import GrantedRequest, NewToken, Token

A = TypeVar("A", bound=Answer)


class Intake(Protocol):
    """For producers."""

    def enqueue(self, job: NewJob) -> Enqueued:
        """Insert a job that survives a power cut from now on, or return the live job with its unique_key."""

    def enqueue_many(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Insert all of them or none, in one transaction.

        A job with a `document` is inserted only if its document is to be read, and takes the next generation of it; one
        that `brings` a document only if it was not read at that revision, as it is wished for."""

    def ask_always(self, owner: str, action: DeferredAction) -> bool:
        """From now on it follows for each document of this owner. False: it does already."""

    def ask_no_more(self, owner: str, action: DeferredAction) -> bool:
        """False: nobody has asked for it."""

    def record_document(self, request: DocumentRequest, *, platform: str, owner: str = "") -> int:
        """Note a document that nobody has asked to be read yet; return its id, also of one that is there already."""


class Schedules(Protocol):
    """For what is begun at its time. A slot is taken once for ever, with its job or its batch or not at all."""

    def seen_until(self, schedule: str, plan: str) -> datetime | None:
        """Up to when the slots of a schedule are dealt with. None: it is new, or had another plan."""

    def begin(self, schedule: str, plan: str) -> None:
        """What is new begins now: it has no past."""

    def take(
        self, schedule: str, plan: str, slot: datetime, work: NewJob | BatchOfJobs, missed: str = ""
    ) -> Taken | None:
        """Take a slot, and all before it; tell people what was `missed`, in a sentence. None: somebody has taken it, or
        one after it."""

    def pass_over(self, schedule: str, plan: str, until: datetime, missed: str, owner: str = "") -> bool:
        """Nothing begins for the slots up to this time, and people are told. False: somebody has dealt with them."""

    def run_now(self, schedule: str, work: NewJob | BatchOfJobs) -> Taken | None:
        """Begin it beside its slots. None: somebody did, in this very millisecond."""

    def enqueue_once(self, key: str, period: str, job: NewJob) -> Enqueued:
        """Insert a job unless one was inserted with this key in this period, whatever has become of it."""

    def last_run(self, schedule: str) -> ScheduleRun | None: ...


class Leases(Protocol):
    """For a daemon."""

    def register(self, worker: Worker) -> None:
        """Write the worker's row and what it can run; this is its first beat."""

    def deregister(self, worker_id: str) -> None:
        """Remove a worker that holds no lease any more."""

    def set_worker_state(self, worker_id: str, *, draining: bool, disk_low: bool) -> None:
        """Say that the worker claims no more: while it drains, or while its disk is too full."""

    def set_nodes(self, worker_id: str, nodes: Sequence[NodeState], *, only: Collection[str] | None = None) -> None:
        """How the nodes of this worker are, all of them; their slots together are its own of class `node`. `only`: the
        others are as their rows say."""

    def forget_left_nodes(self) -> None:
        """Those of workers that are gone, if nobody wishes anything of them: no cluster is set any more."""

    def set_limits(self, kind: str, most: dict[str, int]) -> None:
        """Replace all limits of a kind ('type', 'class', 'owner', 'payload') with these."""

    def claim(
        self, worker_id: str, most: int, job_class: str = "cpu", *, behind: int = 0, only: Sequence[str] | None = None
    ) -> list[Job]:
        """Take up to `most` jobs that have no gate, fence + 1, each with one open attempt (P1, P8, P9). One that
        has text which is not UTF-8 ends failed with `NOT_UTF8`.

        `behind`: so many of the worker's running jobs take no slot, for they wait behind another in one. `only`: no
        further than the turns are of these types; so nobody is overtaken by what is claimed ahead of a free slot."""

    def beat(self, worker_id: str, leases: Sequence[Lease]) -> Beat:
        """Say that the worker and its leases live; learn which are lost and which are to be cancelled."""

    def report(self, reports: Sequence[Report]) -> list[Lease]:
        """Write progress (it never falls), log lines and the child's process; return the leases that are lost."""

    def checkpoint(self, lease: Lease, checkpoint: Checkpoint) -> None:
        """Keep a job's state for its next attempt; follow-ups and what a crawl found land with it or not at all."""

    def checkpoint_of(self, job_id: int) -> str | None:
        """The state (JSON) of the job's last checkpoint."""

    def save_pages(self, pages: Sequence[tuple[Lease, PageResult]]) -> list[Lease]:
        """Keep what was read of pages, in one transaction; return the leases that are lost, or asked to stop.

        Of one that was asked to stop the pages are kept all the same: the next attempt finds them, or whoever reads the
        same content in the same way."""

    def answer(self, lease: Lease, question: Question[A]) -> A:
        """Answer what a handler asks about its own document or crawl. Reads only."""

    def inputs(self, document_id: int) -> Sequence[PublishedFile]:
        """The newest published file of a document in each role."""

    def known_document(self, document_id: int) -> KnownDocument:
        """What a job that works for it need not be told by its payload."""

    def complete(self, lease: Lease, result: str | None = None, follow_ups: Sequence[NewJob] = ()) -> None:
        """End the job as completed; result and follow-up jobs land with it or not at all (P5)."""

    def complete_many(self, completions: Sequence[Completion]) -> list[Lease]:
        """Complete each that still can be; return the leases that are lost."""

    def fail(self, lease: Lease, failure: Failure, *, retry_at: datetime | None) -> None:
        """Spend a retry and wait until `retry_at`, or (None, or no retry left) end the job as failed."""

    def snooze(self, lease: Lease, until: datetime, why: Failure | None = None) -> None:
        """Give the job back until then. Costs no retry; the attempt remembers why."""

    def release(self, lease: Lease) -> None:
        """Give the job back at once, on a graceful stop. Costs no retry."""

    def confirm_cancel(self, lease: Lease, usage: Usage = ...) -> None:
        """The job's processes are proven gone: the row may now say cancelled (P7)."""

    def requeue(
        self, worker_id: str, *, last_beat: str | None = None, but_nodes: Collection[str] | None = ()
    ) -> list[Job]:
        """Take back every job of a worker that is proven gone, and its row; return the jobs as they are now.

        Pending again; or cancelled, if that was asked; or failed, after too many requeues or if at most once. With
        `last_beat`: unless it has beaten since then; what it has claimed meanwhile nobody has looked at. `but_nodes`:
        what it ran there may still run, and waits with its row; None: what it ran on any node."""

    def requeue_one(self, lease: Lease, why: Failure) -> Status:
        """Take back one job whose attempt is gone with what ran it, as `requeue` does; return what it is now."""

    def rest_source(self, source: str, until: datetime, reason: str) -> None:
        """No job of this source starts before then."""


class Steering(Protocol):
    """For people. What changes jobs is one action; `undo` takes a cancel, retry or priority back."""

    def cancel(self, selector: Selector, *, actor: str, without_grace: bool = False) -> Changed:
        """Pending jobs end; running ones are asked to stop, or (hurried) are stopped by their workers without grace."""

    def retry(self, selector: Selector, *, actor: str) -> Changed:
        """Ended jobs run again with a fresh budget, and what failed only because of them is revived."""

    def delete(self, selector: Selector, *, actor: str) -> Changed:
        """Remove jobs that are not running, and all that was kept about them, for good."""

    def priority(self, selector: Selector, level: int, *, actor: str) -> Changed:
        """Give pending jobs another priority."""

    def bring_forward(self, ids: Sequence[int]) -> Sequence[int]:
        """Let pending jobs wait for no time any more; return those that did."""

    def undo(self, action_id: int, *, actor: str) -> Changed:
        """Do the opposite to the jobs that still are as the action left them: retry what it cancelled, cancel what it
        retried, or give them the priority that they had."""

    def pause(self, scope: str, name: str = "", *, until: datetime | None = None, reason: str | None = None) -> None:
        """Start no more jobs of a type, of an owner, or ('all', '') at all. What runs goes on."""

    def unpause(self, scope: str, name: str = "") -> bool:
        """Return whether it was paused."""

    def wish_of_node(self, name: str, wish: str) -> bool:
        """'drain': it gets nothing new; 'remove': it is left alone; '': neither. False: there is no such node."""

    def prune(self, selector: Selector, *, most: int = 1000) -> int:
        """Remove up to `most` ended jobs and all that was kept about them. Call again until it returns 0."""

    def prune_logs(self, before: datetime, *, most: int = 1000) -> int:
        """Remove up to `most` of the oldest log lines, of any job, that are older than this."""


class Batches(Protocol):
    """What one person submitted together."""

    def get(self, batch_id: int) -> Batch:
        """Raise `BatchNotFound` if there is none."""

    def list(
        self,
        *,
        owners: Sequence[str] = (),
        states: Sequence[BatchState] = (),
        most: int = 50,
        before_id: int | None = None,
    ) -> Sequence[Batch]:
        """The newest first; the next page begins before the last id of this one."""

    def facts(self, batch_id: int) -> BatchFacts:
        """What is stored of how far it is."""

    def add(self, new: NewBatch, jobs: Sequence[NewJob], *, policy: OwnerPolicy = ...) -> BatchAdded:
        """Insert a batch with all its jobs, or nothing. In the same transaction the owner's other active batches are
        replaced by it, or it waits for them. It takes over documents that a stopped or waiting batch was reading."""

    def extend(self, batch_id: int, jobs: Sequence[NewJob]) -> BatchAdded:
        """All of them or none. Refused for one that has ended."""

    def stop(self, batch_id: int, *, actor: str) -> Batch:
        """Nothing more of it begins; what runs comes back, and costs no retry."""

    def resume(self, batch_id: int, *, actor: str, policy: OwnerPolicy = ...) -> BatchMoved:
        """Go on with what is pending, failed or cancelled; what has been done is not done again."""

    def retry(self, batch_id: int, *, actor: str, policy: OwnerPolicy = ...) -> BatchMoved:
        """Only what has failed. One that has ended begins again, one that is stopped is refused."""

    def cancel(self, batch_id: int, *, actor: str) -> BatchMoved:
        """Stop it, and cancel all that lives."""

    def undo_cancel(self, action_id: int, *, actor: str, policy: OwnerPolicy = OwnerPolicy.REPLACE) -> Batch | None:
        """Let the batch that the action cancelled go on, unless something was done to it since; then return None."""

    def remove(self, batch_id: int, *, actor: str) -> Batch:
        """Forget one without live jobs; its documents stay, and its jobs, with its number."""


class Reading(Protocol):
    """For everyone. Never waits for a writer, never writes."""

    def get(self, job_id: int) -> Job:
        """Raise `JobNotFound` if there is none."""

    def list(
        self, selector: Selector, *, most: int = 50, before_id: int | None = None, from_id: int | None = None
    ) -> Sequence[Job]:
        """The newest first; the next page begins before the last id of this one. `from_id`: none that is older."""

    def count(self, selector: Selector, *, before_id: int | None = None, from_id: int | None = None) -> int: ...

    def family(self, ids: Sequence[int]) -> Sequence[int]:
        """These jobs, those that they asked for, those that these asked for, and so on; the oldest first."""

    def watching(self, ids: Sequence[int]) -> Sequence[int]:
        """Those of them that have looked, and wait to look again: this is as far as they ever get."""

    def ids(self, selector: Selector) -> Sequence[int]:
        """The ids alone, the oldest first: payloads may be large."""

    def explain(self, job_id: int, *, dead: Collection[str] = ()) -> Sequence[Gate]:
        """The gates that hold a pending job, in order: none if and only if the next claim could take it (P12).

        `dead`: workers that will claim nothing, although they have beaten lately."""

    def standstill(self, *, dead: Collection[str] = ()) -> Sequence[Gate]:
        """What keeps all ready jobs from starting, and those that a resting source has put off. Nothing, if one may
        start now, or waits for no more than its turn."""

    def attempts(self, job_id: int) -> Sequence[AttemptRow]: ...

    def events(self, job_id: int) -> Sequence[Event]: ...

    def newest_events(self, *, most: int) -> Sequence[Event]:
        """Of any job, the newest first."""

    def logs(self, job_id: int, *, after_id: int = 0, most: int = 1000) -> Sequence[LogLine]: ...

    def waits_for(self, job_id: int) -> Sequence[tuple[int, str]]:
        """The jobs that this one waits for, with what they are: a status, or 'gone'."""

    def pauses(self) -> Sequence[Pause]: ...

    def nodes(self) -> Sequence[NodeRow]:
        """By their names."""

    def on_nodes(self) -> Sequence[NodeWork]:
        """What runs on them, as far as it was told where."""

    def actions(self, *, most: int = 20) -> Sequence[Action]:
        """The newest first."""

    def workers(self) -> Sequence[WorkerState]:
        """All that have a row, alive or not."""

    def absent_workers(self) -> Sequence[WorkerState]:
        """Those that running jobs name and that have no row. Of them only the id, the jobs and their last beat are
        known."""

    def limits(self) -> Mapping[str, Mapping[str, int]]:
        """By kind, then by name: how many may run at once, as the daemon that started last wrote it."""

    def handlers_lacking(self) -> Sequence[HandlerFacts]:
        """Those of workers that live for which their machine lacks something, which `missing` tells."""

    def payload_schemas(self, job_type: str) -> Sequence[str | None]:
        """What the workers that live say of the payload of this type. None: one cannot describe it."""

    def choices(self) -> Sequence[str]:
        """What handlers of workers that live say of the keys of payloads: JSON, see `Choices` of the handlers."""

    def leases_of(self, worker_id: str) -> Sequence[LeaseRow]:
        """The leases that this worker holds by its rows, and which of them are to stop."""

    def counts(self) -> Counts: ...

    def counts_by_type(self) -> Sequence[TypeCounts]: ...

    def live_by_type(self) -> Sequence[LiveCounts]: ...

    def newest_event(self) -> tuple[int, int]:
        """Its id, and its job; twice 0: there is none. Events go with their jobs; the ids of the newest come again."""

    def job_of_event(self, event_id: int) -> int | None: ...

    def events_after(
        self, event_id: int, upto: int, *, owner: str | None = None, most: int = 1000
    ) -> Sequence[JobMove]:
        """The moves of jobs that are still there, the oldest first."""

    def pending_by_platform(self, owner: str | None = None) -> Sequence[PlatformCount]: ...

    def documents_failing(
        self,
        selector: Selector,
        statuses: Sequence[Status],
        *,
        before_id: int | None = None,
        from_id: int | None = None,
    ) -> Sequence[int]:
        """The documents whose reading would end with these of its jobs, if they are of one of the statuses."""

    def jobs_lacking(self) -> Sequence[ErrorCount]:
        """What pending jobs wait for that their machine lacks: with each sentence, how many do."""

    def errors(
        self, *, since: str, to_retry: Collection[str] | None = None, is_open: bool = False, owner: str | None = None
    ) -> Sequence[ErrorCount]:
        """Of the jobs that have failed since then, by code and type; the most frequent first. `is_open`: only those
        whose work nothing newer has done. `to_retry`: of these only those with such a code that a retry would take."""

    def newest_id(self) -> int:
        """Of all jobs; 0: there is none."""

    def ended_between(self, since: str, until: str, *, sample: int = 200) -> WorkDone:
        """What has ended since then and before `until`; the waits of about so many jobs, spread over all of them."""

    def names(self, column: str, prefix: str, *, most: int = 50) -> Sequence[str]:
        """Values that begin with `prefix`, for completion: of a job's column such as 'owner'; 'document': ids;
        'handler': the types that workers have said they can run."""

    def next_deadline(self) -> datetime | None:
        """When a held job, a pause or a rest next runs out."""

    def could_begin(self, worker_id: str, job_class: str, *, most: int) -> int:
        """How many more jobs of this class the worker could start now, if it had room for them; counted up to `most`.
        What is due counts."""

    def comes_due(self, worker_id: str, until: datetime) -> bool:
        """Whether a job that this worker can run waits for nothing but a time, and that one comes by then."""

    def database_id(self) -> str:
        """When its tables were made: a copy and a backup have the same, any other database another."""

    def change_counter(self) -> int:
        """A number that changes when anybody else commits. Costs microseconds."""


class Library(Protocol):
    """Documents for everyone who reads. Only pages of a document's current generation are shown (P11)."""

    def documents(
        self, selector: DocumentSelector, *, most: int = 50, before_id: int | None = None
    ) -> Sequence[Document]:
        """The newest first; the next page begins before the last id of this one."""

    def document_ids(self, selector: DocumentSelector) -> Sequence[int]:
        """The oldest first."""

    def document(self, document_id: int) -> Document:
        """Raise `DocumentNotFound` if there is none."""

    def provenance(self, documents: Sequence[Document]) -> Mapping[int, Provenance]:
        """Of each that is still there, by its id."""

    def not_brought_in(self, selector: DocumentSelector, *, most: int = 50) -> Sequence[Job]:
        """The jobs that failed before there was a document, each the last try for its source; the newest first."""

    def pace(self, *, most: int = 200) -> Pace | None:
        """Of the newest documents that were read from an original. None: nobody knows of any how long it took."""

    def counts_by_state(self) -> Mapping[str, int]:
        """How many documents there are in each state."""

    def page_summaries(self, document_id: int) -> Sequence[PageSummary]: ...

    def page_texts(
        self, document_id: int, first: int = 1, last: int | None = None, *, with_layout: bool = False
    ) -> Sequence[PageResult]: ...

    def actions_of(self, document_id: int) -> Sequence[AskedAction]:
        """What follows, or has followed; the newest generation first."""

    def actions_of_owners(self) -> Sequence[OwnersAction]:
        """By the names of owners."""

    def job_files(self, job_id: int) -> Sequence[PublishedFile]:
        """Those of its newest attempt that published any."""

    def files(self, document_id: int) -> Sequence[PublishedFile]:
        """All that were published of it, the newest first."""

    def copies(self, owner: str, platform: str, source_keys: Collection[str]) -> Mapping[str, str]:
        """By key, of those of these files that were read: where their copies were put below the workspace."""

    def search(
        self,
        query: str,
        *,
        owner: str | None = None,
        document_id: int | None = None,
        batch_id: int | None = None,
        most: int = 20,
        marks: tuple[str, str] = ("[", "]"),
        is_sure: bool = False,
    ) -> SearchResult:
        """The best pages: words, "a phrase", a NEAR b, a OR b, a NOT b, begin*. Accents, case and signs do not
        matter, and whatever people type is a search, if it has a letter or a digit.

        Of very many hits only the pages stored last are compared, and the answer says so. `is_sure` leaves out pages
        that were recognised with less than `CONFIDENCE_LEAST` per cent confidence."""

    def doubtful_layouts(self, *, documents: int, most: int) -> Sequence[tuple[int, str]]:
        """Return document and layout of at most `most` pages below `CONFIDENCE_LEAST`, of the newest documents."""

    def marked(self, document_id: int, number: int, query: str, marks: tuple[str, str]) -> str | None:
        """The text of a page with what a search finds on it between `marks`. None: it finds nothing there."""

    def keyword_counts(
        self,
        terms: Sequence[str],
        *,
        owner: str | None = None,
        batch_id: int | None = None,
        document_ids: Sequence[int] | None = None,
    ) -> Sequence[KeywordCount]:
        """How often each term (a word, a phrase, or begin*) stands on each page, where it does. `document_ids`: of
        these alone, which costs nothing for all the others."""


class Upkeep(Protocol):
    """For the operator and the daemon's chores."""

    def weigh(self, document_ids: Sequence[int]) -> Weight:
        """What would be freed if these were removed."""

    def remove_documents(self, document_ids: Sequence[int], *, actor: str) -> Removed:
        """Remove documents with their files, for good, but for those that a job still works for. From then on nobody
        sees them. Their pages are forgotten by `forget_gone`; what others have as well stays."""

    def sizes_by_owner(self) -> Sequence[OwnerSize]:
        """The largest first. What two share counts for both."""

    def size_of_all(self) -> tuple[int, int]:
        """How many files are published, and their bytes."""

    def forget_gone(self, most: int = 1000) -> int:
        """Remove up to `most` pages of documents that were removed, and as many results that nobody refers to any more.
        Call again until it returns 0."""

    def forget_pages(self, most: int = 1000) -> int:
        """Remove up to `most` pages, results and files that nobody refers to any more, of each. Call again until it
        returns 0."""

    def gone_files(self, most: int = 1000) -> Sequence[str]:
        """Paths below the workspace that nothing in the database names any more."""

    def forget_gone_files(self, paths: Sequence[str]) -> None:
        """They are removed."""

    def links_due(self, most: int = 100) -> Sequence[int]:
        """Documents whose names in the workspace have to be looked at again; 0: all of them."""

    def document_ids(self, after: int = 0, most: int = 100) -> Sequence[int]:
        """Those with larger ids, in their order; also those that are gone, and whose links are not."""

    def link_facts(self, document_id: int) -> LinkFacts | None:
        """None: it is gone."""

    def links_of(self, document_id: int) -> Sequence[tuple[str, str]]:
        """The links that it has: path, and what it leads to ('': it is to go)."""

    def save_links(self, wanted: Sequence[Links]) -> None:
        """Give each document its names, those that are free; what it had before is to go."""

    def links_made(self, document_ids: Sequence[int]) -> None:
        """Their links are there, and what was to go is gone."""

    def unknown_types(self) -> Sequence[str]:
        """Of the jobs that are ready: the types for which no worker that lives has a handler."""

    def fail_unknown(self, job_type: str, *, since: datetime, most: int = 1000) -> Sequence[int]:
        """End up to `most` jobs of such a type, ready since then or longer, as failed with UNKNOWN_TYPE."""

    def check(self) -> Sequence[Check]:
        """Look for what is wrong with the database and its surroundings."""

    def audit(self) -> Sequence[str]:
        """A sentence for each promise that the rows, or the history that was kept of them, break. Reads all of it."""

    def published_files(self, *, after: int, most: int) -> Sequence[PublishedPath]:
        """The files with greater ids, in the order of their ids."""

    def is_published(self, file_id: int) -> bool: ...

    def rebuild_search(self) -> int:
        """Build the full-text index again from the stored pages. Return how many pages it has."""

    def ensure_wal_mode(self) -> None:
        """Put the database into WAL mode, or raise `StoreBusy` or `StoreUnusable`."""

    def tidy(self, *, at_once: bool = False) -> None:
        """Bring in what could not be brought in because somebody was reading, if it is much."""


class Notices(Protocol):
    """For who tells people what has happened."""

    def newest(self) -> int:
        """The id of the newest; 0: there is none."""

    def after(self, notice_id: int, *, most: int = 1000) -> Sequence[Notice]:
        """The oldest first."""

    def prune(self, before: datetime, *, most: int = 1000) -> int:
        """Remove up to `most` of the oldest, if they are older than this."""

    def begin(self, reader: str) -> int:
        """How far this reader has come. One that was never there begins with what happens from now on."""

    def tell(self, reader: str, since: int, upto: int, jobs: Sequence[NewJob]) -> Sequence[Enqueued] | None:
        """The reader has come from `since` to `upto`, and these jobs carry what it has to tell: both or neither.
        None: another has told it already."""

    def note(self, kind: str, episodes: Sequence[Episode]) -> None:
        """These last at the moment. One that begins becomes a notice; one that is not there any more has ended, and
        becomes another when it comes back."""


class Tokens(Protocol):
    """For who lets people and programs in from outside. Secrets never come here, only their digests."""

    def make(self, new: NewToken) -> int | None:
        """Its id; an action of whoever made it. None: a token of this name is there already."""

    def begin_session(self, token_id: int, new: NewToken) -> int | None:
        """A session, by a token or a link, which it uses up. None: that is gone, out of date, or used up."""

    def find(self, token_id: int) -> tuple[Token, str] | None:
        """With the digest of its secret, out of date or not."""

    def list(self) -> Sequence[Token]:
        """All of them, the oldest first."""

    def remove(self, ids: Sequence[int], *, actor: str | None) -> int:
        """With their sessions. How many were there. Without an actor it is no action: a browser goes out."""

    def note_use(self, used: Mapping[int, str]) -> None:
        """When each was used last."""

    def forget_old(self) -> int:
        """Remove links and sessions that are out of date."""


class Requests(Protocol):
    """For wishes that come with a key, and may come again: each is granted once."""

    def find(self, key: str) -> GrantedRequest | None: ...

    def granting(self, key: str, wish: str) -> AbstractContextManager[None]:
        """The first transaction that is committed in here tells of it; whoever comes second is refused (`AskedTwice`),
        and nothing of theirs is done."""

    def answered(self, key: str, wish: str, status: int, answer: str, location: str | None) -> None:
        """What is told from now on, and forgotten after a month."""

    def forget(self, key: str, wish: str) -> None:
        """It was refused."""


class Watch(Protocol):
    """For a loop, which learns from it that somebody else has committed, and that the database is still the one that it
    has opened."""

    @property
    def look_at(self) -> float | None:
        """When to ask again, because a hint was not followed by a commit yet."""

    @property
    def is_doubtful(self) -> bool:
        """Something was done to the files: ask for the fault."""

    def fileno(self) -> int | None:
        """Readable when something may have happened. None: this system gives no hints."""

    def has_changed(self) -> bool:
        """Whether anybody has committed since the last call. Asked once in each turn, before what is written in it."""

    def fault(self) -> str | None:
        """What is wrong with the files, in a sentence: what is written from now on would be lost."""

    def close(self) -> None: ...


class Store(Protocol):
    """All parts, over one database."""

    @property
    def intake(self) -> Intake: ...
    @property
    def schedules(self) -> Schedules: ...
    @property
    def leases(self) -> Leases: ...
    @property
    def steering(self) -> Steering: ...
    @property
    def batches(self) -> Batches: ...
    @property
    def reading(self) -> Reading: ...
    @property
    def library(self) -> Library: ...
    @property
    def upkeep(self) -> Upkeep: ...
    @property
    def notices(self) -> Notices: ...
    @property
    def tokens(self) -> Tokens: ...
    @property
    def requests(self) -> Requests: ...

    def watch(self) -> Watch: ...

    def hurried(self) -> Store:
        """The same, for what may be lost in a power cut. It is closed with this one."""

    def close(self) -> None: ...
