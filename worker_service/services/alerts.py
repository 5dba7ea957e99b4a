"""Problems that need a user's attention and what to do about each, worst first. Read-only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from msgspec import Struct, field

from worker_service.base.clock import as_text
from worker_service.base.humanize import counted
from worker_service.jobs.batches import BatchState
from worker_service.jobs.counts import ErrorCount
from worker_service.services.database import Session
from worker_service.services.health import Level, check_health
from worker_service.services.jobs import NEXT_MOVES, helps, is_given_up
from worker_service.services.overview import Overview, title_of_pause
from worker_service.services.schedules import TICKS, unticked

_LATELY = timedelta(days=1)
_CODES_MOST = 4
_BATCHES_MOST = 5


class Matter(Struct, frozen=True):
    """A problem, or an event that the user may want to act on."""

    level: Level
    title: str
    detail: str = ""
    command: Sequence[str] = ()
    """Arguments of the `pagemill` command that helps, if there is one."""
    advice: str = ""
    """Remedy if no `pagemill` command helps."""
    verb: str = ""
    """Action of the web page: unpause, retry, resume, retry_batch, look or errors; empty if it offers none."""
    about: Mapping[str, str] = field(default_factory=dict)
    """Object of the verb: fields of a selector or of a pause, or batch_id."""


def attention(session: Session, overview: Overview | None, *, owner: str | None = None) -> list[Matter]:
    """Return the alerts. `overview` is None for a user who may see only the things of one owner."""
    found = [*_failures(session, owner), *_batches(session, owner)]
    if overview is not None:
        found += [*_state(overview), *_pauses(overview), *_lacking(session), *_schedules(session)]
    return sorted(found, key=lambda one: -one.level)


def _state(overview: Overview) -> Iterator[Matter]:
    """Yield the reasons that `pagemill status` gives, except pauses: `_pauses` reports each of them."""
    standstill = overview.standstill
    for reason in check_health(overview).reasons:
        if reason.code == "ALL_PAUSED":
            continue
        if reason.code == "NO_WORKER":
            waits = overview.counts.oldest_pending_at is not None
            detail = "Nothing starts until one does." if waits else "Nothing that comes in will start until one does."
            yield Matter(Level.CRITICAL, "No worker is running", detail, ("run",), "systemctl start pagemill")
        elif reason.code == "STANDSTILL":
            gate = standstill[0]
            more = f", and {len(standstill) - 1} more" if len(standstill) > 1 else ""
            advice = NEXT_MOVES[gate.code] if gate.code in ("CAPABILITY_MISSING", "SOURCE_RESTING") else ""
            if gate.code != "PAUSED":
                advice = gate.remedy or advice
                title, about = f"Nothing that waits can start: {gate.code}", {"status": "pending"}
                words = ("ls", "--status", "pending")
                yield Matter(Level.WARNING, title, gate.detail + more, words, advice, "look", about)
        elif reason.code == "DISK_LOW":
            advice = "free some space: documents that nobody needs can be removed"
            yield Matter(Level.CRITICAL, "The disk is nearly full", reason.detail, ("stats",), advice)
        elif reason.code == "READ_ONLY":
            yield Matter(reason.level, "The database cannot be written", reason.detail, (), reason.remedy)
        else:
            yield Matter(reason.level, reason.detail[:1].upper() + reason.detail[1:], "", ("workers",))


def _failures(session: Session, owner: str | None) -> Iterator[Matter]:
    """Group the failures by code: the same remedy helps for all job types."""
    since = as_text(session.clock() - _LATELY)
    by_code: dict[str, list[ErrorCount]] = {}
    for one in session.store.reading.errors(since=since, is_open=True, owner=owner):
        by_code.setdefault(one.code or "", []).append(one)
    most_first = sorted(by_code.items(), key=lambda item: -sum(one.jobs for one in item[1]))
    for code, counts in most_first[:_CODES_MOST]:
        newest = max(counts, key=lambda one: one.newest_at)
        about = {"status": "failed", "since": "1d"} | ({"error": code} if code else {"type": newest.job_type})
        jobs = sum(one.jobs for one in counts) if code else newest.jobs
        kind = f"{newest.job_type} job" if len(counts) == 1 or not code else "job"
        words = [word for name, value in about.items() for word in (f"--{name}", value)]
        title = f"{counted(jobs, kind)} failed: {code or 'no code'}"
        job = session.store.reading.get(newest.newest_job_id)
        if is_given_up(job):
            # A retry would end in the same way, so none is offered.
            command = ("why", str(job.id))
            yield Matter(Level.WARNING, title, newest.newest_message or "", command, helps(job), "look", about)
        else:
            yield Matter(Level.WARNING, title, newest.newest_text, ("retry", *words), "", "retry", about)
    if more := sum(one.jobs for _, counts in most_first[_CODES_MOST:] for one in counts):
        yield Matter(
            Level.OK,
            f"{counted(more, 'more job')} failed, for other reasons",
            "",
            ("errors", "--since", "1d"),
            verb="errors",
        )


def _batches(session: Session, owner: str | None) -> Iterator[Matter]:
    owners, since = () if owner is None else (owner,), as_text(session.clock() - _LATELY)
    for one in session.store.batches.list(owners=owners, states=[BatchState.STOPPED], most=_BATCHES_MOST):
        title = f"{one.title[:1].upper()}{one.title[1:]} is stopped"
        words = ("batch", "resume", str(one.id))
        yield Matter(Level.OK, title, one.note or "", words, "", "resume", {"batch_id": str(one.id)})
    for one in session.store.batches.list(owners=owners, states=[BatchState.WAITING], most=_BATCHES_MOST):
        if one.replaced_by is not None:
            title = f"{one.title[:1].upper()}{one.title[1:]} was replaced by batch {one.replaced_by}"
            words, about = ("batch", "resume", str(one.id)), {"batch_id": str(one.id)}
            yield Matter(Level.OK, title, "It resumes when that batch ends.", words, "", "resume", about)
    for one in session.store.batches.list(owners=owners, states=[BatchState.FAILED], most=_BATCHES_MOST):
        if (one.ended_at or "") >= since:
            title = f"{one.title[:1].upper()}{one.title[1:]} ended with failures"
            words = ("batch", "retry", str(one.id))
            yield Matter(Level.WARNING, title, one.note or "", words, "", "retry_batch", {"batch_id": str(one.id)})


def _pauses(overview: Overview) -> Iterator[Matter]:
    for one in overview.pauses:
        what = title_of_pause(one.scope, one.name)
        until = f"until {one.until[:16]} UTC" if one.until else "until somebody lifts it"
        words = {"all": ("--all",), "type": (one.name,), "owner": ("--owner", one.name)}[one.scope]
        detail = ": ".join(filter(None, [until, one.reason]))
        title = f"{what[:1].upper()}{what[1:]} is paused"
        yield Matter(
            Level.WARNING, title, detail, ("unpause", *words), "", "unpause", {"scope": one.scope, "name": one.name}
        )


def _lacking(session: Session) -> Iterator[Matter]:
    for handler in session.store.reading.handlers_lacking():
        title = f"No {handler.job_type} job can start"
        yield Matter(Level.WARNING, title, handler.missing or "", ("doctor",), handler.missing_remedy)
    for waiting in session.store.reading.jobs_lacking():
        title = f"{counted(waiting.jobs, f'{waiting.job_type} job')} lack something of this machine"
        detail, remedy = waiting.newest_message or "", waiting.newest_remedy or ""
        yield Matter(Level.WARNING, title, detail, ("doctor",), remedy)


def _schedules(session: Session) -> Iterator[Matter]:
    if names := unticked(session):
        yield Matter(Level.WARNING, f"Nobody begins {', '.join(names)}", "Nothing ticks.", ("schedule", "ls"), TICKS)
