"""The counter for documents: what the command line and HTTP ask of what is read.

It decides which job a wish becomes and where a published file lies. What is to be read again is the store's decision,
in the transaction that accepts the wish; how things are shown is the caller's.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from worker_service.clock import parse_duration
from worker_service.config import Settings
from worker_service.errors import BadInput, PagemillError, Refused
from worker_service.jobs.digest import canonical
from worker_service.jobs.documents import Decision, DocumentRequest, IndexStatus, PublishedFile
from worker_service.jobs.library import Document, DocumentSelector, KeywordCount
from worker_service.jobs.model import Enqueued, NewJob
from worker_service.store.base import Store

ROLES: Mapping[str, str] = {"txt": "text", "pdf": "pdf", "json": "pages", "hocr": "hocr", "original": "original"}
"""What people call a format, and what such a file is to its document."""

SUFFIXES = (".pdf", ".png", ".jpg", ".jpeg", ".tif", ".tiff", ".xlsx", ".xls", ".ods", ".csv")

_PAGES = re.compile(r"(\d{1,9})?(-)?(\d{1,9})?")
_AT_ONCE = 500
_POLL_SECONDS = 0.1


class NotExported(PagemillError):
    """A document has no file of this kind."""

    code = "not_exported"


class ReadingTimedOut(PagemillError):
    code = "wait_timed_out"
    exit_code = 124


@dataclass(frozen=True, slots=True)
class ReadWords:
    """How documents are to be read, as a person says it. None: as it was, or as usual."""

    languages: Sequence[str] = ()
    quality: str | None = None
    force_ocr: bool = False
    hocr: bool = False
    password: str | None = None
    then: Sequence[str] = ()

    def asked(self) -> dict[str, object]:
        """As the payload of `ingest` has it; what was not said is left out."""
        said: dict[str, object] = {}
        if self.languages:
            said["languages"] = [one for word in self.languages for one in re.split(r"[+,]", word) if one]
        if self.quality is not None:
            said["quality"] = self.quality
        if self.force_ocr:
            said["force_ocr"] = True
        if self.hocr:
            said["hocr"] = True
        if self.password is not None:
            said["password_file"] = self.password
        if self.then:
            said["then"] = [{"job_type": job_type} for job_type in self.then]
        return said


@dataclass(frozen=True, slots=True)
class CrawlWords:
    """A crawl as a person asks for it."""

    folder: str
    mime: Sequence[str] = ()
    name: str | None = None
    size_max: int | None = None
    newer_than: str | None = None
    depth: int | None = None
    credential: str = "drive"
    dry_run: bool = False
    reconcile: bool = False
    watch: str | None = None
    read: ReadWords = field(default_factory=ReadWords)


@dataclass(frozen=True, slots=True)
class Wish:
    """What became of the wish to have one thing read."""

    name: str
    job_id: int | None
    decision: Decision | None
    document_id: int | None = None


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A file that was, or was not, read elsewhere."""

    path: str
    content: str
    """SHA-256."""
    text: str | None
    """The file beside it that holds its text."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How far the documents are that somebody waits for."""

    documents: int
    ended: int
    failed: int
    pages_done: int
    pages: int


Watch = Callable[[Reading], None]


class Documents:
    def __init__(self, store: Store, settings: Settings) -> None:
        self.store = store
        self.settings = settings

    # ── Wishes ──

    def ingest(self, paths: Sequence[str], *, owner: str, read: ReadWords, is_forced: bool) -> list[Wish]:
        """A job for each file, which brings it in and has it read; directories with all that is below them."""
        files = [file for path in paths for file in _files_at(Path(path))]
        jobs = [_download(file, owner, read.asked(), is_forced=is_forced) for file in files]
        enqueued = [one for part in _parts(jobs) for one in self.store.enqueue_many(part)]
        return [Wish(str(file), one.job_id, one.decision) for file, one in zip(files, enqueued, strict=True)]

    def crawl(self, words: CrawlWords, *, owner: str) -> Enqueued:
        is_local = words.folder.startswith(("/", "./", "../", "~")) or Path(words.folder).is_dir()
        folder = str(Path(words.folder).expanduser().absolute()) if is_local else words.folder
        wanted = {
            "mime": list(words.mime),
            "name": words.name,
            "size_max": words.size_max,
            "newer_than": words.newer_than,
            "depth": words.depth,
        }
        payload: dict[str, object] = {
            "folder": folder,
            "wanted": {name: value for name, value in wanted.items() if value not in (None, [])},
            "credential": words.credential,
            "dry_run": words.dry_run,
            "reconcile": words.reconcile,
            "download": {"read": words.read.asked()},
        }
        if words.watch is not None:
            payload["watch_seconds"] = max(1, int(parse_duration(words.watch).total_seconds()))
        platform = "local" if is_local else "gdrive"
        key = f"crawl:{platform}:{owner}:{folder}"
        return self.store.enqueue(
            NewJob(
                "drive_crawl",
                platform=platform,
                owner=owner,
                payload=canonical(payload),
                source="" if is_local else f"gdrive:{words.credential}",
                unique_key=None if words.dry_run else key,
            )
        )

    def reindex(self, selector: DocumentSelector, *, read: ReadWords, is_forced: bool) -> list[Wish]:
        return [self._reindex(document, read, is_forced=is_forced) for document in self.all(selector)]

    def _reindex(self, document: Document, read: ReadWords, *, is_forced: bool) -> Wish:
        """With what it was read with before, but for what is said now."""
        asked = {**(json.loads(document.settings) if document.settings else {}), **read.asked()}
        if not any(file.role == "original" for file in self.store.files(document.id)):
            job = _download_again(document, asked, is_forced=is_forced)
        else:
            request = DocumentRequest(
                document.source_key, document.name, document.content, canonical(asked), is_forced=is_forced
            )
            job = NewJob(
                "ingest",
                platform=document.platform,
                owner=document.owner,
                payload=canonical(asked),
                document=request,
            )
        enqueued = self.store.enqueue(job)
        return Wish(document.name, enqueued.job_id or None, enqueued.decision, document.id)

    # ── Looking ──

    def all(self, selector: DocumentSelector) -> Iterator[Document]:
        """Every document that is meant, the newest first. Each id must be there."""
        for document_id in selector.ids:
            self.store.document(document_id)
        before: int | None = None
        while found := self.store.documents(selector, most=_AT_ONCE, before_id=before):
            yield from found
            before = found[-1].id

    def wait(
        self,
        sources: Sequence[str],
        *,
        owner: str,
        timeout: str | None,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
        watch: Watch | None = None,
    ) -> Reading:
        """Return once what these sources became has been read, or has failed."""
        deadline = None if timeout is None else monotonic() + parse_duration(timeout).total_seconds()
        selector = DocumentSelector(owners=(owner,), platforms=("local",), source_keys=tuple(sources))
        while True:
            reading = self._reading(selector)
            if watch is not None:
                watch(reading)
            if reading.ended >= len(sources):
                return reading
            if deadline is not None and monotonic() >= deadline:
                raise ReadingTimedOut(
                    f"after {timeout}, {len(sources) - reading.ended} of {len(sources)} were not read"
                )
            sleep(_POLL_SECONDS)

    def _reading(self, selector: DocumentSelector) -> Reading:
        documents = list(self.all(selector))
        ended = [one for one in documents if one.status in (IndexStatus.SUCCESS, IndexStatus.FAILED)]
        return Reading(
            len(documents),
            len(ended),
            sum(one.status is IndexStatus.FAILED for one in documents),
            sum(one.percent * (one.pages or 0) // 100 for one in documents),
            sum(one.pages or 0 for one in documents),
        )

    # ── Files ──

    def place(self, file: PublishedFile) -> Path:
        return self.settings.workspace / file.path

    def export(self, document: Document, form: str, directory: Path, *, is_forced: bool) -> Path:
        """Copy one file of a document, whole or not at all."""
        if form not in ROLES:
            raise BadInput(f"{form!r} is not a format: {', '.join(ROLES)}")
        role = ROLES[form]
        file = next((one for one in self.store.files(document.id) if one.role == role), None)
        if file is None:
            more = ": pagemill reindex --hocr makes it" if form == "hocr" else f": it is {document.status}"
            raise NotExported(f"document {document.id} ({document.name}) has no {form}{more}")
        directory.mkdir(parents=True, exist_ok=True)
        target = directory / _export_name(document, form, file)
        if target.exists() and not is_forced:
            raise Refused(f"{target} is there already: --force replaces it")
        unfinished = target.with_name(f".{target.name}.unfinished")
        try:
            shutil.copyfile(self.place(file), unfinished)
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)
        return target

    def adopt(self, found: Sequence[Elsewhere], *, owner: str) -> list[Wish]:
        """Record what was read elsewhere: a job takes over each text, and what has none is noted as not indexed."""
        for one in found:
            if one.text is None:
                request = DocumentRequest(one.path, Path(one.path).name, one.content)
                self.store.record_document(request, platform="local", owner=owner)
        jobs = [_adoption(one, one.text, owner) for one in found if one.text is not None]
        enqueued = [one for part in _parts(jobs) for one in self.store.enqueue_many(part)]
        return [
            Wish(job.document.name if job.document else "", one.job_id or None, one.decision, one.document_id)
            for job, one in zip(jobs, enqueued, strict=True)
        ]

    def keyword_counts(self, text: str, *, owner: str | None) -> Sequence[KeywordCount]:
        """Of the terms in a file: one a line, # begins a comment."""
        lines = (line.split("#", 1)[0].strip() for line in text.splitlines())
        terms = list(dict.fromkeys(line for line in lines if line))
        if not terms:
            raise BadInput('the file has no terms: write one a line, such as "climate risk" or sustainab*')
        return self.store.keyword_counts(terms, owner=owner)


def read_elsewhere(directory: Path) -> list[Elsewhere]:
    """The files below a directory; where report.txt stands beside report.pdf, with its text."""
    found: list[Elsewhere] = []
    for file in _files_at(directory):
        beside = file.with_suffix(".txt")
        with file.open("rb") as opened:
            content = hashlib.file_digest(opened, "sha256").hexdigest()
        found.append(Elsewhere(str(file), content, str(beside) if beside.is_file() else None))
    return found


def read_pages(text: str | None) -> tuple[int, int | None]:
    """3-5, 3-, -5 or 3."""
    if text is None:
        return 1, None
    found = _PAGES.fullmatch(text.strip())
    if found is None or not (found[1] or found[3]):
        raise BadInput(f"{text!r} names no pages: write 3, 3-5, 3- or -5")
    first = int(found[1] or 1)
    last = None if found[2] and not found[3] else int(found[3] or first)
    if first < 1 or (last is not None and last < first):
        raise BadInput(f"{text!r} names no pages: the first is 1, and the last comes after it")
    return first, last


def _files_at(path: Path) -> list[Path]:
    path = Path(os.path.normpath(path.absolute()))
    if path.is_dir():
        found = [
            file
            for file in sorted(path.rglob("*"))
            if file.suffix.lower() in SUFFIXES and file.is_file() and not file.is_symlink()
        ]
        if not found:
            raise BadInput(f"there is nothing to read below {path}: {', '.join(SUFFIXES)} can be read")
        return found
    if not path.is_file():
        raise BadInput(f"there is no file {path}")
    return [path]


def _download(file: Path, owner: str, read: Mapping[str, object], *, is_forced: bool) -> NewJob:
    body: dict[str, object] = {"source": str(file), "read": dict(read), "force": is_forced}
    return NewJob("download", platform="local", owner=owner, payload=canonical(body))


def _download_again(document: Document, read: Mapping[str, object], *, is_forced: bool) -> NewJob:
    body: dict[str, object] = {
        "source": document.source_key,
        "name": document.name,
        "read": dict(read),
        "force": is_forced,
    }
    source = "gdrive:drive" if document.platform == "gdrive" else ""
    return NewJob("download", platform=document.platform, owner=document.owner, payload=canonical(body), source=source)


def _adoption(one: Elsewhere, text: str, owner: str) -> NewJob:
    name = Path(one.path).name
    request = DocumentRequest(one.path, name, one.content, settings=canonical({"adopted": text}))
    return NewJob("adopt", platform="local", owner=owner, payload=canonical({"text": text}), document=request)


def _export_name(document: Document, form: str, file: PublishedFile) -> str:
    stem = Path(document.name).stem or f"document-{document.id}"
    suffix = Path(file.name).suffix if form == "original" else f".{form}"
    # Two documents may have one name; the number keeps them apart.
    return f"{stem}-{document.id}{suffix}"


def _parts(jobs: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
    for start in range(0, len(jobs), _AT_ONCE):
        yield jobs[start : start + _AT_ONCE]
