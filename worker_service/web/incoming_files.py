"""Uploaded files, kept until the document made of them is published.

Owner and content make the path, so the same file uploaded again is the same document.
"""

from __future__ import annotations

import hashlib
import os
import random
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from worker_service.base.errors import DiskFull
from worker_service.base.files import sync_path
from worker_service.base.path_text import path_to_text
from worker_service.jobs.documents import IndexStatus
from worker_service.jobs.library import DocumentSelector
from worker_service.jobs.workspace_names import safe_name
from worker_service.services.exports import has_original
from worker_service.services.session import Session
from worker_service.workspace import FREE_BYTES_LEAST

_UNFINISHED_PREFIX = ".unfinished-"
_UNFINISHED_KEPT_SECONDS = 86_400
_COMPLETE_AGE_SECONDS_MIN = 3_600
_FAILED_KEPT_SECONDS = 86_400
_BACKDATED_SECONDS = 60
_SWEPT_AT_ONCE = 50
_FAILED_JOBS_SEARCHED_MAX = 10_000


class IncomingFile:
    """An upload in progress; closed without `keep`, it is deleted."""

    def __init__(self, workspace: Path) -> None:
        self._directory = incoming_directory(workspace)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._unfinished = self._directory / f"{_UNFINISHED_PREFIX}{secrets.token_hex(8)}"
        self._file: BinaryIO = self._unfinished.open("xb")
        self._sha256 = hashlib.sha256()
        self.size = 0

    def write(self, piece: bytes) -> None:
        self._file.write(piece)
        self._sha256.update(piece)
        self.size += len(piece)

    @property
    def digest(self) -> str:
        return self._sha256.hexdigest()

    def keep(self, name: str, owner: str) -> Path:
        """Move the complete file to its place, safe from a power cut."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        folder = hashlib.sha256(owner.encode() + b"\0" + self._sha256.digest()).hexdigest()[:32]
        target = self._directory / folder / (safe_name(name) or "upload")
        target.parent.mkdir(exist_ok=True)
        if target.is_file():
            # It has the same bytes. Keep the old file: a job may be reading it, and its time identifies it.
            self._unfinished.unlink()
        else:
            # Backdate it, so that the reader does not wait to see whether it is still being written.
            complete_since = time.time() - _BACKDATED_SECONDS
            os.utime(self._unfinished, (complete_since, complete_since))
            self._unfinished.replace(target)
        sync_path(target.parent)
        sync_path(self._directory)
        return target

    def close(self) -> None:
        self._file.close()
        self._unfinished.unlink(missing_ok=True)


def incoming_directory(workspace: Path) -> Path:
    return workspace / "incoming"


def refuse_if_disk_full(workspace: Path, size: int) -> None:
    existing = next(path for path in (workspace, *workspace.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free - size < FREE_BYTES_LEAST:
        raise DiskFull(f"the disk of {workspace} has {free / 1e6:.0f} MB free", "free some space")


def sweep(session: Session, *, now: float | None = None) -> int:
    """Remove some files: published ones, and day-old ones whose jobs failed. Return how many."""
    now = time.time() if now is None else now
    complete_files: list[Path] = []
    directory = incoming_directory(session.settings.workspace)
    for entry in directory.iterdir() if directory.is_dir() else ():
        with suppress(OSError):  # another process may have removed it
            age = now - entry.stat().st_mtime
            if entry.name.startswith(_UNFINISHED_PREFIX):
                if age > _UNFINISHED_KEPT_SECONDS:
                    entry.unlink()
            elif age > _COMPLETE_AGE_SECONDS_MIN:
                complete_files += entry.iterdir()
    # A random sample, because some files stay for long and must not fill every sweep.
    sample_size = min(len(complete_files), _SWEPT_AT_ONCE)
    sample = {path_to_text(file): file for file in random.sample(complete_files, sample_size)}
    unneeded = [sample[key] for key in _keys_of_unneeded_files(session, sample, now)]
    for file in unneeded:
        shutil.rmtree(file.parent, ignore_errors=True)
    return len(unneeded)


def _keys_of_unneeded_files(session: Session, files: Mapping[str, Path], now: float) -> Iterator[str]:
    if not files:
        return
    library = session.library
    documents = library.documents(DocumentSelector(source_keys=list(files)), most=len(files))
    for document in documents:
        is_being_read = document.status in (IndexStatus.QUEUED, IndexStatus.INDEXING)
        if not is_being_read and has_original(session, document):
            yield document.source_key
    document_keys = {document.source_key for document in documents}
    without_document = {
        key
        for key, file in files.items()
        if key not in document_keys and now - file.stat().st_mtime > _FAILED_KEPT_SECONDS
    }
    if without_document:
        failed_jobs = library.not_brought_in(DocumentSelector(), most=_FAILED_JOBS_SEARCHED_MAX)
        yield from without_document & {job.source_key for job in failed_jobs if job.source_key is not None}
