"""Documents: list, show, search, export and remove them.

Requests to read documents are built by the reading handlers' commands; the store decides about them in the transaction
that accepts them.
"""

from __future__ import annotations

import filecmp
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from itertools import chain
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from worker_service.base.errors import BadInput, PagemillError, Refused
from worker_service.base.files import atomic_write
from worker_service.jobs.documents import DocumentRequest, PageResult, PublishedFile
from worker_service.jobs.job import Job
from worker_service.jobs.library import (
    Document,
    DocumentSelector,
    KeywordCount,
    PageSummary,
    Provenance,
    Removed,
    SearchResult,
    Weight,
)
from worker_service.services.database import Session
from worker_service.services.jobs import with_full_path
from worker_service.services.page_images import forget as forget_page_images
from worker_service.services.parse import read_pages
from worker_service.workspace import FORGOTTEN_AT_ONCE, file_exists, link, sweep_gone

ROLES: Mapping[str, str] = {"txt": "text", "pdf": "pdf", "json": "pages", "hocr": "hocr", "original": "original"}
"""File formats as users name them, and the role of each file of a document."""

_AT_ONCE = 500
_COUNTED_AT_ONCE = 2000
_FAILED_MOST = 1_000_000
_PAUSE_SECONDS = 0.005
"""Gap between steps for other writers, which poll for the write lock every millisecond."""


class DocumentPage(Struct, frozen=True):
    items: Sequence[Document]
    """Newest first."""
    next: int | None
    """The `before_id` of the next page; None on the last page."""
    not_brought_in: Sequence[Job]
    """Jobs that failed before there was a document; only on the first page."""
    are_more_not_brought_in: bool


class DocumentDetails(Struct, frozen=True):
    document: Document
    page_items: Sequence[PageSummary]
    files: Sequence[PublishedFile]
    """Files with full paths."""


class PageReaders(msgspec.Struct, frozen=True):
    """How a page was recognised, as recorded in its layout."""

    written_in: list[str] = []
    """Detected languages, if the user chose none."""
    readers: list[str] = []
    """OCR engine of the first pass, and of the second pass if it contributed words."""
    lines: list[list[msgspec.Raw]] = []
    second: list[int] = []
    """Indexes of the lines with words from the second pass."""

    @property
    def written_lines(self) -> int:
        return sum(map(bool, self.lines))


_LAYOUTS_AT_ONCE = 100
_readers = msgspec.json.Decoder(PageReaders)


def list_documents(
    session: Session, selector: DocumentSelector, *, limit: int = 50, before_id: int | None = None
) -> DocumentPage:
    _require_batches(session, selector.batch_ids)
    # Fetch one more than requested to see whether there is another page.
    library = session.store.library
    found = library.documents(selector, most=limit + 1, before_id=before_id)
    failed = library.not_brought_in(selector, most=limit + 1) if before_id is None else []
    following = found[limit - 1].id if len(found) > limit else None
    return DocumentPage(found[:limit], following, failed[:limit], len(failed) > limit)


def each_document(session: Session, selector: DocumentSelector) -> Iterator[Document]:
    """Yield the documents, newest first."""
    for found in _some_at_once(session, selector):
        yield from found


def _some_at_once(session: Session, selector: DocumentSelector) -> Iterator[Sequence[Document]]:
    _require_batches(session, selector.batch_ids)
    before: int | None = None
    while found := session.store.library.documents(selector, most=_AT_ONCE, before_id=before):
        yield found
        before = found[-1].id


def each_handed_over(session: Session, selector: DocumentSelector) -> Iterator[tuple[Document, Provenance] | Job]:
    """Yield all documents, newest first, then the jobs that failed before there was a document."""
    _require_batches(session, selector.batch_ids)
    return _handed_over(session, selector)


def _handed_over(session: Session, selector: DocumentSelector) -> Iterator[tuple[Document, Provenance] | Job]:
    for found in _some_at_once(session, selector):
        origins = session.store.library.provenance(found)
        yield from ((one, origins[one.id]) for one in found if one.id in origins)
    yield from session.store.library.not_brought_in(selector, most=_FAILED_MOST)


def _require_batches(session: Session, batch_ids: Sequence[int]) -> None:
    for batch_id in batch_ids:
        session.store.batches.get(batch_id)


def selected_documents(session: Session, selector: DocumentSelector) -> list[Document]:
    """Return the selected documents, newest first. Raise an error for an unknown id."""
    for document_id in selector.ids:
        session.store.library.document(document_id)
    return list(each_document(session, selector))


def get_document_details(session: Session, document_id: int) -> DocumentDetails:
    library = session.store.library
    return DocumentDetails(
        library.document(document_id),
        library.page_summaries(document_id),
        [with_full_path(session, file) for file in library.files(document_id)],
    )


def page_readers(session: Session, document_id: int, pages: int) -> Mapping[int, PageReaders]:
    """Return how the pages up to number `pages` were recognised, by page number, where that is recorded."""
    library = session.store.library
    read: dict[int, PageReaders] = {}
    for first in range(1, pages + 1, _LAYOUTS_AT_ONCE):
        last = min(first + _LAYOUTS_AT_ONCE - 1, pages)
        for page in library.page_texts(document_id, first, last, with_layout=True):
            if page.layout and '"readers":' in page.layout:
                read[page.number] = _readers.decode(page.layout)
    return read


def document_text(
    session: Session, document_id: int, *, pages: str | None = None
) -> tuple[Document, Sequence[PageResult]]:
    """Return a document and the text of its pages; `pages` is such as 3, 3-5, 3- or -5."""
    first, last = read_pages(pages)
    library = session.store.library
    return library.document(document_id), library.page_texts(document_id, first, last)


def get_page(session: Session, document_id: int, number: int) -> PageResult | None:
    """Return a page with its layout; None if it has no such readable page."""
    session.store.library.document(document_id)
    return next(iter(session.store.library.page_texts(document_id, number, number, with_layout=True)), None)


def find_file(session: Session, document_id: int, form: str) -> tuple[PublishedFile, str]:
    """Return a file of the document with its full path, and a file name for a copy."""
    if form not in ROLES:
        raise BadInput(f"{form!r} is not a format: {', '.join(ROLES)}")
    document = session.store.library.document(document_id)
    file = _file(session, document, ROLES[form])
    if file is None:
        raise NotExported(f"document {document_id} has no {form}: {_why_none(document, form)}")
    return _there(session, file, f"pagemill reindex {document_id} --force"), _export_name(document, form, file)


def find_job_file(session: Session, job_id: int, file_id: int) -> PublishedFile:
    """Return a file that the job published, with its full path."""
    session.store.reading.get(job_id)
    for file in session.store.library.job_files(job_id):
        if file.id == file_id:
            return _there(session, file, f"pagemill retry {job_id}")
    raise NotExported(f"job {job_id} has published no file {file_id}")


def _there(session: Session, file: PublishedFile, again: str) -> PublishedFile:
    """Return the file with its full path. Raise `FileGone` unless it is in the workspace: a row may name any path."""
    found = with_full_path(session, file)
    path = Path(found.path).resolve()
    if not path.is_relative_to(session.settings.workspace.resolve()) or not path.is_file():
        raise FileGone(f"{found.path} is not in the workspace any more: {again} makes it again")
    return found


def record_document(session: Session, request: DocumentRequest, *, platform: str, owner: str) -> int:
    """Record a document without requesting to read it. Return its id, also if it is known already."""
    return session.store.intake.record_document(request, platform=platform, owner=owner)


# ── Search ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def search_pages(
    session: Session,
    query: str,
    *,
    owner: str | None = None,
    document_id: int | None = None,
    batch_id: int | None = None,
    limit: int = 20,
    marks: tuple[str, str] = ("[", "]"),
    is_sure: bool = False,
    needs_all: bool = False,
) -> SearchResult:
    """Return the best pages with their hits between `marks`; `is_sure` leaves out badly recognised pages."""
    _require_batches(session, () if batch_id is None else (batch_id,))
    return session.store.library.search(
        query,
        owner=owner,
        document_id=document_id,
        batch_id=batch_id,
        most=limit,
        marks=marks,
        is_sure=is_sure,
        needs_all=needs_all,
    )


class TermCounts(Struct, frozen=True):
    """Number of occurrences of each term in a document or on one of its pages."""

    document: Document
    page: int | None
    """None for the whole document."""
    counts: Sequence[int | None]
    """One for each term; None if the document has no text yet."""

    @property
    def is_read(self) -> bool:
        return None not in self.counts

    def as_object(self, terms: Sequence[str]) -> dict[str, object]:
        page = {} if self.page is None else {"page": self.page}
        counts = dict(zip(terms, self.counts, strict=True)) if self.is_read else None
        return {"document_id": self.document.id, "name": self.document.name, **page, "counts": counts}


class KeywordPart(Struct, frozen=True):
    by_document: Sequence[TermCounts]
    """Every document, oldest first, with or without occurrences."""
    by_page: Sequence[TermCounts]
    """Every page with an occurrence."""


def parse_terms(text: str) -> list[str]:
    """Return the terms of a file with one term per line; # starts a comment."""
    lines = (line.split("#", 1)[0].strip() for line in text.splitlines())
    return list(dict.fromkeys(line for line in lines if line))


def count_keywords_in(session: Session, terms: Sequence[str], documents: Sequence[Document]) -> list[TermCounts]:
    """Return the counts of these documents in their order. Use `keywords` for many documents."""
    counts = session.store.library.keyword_counts(terms, document_ids=[one.id for one in documents])
    return _by_document(documents, terms, counts)


def count_keywords(
    session: Session, terms: Sequence[str], *, owner: str | None = None, batch_id: int | None = None
) -> Iterator[KeywordPart]:
    """Count the terms in all selected documents, in parts that fit in memory and keep the database responsive.

    Errors in the arguments are raised at once, and there is always at least one part. `terms`: see `terms_of`.
    """
    if not terms:
        raise BadInput("the file has no terms", 'write one a line, such as "climate risk" or sustainab*')
    chosen = DocumentSelector(
        owners=() if owner is None else (owner,), batch_ids=() if batch_id is None else (batch_id,)
    )
    _require_batches(session, chosen.batch_ids)
    document_ids = session.store.library.document_ids(chosen)
    first = _keywords(session, terms, document_ids[:_COUNTED_AT_ONCE])
    rest = range(_COUNTED_AT_ONCE, len(document_ids), _COUNTED_AT_ONCE)
    return chain([first], (_keywords(session, terms, document_ids[at : at + _COUNTED_AT_ONCE]) for at in rest))


def _keywords(session: Session, terms: Sequence[str], document_ids: Sequence[int]) -> KeywordPart:
    library = session.store.library
    counts = library.keyword_counts(terms, document_ids=document_ids)
    if not document_ids:
        return KeywordPart((), ())
    documents = library.documents(DocumentSelector(ids=document_ids), most=len(document_ids))[::-1]
    return KeywordPart(_by_document(documents, terms, counts), _by_page(documents, terms, counts))


def _by_document(
    documents: Sequence[Document], terms: Sequence[str], counts: Sequence[KeywordCount]
) -> list[TermCounts]:
    sums = Counter[tuple[int, str]]()
    for one in counts:
        sums[one.document_id, one.term] += one.count
    return [
        TermCounts(one, None, [None if one.current_generation is None else sums[one.id, term] for term in terms])
        for one in documents
    ]


def _by_page(documents: Sequence[Document], terms: Sequence[str], counts: Sequence[KeywordCount]) -> list[TermCounts]:
    found = {(one.document_id, one.number, one.term): one.count for one in counts}
    known = {one.id: one for one in documents}
    pages = sorted({(document_id, number) for document_id, number, _ in found if document_id in known})
    return [
        TermCounts(known[document_id], number, [found.get((document_id, number, term), 0) for term in terms])
        for document_id, number in pages
    ]


# ── Removal ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def weigh_removal(session: Session, documents: Sequence[Document]) -> Weight:
    """Return what removing these documents would free."""
    return session.store.upkeep.weigh([document.id for document in documents])


def remove_documents(
    session: Session, documents: Sequence[Document], *, sleep: Callable[[float], None] = time.sleep
) -> tuple[Removed, Sequence[str]]:
    """Remove documents with their pages and files; return the result and the files that could not be deleted.

    A daemon deletes those files later, as well as anything left after an interruption.
    """
    store, workspace = session.store, session.settings.workspace
    removed = store.upkeep.remove_documents([document.id for document in documents], actor=session.actor)
    while store.upkeep.forget_gone(FORGOTTEN_AT_ONCE):
        sleep(_PAUSE_SECONDS)
    left = sweep_gone(store, workspace)
    forget_page_images(workspace, removed.document_ids)
    with suppress(OSError):  # a daemon may have the permissions that this user lacks
        link(store, workspace, removed.document_ids)
    return removed, left


# ── Copies ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class NotExported(PagemillError):
    """The document or job has no file of this kind."""

    code = "not_exported"


class TargetExists(Refused):
    """The target of a copy exists already."""


class FileGone(PagemillError):
    """The file was deleted from the workspace by hand."""

    code = "file_gone"
    exit_code = 74


class IfExists(Enum):
    """Choice for a copy whose target exists already."""

    KEPT = "kept"
    UPDATED = "updated"
    REPLACED = "replaced"


class Export(Struct, frozen=True):
    chosen: int
    """Number of selected files."""
    items: Sequence[Path]
    """Files that were written."""
    unchanged: Sequence[Path]
    failures: Sequence[PagemillError]


def export_documents(
    session: Session, selector: DocumentSelector, form: str, directory: Path, there: IfExists
) -> Export:
    """Copy one file of each document to `directory`. A failed copy does not stop the others."""
    if form not in ROLES:
        raise BadInput(f"{form!r} is not a format: {', '.join(ROLES)}")
    if selector.is_empty:
        raise BadInput("say which documents to export: ids, or selectors such as --owner alice")
    if not selector.ids and not selector.statuses:
        selector = replace(selector, is_readable=True)
    copies, failures, chosen = list[_Copy](), list[PagemillError](), selected_documents(session, selector)
    for one in chosen:
        file = _file(session, one, ROLES[form])
        if file is None:
            failures.append(NotExported(f"document {one.id} ({one.name}) has no {form}: {_why_none(one, form)}"))
        else:
            target = directory / _export_name(one, form, file)
            copies.append((file, target, f"pagemill reindex {one.id} --force"))
    return _copied(session, copies, failures, there, chosen=len(chosen))


def export_job_files(session: Session, job_id: int, directory: Path, there: IfExists) -> Export:
    """Copy the files that a job published, keeping their paths within its own directory."""
    job, files = session.store.reading.get(job_id), session.store.library.job_files(job_id)
    if not files:
        raise NotExported(f"job {job_id} ({job.job_type}, {job.status}) has published no files")
    # Drop `objects` and the attempt's directory from the path.
    targets = {directory.joinpath(*Path(file.path).parts[2:]): file for file in files}
    copies = [(file, target, f"pagemill retry {job_id}") for target, file in targets.items()]
    return _copied(session, copies, [], there, chosen=len(copies))


def has_original(session: Session, document: Document) -> bool:
    """Return whether the document's source file is in the workspace."""
    original = _file(session, document, "original")
    return original is not None and file_exists(session.settings.workspace / original.path)


_Copy = tuple[PublishedFile, Path, str]
"""A file, its target, and the command that makes the file again if it is gone."""


def _copied(
    session: Session, copies: Sequence[_Copy], failures: list[PagemillError], there: IfExists, *, chosen: int
) -> Export:
    written, unchanged = list[Path](), list[Path]()
    for published, target, again in copies:
        file = session.settings.workspace / published.path
        try:
            if target.exists() and there is IfExists.KEPT:
                raise TargetExists(f"{target} is there already: --update replaces what has changed, --force everything")
            if there is IfExists.UPDATED and target.exists() and filecmp.cmp(file, target, shallow=False):
                unchanged.append(target)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with file.open("rb") as source, atomic_write(target) as copy:
                shutil.copyfileobj(source, copy)
            written.append(target)
        except TargetExists as error:
            failures.append(error)
        except FileNotFoundError:
            failures.append(FileGone(f"{file} is not in the workspace any more: {again} makes it again"))
    return Export(chosen, written, unchanged, failures)


def _file(session: Session, document: Document, role: str) -> PublishedFile | None:
    return next((file for file in session.store.library.files(document.id) if file.role == role), None)


def _why_none(document: Document, form: str) -> str:
    if document.current_generation is None:
        return f"it is {document.status}"
    if not document.has_pages_to_see and form in ("pdf", "hocr"):
        return f"of {'a spreadsheet' if document.kind == 'sheet' else 'what has no pages of its own'} there is none"
    if form == "hocr":
        return f"pagemill reindex {document.id} --hocr makes it"
    return document.note or "it was not made"


def _export_name(document: Document, form: str, file: PublishedFile) -> str:
    stem = Path(document.name).stem or f"document-{document.id}"
    suffix = Path(file.name).suffix if form == "original" else f".{form}"
    # Two documents may have the same name; the id keeps them apart.
    return f"{stem}-{document.id}{suffix}"
