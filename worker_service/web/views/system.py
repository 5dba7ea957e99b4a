"""The System page, for visitors of all owners."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from worker_service.base.humanize import counted
from worker_service.jobs.job import Status
from worker_service.services.overview import Overview
from worker_service.services.session import Session
from worker_service.services.work_rates import Hour, work_by_hour
from worker_service.settings.config import Settings
from worker_service.web.access import visitor_of
from worker_service.web.views import charts, page_route, render
from worker_service.web.views.alerts import list_alerts
from worker_service.web.views.charts import Chart
from worker_service.web.views.template_filters import format_size, length
from worker_service.workspace import FREE_BYTES_LEAST


class SystemFact(Struct, frozen=True):
    name: str
    value: str
    detail: str = ""
    level: str = ""
    since: str = ""
    """A time, shown instead of the value."""


def system(request: Request, session: Session) -> Response:
    visitor_of(request).require_all_owners()
    overview = Overview(session)
    return render(
        request,
        "system.html",
        title="System",
        alerts=list_alerts(session, overview),
        facts=_facts(session.settings, overview),
        charts=_charts(work_by_hour(session)),
    )


def _facts(settings: Settings, overview: Overview) -> Sequence[SystemFact]:
    alive = [worker for worker in overview.workers if worker.is_alive]
    slots = sum(worker.cpu_slots + worker.io_slots + worker.node_slots for worker in alive)
    busy = sum(worker.running for worker in alive)
    by_status, oldest = overview.counts.by_status, overview.counts.oldest_pending_at
    facts = [
        SystemFact("Workers", str(len(alive)), f"{busy} of {counted(slots, 'slot')} busy") if alive
        else SystemFact("Workers", "none", level="bad"),
        SystemFact("Running", f"{by_status[Status.RUNNING]:,}"),
        SystemFact("Pending", f"{by_status[Status.PENDING]:,}"),
        SystemFact("Oldest pending", "–", since=oldest or ""),
    ]  # fmt: skip
    with suppress(OSError):
        directory = settings.workspace if settings.workspace.exists() else settings.database.parent
        free = shutil.disk_usage(directory).free
        facts.append(SystemFact("Disk free", format_size(free), level="bad" if free < FREE_BYTES_LEAST else ""))
    with suppress(OSError):
        facts.append(SystemFact("Database", format_size(settings.database.stat().st_size)))
    return facts


# ── The last 24 hours ───────────────────────────────────────────────────────────────────────────────────────────────


def _charts(hours: Sequence[Hour]) -> Sequence[Chart]:
    times = [hour.at for hour in hours]
    pages, jobs, failed = [hour.pages for hour in hours], [hour.jobs for hour in hours], [hour.failed for hour in hours]
    waited = [hour.waited_seconds_each or 0 for hour in hours]
    averages = [hour.waited_seconds_each for hour in hours if hour.waited_seconds_each is not None]
    average = f"{length(max(1, averages[-1]))} on average" if averages else "–"

    def label(title: str, values: Sequence[int]) -> str:
        return f"{title}: {sum(values):,} in {len(values)} hours, at most {max(values):,} per hour."

    return [
        Chart("Pages read", f"{sum(pages):,} in 24 hours", charts.draw_bars(pages, label("Pages read", pages)),
              ("Hour", "Pages"), list(zip(times, pages, strict=True))),
        Chart("Jobs ended", f"{sum(jobs):,} in 24 hours",
              charts.draw_bars(jobs, label("Jobs ended", jobs), failures=failed),
              ("Hour", "Ended", "Failed"), list(zip(times, jobs, failed, strict=True))),
        Chart("Waiting time", average,
              charts.draw_bars(waited, f"Waiting time: at most {length(max(waited))}.", format_value=length),
              ("Hour", "Average", "Longest"),
              [(hour.at, _length(hour.waited_seconds_each), _length(hour.longest_wait_seconds)) for hour in hours]),
        Chart("Failures", f"{sum(failed):,} in 24 hours",
              charts.draw_bars(failed, label("Failures", failed), is_bad=True),
              ("Hour", "Failed"), list(zip(times, failed, strict=True))),
    ]  # fmt: skip


def _length(seconds: float | None) -> str:
    return "–" if seconds is None else length(seconds)


routes = [page_route("/system", system)]
