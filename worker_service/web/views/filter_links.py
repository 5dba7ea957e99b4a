"""Links that filter, sort and page a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from msgspec import Struct
from starlette.requests import Request

from worker_service.web.views.flash_messages import FlashQuery


class FilterLink(Struct, frozen=True):
    label: str
    path: str
    is_chosen: bool = False
    count: int | None = None


class FilterChip(Struct, frozen=True):
    label: str
    chosen_labels: str
    clear_path: str
    options: Sequence[FilterLink]


def same_page(request: Request, **changes: object) -> str:
    """Return this page's URL with some parameters changed: None removes one, a list repeats it."""
    dropped = {*changes, *FlashQuery.__struct_fields__}
    unchanged = [(name, value) for name, value in request.query_params.multi_items() if value and name not in dropped]
    changed = [(name, value) for name, value in changes.items() if value is not None]
    query = urlencode([*unchanged, *changed], doseq=True)
    return f"{request.url.path}?{query}" if query else request.url.path


def filter_chip(
    request: Request, label: str, parameter: str, chosen: Sequence[str], labels: Mapping[str, str]
) -> FilterChip:
    def path(value: str | None) -> str:
        return same_page(request, **{parameter: value}, before=None, skip=None)

    options = [FilterLink(option, path(value), value in chosen) for value, option in labels.items()]
    return FilterChip(label, ", ".join(labels.get(value, value) for value in chosen), path(None), options)
