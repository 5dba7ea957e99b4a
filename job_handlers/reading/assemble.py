"""Publish a document once all ranges of its pages have been read.

Documents without such ranges are published by `ingest`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from job_handlers.file_kinds import FileKind
from job_handlers.reading import pdf
from job_handlers.reading.document import HowToRead, check_current, document_of, how_to_read, original_of
from job_handlers.reading.outputs import Assembly
from job_handlers.reading.page_process import PageProcess
from worker_service.handlers import MIB, Context, DocumentFacts, Done, Handler, Limits, Permanent

_THUMBNAIL_CPU_SECONDS = 20


class AssemblePayload(HowToRead, frozen=True, kw_only=True):
    note: str = ""
    """Note from `ingest` for the user."""


def run(context: Context[AssemblePayload]) -> Done:
    document = document_of(context)
    check_current(context)
    original = original_of(context)
    kind, pages, how = document.kind, document.pages, how_to_read(context)
    if kind is None or not pages:
        raise Permanent("PAGES_MISSING", "its pages have not been counted", "read it again with `pagemill reindex`")
    facts = DocumentFacts(note=context.payload.note or None)
    with (
        Assembly(context, original, kind, how) as assembly,
        PageProcess[bytes](
            lambda: _thumbnail_drawer(original, how.password), bytes, cpu_seconds=_THUMBNAIL_CPU_SECONDS
        ) as thumbnail,
    ):
        is_drawn = kind in (FileKind.PDF, FileKind.IMAGE)
        if is_drawn:
            # The thumbnail is drawn while the pages are written.
            thumbnail.begin()
        assembly.add_rest(pages)
        return assembly.published(facts, (lambda: thumbnail.read(1)) if is_drawn else None)


assemble = Handler(
    "assemble",
    run,
    AssemblePayload,
    job_class="io",
    limits=Limits(wall_seconds=2 * 3600, file_bytes=16384 * MIB),
    credentials=["password*"],
)


def _thumbnail_drawer(original: Path, password: str) -> Callable[[int], bytes]:
    """Draw the thumbnail at once and return a function that returns it. Runs in the page process."""
    picture = b""
    with suppress(pdf.Broken, pdf.PdfLocked, pdf.PageTooLarge), pdf.PagedFile(original, password) as book:
        picture = book.thumbnail(1)
    return lambda number: picture
