"""Search documents: the same request and answer for all surfaces."""

from __future__ import annotations

from worker_service.base.clock import as_text, wall_clock
from worker_service.jobs.search import SearchRequest, SearchResult
from worker_service.services.database import Session
from worker_service.services.documents import require_batches
from worker_service.services.parse import read_past


def find_documents(session: Session, request: SearchRequest) -> SearchResult:
    require_batches(session, () if request.batch_id is None else (request.batch_id,))
    return session.search.find(request)


def read_added(text: str | None) -> str | None:
    """Parse the time of a filter, such as 3d (ago) or 2026-11-18."""
    return as_text(read_past(text, now=wall_clock())) if text else None
