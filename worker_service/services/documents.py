"""Documents: a list, one with all that is known of it, its text, searches, copies of its files, and their removal.

What is to be read, and again, is asked for by verbs that know of reading; the store decides in the transaction that
accepts the wish.
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

from worker_service.base.atomic_files import whole
from worker_service.base.errors import BadInput, PagemillError, Refused
from worker_service.jobs.documents import DocumentRequest, PageResult, PublishedFile
from worker_service.jobs.library import (
    Document,
    DocumentSelector,
    KeywordCount,
    Pace,
    PageSummary,
    Provenance,
    Removed,
    SearchResult,
    Weight,
)
from worker_service.jobs.model import Job
from worker_service.services.database import Session
from worker_service.services.jobs import placed
from worker_service.services.page_images import forget as forget_page_images
from worker_service.services.parse import read_pages
from worker_service.workspace import FORGOTTEN_AT_ONCE, is_there, link, sweep_gone

ROLES: Mapping[str, str] = {"txt": "text", "pdf": "pdf", "json": "pages", "hocr": "hocr", "original": "original"}
"""What people call a format, and what such a file is to its document."""

_AT_ONCE = 500
_COUNTED_AT_ONCE = 2000
_FAILED_MOST = 1_000_000
_PAUSE_SECONDS = 0.005
"""Who waits for the write lock looks each millisecond."""


class DocumentPage(Struct, frozen=True):
    items: Sequence[Document]
    """The newest first."""
    next: int | None
    """The id before which the next page begins; None: this is the last one."""
    not_brought_in: Sequence[Job]
    """On the first page: the jobs that failed before there was a document."""
    are_more_not_brought_in: bool


class DocumentInWhole(Struct, frozen=True):
    document: Document
    page_items: Sequence[PageSummary]
    files: Sequence[PublishedFile]
    """With their paths in full."""


class Readers(msgspec.Struct, frozen=True):
    """Who recognised a page, as its layout tells it."""

    written_in: list[str] = []
    """Found, where nobody had said."""
    readers: list[str] = []
    """The first, and the second if words of its own stand there."""
    lines: list[list[msgspec.Raw]] = []
    second: list[int] = []
    """Lines of which words are the second's."""

    @property
    def written_lines(self) -> int:
        return sum(map(bool, self.lines))


_LAYOUTS_AT_ONCE = 100
_readers = msgspec.json.Decoder(Readers)


def list_documents(
    session: Session, selector: DocumentSelector, *, limit: int = 50, before_id: int | None = None
) -> DocumentPage:
    _require_batches(session, selector.batch_ids)
    # One more than asked for tells whether there are others.
    library = session.store.library
    found = library.documents(selector, most=limit + 1, before_id=before_id)
    failed = library.not_brought_in(selector, most=limit + 1) if before_id is None else []
    following = found[limit - 1].id if len(found) > limit else None
    return DocumentPage(found[:limit], following, failed[:limit], len(failed) > limit)


def each(session: Session, selector: DocumentSelector) -> Iterator[Document]:
    """The newest first."""
    for found in _some_at_once(session, selector):
        yield from found


def _some_at_once(session: Session, selector: DocumentSelector) -> Iterator[Sequence[Document]]:
    _require_batches(session, selector.batch_ids)
    before: int | None = None
    while found := session.store.library.documents(selector, most=_AT_ONCE, before_id=before):
        yield found
        before = found[-1].id


def hand_over(session: Session, selector: DocumentSelector) -> Iterator[tuple[Document, Provenance] | Job]:
    """The newest first, all of them; then the jobs that failed before there was a document."""
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


def meant(session: Session, selector: DocumentSelector) -> list[Document]:
    """The same; each id must be there."""
    for document_id in selector.ids:
        session.store.library.document(document_id)
    return list(each(session, selector))


def pace(session: Session) -> Pace | None:
    """How fast documents were read lately, as this database has measured it."""
    return session.store.library.pace()


def document(session: Session, document_id: int) -> Document:
    return session.store.library.document(document_id)


def document_in_whole(session: Session, document_id: int) -> DocumentInWhole:
    library = session.store.library
    return DocumentInWhole(
        library.document(document_id),
        library.page_summaries(document_id),
        [placed(session, file) for file in library.files(document_id)],
    )


def readers(session: Session, document_id: int, pages: int) -> Mapping[int, Readers]:
    """By number, of its first pages those that were recognised, as far as that was noted."""
    library = session.store.library
    read: dict[int, Readers] = {}
    for first in range(1, pages + 1, _LAYOUTS_AT_ONCE):
        last = min(first + _LAYOUTS_AT_ONCE - 1, pages)
        for page in library.page_texts(document_id, first, last, with_layout=True):
            if page.layout and '"readers":' in page.layout:
                read[page.number] = _readers.decode(page.layout)
    return read


def text(session: Session, document_id: int, *, pages: str | None = None) -> tuple[Document, Sequence[PageResult]]:
    """`pages`: 3, 3-5, 3- or -5."""
    first, last = read_pages(pages)
    library = session.store.library
    return library.document(document_id), library.page_texts(document_id, first, last)


def page(session: Session, document_id: int, number: int) -> PageResult | None:
    """With its layout. None: nobody can read such a page of it."""
    session.store.library.document(document_id)
    return next(iter(session.store.library.page_texts(document_id, number, number, with_layout=True)), None)


def counts_by_state(session: Session) -> Mapping[str, int]:
    """How many documents there are in each state."""
    return session.store.library.counts_by_state()


def file_of(session: Session, document_id: int, form: str) -> tuple[PublishedFile, str]:
    """One of its files, with its path in full, and a name for a copy."""
    if form not in ROLES:
        raise BadInput(f"{form!r} is not a format: {', '.join(ROLES)}")
    document = session.store.library.document(document_id)
    file = _file(session, document, ROLES[form])
    if file is None:
        raise NotExported(f"document {document_id} has no {form}: {_why_none(document, form)}")
    return _there(session, file, f"pagemill reindex {document_id} --force"), _export_name(document, form, file)


def file_of_job(session: Session, job_id: int, file_id: int) -> PublishedFile:
    """One of those that it has published, with its path in full."""
    session.store.reading.get(job_id)
    for file in session.store.library.job_files(job_id):
        if file.id == file_id:
            return _there(session, file, f"pagemill retry {job_id}")
    raise NotExported(f"job {job_id} has published no file {file_id}")


def _there(session: Session, file: PublishedFile, again: str) -> PublishedFile:
    """A row may say anything: what lies elsewhere is nobody's to see."""
    found = placed(session, file)
    path = Path(found.path).resolve()
    if not path.is_relative_to(session.settings.workspace.resolve()) or not path.is_file():
        raise FileGone(f"{found.path} is not in the workspace any more: {again} makes it again")
    return found


def record(session: Session, request: DocumentRequest, *, platform: str, owner: str) -> int:
    """Note a document that nobody has asked to be read yet; return its id, also of one that is there already."""
    return session.store.intake.record_document(request, platform=platform, owner=owner)


# ── Searches ────────────────────────────────────────────────────────────────────────────────────────────────────────


def search(
    session: Session,
    query: str,
    *,
    owner: str | None = None,
    document_id: int | None = None,
    batch_id: int | None = None,
    limit: int = 20,
    marks: tuple[str, str] = ("[", "]"),
    is_sure: bool = False,
) -> SearchResult:
    """Return the best pages, their hits between `marks`; `is_sure`: without those that were recognised badly."""
    _require_batches(session, () if batch_id is None else (batch_id,))
    return session.store.library.search(
        query, owner=owner, document_id=document_id, batch_id=batch_id, most=limit, marks=marks, is_sure=is_sure
    )


class TermCounts(Struct, frozen=True):
    """How often each term stands in a document, or on a page of it."""

    document: Document
    page: int | None
    """None: the whole document."""
    counts: Sequence[int | None]
    """By term; None: nothing of it can be read yet."""

    @property
    def is_read(self) -> bool:
        return None not in self.counts

    def as_object(self, terms: Sequence[str]) -> dict[str, object]:
        page = {} if self.page is None else {"page": self.page}
        counts = dict(zip(terms, self.counts, strict=True)) if self.is_read else None
        return {"document_id": self.document.id, "name": self.document.name, **page, "counts": counts}


class Keywords(Struct, frozen=True):
    by_document: Sequence[TermCounts]
    """Every document, the oldest first, whether a term stands in it or not."""
    by_page: Sequence[TermCounts]
    """Each page on which a term stands."""


def terms_of(text: str) -> list[str]:
    """A term on each line; # begins a comment."""
    lines = (line.split("#", 1)[0].strip() for line in text.splitlines())
    return list(dict.fromkeys(line for line in lines if line))


def keywords_of(session: Session, terms: Sequence[str], documents: Sequence[Document]) -> list[TermCounts]:
    """Of these few documents, in their order."""
    counts = session.store.library.keyword_counts(terms, document_ids=[one.id for one in documents])
    return _by_document(documents, terms, counts)


def keywords(
    session: Session, terms: Sequence[str], *, owner: str | None = None, batch_id: int | None = None
) -> Iterator[Keywords]:
    """Of so many documents at once that neither memory nor the database is held up by them; whatever is wrong with
    what was asked is told at once, and there is always one. `terms`: see `terms_of`."""
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


def _keywords(session: Session, terms: Sequence[str], document_ids: Sequence[int]) -> Keywords:
    library = session.store.library
    counts = library.keyword_counts(terms, document_ids=document_ids)
    if not document_ids:
        return Keywords((), ())
    documents = library.documents(DocumentSelector(ids=document_ids), most=len(document_ids))[::-1]
    return Keywords(_by_document(documents, terms, counts), _by_page(documents, terms, counts))


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


# ── Removal ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def weigh(session: Session, documents: Sequence[Document]) -> Weight:
    """What would be freed if these were removed."""
    return session.store.upkeep.weigh([document.id for document in documents])


def remove(
    session: Session, documents: Sequence[Document], *, sleep: Callable[[float], None] = time.sleep
) -> tuple[Removed, Sequence[str]]:
    """Remove documents with their pages and files; return the files that could not be removed as well. Those, and
    whatever is left if it is cut off, are for a daemon."""
    store, workspace = session.store, session.settings.workspace
    removed = store.upkeep.remove_documents([document.id for document in documents], actor=session.actor)
    while store.upkeep.forget_gone(FORGOTTEN_AT_ONCE):
        sleep(_PAUSE_SECONDS)
    left = sweep_gone(store, workspace)
    forget_page_images(workspace, removed.document_ids)
    with suppress(OSError):  # a daemon may, where we may not
        link(store, workspace, removed.document_ids)
    return removed, left


# ── Copies ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class NotExported(PagemillError):
    """A document has no file of this kind."""

    code = "not_exported"


class IsThere(Refused):
    """A file is where a copy is to be."""


class FileGone(PagemillError):
    """Somebody has removed it by hand."""

    code = "file_gone"
    exit_code = 74


class There(Enum):
    """What becomes of a file that is where a copy is to be."""

    KEPT = "kept"
    UPDATED = "updated"
    REPLACED = "replaced"


class Export(Struct, frozen=True):
    chosen: int
    """How many files were asked for."""
    items: Sequence[Path]
    """Those that were written."""
    unchanged: Sequence[Path]
    failures: Sequence[PagemillError]


def export(session: Session, selector: DocumentSelector, form: str, directory: Path, there: There) -> Export:
    """Copy one file of each document. What cannot be copied holds up nothing else."""
    if form not in ROLES:
        raise BadInput(f"{form!r} is not a format: {', '.join(ROLES)}")
    if selector.is_empty:
        raise BadInput("say which documents to export: ids, or selectors such as --owner alice")
    if not selector.ids and not selector.statuses:
        selector = replace(selector, is_readable=True)
    copies, failures, chosen = list[_Copy](), list[PagemillError](), meant(session, selector)
    for one in chosen:
        file = _file(session, one, ROLES[form])
        if file is None:
            failures.append(NotExported(f"document {one.id} ({one.name}) has no {form}: {_why_none(one, form)}"))
        else:
            target = directory / _export_name(one, form, file)
            copies.append((file, target, f"pagemill reindex {one.id} --force"))
    return _copied(session, copies, failures, there, chosen=len(chosen))


def export_of_job(session: Session, job_id: int, directory: Path, there: There) -> Export:
    """Copy the files that a job has published, to their places in its own directory."""
    job, files = session.store.reading.get(job_id), session.store.library.job_files(job_id)
    if not files:
        raise NotExported(f"job {job_id} ({job.job_type}, {job.status}) has published no files")
    # Below objects, and the directory of the attempt.
    targets = {directory.joinpath(*Path(file.path).parts[2:]): file for file in files}
    copies = [(file, target, f"pagemill retry {job_id}") for target, file in targets.items()]
    return _copied(session, copies, [], there, chosen=len(copies))


def has_original(session: Session, document: Document) -> bool:
    """Whether the file that it was made from is in the workspace."""
    original = _file(session, document, "original")
    return original is not None and is_there(session.settings.workspace / original.path)


_Copy = tuple[PublishedFile, Path, str]
"""A file, where somebody wants it, and what makes it again, should it be gone."""


def _copied(
    session: Session, copies: Sequence[_Copy], failures: list[PagemillError], there: There, *, chosen: int
) -> Export:
    written, unchanged = list[Path](), list[Path]()
    for published, target, again in copies:
        file = session.settings.workspace / published.path
        try:
            if target.exists() and there is There.KEPT:
                raise IsThere(f"{target} is there already: --update replaces what has changed, --force everything")
            if there is There.UPDATED and target.exists() and filecmp.cmp(file, target, shallow=False):
                unchanged.append(target)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with file.open("rb") as source, whole(target) as copy:
                shutil.copyfileobj(source, copy)
            written.append(target)
        except IsThere as error:
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
    # Two documents may have one name; the number keeps them apart.
    return f"{stem}-{document.id}{suffix}"
