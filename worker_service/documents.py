"""The counter for documents: what the command line and HTTP ask of what is read.

It decides which job a wish becomes and where a published file lies. What is to be read again is the store's decision,
in the transaction that accepts the wish; how things are shown is the caller's.
"""

from __future__ import annotations

import filecmp
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from worker_service.config import Settings
from worker_service.errors import BadInput, PagemillError, Refused
from worker_service.filenames import legible, path_of, written
from worker_service.jobs.documents import Decision, DocumentRequest, IndexStatus, PublishedFile
from worker_service.jobs.library import Document, DocumentSelector, KeywordCount, Removed, Weight
from worker_service.jobs.model import Enqueued, NewJob
from worker_service.links import link
from worker_service.plurals import counted
from worker_service.store.base import Store
from worker_service.wishes import CrawlWords, ReadWords, adopt_job, crawl_job, download_job, reindex_job

ROLES: Mapping[str, str] = {"txt": "text", "pdf": "pdf", "json": "pages", "hocr": "hocr", "original": "original"}
"""What people call a format, and what such a file is to its document."""

SUFFIXES = (".pdf", ".png", ".jpg", ".jpeg", ".tif", ".tiff", ".xlsx", ".xls", ".ods", ".csv", ".tsv")
"""Of what the handlers can read, which are not loaded here."""

HIDDEN, LINKS, OTHERS = "hidden", "symbolic_links", "others"

FORGOTTEN_AT_ONCE = 50
"""Pages in one transaction: others want to write, too."""

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


@dataclass(frozen=True, slots=True)
class Wish:
    """What became of the wish to have one thing read."""

    name: str
    job_id: int | None
    decision: Decision | None
    document_id: int | None = None
    source_key: str = ""
    """Of a file, which leads to it."""


@dataclass(frozen=True, slots=True)
class Ingested:
    wishes: Sequence[Wish]
    left_out: Mapping[str, int]
    """How many below directories are not brought in, by why not: HIDDEN, LINKS, OTHERS or a file's ending."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A file that was, or was not, read elsewhere."""

    path: str
    content: str
    """SHA-256."""
    text: str | None
    """The file beside it that holds its text."""


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

    # ── Wishes ──

    def ingest(self, paths: Sequence[str], *, owner: str, read: ReadWords, is_forced: bool) -> Ingested:
        """A job for each file, which brings it in and has it read; directories with all that is below them."""
        left_out = Counter[str]()
        files = [file for path in paths for file in _files_at(Path(path), left_out)]
        jobs = [download_job(file, read, owner=owner, is_forced=is_forced) for file in files]
        enqueued = [one for part in _parts(jobs) for one in self.store.enqueue_many(part)]
        wishes = [
            Wish(legible(file), one.job_id, Decision.UNDER_WAY if one.existing else None, source_key=written(file))
            for file, one in zip(files, enqueued, strict=True)
        ]
        return Ingested(wishes, left_out)

    def crawl(self, words: CrawlWords, *, owner: str) -> Enqueued:
        return self.store.enqueue(crawl_job(words, owner=owner))

    def is_crawled_so(self, job_id: int, words: CrawlWords, *, owner: str) -> bool:
        """Whether this job does all that is asked for. One that goes on watching does."""
        does = json.loads(self.store.get(job_id).payload or "{}")
        asked = json.loads(crawl_job(words, owner=owner).payload or "{}")
        return bool({"watch_seconds": does.get("watch_seconds"), **asked} == {"watch_seconds": None, **does})

    def reindex(self, selector: DocumentSelector, *, read: ReadWords, is_forced: bool) -> list[Wish]:
        return [self._reindex(document, read, is_forced=is_forced) for document in self.all(selector)]

    def _reindex(self, document: Document, read: ReadWords, *, is_forced: bool) -> Wish:
        job = reindex_job(document, read, has_original=self._has_original(document), is_forced=is_forced)
        enqueued = self.store.enqueue(job)
        return Wish(document.name, enqueued.job_id or None, enqueued.decision, document.id)

    def _has_original(self, document: Document) -> bool:
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
            self.store.document(document_id)
        before: int | None = None
        while found := self.store.documents(selector, most=_AT_ONCE, before_id=before):
            yield from found
            before = found[-1].id

    # ── Removing ──

    def weigh(self, documents: Sequence[Document]) -> Weight:
        return self.store.weigh([document.id for document in documents])

    def remove(
        self, documents: Sequence[Document], *, actor: str, sleep: Callable[[float], None]
    ) -> tuple[Removed, Sequence[str]]:
        """Remove documents with their pages and files; return the files that could not be removed as well. Those, and
        whatever is left if it is cut off, are for a daemon."""
        removed = self.store.remove_documents([document.id for document in documents], actor=actor)
        while self.store.forget_gone(FORGOTTEN_AT_ONCE):
            # Who waits for the write lock looks each millisecond.
            sleep(_BREATH_SECONDS)
        left = sweep_gone(self.store, self.settings.workspace)
        with suppress(OSError):  # a daemon may, where we may not
            link(self.store, self.settings.workspace, removed.document_ids)
        return removed, left

    # ── Files ──

    def _file(self, document: Document, role: str) -> PublishedFile | None:
        return next((file for file in self.store.files(document.id) if file.role == role), None)

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
        job, files = self.store.get(job_id), self.store.job_files(job_id)
        if not files:
            raise NotExported(f"job {job_id} ({job.job_type}, {job.status}) has published no files")
        # Below objects, and the directory of the attempt.
        copies = {directory.joinpath(*Path(file.path).parts[2:]): file for file in files}
        return [Copy(self.place(file), target, f"pagemill retry {job_id}") for target, file in copies.items()]

    def adopt(self, found: Sequence[Elsewhere], *, owner: str) -> list[Wish]:
        """Record what was read elsewhere: a job takes over each text, and what has none is noted as not indexed."""
        return [self._adopt(one, owner) for one in found]

    def _adopt(self, one: Elsewhere, owner: str) -> Wish:
        path = path_of(one.path)
        name, request = legible(path), DocumentRequest(one.path, legible(path.name), one.content)
        known = DocumentSelector(owners=(owner,), platforms=("local",), source_keys=(one.path,))
        for document in self.store.documents(known):
            if document.content == one.content and document.status in _LIVING:
                return Wish(name, None, Decision.UNCHANGED, document.id)
        if one.text is None:
            return Wish(name, None, None, self.store.record_document(request, platform="local", owner=owner))
        enqueued = self.store.enqueue(adopt_job(request, one.text, owner=owner))
        return Wish(name, enqueued.job_id or None, enqueued.decision, enqueued.document_id)

    def keyword_counts(self, text: str, *, owner: str | None) -> tuple[list[str], Sequence[KeywordCount]]:
        """The terms in a file (one a line, # begins a comment), and where they stand."""
        lines = (line.split("#", 1)[0].strip() for line in text.splitlines())
        terms = list(dict.fromkeys(line for line in lines if line))
        if not terms:
            raise BadInput('the file has no terms: write one a line, such as "climate risk" or sustainab*')
        return terms, self.store.keyword_counts(terms, owner=owner)


def sweep_gone(store: Store, workspace: Path) -> Sequence[str]:
    """Remove the files that nothing in the database names any more; return those that we cannot. The note goes last:
    what is cut off is done again."""
    while paths := store.gone_files():
        left = [path for path in paths if not _is_removed(workspace, path)]
        store.forget_gone_files([path for path in paths if path not in left])
        if left:
            return left
    return []


def _is_removed(workspace: Path, path: str) -> bool:
    # What a hand has noted may be no file, or none that was published.
    if not Path(path).is_relative_to("objects"):
        return True
    file = workspace / path
    try:
        file.unlink(missing_ok=True)
    except (IsADirectoryError, NotADirectoryError):
        return True
    except OSError:
        return False
    with suppress(OSError):  # the folder holds more
        for folder in [*Path(path).parents][:-2]:  # below objects
            (workspace / folder).rmdir()
    return True


def _why_none(document: Document, form: str) -> str:
    if document.current_generation is None:
        return f"it is {document.status}"
    if document.kind == "sheet" and form in ("pdf", "hocr"):
        return "of a spreadsheet there is none"
    if form == "hocr":
        return f"pagemill reindex {document.id} --hocr makes it"
    return document.note or "it was not made"


def read_elsewhere(directory: Path) -> list[Elsewhere]:
    """The files below a directory; where report.txt stands beside report.pdf, with its text."""
    found: list[Elsewhere] = []
    for file in _files_at(directory, Counter()):
        beside = file.with_suffix(".txt")
        with file.open("rb") as opened:
            content = hashlib.file_digest(opened, "sha256").hexdigest()
        found.append(Elsewhere(written(file), content, written(beside) if beside.is_file() else None))
    return found


def _refuse(error: OSError) -> None:
    raise error


def _files_at(path: Path, left_out: Counter[str]) -> list[Path]:
    """A file, or those below a directory that can be read; what they leave out is counted, as a crawl would."""
    path = Path(os.path.normpath(path.absolute()))
    if not path.is_dir():
        if not path.is_file():
            raise BadInput(f"there is no file {path}")
        return [path]
    found: list[Path] = []
    # A directory that we may not look into is refused: nothing below it is to be left out without a word.
    for folder, folders, names in os.walk(path, onerror=_refuse):
        here = {name: _why_left_out(Path(folder, name)) for name in [*folders, *names]}
        left_out.update(filter(None, here.values()))
        folders[:] = [name for name in folders if not here[name]]
        found += (Path(folder, name) for name in names if not here[name])
    if not found:
        raise BadInput(f"there is nothing to read below {path}{_left_out(left_out)}: {', '.join(SUFFIXES)} can be read")
    return sorted(found)


def _why_left_out(path: Path) -> str:
    if path.name.startswith("."):
        return HIDDEN
    if path.is_symlink():
        return LINKS
    if path.is_dir() or (path.suffix.lower() in SUFFIXES and path.is_file()):
        return ""
    return legible(path.suffix.lower()) or OTHERS


def _left_out(counts: Mapping[str, int]) -> str:
    words = in_words(counts)
    return f" (left out: {words})" if words else ""


def in_words(left_out: Mapping[str, int]) -> str:
    """``2 symbolic links, 1 hidden, 3 .docx``"""
    nouns = {LINKS: ("symbolic link", None), HIDDEN: ("hidden", "hidden"), OTHERS: ("other", "others")}
    most_first = sorted(left_out.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(counted(number, *nouns.get(why, (why, why))) for why, number in most_first)


def _export_name(document: Document, form: str, file: PublishedFile) -> str:
    stem = Path(document.name).stem or f"document-{document.id}"
    suffix = Path(file.name).suffix if form == "original" else f".{form}"
    # Two documents may have one name; the number keeps them apart.
    return f"{stem}-{document.id}{suffix}"


def _parts(jobs: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
    for start in range(0, len(jobs), _AT_ONCE):
        yield jobs[start : start + _AT_ONCE]
