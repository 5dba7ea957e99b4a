"""Wait until documents have been read, and tell meanwhile how far they are.

A document is waited for by the job that brings it in, as long as that lives, and then by its own state: what it was
before is no answer. Who is told, and how, is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from worker_service.clock import parse_length
from worker_service.errors import WaitTimedOut
from worker_service.jobs.documents import IndexStatus
from worker_service.jobs.library import Document, DocumentSelector
from worker_service.jobs.model import Job, Status
from worker_service.jobs.selector import Selector
from worker_service.store.base import Store

_POLL_SECONDS = 0.1
_BREATHS = 5
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Awaited:
    name: str
    """What people call it."""
    job_id: int | None = None
    """The job that has it read."""
    document_id: int | None = None
    owner: str = ""
    source_key: str = ""
    """Of a file, whose document is not known yet."""


@dataclass(frozen=True, slots=True)
class Unread:
    """What could not be read, and why."""

    name: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Reading:
    """How far those are that somebody waits for."""

    documents: int
    ended: int
    pages_done: int
    pages: int
    pages_left: int | None
    """Of those that have not ended. None: of one, nobody has counted the pages yet."""
    failed: Sequence[Unread] = ()


Watch = Callable[[Reading], None]


def wait_for(
    store: Store,
    awaited: Sequence[Awaited],
    *,
    timeout: str | None,
    monotonic: Callable[[], float],
    sleep: Callable[[float], None],
    watch: Watch | None = None,
) -> Reading:
    """Return once each has been read, or has failed. Looks only when somebody has committed something."""
    deadline = None if timeout is None else monotonic() + parse_length(timeout).total_seconds()
    seen: int | None = None
    reading, looked_seconds = Reading(len(awaited), 0, 0, 0, None), 0.0
    while True:
        # The counter first: what is committed after this look is seen by the next.
        if (now_at := store.reading.change_counter()) != seen:
            seen, begun = now_at, monotonic()
            reading = _look(store, awaited)
            looked_seconds = monotonic() - begun
        if watch is not None:
            watch(reading)
        if reading.ended >= len(awaited):
            return reading
        if deadline is not None and monotonic() >= deadline:
            raise WaitTimedOut(f"after {timeout}, {len(awaited) - reading.ended} of {len(awaited)} were not read")
        # To look at thousands of documents takes a while: it is not to be all that this machine does.
        sleep(max(_POLL_SECONDS, _BREATHS * looked_seconds))


def _look(store: Store, awaited: Sequence[Awaited]) -> Reading:
    jobs = {job.id: job for job in _jobs(store, [one.job_id for one in awaited if one.job_id])}
    # After the jobs: what a completion has made of its document is seen as well.
    by_id = {one.id: one for one in _documents(store, DocumentSelector(ids=_ids(awaited)))} if _ids(awaited) else {}
    by_source = {(one.owner, one.source_key): one for one in _documents(store, _sources(awaited))}
    ended, failed, found = 0, list[Unread](), dict[int, Document]()
    left: list[int | None] = []
    for one in awaited:
        job = jobs.get(one.job_id or 0)
        if job is not None and not job.status.is_ended:
            left.append(None)
            continue
        document = by_id.get(one.document_id) if one.document_id else by_source.get((one.owner, one.source_key))
        if document is not None:
            found[document.id] = document
        if (unread := _unread(one, job, document)) is not None:
            failed.append(unread)
        elif document is not None and document.status in (IndexStatus.QUEUED, IndexStatus.INDEXING):
            left.append(None if document.pages is None else document.pages - _done(document))
            continue
        # Nobody reads what is not indexed: there is nothing to wait for.
        ended += 1
    return Reading(
        len(awaited),
        ended,
        sum(map(_done, found.values())),
        sum(one.pages or 0 for one in found.values()),
        None if None in left else sum(number or 0 for number in left),
        failed,
    )


def _unread(one: Awaited, job: Job | None, document: Document | None) -> Unread | None:
    if job is not None and job.status is not Status.COMPLETED:
        what = job.error_code or job.status.upper()
        return Unread(one.name, what, job.error_message or f"job {job.id} is {job.status}")
    if document is None:
        return Unread(one.name, "GONE", "neither its job nor a document of it is there any more")
    if document.status is IndexStatus.FAILED:
        return Unread(one.name, document.error_code or "FAILED", document.error_message or "")
    return None


def _done(document: Document) -> int:
    # What people read meanwhile is not what was waited for.
    return 0 if document.has_failed_anew else document.percent * (document.pages or 0) // 100


def _ids(awaited: Sequence[Awaited]) -> Sequence[int]:
    return [one.document_id for one in awaited if one.document_id]


def _sources(awaited: Sequence[Awaited]) -> DocumentSelector:
    unknown = [one for one in awaited if not one.document_id]
    owners = dict.fromkeys(one.owner for one in unknown)
    return DocumentSelector(
        owners=list(owners) or ("",), platforms=("local",), source_keys=[one.source_key for one in unknown] or ("",)
    )


def _jobs(store: Store, ids: Sequence[int]) -> Iterator[Job]:
    for start in range(0, len(ids), _AT_ONCE):
        part = ids[start : start + _AT_ONCE]
        yield from store.reading.list(Selector(ids=part), most=len(part))


def _documents(store: Store, selector: DocumentSelector) -> Iterator[Document]:
    before: int | None = None
    while found := store.library.documents(selector, most=_AT_ONCE, before_id=before):
        yield from found
        before = found[-1].id
