"""Shared by the tests of downloads: a Drive with a credential, contexts, and a fetch that does not really wait."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from job_handlers.fetch import transfer
from job_handlers.fetch.error_rules import RetryPolicy, Timeouts
from job_handlers.fetch.sources import FileRequest, SourceFile, https
from job_handlers.fetch.sources.drive import credentials as drive_credentials
from job_handlers.fetch.sources.drive.client import Drive
from job_handlers.fetch.sources.drive.file import DriveFile
from job_handlers.fetch.sources.drive.pacer import Pacer
from job_handlers.fetch.sources.https.file import HttpsFile
from job_handlers.fetch.transfer import FetchedFile
from tests.drive_server import DriveServer, serving
from tests.job_handlers.fetch.quick_handlers import SOON
from worker_service.handlers import PublishedFile
from worker_service.jobs.documents import Files


def pdf(size: int, seed: int = 0) -> bytes:
    return b"%PDF-1.7\n" + random.Random(seed).randbytes(size - 9)


@contextmanager
def drive_for(monkeypatch: pytest.MonkeyPatch, directory: Path) -> Iterator[DriveServer]:
    """Serve a Drive, and set the environment of a worker that has a credential for it."""
    with serving() as server:
        credentials = directory / "credentials"
        credentials.mkdir()
        key = credentials / "drive"
        key.write_text(server.tokens.service_account())
        key.chmod(0o600)
        monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credentials))
        monkeypatch.setenv(drive_credentials.ENDPOINT.variable, server.url)
        monkeypatch.setenv(https.ALLOW.variable, "127.0.0.0/8")
        yield server


@dataclass
class LogContext:
    """The part of a handler's context that a fetch needs. It records the log."""

    lines: list[str] = field(default_factory=list)
    is_stopping: bool = False

    def progress(self, percent: float | None = None, message: str = "", **count: Any) -> None:
        pass

    def log(self, line: str) -> None:
        self.lines.append(line)

    def cancelled(self) -> bool:
        return self.is_stopping


@dataclass
class LocalContext(LogContext):
    """A handler's context in this process, without a sandbox."""

    payload: Any = None
    directory: Path = Path()
    platform: str = "local"
    account: str | None = None
    owner: str = ""
    published: Sequence[PublishedFile] = ()

    def __post_init__(self) -> None:
        self.staging.mkdir(parents=True, exist_ok=True)
        self.keep.mkdir(exist_ok=True)

    @property
    def staging(self) -> Path:
        return self.directory / "staging"

    @property
    def keep(self) -> Path:
        return self.directory / "keep"

    def ask(self, question: Any) -> Files:
        return Files(self.published)


@dataclass
class Fetching:
    """Fetches into `keep`. The waits are added up in `waited_seconds` instead."""

    keep: Path
    timeouts: Timeouts = SOON
    request: FileRequest = field(default_factory=FileRequest)
    context: LogContext = field(default_factory=LogContext)
    waited_seconds: float = 0.0
    really_waits: bool = False

    def from_drive(self, file_id: str, **more: object) -> FetchedFile:
        drive = Drive(is_stopping=self.context.cancelled, timeouts=self.timeouts, pacer=Pacer(1e6))
        return self.fetch(DriveFile(drive, file_id, **more))  # type: ignore[arg-type]

    def from_url(self, url: str) -> FetchedFile:
        return self.fetch(HttpsFile(url, self.request, self.timeouts, self.context.cancelled))

    def fetch(self, source: SourceFile) -> FetchedFile:
        self.keep.mkdir(exist_ok=True)
        try:
            policy = RetryPolicy(self.timeouts, random_source=random.Random(0))
            return transfer.fetch(source, self.keep, self.request, cast("Any", self.context), policy, self._sleep)
        finally:
            source.close()

    def _sleep(self, seconds: float) -> None:
        self.waited_seconds += seconds
        if self.really_waits:
            time.sleep(seconds)
