"""Handlers that resume from a checkpoint, and that save pages."""

from dataclasses import dataclass
from typing import Any

from worker_service.handlers import Context, DocumentPages, Done, Handler, KnownPages, PageResult


@dataclass(frozen=True, slots=True)
class PagesToRead:
    pages: int


def _resume(context: Context[PagesToRead]) -> Done:
    read: list[int] = context.state or []
    begun_with = len(read)
    for page in range(len(read), context.payload.pages):
        read = [*read, page]
        context.checkpoint(read)
    return Done({"pages": read, "begun_with": begun_with})


resumes = Handler("resumes", _resume, PagesToRead)
several: list[Handler[Any]] = [Handler("one_of_several", _resume, PagesToRead)]


def _read(context: Context[PagesToRead]) -> Done:
    numbers = range(1, context.payload.pages + 1)
    known = set(context.ask(KnownPages([f"d{number}" for number in numbers])).digests)
    for number in numbers:
        if f"d{number}" not in known:
            context.save_page(PageResult(number, f"d{number}", f"page {number}"))
    context.checkpoint({"read": len(numbers)})
    pages = context.ask(DocumentPages(1, len(numbers))).pages
    return Done([page.text for page in pages])


reads = Handler("reads", _read, PagesToRead)
