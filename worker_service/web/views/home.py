"""The Home page: alerts, running work, the last 24 hours and the state of the machine."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urlencode

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from worker_service.base.clock import from_text
from worker_service.base.humanize import counted
from worker_service.jobs.batches import BatchState
from worker_service.jobs.job import Job, Status
from worker_service.jobs.selector import Selector
from worker_service.services.batches import BatchDetails, describe_progress
from worker_service.services.database import Session
from worker_service.services.health import Level
from worker_service.services.jobs import list_jobs, progress_in_words, state_of
from worker_service.services.overview import Overview
from worker_service.settings.config import Settings
from worker_service.web.access import Visitor, visitor_of
from worker_service.web.database_sessions import session_of
from worker_service.web.resources.batches import BatchesQuery, list_batches
from worker_service.web.views import charts, render
from worker_service.web.views.alerts import Alert, list_alerts
from worker_service.web.views.charts import Chart
from worker_service.web.views.flash import flash_of
from worker_service.web.views.history import HourlyStatistics, last_hours
from worker_service.web.views.template_filters import command, length, size
from worker_service.workspace import FREE_BYTES_LEAST

_JOBS_MAX = 12
_BATCHES_MAX = 5


class RunningJob(Struct, frozen=True):
    job: Job
    state: str
    progress: str
    """``page 8 of 44 · 12 pages/min · 3 min left``"""


class SystemFact(Struct, frozen=True):
    name: str
    value: str
    more: str = ""
    level: str = ""
    """CSS class that marks a problem."""
    at: str = ""
    """Time shown instead of the value."""


class AlertButton(Struct, frozen=True):
    label: str
    address: str
    method: str = "post"
    """post: form with one button; preview: form to a preview page; link."""


def home(request: Request) -> Response:
    visitor = visitor_of(request)
    with session_of(request) as session:
        overview = Overview(session) if visitor.owner is None else None
        running = list_jobs(session, visitor.only(Selector(statuses=(Status.RUNNING,))), limit=_JOBS_MAX)
        alerts = list_alerts(session, overview, owner=visitor.owner)
        return render(
            request,
            "home.html",
            title="Home",
            flash=flash_of(session, request),
            alerts=[(one, _button(one), command(*one.command) if one.command else "") for one in alerts],
            headline=_headline(alerts),
            batches=[(one, describe_progress(one), one.progress.percent) for one in _live_batches(session, visitor)],
            running=[_running_job(job) for job in sorted(running.items, key=lambda job: job.started_at or "")],
            has_more_running=running.next is not None,
            facts=() if overview is None else _facts(session.settings, overview),
            pending=0 if overview is None else overview.counts.by_status[Status.PENDING],
            charts=() if overview is None else _charts(last_hours(session)),
            is_new=overview is not None and not any(overview.counts.by_status.values()),
        )


def _running_job(job: Job) -> RunningJob:
    return RunningJob(job, state_of(job), progress_in_words(job))


def _headline(alerts: Sequence[Alert]) -> str:
    urgent = sum(one.level > Level.OK for one in alerts)
    return f"Needs attention ({urgent})" if urgent else "Nothing needs attention"


def _live_batches(session: Session, visitor: Visitor) -> Sequence[BatchDetails]:
    query = BatchesQuery(status=(BatchState.ACTIVE, BatchState.WAITING), limit=_BATCHES_MAX)
    return list_batches(session, visitor, query).items


def _button(alert: Alert) -> AlertButton | None:
    batch = f"/batches/{alert.target.get('batch_id')}"
    return {
        "unpause": AlertButton("Unpause", "/workers/unpause"),
        "retry": AlertButton("Retry…", "/jobs/change", "preview"),
        "show": AlertButton("Show", f"/jobs?{urlencode(alert.target)}", "link"),
        "errors": AlertButton("Show", "/errors?since=1d", "link"),
        "resume": AlertButton("Resume", f"{batch}/resume"),
        "retry_batch": AlertButton("Retry failed", f"{batch}/retry"),
    }.get(alert.button)


# ── State of the machine ────────────────────────────────────────────────────────────────────────────────────────────


def _facts(settings: Settings, overview: Overview) -> Sequence[SystemFact]:
    alive = [one for one in overview.workers if one.is_alive]
    slots = sum(one.cpu_slots + one.io_slots + one.node_slots for one in alive)
    numbers, oldest = overview.counts.by_status, overview.counts.oldest_pending_at
    busy = sum(one.running for one in alive)
    facts = [
        SystemFact("Workers", str(len(alive)), f"{busy} of {counted(slots, 'slot')} busy") if alive
        else SystemFact("Workers", "none", level="bad"),
        SystemFact("Running", f"{numbers[Status.RUNNING]:,}"),
        SystemFact("Pending", f"{numbers[Status.PENDING]:,}"),
        SystemFact("Oldest pending", length(overview.at - from_text(oldest)) if oldest else "–", at=oldest or ""),
    ]  # fmt: skip
    with suppress(OSError):
        place = settings.workspace if settings.workspace.exists() else settings.database.parent
        free = shutil.disk_usage(place).free
        facts.append(SystemFact("Disk free", size(free), level="bad" if free < FREE_BYTES_LEAST else ""))
    with suppress(OSError):
        facts.append(SystemFact("Database", size(settings.database.stat().st_size)))
    return facts


# ── The last 24 hours ───────────────────────────────────────────────────────────────────────────────────────────────


def _charts(hours: Sequence[HourlyStatistics]) -> Sequence[Chart]:
    times = [one.at for one in hours]
    pages, jobs, failed = ([getattr(one, name) for one in hours] for name in ("pages", "jobs", "failed"))
    median, long = [one.wait_median_seconds for one in hours], [one.wait_long_seconds for one in hours]
    newest = next((value for value in reversed(median) if value is not None), None)
    return [
        Chart("Pages read", f"{sum(pages):,} in 24 hours", charts.bars("Pages read", times, pages),
              ("Hour", "Pages"), list(zip(times, pages, strict=True))),
        Chart("Jobs ended", f"{sum(jobs):,} in 24 hours", charts.bars("Jobs ended", times, jobs, failures=failed),
              ("Hour", "Ended", "Failed"), list(zip(times, jobs, failed, strict=True))),
        Chart("Waiting time", "–" if newest is None else f"median {length(max(1, newest))}",
              charts.lines("Waiting time", times, median, long, length),
              ("Hour", "Median", "95th percentile"),
              [(one.at, _length(one.wait_median_seconds), _length(one.wait_long_seconds)) for one in hours]),
        Chart("Failures", f"{sum(failed):,} in 24 hours", charts.bars("Failures", times, failed, is_bad=True),
              ("Hour", "Failed"), list(zip(times, failed, strict=True))),
    ]  # fmt: skip


def _length(seconds: float | None) -> str:
    return "–" if seconds is None else length(seconds)


routes = [Route("/", home)]
