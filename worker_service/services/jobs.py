"""Queries about jobs: list them, show one in full, explain why it waits, read its log. Read-only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from worker_service.base.clock import as_text, from_text, wall_clock
from worker_service.base.errors import JobNotFound
from worker_service.base.humanize import length, size
from worker_service.jobs.attempts import AttemptRow
from worker_service.jobs.documents import PublishedFile
from worker_service.jobs.history import LOG_LINES_MOST, Event, LogLine
from worker_service.jobs.job import WATCHING, Gate, Job, Status
from worker_service.jobs.progress import pace_of
from worker_service.jobs.selector import Selector
from worker_service.services.database import Session
from worker_service.services.queries import IDS_AT_ONCE, chunks, cut_page, poll
from worker_service.settings.config import Settings

_LOG_LINES_SHOWN = 10
_LOOKED_AT_MOST = 100
_STRETCH = 10_000

# Gates that open on their own; a job held only by these will start without help.
_BY_ITSELF = {
    "NOT_YET",
    "WAITS_FOR",
    "OWNER_BUSY",
    "KEY_BUSY",
    "TYPE_FULL",
    "SLOTS_FULL",
    "AHEAD_IN_QUEUE",
    "BATCH_WAITING",
}

_AT_ONCE = "to have it at once: pagemill run-now {id}"
NEXT_MOVES = {
    "WORKER_DOWN": "systemctl start pagemill, or here: pagemill run",
    "PAUSED": "to lift it: pagemill unpause {job_type}, or --owner NAME, or --all; `pagemill` alone shows the pauses",
    "BATCH_STOPPED": "to go on with it: pagemill batch resume {batch_id}",
    "BATCH_WAITING": "its turn comes by itself; to start it now: pagemill batch resume {batch_id}; what is before it: "
    "pagemill batch ls --owner '{owner}'",
    "DRAINING": "wait until the worker is back, or start another one",
    "NOT_YET": _AT_ONCE,
    "BACKOFF": "to see what failed: pagemill show {id}; " + _AT_ONCE,
    "WAITS_FOR": "to see what it waits for: pagemill show {id}, then pagemill why on those",
    "OWNER_BUSY": "to see what runs: pagemill ls --status running --owner '{owner}'",
    "KEY_BUSY": "to see what runs: pagemill ls --status running",
    "TYPE_FULL": "to see what runs: pagemill ls --status running --type {job_type}",
    "SLOTS_FULL": "to see what runs: pagemill ls --status running",
    "NO_NODE": "to see how they are, and why: pagemill cluster",
    "CAPABILITY_MISSING": "install what is missing, then restart the worker; what says when it starts again needs "
    "no restart",
    "UNKNOWN_TYPE": "install a handler for {job_type}, then: systemctl restart pagemill (a daemon looks for handlers "
    "when it starts); or, if the name is wrong: pagemill delete {id}",
    "DISK_LOW": "free some space: pagemill stats tells who keeps how much, pagemill documents rm removes",
    "SOURCE_RESTING": "wait: the source asked for it, and all its jobs go on together",
    "AHEAD_IN_QUEUE": "to move it ahead: pagemill priority 1 {id}",
}


class JobPage(Struct, frozen=True):
    items: Sequence[Job]
    """Newest first."""
    next: int | None
    """The `before_id` of the next page; None on the last page."""


class FoundJobs(JobPage, frozen=True):
    is_partial: bool
    """The search was cut off by the time limit: there may be more jobs below `next`."""


class Needed(NamedTuple):
    """A job that another job waits for."""

    id: int
    status: str
    """A job status, or 'gone'."""


class NextMove(Gate, frozen=True):
    """A gate, and what to do about it."""

    next: str = ""


class JobDetails(Struct, frozen=True):
    job: Job
    attempts: Sequence[AttemptRow]
    events: Sequence[Event]
    waits_for: Sequence[Needed]
    files: Sequence[PublishedFile]
    """Files with full paths."""
    log: Sequence[LogLine]
    """The last lines only."""


class Why(Struct, frozen=True):
    """Why a job is not running, or how its attempt is doing."""

    job: Job
    gates: Sequence[NextMove]
    worker_state: str
    """State of the worker that runs the job; empty if none does."""
    helps: str
    """Advice for a job that failed, was cancelled or makes no progress; empty if nothing helps."""
    silent_seconds: float | None = None
    """Running jobs: time since the handler last reported progress or logged a line, or since the start."""
    limit_seconds: int | None = None
    """Running jobs: time limit of the attempt."""


def list_jobs(session: Session, selector: Selector, *, limit: int = 50, before_id: int | None = None) -> JobPage:
    return JobPage(*cut_page(session.reading.list(selector, most=limit + 1, before_id=before_id), limit))


def find_jobs(
    session: Session,
    selector: Selector,
    *,
    limit: int,
    before_id: int | None = None,
    seconds: float,
    monotonic: Callable[[], float] = time.monotonic,
) -> FoundJobs:
    """List jobs for at most about `seconds`, for selectors that no index supports.

    The table is searched one range of ids after the other.
    """
    reading, most = session.reading, limit + 1
    found, above = list[Job](), 1
    for above, below in id_ranges(session, seconds, before_id=before_id, monotonic=monotonic):
        found += reading.list(selector, most=most - len(found), before_id=below, from_id=above)
        if len(found) == most:
            return FoundJobs(found[:limit], found[limit - 1].id, is_partial=False)
    return FoundJobs(found, above if above > 1 else None, is_partial=above > 1)


def id_ranges(
    session: Session,
    seconds: float,
    *,
    before_id: int | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[int, int]]:
    """Yield ranges of job ids as (first, before), newest first, for about `seconds` or until the first job."""
    newest, begun, size = session.reading.newest_id(), monotonic(), _STRETCH
    below, deadline = newest + 1 if before_id is None else min(before_id, newest + 1), begun + seconds
    while below > 1:
        above = max(1, below - size)
        yield above, below
        below, before, begun = above, begun, monotonic()
        if begun >= deadline:
            return
        # Double the range only if that cannot take much longer than the time left.
        if begun - before < (deadline - begun) / 8:
            size *= 2


def get_job_details(session: Session, job_id: int) -> JobDetails:
    reading = session.reading
    return JobDetails(
        reading.get(job_id),
        reading.attempts(job_id),
        reading.events(job_id),
        [Needed(*one) for one in reading.waits_for(job_id)],
        [with_full_path(session, file) for file in session.store.library.job_files(job_id)],
        reading.logs(job_id, most=LOG_LINES_MOST)[-_LOG_LINES_SHOWN:],
    )


def with_full_path(session: Session, file: PublishedFile) -> PublishedFile:
    """Return the file with its full path."""
    return replace(file, path=str(session.settings.workspace / file.path))


def require_jobs(session: Session, ids: Sequence[int], owner: str | None = None) -> None:
    """Raise `JobNotFound` unless all jobs exist and, with `owner`, belong to that owner."""
    for chunk in chunks(ids):
        found = set(session.reading.ids(Selector(ids=chunk, owners=() if owner is None else (owner,))))
        for missing in (job_id for job_id in chunk if job_id not in found):
            raise JobNotFound(f"there is no job {missing}", "`pagemill ls` shows those that are there")


def why(session: Session, job_id: int) -> Why:
    from worker_service.services.overview import Overview  # not needed for listing jobs

    job, overview = session.reading.get(job_id), Overview(session)
    gates = session.reading.explain(job_id, dead=overview.dead_ids)
    state = next((one.state for one in overview.workers if one.id == job.worker_id), "")
    moves = [
        NextMove(gate.code, gate.detail, gate.remedy, gate.count, _next_move(gate, job, session.settings))
        for gate in gates
    ]
    if job.status is not Status.RUNNING:
        return Why(job, moves, "", advice_for(job))
    is_silent = pace_of(job, session.clock()).silent_seconds is not None
    move = f"to stop it at once: pagemill cancel {job.id} --now" if is_silent else ""
    return Why(job, moves, state, move, _silent_seconds(session, job), session.reading.time_limit(job_id))


def _silent_seconds(session: Session, job: Job) -> float | None:
    heard = next((one.heard_at for one in session.reading.attempts(job.id) if one.fence == job.fence), None)
    since = heard or job.started_at
    return None if since is None else max(0.0, (session.clock() - from_text(since)).total_seconds())


def stops_at(session: Session, job: Job) -> str | None:
    """Return when the time limit ends the attempt of a running job."""
    limit = session.reading.time_limit(job.id)
    if job.started_at is None or limit is None:
        return None
    return as_text(from_text(job.started_at) + timedelta(seconds=limit))


def newest_with_a_problem(session: Session) -> int | None:
    """Return the newest job that failed, lost its worker, was snoozed, or waits at a gate that needs help."""
    from worker_service.services.overview import Overview

    reading, overview = session.reading, Overview(session)
    dead = overview.dead_ids
    gone = {one.id for one in overview.workers if not one.is_alive}
    failed = reading.list(Selector(statuses=(Status.FAILED,)), most=1)
    live = reading.list(Selector(statuses=(Status.PENDING, Status.RUNNING)), most=_LOOKED_AT_MOST)

    def has_a_problem(job: Job) -> bool:
        if job.status is not Status.PENDING:
            return job.status is Status.FAILED or job.worker_id in gone
        codes = {gate.code for gate in reading.explain(job.id, dead=dead)}
        return bool(codes - _BY_ITSELF) or ("NOT_YET" in codes and was_put_off(job))

    def was_put_off(job: Job) -> bool:
        attempts = reading.attempts(job.id)
        return bool(attempts) and attempts[-1].outcome == "snoozed" and attempts[-1].error_code != WATCHING

    newest_first = sorted([*failed, *live], key=lambda job: -job.id)
    return next((job.id for job in newest_first if has_a_problem(job)), None)


def read_log(session: Session, job_id: int) -> Sequence[LogLine]:
    session.reading.get(job_id)
    return session.reading.logs(job_id, most=LOG_LINES_MOST)


def follow_log(session: Session, job_id: int) -> Iterator[LogLine]:
    """Yield the existing log lines, then new ones until the job has ended."""
    reading, after_id = session.reading, 0
    for has_ended in poll(session, lambda: reading.get(job_id).status.is_ended):
        while lines := reading.logs(job_id, after_id=after_id):
            yield from lines
            after_id = lines[-1].id
        if has_ended:
            return


def advice_for(job: Job) -> str:
    """Return advice for a job that failed or was cancelled; empty for any other job."""
    retry = f"pagemill retry {job.id}"
    if job.status is Status.CANCELLED:
        return f"to run it again: {retry}"
    if job.status is not Status.FAILED:
        return ""
    if not is_given_up(job):
        return f"it was tried {job.retry_count + 1} times; to run it again: {retry}"
    # It was given up with retries left: another attempt would have ended in the same way.
    again = f"pagemill reindex {job.document_id}" if job.document_id is not None else retry
    if job.error_remedy:
        return f"{job.error_remedy}; then: {again}"
    return f"the same would happen again; once it is put right: {again}"


def is_given_up(job: Job) -> bool:
    """Return whether it failed with retries left, so that another attempt would end in the same way."""
    return job.status is Status.FAILED and not job.retry_count >= job.max_retries > 0


def _next_move(gate: Gate, job: Job, settings: Settings) -> str:
    if gate.code == "UNKNOWN_TYPE" and _is_installed(job.job_type, settings):
        return (
            "its handler is installed, and no running daemon has it: systemctl restart pagemill (a daemon looks for "
            "handlers when it starts, and takes the types of WORKER_TYPES)"
        )
    if gate.remedy:
        return f"{gate.remedy}; then restart the worker, unless the line above says when the job starts again"
    move = NEXT_MOVES.get(gate.code, "pagemill show {id}")
    return move.format(id=job.id, job_type=job.job_type, owner=job.owner, batch_id=job.batch_id)


def _is_installed(job_type: str, settings: Settings) -> bool:
    """Return whether a handler with the job type's name is installed. Reads names only and imports nothing."""
    from worker_service.handlers import registry  # 10 ms that a listing does not need

    points = [*registry.find(), *registry.find_dropped(settings.handlers_dir)]
    return job_type in settings.commands or any(point.name == job_type for point in points)


# ── Descriptions of a job ─────────────────────────────────────────────────────────────────────────────────────────────


def progress_in_words(job: Job, *, now: datetime | None = None) -> str:
    """Describe the progress of a running job, such as `page 8 of 44 · 12 pages/min · 3 min left`."""
    pace = pace_of(job, now or wall_clock())
    parts = [job.progress_message or _count_in_words(job)]
    if pace.silent_seconds is not None:
        parts.append(f"no progress for {length(timedelta(seconds=pace.silent_seconds))}")
    if pace.rate and job.progress_unit:
        parts.append(_rate_in_words(pace.rate, job.progress_unit))
    if pace.seconds_left is not None:
        parts.append(f"{length(timedelta(seconds=pace.seconds_left))} left")
    return " · ".join(filter(None, parts))


def _count_in_words(job: Job) -> str:
    if job.progress_done is None:
        return ""
    of = "" if job.progress_total is None else f" of {job.progress_total:,}"
    return f"{job.progress_done:,}{of} {job.progress_unit or ''}".rstrip()


def _rate_in_words(rate: float, unit: str) -> str:
    if unit == "bytes":
        return f"{size(int(rate))}/s"
    return f"{rate:.0f} {unit}/s" if rate >= 10 else f"{60 * rate:.0f} {unit}/min"


def state_of(job: Job, *, now: datetime | None = None) -> str:
    """Return one word for the state of a job: its status, or what holds it while it is pending."""
    if job.status is Status.RUNNING and job.cancel_requested_at is not None:
        return "stopping"
    if job.held & 16:
        return "stopped"
    is_due = job.run_at is None or from_text(job.run_at) <= (now or wall_clock())
    for bit, word in ((1, "scheduled"), (2, "backoff"), (4, "waiting"), (8, "key-busy")):
        if job.held & bit and not (bit < 4 and is_due):
            return word
    return job.status.value


def title_of_job(job: Job) -> str:
    """Return such as `job 42 (download, report.pdf)`."""
    return f"job {job.id} ({', '.join(filter(None, [job.job_type, job.name]))})"


def each_job(session: Session, ids: Sequence[int], statuses: Sequence[Status] = ()) -> Iterator[Job]:
    for part in chunks(ids):
        yield from session.reading.list(Selector(ids=part, statuses=statuses), most=IDS_AT_ONCE)


def count_jobs(session: Session, ids: Sequence[int], statuses: Sequence[Status]) -> int:
    """Count the jobs among `ids` that have one of these statuses."""
    return sum(session.reading.count(Selector(ids=part, statuses=statuses)) for part in chunks(ids))
