"""The Schedules page: the schedules in the settings, their last and next runs, and a button to run one now."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from worker_service.services import schedules
from worker_service.web.access import visitor_of
from worker_service.web.database_sessions import session_of
from worker_service.web.middleware import form_of
from worker_service.web.resources.system import list_schedules, run_schedule
from worker_service.web.views import render
from worker_service.web.views.flash import flash_of, redirect


def schedules_page(request: Request) -> Response:
    with session_of(request) as session:
        found = list_schedules(session, visitor_of(request))
        return render(
            request,
            "schedules.html",
            title="Schedules",
            flash=flash_of(session, request),
            schedules=found,
            is_scheduler_off=any(one.is_waiting for one in found),
            how_to_start=schedules.TICKS,
            example=schedules.EXAMPLE,
            settings_file=str(session.settings.file or ""),
        )


def run_now(request: Request) -> Response:
    with session_of(request) as session:
        started = run_schedule(session, visitor_of(request), form_of(request).get("name", ""))
    if started.batch_id is not None:
        return redirect(f"/batches/{started.batch_id}", message="started")
    return redirect(f"/jobs/{started.job_id}", message="existing" if started.existing else "started")


routes = [Route("/schedules", schedules_page), Route("/schedules/run-now", run_now, methods=["POST"])]
