"""The Schedules page: watched folders and jobs at set times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from worker_service.base.errors import BadInput, PagemillError, Refused
from worker_service.jobs.follow_ups import read_json
from worker_service.services import schedules
from worker_service.services.schedules import ScheduleState
from worker_service.services.session import Session
from worker_service.settings.cron_schedules import cron_every
from worker_service.web.access import TokenScope, Visitor, visitor_of
from worker_service.web.error_responses import NotAllowed, status_of
from worker_service.web.middleware import form_of
from worker_service.web.resources.schedules import add_schedule, change_schedule, list_schedules, run_schedule
from worker_service.web.views import page_route, render
from worker_service.web.views.flash_messages import redirect

# Choices of the form; "" stands for a cron expression.
_EVERY = (
    ("5m", "every 5 minutes"), ("15m", "every 15 minutes"), ("1h", "every hour"), ("6h", "every 6 hours"),
    ("1d", "every day at midnight"), ("", "at other times…"),
)  # fmt: skip
_EMPTY_FORM = {
    "name": "", "owner": "", "kind": "crawl", "folder": "", "job_type": "", "payload": "", "every": "15m", "cron": "",
    "zone": "",
}  # fmt: skip
_STATE_CHANGES: Mapping[str, Callable[..., object]] = {
    "pause": schedules.pause_schedule, "resume": schedules.resume_schedule, "remove": schedules.remove_schedule,
}  # fmt: skip


def schedules_page(request: Request, session: Session) -> Response:
    listing = list_schedules(session, visitor_of(request))
    return render(
        request,
        "schedules.html",
        title="Schedules",
        schedules=listing,
        # `is_waiting`: due for minutes, but no tick runs, neither in a daemon nor by a timer.
        names_without_ticks=[schedule.name for schedule in listing if schedule.is_waiting],
        how_to_run_ticks=schedules.HOW_TO_RUN_TICKS,
    )


def run_schedule_now(request: Request, session: Session) -> Response:
    started = run_schedule(session, visitor_of(request), form_of(request).get("name", ""))
    if started.batch_id is not None:
        return redirect(f"/batches/{started.batch_id}", message="started")
    return redirect(f"/jobs/{started.job_id}", message="existing" if started.existing else "started")


def change_state(request: Request, session: Session) -> Response:
    visitor, form = visitor_of(request), form_of(request)
    change = _STATE_CHANGES.get(form.get("verb", ""))
    if change is None:
        raise BadInput(f"schedules have no action {form.get('verb')!r}", f"choose {', '.join(_STATE_CHANGES)}")
    change(session, form.get("name", ""), owner=visitor.owner)
    # `change` has just recorded it; the message offers to undo it.
    newest_action = next(iter(session.history.actions(most=1)), None)
    return redirect("/schedules", done=newest_action.id if newest_action else None)


# ── The form ────────────────────────────────────────────────────────────────────────────────────────────────────────


def schedule_form(request: Request, session: Session) -> Response:
    visitor = visitor_of(request)
    visitor.require(TokenScope.OPERATE)
    # The query only names an existing schedule: a link from another site must not fill in the form.
    name = request.query_params.get("name")
    form = _EMPTY_FORM if name is None else _filled_form(*_schedule_and_definition(session, visitor, name))
    return _form_page(request, session, form, is_new=name is None)


def save_schedule(request: Request, session: Session) -> Response:
    visitor, sent_form = visitor_of(request), form_of(request)
    form = {name: sent_form.get(name, "").strip() for name in _EMPTY_FORM}
    is_new = sent_form.get("is_new") == "1"
    try:
        _save(session, visitor, form, is_new=is_new)
    except (BadInput, Refused, NotAllowed) as error:
        # Show the form again with the user's input.
        return _form_page(request, session, form, is_new=is_new, error=error)
    return redirect("/schedules", message="schedule-saved")


def _save(session: Session, visitor: Visitor, form: Mapping[str, str], *, is_new: bool) -> ScheduleState:
    previous: Mapping[str, Any] = {}
    if not is_new:
        _, previous = _schedule_and_definition(session, visitor, form["name"])
    # The form has no batches: a crawl or job replaces a batch. Fields that it does not show are kept.
    definition = {name: value for name, value in previous.items() if name not in ("crawl", "job", "batch", "zone")}
    definition["cron"] = cron_every(form["every"]) if form["every"] else form["cron"]
    if form["zone"]:
        definition["zone"] = form["zone"]
    if form["kind"] == "crawl":
        # The value of `crawl` is a folder, or a table with a folder and options, which are kept.
        crawl = previous.get("crawl")
        definition["crawl"] = {**crawl, "folder": form["folder"]} if isinstance(crawl, Mapping) else form["folder"]
    else:
        job = {**previous.get("job", {}), "type": form["job_type"]}
        job.pop("payload", None)
        if form["payload"]:
            job["payload"] = read_json(form["payload"])
        definition["job"] = job
    if is_new:
        return add_schedule(session, visitor, form["name"], definition, form["owner"] or None)
    return change_schedule(session, visitor, form["name"], definition)


def _schedule_and_definition(session: Session, visitor: Visitor, name: str) -> tuple[ScheduleState, Mapping[str, Any]]:
    """Raise `Refused` for a schedule of the settings file, which cannot be changed here."""
    schedule = next((schedule for schedule in list_schedules(session, visitor) if schedule.name == name), None)
    if schedule is None or schedule.definition is None:
        raise Refused(f"there is no schedule {name!r} that can be changed here")
    return schedule, schedule.definition


def _filled_form(schedule: ScheduleState, definition: Mapping[str, Any]) -> Mapping[str, str]:
    crawl, job = definition.get("crawl"), definition.get("job") or {}
    folder = crawl.get("folder", "") if isinstance(crawl, Mapping) else crawl or ""
    every = next((length for length, _ in _EVERY if length and cron_every(length) == schedule.cron), "")
    payload = schedules.definition_as_json(job["payload"]) if "payload" in job else ""
    return {
        "name": schedule.name, "owner": schedule.owner, "kind": "crawl" if crawl else "job", "folder": folder,
        "job_type": job.get("type", ""), "payload": payload, "every": every, "cron": "" if every else schedule.cron,
        "zone": definition.get("zone", ""),
    }  # fmt: skip


def _form_page(
    request: Request, session: Session, form: Mapping[str, str], *, is_new: bool, error: PagemillError | None = None
) -> Response:
    return render(
        request,
        "schedule_form.html",
        title="New schedule" if is_new else f"Change {form['name']}",
        form=form,
        is_new=is_new,
        problem=str(error or ""),
        every=_EVERY,
        default_zone=session.settings.zone,
        types=session.job_queries.names("handler", prefix=""),
        status=200 if error is None else status_of(error),
    )


routes = [
    page_route("/schedules", schedules_page),
    # With `?name=` it changes a schedule. `/schedules/change` only pauses, resumes or removes one.
    page_route("/schedules/new", schedule_form),
    page_route("/schedules/new", save_schedule, methods=["POST"]),
    page_route("/schedules/change", change_state, methods=["POST"]),
    page_route("/schedules/run-now", run_schedule_now, methods=["POST"]),
]
