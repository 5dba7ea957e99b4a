"""Links and form fields that several pages share."""

from __future__ import annotations

from urllib.parse import urlencode

from starlette.requests import Request

from worker_service.base.errors import BadInput
from worker_service.web.views.flash import FlashQuery

_NUMBER_DIGITS_MAX = 15


def parse_number(text: str, label: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _NUMBER_DIGITS_MAX):
        raise BadInput(f"{label} must be a number, not {text[:50]!r}")
    return int(text)


def same_page(request: Request, **changes: object) -> str:
    """Return this page's URL with some parameters changed: None removes one, a list repeats it."""
    dropped = {*changes, *FlashQuery.__struct_fields__}
    kept = [(name, value) for name, value in request.query_params.multi_items() if value and name not in dropped]
    changed = [(name, value) for name, value in changes.items() if value is not None]
    query = urlencode([*kept, *changed], doseq=True)
    return f"{request.url.path}?{query}" if query else request.url.path
