"""The web pages, rendered on the server from templates that escape every value.

Each module has one subject and ends with its `routes`, which `app` collects. Every page extends `templates/base.html`.
The Content-Security-Policy (see `middleware`) forbids inline scripts and styles, so they are files in `static/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from worker_service import VERSION
from worker_service.web.views.flash import Flash
from worker_service.web.views.template_filters import register_filters

STATIC = Path(__file__).with_name("static")

NAVIGATION = (
    ("/", "Home"),
    ("/documents", "Documents"),
    ("/batches", "Batches"),
    ("/jobs", "Jobs"),
    ("/errors", "Errors"),
    ("/workers", "Workers"),
    ("/schedules", "Schedules"),
    ("/keywords", "Keywords"),
    ("/activity", "Activity"),
)

FOR_ALL_OWNERS = ("/workers",)
"""Hidden from visitors of one owner."""


@cache
def templates() -> Environment:
    loader = PackageLoader("worker_service.web.views")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    register_filters(made)
    return made


def render(
    request: Request,
    template: str,
    /,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    flash: Flash | None = None,
    **values: object,
) -> HTMLResponse:
    """Render a template. `visitor` is None on pages that need no sign-in."""
    visitor = request.scope.get("state", {}).get("visitor")
    has_all_owners = visitor is None or visitor.owner is None
    navigation = [entry for entry in NAVIGATION if has_all_owners or entry[0] not in FOR_ALL_OWNERS]
    shared = {"request": request, "visitor": visitor, "navigation": navigation, "version": VERSION, "flash": flash}
    return HTMLResponse(templates().get_template(template).render(shared | values), status, dict(headers or {}))
