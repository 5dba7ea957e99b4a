"""Turn a request for folders, files and addresses into jobs, for `pagemill add`, HTTP, web page and `[[schedule]]`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated
from uuid import uuid4

from msgspec import Meta
from msgspec.structs import asdict, replace

from job_handlers.fetch.error_rules import FetchError
from job_handlers.fetch.sources import Source, folders_in_words, read_folder, read_reference
from job_handlers.fetch.sources.local import resolve_path
from job_handlers.reading.find_files import LeftOut, find_files
from job_handlers.reading.requests import ReadOptions, download_job, parse_options
from worker_service.base.clock import parse_duration, wall_clock
from worker_service.base.errors import BadTime
from worker_service.handlers import (
    FILE_URL,
    BadInput,
    NewJob,
    Permanent,
    canonical,
    display_path,
    path_of,
    path_to_text,
)

_ENTRIES_MAX = 100_000  # Limits how long a listing may block an HTTP request or a turn of the daemon.


class SourceOptions(ReadOptions, frozen=True, kw_only=True):
    credential: str = ""
    force: bool = False
    """Read files again that have not changed."""

    def force_payload(self) -> dict[str, object]:
        return {"force": True} if self.force else {}

    def download_payload(self) -> dict[str, object]:
        return {
            "read": self.reading_settings(),
            **self.force_payload(),
            **self.actions_and_tags(is_standing=True),
        }


class CrawlOptions(SourceOptions, frozen=True, kw_only=True):
    mime: tuple[str, ...] = ()
    name: str | None = None
    size_max: Annotated[int, Meta(ge=1)] | None = None
    newer_than: str | None = None
    depth: Annotated[int, Meta(ge=0)] | None = None
    reconcile: bool = False

    def files_wanted(self) -> dict[str, object]:
        wanted = {
            "mime": list(self.mime),
            "name": self.name,
            "size_max": self.size_max,
            "newer_than": None if self.newer_than is None else _date(self.newer_than),
            "depth": self.depth,
        }
        return {name: value for name, value in wanted.items() if value not in (None, [])}


# ── A folder ──


def crawl_job(folder: str, options: CrawlOptions, *, owner: str, is_dry_run: bool = False) -> NewJob:
    if not folder:
        # Path("") is the current directory.
        raise BadInput("the folder is empty", f"name {folders_in_words()}")
    name = folder
    if (path := _local_path(folder)) is not None:
        directory = path.absolute()
        _require_directory(directory)
        folder, name = path_to_text(directory), display_path(directory)
    source = _source_of(folder)
    payload: dict[str, object] = {
        "folder": folder,
        "wanted": options.files_wanted(),
        "credential": options.credential,
        "dry_run": is_dry_run,
        "reconcile": options.reconcile,
        "download": options.download_payload(),
    }
    # Only one job at a time crawls a folder. A reconciling crawl has a unique key of its own, so that it is enqueued
    # beside a queued crawl that does not reconcile. A dry run changes nothing, so it needs no key.
    key = f"crawl:{source.PLATFORM}:{owner}:{folder}"
    unique_key = f"{key}:reconcile" if options.reconcile else key
    return NewJob(
        "crawl",
        name=name,
        platform=source.PLATFORM,
        owner=owner,
        payload=canonical(payload),
        source=source.source_of_jobs(options.credential),
        unique_key=None if is_dry_run else unique_key,
        concurrency_key=None if is_dry_run else key,
    )


def _local_path(source: str) -> Path | None:
    path = Path(source).expanduser()
    return path if source.startswith(("/", "./", "../", "~")) or path.exists() else None


def as_independent(crawl: NewJob) -> NewJob:
    """Make the crawl list the whole folder, even beside another crawl of it."""
    # Crawls with equal payloads share what they have found, so the payload gets a text that no other has.
    payload = {**json.loads(crawl.payload or "{}"), "afresh": uuid4().hex}
    return replace(crawl, payload=canonical(payload), unique_key=None, concurrency_key=None)


def _source_of(folder: str) -> Source:
    try:
        source, _ = read_folder(folder)
    except Permanent as error:
        is_address = "://" in folder
        reason = str(error) if is_address else f"there is no directory {folder!r}; a folder is {folders_in_words()}"
        raise BadInput(reason) from error
    return source


def _require_directory(directory: Path) -> None:
    # The daemon may see directories that this process may not.
    with contextlib.suppress(PermissionError):
        if not directory.exists():
            raise BadInput(f"there is no directory {directory}")
        if not directory.is_dir():
            raise BadInput(f"{directory} is not a directory", "pagemill add reads a file")


def _date(text: str) -> str:
    # A duration such as 3d stands for the moment three days ago.
    with contextlib.suppress(BadTime):
        return (wall_clock() - parse_duration(text)).strftime("%Y-%m-%dT%H:%M:%SZ")
    try:
        datetime.fromisoformat(text)
    except ValueError as error:
        raise BadInput(f"{text!r} is not a date", "write 3d (ago), 2026-01-31, or 2026-01-31T10:00:00Z") from error
    return text


# ── Several sources ──


def jobs_of_sources(
    sources: Sequence[str],
    options: SourceOptions,
    *,
    owner: str,
    left_out: LeftOut,
    entries_max: int | None = None,
) -> list[NewJob]:
    """Add to `left_out` the files that are not read."""
    # A source that is named twice gets one job.
    job_by_platform_and_key: dict[tuple[str, str], NewJob] = {}
    for source in sources:
        for key, job in _jobs_of_source(source, options, owner, left_out, entries_max):
            job_by_platform_and_key.setdefault((job.platform, key), job)
    return list(job_by_platform_and_key.values())


def _jobs_of_source(
    source: str, options: SourceOptions, owner: str, left_out: LeftOut, entries_max: int | None
) -> list[tuple[str, NewJob]]:
    if not source:
        # Path("") is the current directory.
        raise BadInput("a source is empty", "name a file, a directory, a folder or an address")
    if (path := _local_path(source)) is not None:
        # A directory is crawled if options choose among its files; otherwise it is listed now.
        if isinstance(options, CrawlOptions) and (options.files_wanted() or options.reconcile) and path.is_dir():
            job = as_independent(crawl_job(str(path), options, owner=owner))
            # A crawl has no source key, and its name is the directory's path.
            return [(job.name or "", job)]
        files = find_files(path, left_out, entries_max=entries_max)
        jobs = [download_job(file, options, owner=owner, is_forced=options.force, is_standing=True) for file in files]
        return [(job.source_key or "", job) for job in jobs]
    if "://" not in source:
        raise BadInput(f"there is no file or directory {source!r}", "write an address with its https://")
    job = job_of_address(source, options, owner=owner)
    if job.platform == "local":
        # A file:// address.
        return _jobs_of_source(str(path_of(job.source_key or "")), options, owner, left_out, entries_max)
    _, reference = read_reference(source)
    return [(reference.key, as_independent(job) if reference.is_folder else job)]


def job_of_address(address: str, options: SourceOptions, *, owner: str) -> NewJob:
    try:
        source, reference = read_reference(address)
    except Permanent as error:
        raise BadInput(error.detail, error.remedy) from error
    # Sources without credentials, such as https URLs, ignore the option.
    credential = options.credential if source.CREDENTIALS else ""
    if reference.is_folder:
        return crawl_job(address, CrawlOptions(**{**asdict(options), "credential": credential}), owner=owner)
    values = {"source": address, "credential": credential, **options.download_payload()}
    payload = {name: value for name, value in values.items() if value}
    return NewJob(
        "download",
        platform=reference.platform,
        owner=owner,
        payload=canonical(payload),
        source=source.source_of_jobs(credential),
        source_key=reference.key,
        on_failure=options.actions_on_failure(),
    )


# ── Requests from HTTP, the web page and [[schedule]] ──


def crawl_of_request(request: object, *, owner: str) -> NewJob:
    """Return the crawl for `request`: a folder, or a table with `folder` and options of `pagemill add`."""
    table = dict(request) if isinstance(request, Mapping) else {"folder": request}
    folder = table.pop("folder", None)
    if not isinstance(folder, str) or folder.startswith(("./", "../")):
        raise BadInput("say which folder, such as /srv/reports or {'folder': '/srv/reports', 'lang': ['deu']}")
    if folder and not folder.startswith(("/", "~")):
        # Raise unless it is an address: `crawl_job` would accept a path relative to the server's or daemon's directory.
        _source_of(folder)
    return crawl_job(folder, parse_options(CrawlOptions, table), owner=owner)


def scheduled_batch(sources: object, *, owner: str) -> list[NewJob]:
    if not isinstance(sources, list) or not sources:
        raise BadInput('say which sources, such as ["/srv/reports", "https://example.org/report.pdf"]')
    return jobs_of_request(sources, SourceOptions(), owner=owner, left_out=LeftOut())


def jobs_of_request(
    sources: Sequence[object], options: SourceOptions, *, owner: str, left_out: LeftOut
) -> list[NewJob]:
    texts = [source for source in sources if isinstance(source, str)]
    for text in texts:
        _require_readable_source(text)
    jobs = jobs_of_sources(texts, options, owner=owner, left_out=left_out, entries_max=_ENTRIES_MAX)
    tables = [source for source in sources if not isinstance(source, str)]
    return jobs + [as_independent(crawl_of_request(table, owner=owner)) for table in tables]


def _require_readable_source(source: str) -> None:
    is_file_url = source.startswith(FILE_URL)
    if "://" in source and not is_file_url:
        return
    if not (source.startswith("/") or is_file_url):
        raise BadInput(
            f"{source[:200]!r} is neither an absolute path, such as /srv/reports, nor an address with its https://"
        )
    try:
        resolve_path(source if is_file_url else path_to_text(Path(source)))
    except FetchError as error:
        raise BadInput(error.detail, error.remedy) from error
