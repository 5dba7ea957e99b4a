"""Selectors as SQL: the one place where a WHERE is put together. Values are always bound, never written in."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from worker_service.errors import BadInput
from worker_service.jobs.selector import Selector

_PATH = re.compile(r"\w+(\.\w+|\[\d+\])*")


def where(selector: Selector) -> tuple[str, list[Any]]:
    terms: list[str] = ["1"]
    values: list[Any] = []

    def add(term: str, *bound: object) -> None:
        terms.append(term)
        values.extend(bound)

    def add_any(column: str, wanted: Sequence[object]) -> None:
        if wanted:
            add(f"{column} IN ({', '.join('?' * len(wanted))})", *wanted)

    if selector.ids:
        add("id IN (SELECT value FROM json_each(?))", json.dumps(list(selector.ids)))
    add_any("status", [str(status) for status in selector.statuses])
    add_any("job_type", selector.job_types)
    add_any("platform", selector.platforms)
    add_any("account", selector.accounts)
    if selector.accounts:
        add("account IS NOT NULL")  # lets the planner use the partial index
    add_any("owner", selector.owners)
    if selector.owners and "" not in selector.owners:
        add("owner <> ''")  # lets the planner use the partial index
    if selector.batch_id is not None:
        add("batch_id = ?", selector.batch_id)
    if selector.error_code is not None:
        add("error_code = ?", selector.error_code)
    if selector.since is not None:
        add("ifnull(completed_at, created_at) >= ?", selector.since)
    if selector.older_than is not None:
        add("ifnull(completed_at, created_at) < ?", selector.older_than)
    for path, wanted in selector.match:
        _add_match(add, path, wanted)
    return " AND ".join(terms), values


def _add_match(add: Any, path: str, wanted: object) -> None:
    if not _PATH.fullmatch(path):
        raise BadInput(f"{path!r} is not a path into the payload: write it like file_id or page_range[0]")
    # -> gives JSON text, which tells 1 from "1" and true from 1.
    add("payload -> ? = json(?)", f"$.{path}", json.dumps(wanted))
