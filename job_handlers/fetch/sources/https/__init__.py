"""URLs as a source: one file behind each, and no folders."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from job_handlers.fetch.sources import FileRequest, IsStopping, Reference, SourceFile
from job_handlers.settings import HandlersSettings
from worker_service.handlers import Permanent

if TYPE_CHECKING:
    from job_handlers.fetch.error_rules import Timeouts
    from job_handlers.fetch.sources.tree import Tree

PLATFORM = "https"
ADDRESSES = "an https URL"
FOLDERS = ""
IS_FOR_ANY_HOST = True
ALLOW = HandlersSettings.download_allow
ENVIRONMENT: Sequence[str] = (ALLOW.variable, "SSL_CERT_FILE")
CREDENTIALS: Sequence[str] = ()


def parse_reference(text: str) -> Reference | None:
    if not text.lower().startswith(("https://", "http://")):
        return None
    try:
        urlsplit(text)
    except ValueError as error:
        raise Permanent("URL_INVALID", "the URL cannot be understood") from error
    return Reference(PLATFORM, text)


def source_of_jobs(credential: str) -> str:
    return ""


def files_to_read(reference: Reference, credential: str) -> Sequence[Path]:
    return ()


def open_file(reference: Reference, request: FileRequest, timeouts: Timeouts, is_stopping: IsStopping) -> SourceFile:
    from job_handlers.fetch.sources.https.file import HttpsFile

    return HttpsFile(reference.key, request, timeouts, is_stopping)


def open_tree(
    reference: Reference, credential: str, timeouts: Timeouts, is_stopping: IsStopping
) -> AbstractContextManager[Tree]:
    raise NotImplementedError("a URL has no folders")
