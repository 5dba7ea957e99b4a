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
from worker_service.web.views.template_filters import furnish

STATIC = Path(__file__).with_name("static")

# The navigation: path and label.
PLACES = (
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

OF_ALL = ("/workers", "/schedules", "/activity")
"""Hidden from visitors of one owner."""


@cache
def templates() -> Environment:
    loader = PackageLoader("worker_service.web.views")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    furnish(made)
    return made


def page(
    request: Request, template: str, /, *, status: int = 200, headers: Mapping[str, str] | None = None, **values: object
) -> HTMLResponse:
    """Render a template. `visitor` is None on pages that need no sign-in."""
    visitor = request.scope.get("state", {}).get("visitor")
    is_of_all = visitor is None or visitor.owner is None
    places = [place for place in PLACES if is_of_all or place[0] not in OF_ALL]
    told = {"request": request, "visitor": visitor, "places": places, "version": VERSION, "here": request.url.path}
    return HTMLResponse(templates().get_template(template).render(told | values), status, dict(headers or {}))
