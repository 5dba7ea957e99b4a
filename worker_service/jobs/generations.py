"""Decide whether a request to read a document starts a new generation, and with which settings (promise P11)."""

from __future__ import annotations

import json

from worker_service.jobs.digest import canonical
from worker_service.jobs.documents import Decision, DocumentRequest, IndexStatus, TakeoverPatience


def settings_for_reading(
    request: DocumentRequest, status: IndexStatus, settings: str, last_good_settings: str | None
) -> str:
    """Return the stored settings, updated by the request unless it is a standing one of a known document."""
    # A failed document keeps the settings with which it was last read.
    has_failed = status is IndexStatus.FAILED and last_good_settings is not None
    stored = json.loads((last_good_settings if has_failed else settings) or "{}")
    may_change = status is IndexStatus.NOT_INDEXED or not request.is_standing
    requested = json.loads(request.settings or "{}") if may_change else {}
    return canonical({name: value for name, value in {**stored, **requested}.items() if value is not None})


def decide(
    status: IndexStatus,
    *,
    seconds_without_progress: float,
    is_same: bool,
    is_held_up: bool,
    is_forced: bool,
    patience: TakeoverPatience,
) -> Decision:
    """`is_same`: content and settings are unchanged. `is_held_up`: all live work is in idle batches."""
    match status:
        case IndexStatus.QUEUED | IndexStatus.INDEXING:
            if not is_same:
                return Decision.ACCEPTED
            limit = patience.queued_seconds if status is IndexStatus.QUEUED else patience.indexing_seconds
            return Decision.TAKEN_OVER if is_held_up or seconds_without_progress >= limit else Decision.UNDER_WAY
        case IndexStatus.SUCCESS if is_same and not is_forced:
            return Decision.UNCHANGED
        case _:
            return Decision.ACCEPTED
