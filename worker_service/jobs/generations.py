"""Whether a wish to read a document takes its next generation, or needs nothing, and how it is then read: the rules, in
one place.

Asked inside the transaction that would insert the job. Reads no clock and no row.
"""

from __future__ import annotations

import json

from msgspec import Struct

from worker_service.jobs.digest import canonical
from worker_service.jobs.documents import Decision, DocumentRequest, IndexStatus


class Patience(Struct, frozen=True):
    """For how long a document may stand still before somebody else may take it over."""

    queued_seconds: float = 600
    indexing_seconds: float = 2700


def way_to_read(request: DocumentRequest, status: IndexStatus, settings: str, settings_before: str | None) -> str:
    """A document remembers how it is read: only what is said changes that, and what failed is not remembered, unless
    nothing else has ever worked."""
    has_failed = status is IndexStatus.FAILED and settings_before is not None
    remembered = json.loads((settings_before if has_failed else settings) or "{}")
    is_heard = status is IndexStatus.NOT_INDEXED or not request.is_standing
    said = json.loads(request.settings or "{}") if is_heard else {}
    return canonical({name: value for name, value in {**remembered, **said}.items() if value is not None})


def decide(
    status: IndexStatus,
    *,
    still_seconds: float,
    same_content: bool,
    same_settings: bool,
    is_held_up: bool = False,
    is_forced: bool,
    patience: Patience,
) -> Decision:
    """`still_seconds`: since the document, or any page of it, last moved. `is_held_up`: nobody works on it, for whoever
    asked for it has stopped."""
    is_same = same_content and same_settings
    match status:
        case IndexStatus.QUEUED | IndexStatus.INDEXING:
            if not is_same:
                return Decision.ACCEPTED
            waits = patience.queued_seconds if status is IndexStatus.QUEUED else patience.indexing_seconds
            return Decision.TAKEN_OVER if is_held_up or still_seconds >= waits else Decision.UNDER_WAY
        case IndexStatus.SUCCESS if is_same and not is_forced:
            return Decision.UNCHANGED
        case _:
            return Decision.ACCEPTED
