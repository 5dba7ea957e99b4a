"""The counter for documents: what the command line and HTTP ask of what is read.

It decides which job a wish becomes and where a published file lies. What is to be read again is the store's decision,
in the transaction that accepts the wish; how things are shown is the caller's.
"""

from __future__ import annotations

import filecmp
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from worker_service.config import Settings
from worker_service.errors import BadInput, PagemillError, Refused
from worker_service.jobs.documents import IndexStatus, PublishedFile
from worker_service.jobs.library import Document, DocumentSelector, KeywordCount, Removed, Weight
from worker_service.store.base import Store
from worker_service.workspace import FORGOTTEN_AT_ONCE, link, sweep_gone

ROLES: Mapping[str, str] = {"txt": "text", "pdf": "pdf", "json": "pages", "hocr": "hocr", "original": "original"}
"""What people call a format, and what such a file is to its document."""


_AT_ONCE = 500
_BREATH_SECONDS = 0.005
_LIVING = (IndexStatus.QUEUED, IndexStatus.INDEXING, IndexStatus.SUCCESS)


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


@dataclass(frozen=True, slots=True)
class Copy:
    """A published file, and where somebody wants it."""

    file: Path
    target: Path
    again: str
    """What makes the file again, should it be gone."""

    def is_written(self, there: There) -> bool:
        """Whole or not at all; False where the same was there already."""
        if self.target.exists() and there is There.KEPT:
            raise IsThere(f"{self.target} is there already: --update replaces what has changed, --force everything")
        try:
            if there is There.UPDATED and self.target.exists() and filecmp.cmp(self.file, self.target, shallow=False):
                return False
            self.target.parent.mkdir(parents=True, exist_ok=True)
            unfinished = self.target.with_name(f".{self.target.name}.unfinished")
            try:
                shutil.copyfile(self.file, unfinished)
                unfinished.replace(self.target)
            finally:
                unfinished.unlink(missing_ok=True)
        except FileNotFoundError as error:
            raise FileGone(f"{self.file} is not in the workspace any more: {self.again} makes it again") from error
        return True


class Documents:
    def __init__(self, store: Store, settings: Settings) -> None:
        self.store = store
        self.settings = settings

    def has_original(self, document: Document) -> bool:
        original = self._file(document, "original")
        if original is None:
            return False
        try:
            self.place(original).stat()
        except FileNotFoundError:
            return False
        except OSError:
            # The daemon may see what we may not.
            return True
        return True

    # ── Looking ──

    def all(self, selector: DocumentSelector) -> Iterator[Document]:
        """Every document that is meant, the newest first. Each id must be there."""
        for document_id in selector.ids:
            self.store.library.document(document_id)
        before: int | None = None
        while found := self.store.library.documents(selector, most=_AT_ONCE, before_id=before):
            yield from found
            before = found[-1].id

    # ── Removing ──

    def weigh(self, documents: Sequence[Document]) -> Weight:
        return self.store.upkeep.weigh([document.id for document in documents])

    def remove(
        self, documents: Sequence[Document], *, actor: str, sleep: Callable[[float], None]
    ) -> tuple[Removed, Sequence[str]]:
        """Remove documents with their pages and files; return the files that could not be removed as well. Those, and
        whatever is left if it is cut off, are for a daemon."""
        removed = self.store.upkeep.remove_documents([document.id for document in documents], actor=actor)
        while self.store.upkeep.forget_gone(FORGOTTEN_AT_ONCE):
            # Who waits for the write lock looks each millisecond.
            sleep(_BREATH_SECONDS)
        left = sweep_gone(self.store, self.settings.workspace)
        with suppress(OSError):  # a daemon may, where we may not
            link(self.store, self.settings.workspace, removed.document_ids)
        return removed, left

    # ── Files ──

    def _file(self, document: Document, role: str) -> PublishedFile | None:
        return next((file for file in self.store.library.files(document.id) if file.role == role), None)

    def place(self, file: PublishedFile) -> Path:
        return self.settings.workspace / file.path

    def to_export(self, document: Document, form: str, directory: Path) -> Copy:
        """One file of a document."""
        if form not in ROLES:
            raise BadInput(f"{form!r} is not a format: {', '.join(ROLES)}")
        file = self._file(document, ROLES[form])
        if file is None:
            raise NotExported(f"document {document.id} ({document.name}) has no {form}: {_why_none(document, form)}")
        target = directory / _export_name(document, form, file)
        return Copy(self.place(file), target, f"pagemill reindex {document.id} --force")

    def to_export_of_job(self, job_id: int, directory: Path) -> list[Copy]:
        """The files that a job has published, by their places in its own directory."""
        job, files = self.store.reading.get(job_id), self.store.library.job_files(job_id)
        if not files:
            raise NotExported(f"job {job_id} ({job.job_type}, {job.status}) has published no files")
        # Below objects, and the directory of the attempt.
        copies = {directory.joinpath(*Path(file.path).parts[2:]): file for file in files}
        return [Copy(self.place(file), target, f"pagemill retry {job_id}") for target, file in copies.items()]

    def keyword_counts(self, text: str, *, owner: str | None) -> tuple[list[str], Sequence[KeywordCount]]:
        """The terms in a file (one a line, # begins a comment), and where they stand."""
        lines = (line.split("#", 1)[0].strip() for line in text.splitlines())
        terms = list(dict.fromkeys(line for line in lines if line))
        if not terms:
            raise BadInput('the file has no terms: write one a line, such as "climate risk" or sustainab*')
        return terms, self.store.library.keyword_counts(terms, owner=owner)


def _why_none(document: Document, form: str) -> str:
    if document.current_generation is None:
        return f"it is {document.status}"
    if document.kind == "sheet" and form in ("pdf", "hocr"):
        return "of a spreadsheet there is none"
    if form == "hocr":
        return f"pagemill reindex {document.id} --hocr makes it"
    return document.note or "it was not made"


def _export_name(document: Document, form: str, file: PublishedFile) -> str:
    stem = Path(document.name).stem or f"document-{document.id}"
    suffix = Path(file.name).suffix if form == "original" else f".{form}"
    # Two documents may have one name; the number keeps them apart.
    return f"{stem}-{document.id}{suffix}"
