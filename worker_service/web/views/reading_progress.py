"""Progress of documents and batches that are being read, in the words that all pages show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from msgspec import Struct

from worker_service.base.clock import as_text
from worker_service.base.humanize import counted
from worker_service.jobs.batches import BatchState
from worker_service.jobs.library import Document
from worker_service.services.batches import BatchDetails
from worker_service.services.session import Session

_RECENT = timedelta(minutes=5)
_PAGES_FOR_ESTIMATE_MIN = 2


class ReadingProgress(Struct, frozen=True):
    done: int
    total: int | None
    sentence: str


def reading_progress(session: Session, documents: Sequence[Document]) -> Mapping[int, ReadingProgress]:
    now = session.clock()
    ids = [document.id for document in documents]
    pages_read = session.library.pages_read(ids, since=as_text(now - _RECENT), now=as_text(now))
    return {
        document.id: _document_progress(document, *pages_read[document.id])
        for document in documents
        if document.id in pages_read
    }


def _document_progress(document: Document, read: int, read_recently: int, recent_seconds: float) -> ReadingProgress:
    pages = document.pages
    if not pages:
        return ReadingProgress(0, None, "Counting pages, no estimate yet")
    if read >= pages:
        return ReadingProgress(pages, pages, f"{counted(pages, 'page')} read, finishing")
    if not read:
        return ReadingProgress(0, pages, f"{counted(pages, 'page')}, no estimate yet")
    has_estimate = read_recently >= _PAGES_FOR_ESTIMATE_MIN and recent_seconds >= 1
    left = f" · {time_left(recent_seconds * (pages - read) / read_recently)}" if has_estimate else ""
    return ReadingProgress(read, pages, f"Page {read:,} of {pages:,}{left}")


def batch_progress(details: BatchDetails) -> ReadingProgress:
    """Count files; of a single file its pages; without files, jobs."""
    now, batch = details.progress, details.batch
    done, total = (now.files_ended, now.files) if now.files else (now.jobs_ended, now.jobs)
    unit = "file" if now.files else "job"
    if batch.state.is_ended:
        read = now.files - now.files_failed - now.files_cancelled if now.files else now.jobs - now.jobs_failed
        return ReadingProgress(done, total, counted(total, unit) if read == total else f"{read:,} of {total:,} {unit}s")
    if now.may_find_more:
        return ReadingProgress(done, None, f"{done:,} of {counted(total, unit)} so far, still looking for more")
    if now.files == 1 and now.pages:
        done, total, unit = now.pages_read, now.pages, "page"
    parts = [f"{done:,} of {counted(total, unit)}"]
    if batch.replaced_by is not None:
        parts.append(f"waits for batch {batch.replaced_by}")
    elif batch.state is not BatchState.ACTIVE:
        parts.append(str(batch.state))
    else:
        parts.append("no estimate yet" if now.seconds_left is None else time_left(now.seconds_left))
    return ReadingProgress(done, total, " · ".join(parts))


def time_left(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute left"
    hours, rest = divmod(minutes, 60)
    if not hours:
        return f"about {minutes} min left"
    return f"about {hours} h left" if hours > 2 or rest < 10 else f"about {hours} h {rest} min left"
