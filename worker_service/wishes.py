"""What a person asks of documents, in words, and the job that each wish becomes. It looks at no database.

Whether a wish is accepted is decided where it is written; here is refused only what can mean nothing.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from worker_service.clock import parse_length
from worker_service.errors import BadInput
from worker_service.filenames import legible, written
from worker_service.jobs.digest import canonical, digest
from worker_service.jobs.documents import DocumentRequest
from worker_service.jobs.library import Document
from worker_service.jobs.model import Job, NewJob, Status

_LANGUAGE = re.compile(r"[A-Za-z]\w*(?:/\w+)?", re.ASCII)
_REMEMBERED = ("languages", "quality", "force_ocr", "hocr", "password_file", "then")
_PASSWORD = re.compile(r"password[\w.-]*", re.ASCII)
_DRIVE_FOLDER = re.compile(r"\s*[\w-]{10,120}\s*", re.ASCII)
_PAGES = re.compile(r"(\d{1,9})?(-)?(\d{1,9})?")

_WATCH = "watch_seconds"


@dataclass(frozen=True, slots=True)
class ReadWords:
    """How documents are to be read, as a person says it. What is not said is as each document remembers it."""

    as_usual: bool = False
    """What they remember is forgotten."""
    languages: Sequence[str] = ()
    quality: str | None = None
    force_ocr: bool = False
    hocr: bool = False
    password: str | None = None
    then: Sequence[str] = ()

    def asked(self) -> dict[str, object]:
        """As the payload of `ingest` has it; what was not said is left out, and null means as usual."""
        said: dict[str, object] = dict.fromkeys(_REMEMBERED) if self.as_usual else {}
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

    def actions(self) -> list[NewJob]:
        """The jobs that come after."""
        jobs = ((word.partition("=")[0], _action(word).get("payload")) for word in self.then)
        return [NewJob(job_type, payload=None if payload is None else canonical(payload)) for job_type, payload in jobs]


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


# ── The jobs ──


def crawl_job(words: CrawlWords, *, owner: str) -> NewJob:
    is_local = words.folder.startswith(("/", "./", "../", "~")) or Path(words.folder).exists()
    if words.newer_than is not None:
        _refuse_no_day(words.newer_than)
    if is_local:
        directory = Path(words.folder).expanduser().absolute()
        _refuse_no_directory(directory)
        folder, name = written(directory), legible(directory)
    else:
        folder = name = words.folder
        _refuse_no_drive_folder(folder)
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
        payload[_WATCH] = max(1, int(parse_length(words.watch).total_seconds()))
    platform = "local" if is_local else "gdrive"
    # One at a time walks a folder; one that waits for its next look keeps nobody from a full walk.
    key = f"crawl:{platform}:{owner}:{folder}"
    return NewJob(
        "drive_crawl",
        name=name,
        platform=platform,
        owner=owner,
        payload=canonical(payload),
        source="" if is_local else f"gdrive:{words.credential}",
        unique_key=None if words.dry_run else f"{key}:reconcile" if words.reconcile else key,
        concurrency_key=None if words.dry_run else key,
    )


def rests_from_watching(job: Job) -> bool:
    """Whether it looks again and again for ever, and has looked: this is as far as it ever gets."""
    if job.status is not Status.PENDING or job.fence == 0 or job.run_at is None:
        return False
    with contextlib.suppress(ValueError, RecursionError):
        payload = json.loads(job.payload or "{}")
        return isinstance(payload, dict) and payload.get(_WATCH) is not None
    return False


def download_job(file: Path, read: ReadWords, *, owner: str, is_forced: bool) -> NewJob:
    source = written(file)
    body = {"source": source, "read": read.asked(), "force": is_forced}
    # The same wish for the same bytes, as far as that can be told without reading them.
    now = file.stat()
    key = f"ingest:{digest([owner, body, now.st_mtime_ns, now.st_size])}"
    return NewJob(
        "download",
        platform="local",
        owner=owner,
        payload=canonical(body),
        name=legible(file.name),
        source_key=source,
        unique_key=key,
    )


def reindex_job(document: Document, read: ReadWords, *, has_original: bool, is_forced: bool) -> NewJob:
    """As it remembers, but for what is said now; without its original it is brought in again."""
    asked = read.asked()
    platform, owner = document.platform, document.owner
    if has_original:
        wish = DocumentRequest(
            document.source_key, document.name, document.content, canonical(asked), is_forced=is_forced
        )
        return NewJob("ingest", platform=platform, owner=owner, document=wish)
    # What others have read, or what was lost, is read by us in any case.
    body = {"source": document.source_key, "name": document.name, "read": asked, "force": True}
    rests = "gdrive:drive" if platform == "gdrive" else ""
    return NewJob(
        "download",
        platform=platform,
        owner=owner,
        payload=canonical(body),
        source=rests,
        name=document.name,
        source_key=document.source_key,
    )


def adopt_job(request: DocumentRequest, text: str, *, owner: str) -> NewJob:
    return NewJob("adopt", platform="local", owner=owner, payload=canonical({"text": text}), document=request)


# ── Words ──


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


def _refuse_no_drive_folder(folder: str) -> None:
    if "://" not in folder and not _DRIVE_FOLDER.fullmatch(folder):
        raise BadInput(f"there is no directory {folder!r}, and it is no id or URL of a folder of Google Drive")


def _refuse_no_directory(directory: Path) -> None:
    """What is certain to be none. The daemon may see directories that we may not."""
    with contextlib.suppress(PermissionError):
        if not directory.exists():
            raise BadInput(f"there is no directory {directory}")
        if not directory.is_dir():
            raise BadInput(f"{directory} is no directory: pagemill ingest reads a file")


def _refuse_no_day(text: str) -> None:
    try:
        datetime.fromisoformat(text)
    except ValueError as error:
        raise BadInput(f"{text!r} is not a day: write 2026-01-31, or 2026-01-31T10:00:00Z") from error
