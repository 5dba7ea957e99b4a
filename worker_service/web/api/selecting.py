"""Job selectors as query parameters, with the names of the command line's options."""

from __future__ import annotations

from worker_service.jobs.job import Status
from worker_service.jobs.selector import CHOSEN_BY, Selector
from worker_service.services.parse import read_selector
from worker_service.web.api.endpoint import ID, NUMBER, TEXT, Call, Param

LIMIT = Param("limit", "so many at most; 50 unless given", {"type": "integer", "minimum": 1, "maximum": 1000})
BEFORE = Param("before", "the next page: what `next` of this one says", ID)
OWNERS = Param("owner", "the person they belong to", is_many=True)
DRY_RUN = Param("dry_run", "only say what would be done", {"type": "boolean"})

_NAMES = {column.flag.removeprefix("--"): column for column in CHOSEN_BY}

CHOOSING = (
    Param("id", "42, batch:7 or document:3", is_many=True),
    Param("status", f"{', '.join(Status)}; commas stand between several", is_many=True),
    *(
        Param(
            name,
            column.about or f"jobs of this {name}",
            NUMBER if column.is_number else TEXT,
            is_many=not column.is_number and column.chosen_by.endswith("s"),
        )
        for name, column in _NAMES.items()
    ),
    Param("since", "created or ended since then: 2h (ago), or 2026-11-18 10:00 (UTC)"),
    Param("older_than", "ended before then; of live jobs: created before it"),
    Param("match", "payload.file_id=abc", is_many=True),
)


def chosen(call: Call) -> Selector:
    """Return the selector in the query. The caller limits it to what the visitor may see."""
    said = call.query
    named = {column.chosen_by: said.get(name) for name, column in _NAMES.items()}
    return read_selector(
        now=call.session.clock(),
        ids=said.get("id", ()),
        statuses=said.get("status", ()),
        since=said.get("since"),
        older_than=said.get("older_than"),
        match=said.get("match", ()),
        **named,
    )
