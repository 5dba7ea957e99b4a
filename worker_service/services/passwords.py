"""Typed passwords of PDFs, in a file for each document. The sandbox lets only its child processes read it.

Passwords are not rows, so that no backup, list, log or report has them. A file is named by a digest of the document's
key, because the document may not exist yet. Unless it is kept, a password is deleted when no job needs it.
"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from worker_service.base.errors import BadInput
from worker_service.base.files import atomic_write
from worker_service.jobs.digest import digest

if TYPE_CHECKING:
    from worker_service.jobs.library import Document
    from worker_service.store.store import Store

_BYTES_MAX = 1000
_GRACE_SECONDS = 60.0
"""Maximum time from writing a password to inserting its job."""


class DocumentPassword(Struct, frozen=True):
    platform: str
    owner: str
    source_key: str
    password: str
    is_kept: bool = False


def path_of(workspace: Path, platform: str, owner: str, source_key: str) -> Path:
    return workspace / "passwords" / digest([platform, owner, source_key])


def path_of_document(workspace: Path, document: Document) -> Path:
    return path_of(workspace, document.platform, document.owner, document.source_key)


def check(password: str) -> str:
    line = password.rstrip("\r\n")
    if not line or len(line.encode("utf-8", "replace")) > _BYTES_MAX or "\n" in line or "\0" in line:
        raise BadInput(f"a password is one line of 1 to {_BYTES_MAX} bytes")
    return line


def save(workspace: Path, entry: DocumentPassword) -> None:
    """Write the password. The group gets access only if it shares the workspace."""
    target = path_of(workspace, entry.platform, entry.owner, entry.source_key)
    workspace.mkdir(parents=True, exist_ok=True)
    status = workspace.stat()
    # A directory that all users may write is not shared with the group alone.
    is_shared = bool(status.st_mode & stat.S_IWGRP and not status.st_mode & stat.S_IWOTH)
    if not target.parent.is_dir():
        target.parent.mkdir(mode=0o700, exist_ok=True)
        _set_owner_and_mode(target.parent, status, 0o2770 if is_shared else 0o700)
    with atomic_write(target, mode=0o600, is_synced=True) as file:
        file.write(msgspec.json.encode(entry))
        _set_owner_and_mode(file.fileno(), status, 0o660 if is_shared else 0o600)


def _set_owner_and_mode(file: Path | int, workspace_status: os.stat_result, mode: int) -> None:
    # The daemon, which runs as the owner of the workspace, has to read what root writes.
    if os.geteuid() == 0:
        os.chown(file, workspace_status.st_uid, workspace_status.st_gid)
    os.chmod(file, mode)  # noqa: PTH101  `file` may be a descriptor


def find(workspace: Path, document: Document) -> DocumentPassword | None:
    return _read(path_of_document(workspace, document))


def is_stored(workspace: Path, document: Document) -> bool:
    return path_of_document(workspace, document).is_file()


def forget(workspace: Path, document: Document) -> None:
    path_of_document(workspace, document).unlink(missing_ok=True)


def forget_unneeded(store: Store, workspace: Path) -> int:
    folder = workspace / "passwords"
    if not folder.is_dir():
        return 0
    unneeded = [path for path in folder.iterdir() if not _is_needed(store, path)]
    for path in unneeded:
        path.unlink(missing_ok=True)
    return len(unneeded)


def _is_needed(store: Store, path: Path) -> bool:
    try:
        if time.time() - path.stat().st_mtime < _GRACE_SECONDS:
            return True
    except FileNotFoundError:
        return True  # another process has deleted it
    # A name with a leading dot is an unfinished file that a killed process has left behind.
    entry = None if path.name.startswith(".") else _read(path)
    if entry is None:
        return False
    return entry.is_kept or store.removal.is_source_awaited(entry.platform, entry.owner, entry.source_key)


def _read(path: Path) -> DocumentPassword | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=DocumentPassword)
    except (OSError, msgspec.MsgspecError):
        return None
