"""The Schedules page: the schedules in the settings, their last and next runs, and a button to run one now."""

from __future__ import annotations

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from worker_service.services import schedules as operations
from worker_service.web.access import visitor_of
from worker_service.web.database_sessions import opened
from worker_service.web.views import page
from worker_service.web.views.forms import back_to, posted, said, told


def list_schedules(request: Request) -> Response:
    visitor_of(request).must_be_of_all()
    with opened(request) as session:
        found = operations.list_schedules(session)
        return page(
            request,
            "schedules.html",
            title="Schedules",
            told=told(session, request),
            rows=found,
            is_unticked=any(one.is_waiting for one in found),
            ticks=operations.TICKS,
            example=operations.EXAMPLE,
            settings_file=str(session.settings.file or ""),
        )


def run_now(request: Request, form: FormData) -> Response:
    visitor_of(request).must_be_of_all()
    with opened(request) as session:
        begun = operations.run_now(session, said(form, "name"))
        if begun.batch_id is not None:
            return back_to(f"/batches/{begun.batch_id}", said="begun")
        return back_to(f"/jobs/{begun.job_id}", said="existing" if begun.existing else "begun")


routes = [Route("/schedules", list_schedules), Route("/schedules/run-now", posted(run_now), methods=["POST"])]
