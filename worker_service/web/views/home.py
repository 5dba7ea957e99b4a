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
from worker_service.services import batches as batch_operations
from worker_service.services.alerts import Matter, attention
from worker_service.services.batches import BatchInWhole, in_words
from worker_service.services.database import Session
from worker_service.services.health import Level
from worker_service.services.history import Hour, hours
from worker_service.services.jobs import list_jobs, progress_in_words, state_of
from worker_service.services.overview import Overview
from worker_service.settings.config import Settings
from worker_service.web.access import visitor_of
from worker_service.web.database_sessions import opened
from worker_service.web.views import charts, page
from worker_service.web.views.charts import Chart
from worker_service.web.views.forms import told
from worker_service.web.views.template_filters import command, length, size
from worker_service.workspace import FREE_BYTES_LEAST

RUNNING_MOST = 12
_BATCHES_MOST = 5


class Running(Struct, frozen=True):
    """A running job with its progress in words."""

    job: Job
    state: str
    done: str
    """``page 8 of 44 · 12 pages/min · 3 min left``"""


class Fact(Struct, frozen=True):
    """A figure in the strip of facts; `level` is the CSS class that marks a problem."""

    name: str
    value: str
    more: str = ""
    level: str = ""
    at: str = ""
    """A time shown instead of the value."""


class Wish(Struct, frozen=True):
    """An alert with its button and its command."""

    matter: Matter
    button: str = ""
    action: str = ""
    is_get: bool = False
    is_link: bool = False
    command: str = ""


def home(request: Request) -> Response:
    visitor = visitor_of(request)
    with opened(request) as session:
        overview = Overview(session) if visitor.owner is None else None
        running = list_jobs(session, visitor.only(Selector(statuses=(Status.RUNNING,))), limit=RUNNING_MOST)
        return page(
            request,
            "home.html",
            title="Home",
            told=told(session, request),
            wishes=[_wish(one) for one in attention(session, overview, owner=visitor.owner)],
            headline=_headline,
            batches=[(one, in_words(one), one.progress.percent) for one in _batches(session, visitor.owner)],
            running=[follow(job) for job in sorted(running.items, key=lambda job: job.started_at or "")],
            more_running=running.next is not None,
            strip=() if overview is None else _strip(session.settings, overview),
            charts=() if overview is None else _charts(hours(session)),
            is_new=overview is not None and not any(overview.counts.by_status.values()),
        )


def follow(job: Job) -> Running:
    return Running(job, state_of(job), progress_in_words(job))


def _headline(wishes: Sequence[Wish]) -> str:
    urgent = sum(one.matter.level > Level.OK for one in wishes)
    return f"Needs attention ({urgent})" if urgent else "Nothing needs attention"


def _batches(session: Session, owner: str | None) -> Sequence[BatchInWhole]:
    states = (BatchState.ACTIVE, BatchState.WAITING)
    owners = () if owner is None else (owner,)
    return batch_operations.list_batches(session, owners=owners, states=states, limit=_BATCHES_MOST).items


def _wish(matter: Matter) -> Wish:
    typed = command(*matter.command) if matter.command else ""
    if matter.verb == "unpause":
        return Wish(matter, "Unpause", "/workers/unpause", command=typed)
    if matter.verb == "retry":
        return Wish(matter, "Retry…", "/jobs/change", is_get=True, command=typed)
    if matter.verb == "look":
        return Wish(matter, "Show", f"/jobs?{urlencode(matter.about)}", is_link=True, command=typed)
    if matter.verb == "errors":
        return Wish(matter, "Show", "/errors?since=1d", is_link=True, command=typed)
    if matter.verb == "resume":
        return Wish(matter, "Resume", f"/batches/{matter.about['batch_id']}/resume", command=typed)
    if matter.verb == "retry_batch":
        return Wish(matter, "Retry failed", f"/batches/{matter.about['batch_id']}/retry", command=typed)
    return Wish(matter, command=typed)


# ── State of the machine ────────────────────────────────────────────────────────────────────────────────────────────


def _strip(settings: Settings, overview: Overview) -> Sequence[Fact]:
    alive = [one for one in overview.workers if one.is_alive]
    slots = sum(one.cpu_slots + one.io_slots + one.node_slots for one in alive)
    numbers, oldest = overview.counts.by_status, overview.counts.oldest_pending_at
    busy = sum(one.running for one in alive)
    facts = [
        Fact("Workers", str(len(alive)), f"{busy} of {counted(slots, 'slot')} busy") if alive
        else Fact("Workers", "none", level="bad"),
        Fact("Running", f"{numbers[Status.RUNNING]:,}"),
        Fact("Pending", f"{numbers[Status.PENDING]:,}"),
        Fact("Oldest pending", length(overview.at - from_text(oldest)) if oldest else "–", at=oldest or ""),
    ]  # fmt: skip
    with suppress(OSError):
        place = settings.workspace if settings.workspace.exists() else settings.database.parent
        free = shutil.disk_usage(place).free
        facts.append(Fact("Disk free", size(free), level="bad" if free < FREE_BYTES_LEAST else ""))
    with suppress(OSError):
        facts.append(Fact("Database", size(settings.database.stat().st_size)))
    return facts


# ── The last 24 hours ───────────────────────────────────────────────────────────────────────────────────────────────


def _charts(past: Sequence[Hour]) -> Sequence[Chart]:
    times = [one.at for one in past]
    pages, jobs, failed = ([getattr(one, name) for one in past] for name in ("pages", "jobs", "failed"))
    median, long = [one.wait_median_seconds for one in past], [one.wait_long_seconds for one in past]
    newest = next((value for value in reversed(median) if value is not None), None)
    return [
        Chart("Pages read", f"{sum(pages):,} in 24 hours", charts.bars("Pages read", times, pages),
              ("Hour", "Pages"), list(zip(times, pages, strict=True))),
        Chart("Jobs ended", f"{sum(jobs):,} in 24 hours", charts.bars("Jobs ended", times, jobs, of_them=failed),
              ("Hour", "Ended", "Failed"), list(zip(times, jobs, failed, strict=True))),
        Chart("Waiting time", "–" if newest is None else f"median {length(max(1, newest))}",
              charts.lines("Waiting time", times, median, long, length),
              ("Hour", "Median", "95th percentile"),
              [(one.at, _length(one.wait_median_seconds), _length(one.wait_long_seconds)) for one in past]),
        Chart("Failures", f"{sum(failed):,} in 24 hours", charts.bars("Failures", times, failed, is_bad=True),
              ("Hour", "Failed"), list(zip(times, failed, strict=True))),
    ]  # fmt: skip


def _length(seconds: float | None) -> str:
    return "–" if seconds is None else length(seconds)


routes = [Route("/", home)]
