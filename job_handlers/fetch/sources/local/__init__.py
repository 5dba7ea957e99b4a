"""This machine as a source. A path is taken without its symbolic links, and only where jobs may read.

Only WORKER_DOWNLOAD_ROOTS may be read, if that is set; never the credentials.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from job_handlers.fetch.sources import IsStopping, Reference
from job_handlers.settings import HandlersSettings
from worker_service.handlers import FILE_URL, path_of, written

if TYPE_CHECKING:
    from job_handlers.fetch.download import Payload
    from job_handlers.fetch.errors import Patience
    from job_handlers.fetch.sources.tree import Tree
    from job_handlers.fetch.transfer import FileWanted, SourceFile

PLATFORM = "local"
ADDRESSES = "a full path that begins with a slash (or its file: URL)"
FOLDERS = "the full path of a directory"
IS_FOR_ANY_HOST = False
ROOTS = HandlersSettings.download_roots
ENVIRONMENT: Sequence[str] = (ROOTS.variable,)
CREDENTIALS: Sequence[str] = ()


def reference(text: str) -> Reference | None:
    if text.startswith("/"):
        return Reference(PLATFORM, text)
    return Reference(PLATFORM, written(path_of(text))) if text.startswith(FILE_URL) else None


def rests_with(credential: str) -> str:
    return ""


def reads(reference: Reference, credential: str) -> Sequence[Path]:
    from job_handlers.fetch.sources.local.file import readable

    return readable(reference.key)


def open_file(
    reference: Reference, payload: Payload, wanted: FileWanted, patience: Patience, is_stopping: IsStopping
) -> SourceFile:
    from job_handlers.fetch.sources.local.file import LocalFile

    return LocalFile(reference.key, patience)


def open_tree(
    reference: Reference, credential: str, patience: Patience, is_stopping: IsStopping
) -> AbstractContextManager[Tree]:
    from job_handlers.fetch.sources.local.tree import LocalTree

    return nullcontext(LocalTree(path_of(reference.key)))
