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

_RATE_PERIOD = timedelta(minutes=5)
_PAGES_FOR_ESTIMATE_MIN = 2


class ReadingProgress(Struct, frozen=True):
    done: int
    total: int | None
    sentence: str


def reading_progress(session: Session, documents: Sequence[Document]) -> Mapping[int, ReadingProgress]:
    now = session.clock()
    ids = [document.id for document in documents]
    pages_read = session.library.pages_read(ids, since=as_text(now - _RATE_PERIOD), now=as_text(now))
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
    progress, batch = details.progress, details.batch
    done, total, unit = progress.jobs_ended, progress.jobs, "job"
    successful = progress.jobs - progress.jobs_failed
    if progress.files:
        done, total, unit = progress.files_ended, progress.files, "file"
        successful = progress.files - progress.files_failed - progress.files_cancelled
    if batch.state.is_ended:
        sentence = counted(total, unit) if successful == total else f"{successful:,} of {total:,} {unit}s"
        return ReadingProgress(done, total, sentence)
    if progress.may_find_more:
        return ReadingProgress(done, None, f"{done:,} of {counted(total, unit)} so far, still looking for more")
    if progress.files == 1 and progress.pages:
        done, total, unit = progress.pages_read, progress.pages, "page"
    parts = [f"{done:,} of {counted(total, unit)}"]
    if batch.replaced_by is not None:
        parts.append(f"waits for batch {batch.replaced_by}")
    elif batch.state is not BatchState.ACTIVE:
        parts.append(str(batch.state))
    else:
        parts.append("no estimate yet" if progress.seconds_left is None else time_left(progress.seconds_left))
    return ReadingProgress(done, total, " · ".join(parts))


def time_left(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute left"
    hours, minutes_left = divmod(minutes, 60)
    if not hours:
        return f"about {minutes} min left"
    # Longer estimates are not exact to minutes.
    has_minutes = hours <= 2 and minutes_left >= 10
    return f"about {hours} h {minutes_left} min left" if has_minutes else f"about {hours} h left"
