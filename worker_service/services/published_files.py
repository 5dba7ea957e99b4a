"""Check that the published files in the workspace are unchanged (promise P5)."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from worker_service.base.files import sha256_of
from worker_service.jobs.library import PublishedPath
from worker_service.services.session import Session

_ROWS_AT_ONCE = 1000


class FileFault(NamedTuple):
    path: str
    document_id: int | None
    detail: str


def find_file_faults(session: Session, *, with_digests: bool = False) -> Iterator[FileFault]:
    """Yield files that are missing or have another size, or, if `with_digests`, other bytes."""
    removal, workspace, last_id = session.store.removal, session.settings.workspace, 0
    while rows := removal.published_files(after=last_id, most=_ROWS_AT_ONCE):
        for row in rows:
            detail = _describe_fault(workspace / row.path, row, with_digests=with_digests)
            # The row may have been deleted since it was read, and its file after it.
            if detail is not None and removal.is_published(row.id):
                yield FileFault(row.path, row.document_id, detail)
        last_id = rows[-1].id


def _describe_fault(file: Path, row: PublishedPath, *, with_digests: bool) -> str | None:
    try:
        status = file.lstat()
        if not stat.S_ISREG(status.st_mode):
            return "is no regular file"
        if status.st_size != row.size:
            return f"has {status.st_size} bytes, and {row.size} were published"
        if with_digests and row.sha256 and sha256_of(file, follows_link=False) != row.sha256:
            return "has other bytes than were published"
    except PermissionError:
        raise  # else `OSError` below would catch it
    except (FileNotFoundError, NotADirectoryError):
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None
