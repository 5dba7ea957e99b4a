"""Problems of the service and of batches, worst first, each with what helps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct, field

from worker_service.base.humanize import counted
from worker_service.jobs.batches import Batch, BatchState
from worker_service.jobs.job import Gate
from worker_service.services.batches import list_batches
from worker_service.services.health import Level, health_reasons
from worker_service.services.job_advice import NEXT_STEP_BY_GATE
from worker_service.services.overview import Overview, title_of_pause
from worker_service.services.schedules import HOW_TO_RUN_TICKS, overdue_schedules
from worker_service.services.session import Session
from worker_service.web.views.template_filters import capitalised

_BATCHES_PER_STATE_MAX = 5


class AlertButton(Struct, frozen=True):
    label: str
    address: str
    fields: Mapping[str, str] = field(default_factory=dict)
    method: Literal["post", "link"] = "post"


class Alert(Struct, frozen=True):
    level: Level
    title: str
    detail: str = ""
    advice: str = ""
    button: AlertButton | None = None


def list_alerts(session: Session, overview: Overview | None, *, owner: str | None = None) -> list[Alert]:
    """`overview` is None for a visitor of one owner, who sees only the batches."""
    alerts = list(_batch_alerts(session, owner))
    if overview is not None:
        alerts += [
            *_service_alerts(overview),
            *_pause_alerts(overview),
            *_missing_program_alerts(session),
            *_schedule_alerts(session),
        ]
    return sorted(alerts, key=lambda alert: -alert.level)


# ── The service ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _service_alerts(overview: Overview) -> Iterator[Alert]:
    """Yield the reasons of `pagemill status`, except pauses: `_pause_alerts` reports each of them."""
    for reason in health_reasons(overview):
        if reason.code == "NO_WORKER":
            detail = "Nothing is read until one is running."
            advice = "Start the service: systemctl start pagemill. In a terminal: pagemill run"
            yield Alert(Level.CRITICAL, "No worker is running", detail, advice)
        elif reason.code == "DISK_LOW":
            advice = "Free some space, for example by removing documents that are no longer needed."
            yield Alert(Level.CRITICAL, "The disk is nearly full", reason.detail, advice)
        elif reason.code == "STANDSTILL":
            if overview.standstill[0].code != "PAUSED":
                yield _standstill_alert(overview.standstill)
        elif reason.code == "READ_ONLY":
            yield Alert(reason.level, "The database cannot be written", reason.detail, capitalised(reason.remedy))
        elif reason.code != "ALL_PAUSED":
            yield Alert(reason.level, capitalised(reason.detail), button=AlertButton("Show", "/workers", method="link"))


def _standstill_alert(gates: Sequence[Gate]) -> Alert:
    gate = gates[0]
    other_reasons = f", and {counted(len(gates) - 1, 'other reason')}" if len(gates) > 1 else ""
    advice = NEXT_STEP_BY_GATE[gate.code] if gate.code in ("CAPABILITY_MISSING", "SOURCE_RESTING") else ""
    show = AlertButton("Show", "/jobs?status=pending", method="link")
    return Alert(
        Level.WARNING, "No pending job can start", gate.detail + other_reasons, capitalised(gate.remedy or advice), show
    )


def _pause_alerts(overview: Overview) -> Iterator[Alert]:
    for pause in overview.pauses:
        title = f"{capitalised(title_of_pause(pause.scope, pause.name))} is paused"
        until = f"until {pause.until[:16]} UTC" if pause.until else ""
        detail = ": ".join(filter(None, [until, pause.reason]))
        resume = AlertButton("Resume", "/workers/unpause", {"scope": pause.scope, "name": pause.name})
        yield Alert(Level.WARNING, title, detail, "", resume)


def _missing_program_alerts(session: Session) -> Iterator[Alert]:
    for handler in session.overview.missing_handlers():
        title = f"No {handler.job_type} job can start"
        yield Alert(Level.WARNING, title, handler.missing or "", capitalised(handler.missing_remedy))
    for count in session.overview.jobs_without_handler():
        title = f"{counted(count.jobs, f'{count.job_type} job')} wait for a missing program"
        yield Alert(Level.WARNING, title, count.newest_message or "", capitalised(count.newest_remedy or ""))


def _schedule_alerts(session: Session) -> Iterator[Alert]:
    if names := overdue_schedules(session):
        title = f"The scheduler is off: {', '.join(names)} will not start"
        yield Alert(Level.WARNING, title, "", capitalised(HOW_TO_RUN_TICKS))


# ── Batches ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _batch_alerts(session: Session, owner: str | None) -> Iterator[Alert]:
    for batch in _batches_in_state(session, owner, BatchState.STOPPED):
        resume = AlertButton("Resume", f"/batches/{batch.id}/resume")
        title = f"{capitalised(batch.title)} is stopped"
        yield Alert(Level.WARNING, title, batch.note or "Its remaining files are not read.", "", resume)
    for batch in _batches_in_state(session, owner, BatchState.WAITING):
        if batch.replaced_by is not None:
            title = f"{capitalised(batch.title)} waits for batch {batch.replaced_by}"
            resume = AlertButton("Resume", f"/batches/{batch.id}/resume")
            yield Alert(Level.OK, title, "It resumes when that batch ends.", "", resume)


def _batches_in_state(session: Session, owner: str | None, state: BatchState) -> Sequence[Batch]:
    owners = () if owner is None else (owner,)
    return [
        details.batch
        for details in list_batches(session, owners=owners, states=[state], limit=_BATCHES_PER_STATE_MAX).items
    ]
