"""The counter for documents: what the command line and HTTP ask of what is read.

It decides which job a wish becomes and where a published file lies. What is to be read again is the store's decision,
in the transaction that accepts the wish; how things are shown is the caller's.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
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

_LANGUAGE = re.compile(r"[A-Za-z]\w*(?:/\w+)?", re.ASCII)
_PASSWORD = re.compile(r"password[\w.-]*", re.ASCII)
_DRIVE_FOLDER = re.compile(r"\s*[\w-]{10,120}\s*", re.ASCII)
_PAGES = re.compile(r"(\d{1,9})?(-)?(\d{1,9})?")
_AT_ONCE = 500
_ADOPTED = "adopted"
_LIVING = (IndexStatus.QUEUED, IndexStatus.INDEXING, IndexStatus.SUCCESS)


class NotExported(PagemillError):
    """A document has no file of this kind."""

    code = "not_exported"


class FileGone(PagemillError):
    """Somebody has removed it by hand."""

    code = "file_gone"
    exit_code = 74


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
            said["languages"] = [language for word in self.languages for language in _languages(word)]
        if self.quality is not None:
            said["quality"] = self.quality
        if self.force_ocr:
            said["force_ocr"] = True
        if self.hocr:
            said["hocr"] = True
        if self.password is not None:
            if not _PASSWORD.fullmatch(self.password):
                raise BadInput(
                    f"{self.password!r} is not the name of a credential that begins with password: give the service "
                    "LoadCredential=password-reports:/path/of/the/file, and say --password-file password-reports"
                )
            said["password_file"] = self.password
        if self.then:
            said["then"] = [_action(word) for word in self.then]
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
        return self.store.enqueue(self._crawl(words, owner))

    def is_crawled_so(self, job_id: int, words: CrawlWords, *, owner: str) -> bool:
        """Whether this job does all that is asked for. One that goes on watching does."""
        does = json.loads(self.store.get(job_id).payload or "{}")
        asked = json.loads(self._crawl(words, owner).payload or "{}")
        return bool({"watch_seconds": does.get("watch_seconds"), **asked} == {"watch_seconds": None, **does})

    def _crawl(self, words: CrawlWords, owner: str) -> NewJob:
        is_local = words.folder.startswith(("/", "./", "../", "~")) or Path(words.folder).exists()
        if words.newer_than is not None:
            _refuse_no_day(words.newer_than)
        folder = str(Path(words.folder).expanduser().absolute()) if is_local else words.folder
        _refuse_no_folder(folder, is_local=is_local)
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
        # One at a time walks a folder; one that waits for its next look keeps nobody from a full walk.
        key = f"crawl:{platform}:{owner}:{folder}"
        return NewJob(
            "drive_crawl",
            platform=platform,
            owner=owner,
            payload=canonical(payload),
            source="" if is_local else f"gdrive:{words.credential}",
            unique_key=None if words.dry_run else f"{key}:reconcile" if words.reconcile else key,
            concurrency_key=None if words.dry_run else key,
        )

    def reindex(self, selector: DocumentSelector, *, read: ReadWords, is_forced: bool) -> list[Wish]:
        return [self._reindex(document, read, is_forced=is_forced) for document in self.all(selector)]

    def _reindex(self, document: Document, read: ReadWords, *, is_forced: bool) -> Wish:
        """With what it was read with before, but for what is said now."""
        before = json.loads(document.settings) if document.settings else {}
        # That somebody else has read it is no way for us to read it.
        before.pop(_ADOPTED, None)
        asked = {**before, **read.asked()}
        if not self._has_original(document):
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

    # ── Files ──

    def _file(self, document: Document, role: str) -> PublishedFile | None:
        return next((file for file in self.store.files(document.id) if file.role == role), None)

    def place(self, file: PublishedFile) -> Path:
        return self.settings.workspace / file.path

    def export(self, document: Document, form: str, directory: Path, *, is_forced: bool) -> Path:
        """Copy one file of a document, whole or not at all."""
        if form not in ROLES:
            raise BadInput(f"{form!r} is not a format: {', '.join(ROLES)}")
        file = self._file(document, ROLES[form])
        if file is None:
            raise NotExported(f"document {document.id} ({document.name}) has no {form}: {_why_none(document, form)}")
        directory.mkdir(parents=True, exist_ok=True)
        target = directory / _export_name(document, form, file)
        if target.exists() and not is_forced:
            raise Refused(f"{target} is there already: --force replaces it")
        unfinished = target.with_name(f".{target.name}.unfinished")
        try:
            shutil.copyfile(self.place(file), unfinished)
            unfinished.replace(target)
        except FileNotFoundError as error:
            raise FileGone(
                f"{self.place(file)} is not in the workspace any more: pagemill reindex {document.id} --force makes it "
                "again"
            ) from error
        finally:
            unfinished.unlink(missing_ok=True)
        return target

    def adopt(self, found: Sequence[Elsewhere], *, owner: str) -> list[Wish]:
        """Record what was read elsewhere: a job takes over each text, and what has none is noted as not indexed."""
        return [self._adopt(one, owner) for one in found]

    def _adopt(self, one: Elsewhere, owner: str) -> Wish:
        request = DocumentRequest(one.path, Path(one.path).name, one.content)
        known = DocumentSelector(owners=(owner,), platforms=("local",), source_keys=(one.path,))
        for document in self.store.documents(known):
            if document.content == one.content and document.status in _LIVING:
                return Wish(one.path, None, Decision.UNCHANGED, document.id)
        if one.text is None:
            return Wish(one.path, None, None, self.store.record_document(request, platform="local", owner=owner))
        enqueued = self.store.enqueue(_adoption(request, one.text, owner))
        return Wish(one.path, enqueued.job_id or None, enqueued.decision, enqueued.document_id)

    def keyword_counts(self, text: str, *, owner: str | None) -> Sequence[KeywordCount]:
        """Of the terms in a file: one a line, # begins a comment."""
        lines = (line.split("#", 1)[0].strip() for line in text.splitlines())
        terms = list(dict.fromkeys(line for line in lines if line))
        if not terms:
            raise BadInput('the file has no terms: write one a line, such as "climate risk" or sustainab*')
        return self.store.keyword_counts(terms, owner=owner)


def _refuse_no_folder(folder: str, *, is_local: bool) -> None:
    """What is certain to be none. The daemon may see directories that we may not."""
    if not is_local and "://" not in folder and not _DRIVE_FOLDER.fullmatch(folder):
        raise BadInput(f"there is no directory {folder!r}, and it is no id or URL of a folder of Google Drive")
    with contextlib.suppress(PermissionError):
        if is_local and not Path(folder).exists():
            raise BadInput(f"there is no directory {folder}")
        if is_local and not Path(folder).is_dir():
            raise BadInput(f"{folder} is no directory: pagemill ingest reads a file")


def _refuse_no_day(text: str) -> None:
    try:
        datetime.fromisoformat(text)
    except ValueError as error:
        raise BadInput(f"{text!r} is not a day: write 2026-01-31, or 2026-01-31T10:00:00Z") from error


def _why_none(document: Document, form: str) -> str:
    if document.status is not IndexStatus.SUCCESS:
        return f"it is {document.status}"
    if document.kind == "sheet" and form in ("pdf", "hocr"):
        return "of a spreadsheet there is none"
    if form == "hocr":
        return f"pagemill reindex {document.id} --hocr makes it"
    return document.note or "it was not made"


def _languages(word: str) -> list[str]:
    languages = re.split(r"[+,]", word)
    if not all(_LANGUAGE.fullmatch(one) for one in languages):
        raise BadInput(f"{word!r} is not a language: write eng, or eng+deu")
    return languages


def _action(word: str) -> dict[str, object]:
    """TYPE, or TYPE={"url": "…"}."""
    job_type, _, payload = word.partition("=")
    try:
        given = json.loads(payload) if payload else {}
    except ValueError:
        given = None
    if not job_type or not isinstance(given, dict):
        raise BadInput(f"{word!r} is no action: write TYPE, or TYPE={{…}} with its payload")
    return {"job_type": job_type, "payload": given} if given else {"job_type": job_type}


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


def _refuse(error: OSError) -> None:
    raise error


def _files_at(path: Path) -> list[Path]:
    path = Path(os.path.normpath(path.absolute()))
    if path.is_dir():
        # A directory that we may not look into is refused: nothing below it is to be left out without a word.
        files = [Path(folder, name) for folder, _, names in os.walk(path, onerror=_refuse) for name in names]
        found = [
            file
            for file in sorted(files)
            if file.suffix.lower() in SUFFIXES and file.is_file() and not file.is_symlink()
        ]
        if not found:
            raise BadInput(f"there is nothing to read below {path}: {', '.join(SUFFIXES)} can be read")
        return found
    if not path.is_file():
        raise BadInput(f"there is no file {path}")
    return [path]


def _download(file: Path, owner: str, read: Mapping[str, object], *, is_forced: bool) -> NewJob:
    body: dict[str, object] = {"source": _source(file), "read": dict(read), "force": is_forced}
    return NewJob("download", platform="local", owner=owner, payload=canonical(body))


def _download_again(document: Document, read: Mapping[str, object], *, is_forced: bool) -> NewJob:
    body: dict[str, object] = {
        "source": _source(Path(document.source_key)) if document.platform == "local" else document.source_key,
        "name": document.name,
        "read": dict(read),
        "force": is_forced,
    }
    source = "gdrive:drive" if document.platform == "gdrive" else ""
    return NewJob("download", platform=document.platform, owner=document.owner, payload=canonical(body), source=source)


def _source(file: Path) -> str:
    """A source is what people paste, so that space around it means nothing; in a URL it does."""
    return str(file) if str(file).strip() == str(file) else file.as_uri()


def _adoption(request: DocumentRequest, text: str, owner: str) -> NewJob:
    wish = replace(request, settings=canonical({_ADOPTED: text}))
    return NewJob("adopt", platform="local", owner=owner, payload=canonical({"text": text}), document=wish)


def _export_name(document: Document, form: str, file: PublishedFile) -> str:
    stem = Path(document.name).stem or f"document-{document.id}"
    suffix = Path(file.name).suffix if form == "original" else f".{form}"
    # Two documents may have one name; the number keeps them apart.
    return f"{stem}-{document.id}{suffix}"


def _parts(jobs: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
    for start in range(0, len(jobs), _AT_ONCE):
        yield jobs[start : start + _AT_ONCE]
