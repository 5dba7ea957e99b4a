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
from worker_service.base.path_text import written
from worker_service.jobs.documents import IndexStatus
from worker_service.jobs.library import DocumentSelector
from worker_service.jobs.names import safe_name
from worker_service.services.database import Session
from worker_service.services.exports import has_original
from worker_service.workspace import FREE_BYTES_LEAST

_UNFINISHED = ".unfinished-"
_UNFINISHED_SECONDS = 86_400
_KEPT_SECONDS = 3_600
_WHOLE_SECONDS = 60
_FAILED_KEPT_SECONDS = 86_400
_SWEPT_AT_ONCE = 50
_FAILED_MAX = 10_000


class IncomingFile:
    """An upload in progress; closed without `keep`, it is deleted."""

    def __init__(self, workspace: Path) -> None:
        self._place = place_of(workspace)
        self._place.mkdir(parents=True, exist_ok=True)
        self._unfinished = self._place / f"{_UNFINISHED}{secrets.token_hex(8)}"
        self._file: BinaryIO = self._unfinished.open("xb")
        self._digest = hashlib.sha256()
        self.size = 0

    def write(self, piece: bytes) -> None:
        self._file.write(piece)
        self._digest.update(piece)
        self.size += len(piece)

    @property
    def content(self) -> str:
        return self._digest.hexdigest()

    def keep(self, name: str, owner: str) -> Path:
        """Move the complete file to its place, safe from a power cut."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        folder = hashlib.sha256(owner.encode() + b"\0" + self._digest.digest()).hexdigest()[:32]
        target = self._place / folder / (safe_name(name) or "upload")
        target.parent.mkdir(exist_ok=True)
        if target.is_file():
            # It has the same bytes. Keep the old file: a job may be reading it, and its time identifies it.
            self._unfinished.unlink()
        else:
            # Backdate it, so that the reader does not wait to see whether it is still being written.
            whole_since = time.time() - _WHOLE_SECONDS
            os.utime(self._unfinished, (whole_since, whole_since))
            self._unfinished.replace(target)
        sync_path(target.parent)
        sync_path(self._place)
        return target

    def close(self) -> None:
        self._file.close()
        self._unfinished.unlink(missing_ok=True)


def place_of(workspace: Path) -> Path:
    return workspace / "incoming"


def refuse_if_disk_full(workspace: Path, size: int) -> None:
    there = next(one for one in (workspace, *workspace.parents) if one.exists())
    free = shutil.disk_usage(there).free
    if free - size < FREE_BYTES_LEAST:
        raise DiskFull(f"the disk of {workspace} has {free / 1e6:.0f} MB free", "free some space")


def sweep(session: Session, *, now: float | None = None) -> int:
    """Remove files whose documents are published, or that failed a day ago; return how many."""
    moment = time.time() if now is None else now
    old: list[Path] = []
    place = place_of(session.settings.workspace)
    for entry in place.iterdir() if place.is_dir() else ():
        with suppress(OSError):
            age = moment - entry.stat().st_mtime
            if entry.name.startswith(_UNFINISHED):
                if age > _UNFINISHED_SECONDS:
                    entry.unlink()
            elif age > _KEPT_SECONDS:
                old += entry.iterdir()
    # A random sample, because some files stay for long and must not fill every sweep.
    chosen = {written(file): file for file in random.sample(old, min(len(old), _SWEPT_AT_ONCE))}
    gone = [chosen[key] for key in _done_with(session, chosen, moment)]
    for file in gone:
        shutil.rmtree(file.parent, ignore_errors=True)
    return len(gone)


def _done_with(session: Session, chosen: Mapping[str, Path], moment: float) -> Iterator[str]:
    if not chosen:
        return
    library = session.library
    documents = library.documents(DocumentSelector(source_keys=list(chosen)), most=len(chosen))
    for one in documents:
        if one.status not in (IndexStatus.QUEUED, IndexStatus.INDEXING) and has_original(session, one):
            yield one.source_key
    known = {one.source_key for one in documents}
    left_over = {
        key for key, file in chosen.items() if key not in known and moment - file.stat().st_mtime > _FAILED_KEPT_SECONDS
    }
    if left_over:
        failed = library.not_brought_in(DocumentSelector(), most=_FAILED_MAX)
        yield from left_over & {job.source_key for job in failed if job.source_key is not None}
