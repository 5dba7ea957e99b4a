"""Problems that need a user's attention, worst first, each with what helps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from msgspec import Struct, field

from worker_service.base.clock import as_text
from worker_service.base.humanize import counted
from worker_service.jobs.batches import Batch, BatchState
from worker_service.jobs.counts import ErrorCount
from worker_service.jobs.job import Gate, Job
from worker_service.services.batches import list_batches
from worker_service.services.database import Session
from worker_service.services.health import Level, check_health
from worker_service.services.job_advice import NEXT_MOVES, is_given_up
from worker_service.services.overview import Overview, title_of_pause
from worker_service.services.schedules import TICKS, overdue_schedules
from worker_service.web.views.template_filters import capitalised

_PERIOD, _PERIOD_WORD = timedelta(days=1), "1d"
"""Failures older than this raise no alert."""
_CODES_MAX = 4
_BATCHES_MAX = 5

_FAILED_TO = {
    "ingest": "could not be read", "ocr_pages": "could not be read", "extract_rows": "could not be read",
    "assemble": "could not be read", "download": "could not be added",
}  # fmt: skip
"""Failures of job types that each process one file."""


class Alert(Struct, frozen=True):
    level: Level
    title: str
    detail: str = ""
    code: str = ""
    command: Sequence[str] = ()
    """Arguments of the `pagemill` command that helps, if there is one."""
    advice: str = ""
    """Remedy if no `pagemill` command helps."""
    button: str = ""
    """unpause, retry, resume, retry_batch, show or errors; empty if the page offers no action."""
    target: Mapping[str, str] = field(default_factory=dict)
    """Target of the button: fields of a selector or of a pause, or batch_id."""


def list_alerts(session: Session, overview: Overview | None, *, owner: str | None = None) -> list[Alert]:
    """Return the alerts. `overview` is None for a user who may see only one owner's data."""
    alerts = [*_failures(session, owner), *_batches(session, owner)]
    if overview is not None:
        alerts += [*_service(overview), *_pauses(overview), *_missing(session), *_schedules(session)]
    return sorted(alerts, key=lambda one: -one.level)


# ── The service ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _service(overview: Overview) -> Iterator[Alert]:
    """Yield the reasons that `pagemill status` gives, except pauses: `_pauses` reports each of them."""
    for reason in check_health(overview).reasons:
        if reason.code == "NO_WORKER":
            detail = "No job starts until one is running."
            yield Alert(
                Level.CRITICAL,
                "No worker is running",
                detail,
                "",
                ("run",),
                "Start the service: systemctl start pagemill",
            )
        elif reason.code == "DISK_LOW":
            advice = "Free some space, for example by removing documents that are no longer needed."
            yield Alert(Level.CRITICAL, "The disk is nearly full", reason.detail, "", ("stats",), advice)
        elif reason.code == "STANDSTILL":
            # A paused type has its own alert.
            if overview.standstill[0].code != "PAUSED":
                yield _standstill(overview.standstill)
        elif reason.code == "READ_ONLY":
            yield Alert(reason.level, "The database cannot be written", reason.detail, "", (), reason.remedy)
        elif reason.code != "ALL_PAUSED":
            yield Alert(reason.level, capitalised(reason.detail), command=("workers",))


def _standstill(gates: Sequence[Gate]) -> Alert:
    gate = gates[0]
    detail = gate.detail + (f", and {counted(len(gates) - 1, 'other reason')}" if len(gates) > 1 else "")
    advice = NEXT_MOVES[gate.code] if gate.code in ("CAPABILITY_MISSING", "SOURCE_RESTING") else ""
    advice, command = capitalised(gate.remedy or advice), ("ls", "--status", "pending")
    target = {"status": "pending"}
    return Alert(Level.WARNING, "No pending job can start", detail, gate.code, command, advice, "show", target)


def _pauses(overview: Overview) -> Iterator[Alert]:
    for one in overview.pauses:
        title = f"{capitalised(title_of_pause(one.scope, one.name))} is paused"
        until = f"until {one.until[:16]} UTC" if one.until else ""
        arguments = {"all": ("--all",), "type": (one.name,), "owner": ("--owner", one.name)}[one.scope]
        target = {"scope": one.scope, "name": one.name}
        detail = ": ".join(filter(None, [until, one.reason]))
        yield Alert(Level.WARNING, title, detail, "", ("unpause", *arguments), "", "unpause", target)


def _missing(session: Session) -> Iterator[Alert]:
    for handler in session.overview.handlers_lacking():
        title = f"No {handler.job_type} job can start"
        yield Alert(Level.WARNING, title, handler.missing or "", "", ("doctor",), handler.missing_remedy)
    for one in session.overview.jobs_lacking():
        title = f"{counted(one.jobs, f'{one.job_type} job')} wait for a missing program"
        yield Alert(Level.WARNING, title, one.newest_message or "", "", ("doctor",), one.newest_remedy or "")


def _schedules(session: Session) -> Iterator[Alert]:
    if names := overdue_schedules(session):
        title = f"The scheduler is off: {', '.join(names)} will not start"
        yield Alert(Level.WARNING, title, "", "", ("schedule", "ls"), TICKS)


# ── Failures and batches ────────────────────────────────────────────────────────────────────────────────────────────


def _failures(session: Session, owner: str | None) -> Iterator[Alert]:
    """Group the failures by code: the same remedy helps for all job types."""
    since = as_text(session.clock() - _PERIOD)
    by_code: dict[str, list[ErrorCount]] = {}
    for one in session.overview.errors(since=since, is_open=True, owner=owner):
        by_code.setdefault(one.code or "", []).append(one)
    most_first = sorted(by_code.items(), key=lambda item: -sum(one.jobs for one in item[1]))
    for code, counts in most_first[:_CODES_MAX]:
        yield _failure(session, code, counts)
    if more := sum(one.jobs for _, counts in most_first[_CODES_MAX:] for one in counts):
        title = f"{counted(more, 'more job')} failed, for other reasons"
        yield Alert(Level.OK, title, command=("errors", "--since", _PERIOD_WORD), button="errors")


def _failure(session: Session, code: str, counts: Sequence[ErrorCount]) -> Alert:
    newest = max(counts, key=lambda one: one.newest_at)
    target = {"status": "failed", "since": _PERIOD_WORD} | ({"error": code} if code else {"type": newest.job_type})
    title = _title_of_failures(counts if code else [newest])
    job = session.reading.get(newest.newest_job_id)
    if is_given_up(job):
        # A retry would end in the same way, so none is offered.
        why = ("why", str(job.id))
        return Alert(Level.WARNING, title, newest.newest_message or "", code, why, advice_on_retry(job), "show", target)
    options = [word for name, value in target.items() for word in (f"--{name}", value)]
    return Alert(Level.WARNING, title, newest.newest_text, code, ("retry", *options), "", "retry", target)


def advice_on_retry(job: Job) -> str:
    """Return advice for a job whose retry would fail again. The page has a button to retry it."""
    remedy = capitalised(job.error_remedy or "It would fail again in the same way")
    return f"{remedy}. Retry it when the cause is fixed."


def _title_of_failures(counts: Sequence[ErrorCount]) -> str:
    """Return a title such as `report.pdf could not be read`, or `3 files could not be read`."""
    jobs = sum(one.jobs for one in counts)
    failed_to = {_FAILED_TO.get(one.job_type, "") for one in counts}
    if len(failed_to) == 1 and "" not in failed_to:
        name = counts[0].newest_name if jobs == 1 else None
        return f"{name or counted(jobs, 'file')} {failed_to.pop()}"
    return f"{counted(jobs, f'{counts[0].job_type} job' if len(counts) == 1 else 'job')} failed"


def _batches(session: Session, owner: str | None) -> Iterator[Alert]:
    since = as_text(session.clock() - _PERIOD)
    for batch in _in_state(session, owner, BatchState.STOPPED):
        title = f"{capitalised(batch.title)} is stopped"
        yield _batch_alert(batch, Level.OK, title, batch.note or "", "resume")
    for batch in _in_state(session, owner, BatchState.WAITING):
        if batch.replaced_by is not None:
            title = f"{capitalised(batch.title)} waits for batch {batch.replaced_by}"
            yield _batch_alert(batch, Level.OK, title, "It resumes when that batch ends.", "resume")
    for batch in _in_state(session, owner, BatchState.FAILED):
        if (batch.ended_at or "") >= since:
            title = f"{capitalised(batch.title)} ended with failures"
            yield _batch_alert(batch, Level.WARNING, title, batch.note or "", "retry_batch")


def _in_state(session: Session, owner: str | None, state: BatchState) -> Sequence[Batch]:
    owners = () if owner is None else (owner,)
    return [one.batch for one in list_batches(session, owners=owners, states=[state], limit=_BATCHES_MAX).items]


def _batch_alert(batch: Batch, level: Level, title: str, detail: str, button: str) -> Alert:
    command = ("batch", button.removesuffix("_batch"), str(batch.id))
    return Alert(level, title, detail, "", command, "", button, {"batch_id": str(batch.id)})
