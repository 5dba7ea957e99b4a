"""Files of documents for users: published files, and formats made on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from worker_service.base.errors import BadInput, PagemillError
from worker_service.jobs.documents import PublishedFile
from worker_service.jobs.library import Document
from worker_service.jobs.workspace_names import safe_name
from worker_service.services.document_formats import FORMATS, write_format
from worker_service.services.session import Session
from worker_service.workspace import file_exists

_ROLE_BY_FORMAT: Mapping[str, str] = {"txt": "text", "pdf": "pdf", "json": "pages", "original": "original"}
FORMAT_NAMES: Sequence[str] = (*_ROLE_BY_FORMAT, *FORMATS)


class NotExported(PagemillError, code="not_exported"): ...


class FileGone(PagemillError, code="file_gone", exit_code=74): ...


class FileSource(Struct, frozen=True):
    name: str
    content: Path | Callable[[], Iterator[bytes]]


def find_source(session: Session, document: Document, format_name: str) -> FileSource:
    if format_name not in FORMATS:
        file = _published_file(session, document, format_name)
        ending = Path(safe_name(file.name)).suffix if format_name == "original" else f".{format_name}"
        return FileSource(f"{_unique_stem(document)}{ending}", session.settings.workspace / file.path)
    if document.current_generation is None:
        raise _not_exported(document, format_name)
    name = f"{_unique_stem(document)}{FORMATS[format_name].ending}"
    return FileSource(name, partial(_format_pieces, session, document, format_name))


def find_job_file(session: Session, job_id: int, file_id: int) -> PublishedFile:
    """Return the file with its full path."""
    session.job_queries.get(job_id)  # raises `JobNotFound`
    for file in session.library.job_files(job_id):
        if file.id == file_id:
            path = session.settings.workspace / file.path
            require_in_workspace(session, path, f"pagemill retry {job_id}")
            return replace(file, path=str(path))
    raise NotExported(f"job {job_id} has published no file {file_id}")


def require_in_workspace(session: Session, path: Path, remake_command: str) -> None:
    """Raise `FileGone` if the file is missing or, as in a row edited by hand, outside the workspace."""
    resolved = path.resolve()
    if not resolved.is_relative_to(session.settings.workspace.resolve()) or not resolved.is_file():
        raise file_gone(path, remake_command)


def has_original(session: Session, document: Document) -> bool:
    originals = [file for file in session.library.files(document.id) if file.role == "original"]
    return bool(originals) and file_exists(session.settings.workspace / originals[0].path)


def file_gone(path: str | Path, remake_command: str) -> FileGone:
    return FileGone(f"{path} is no longer in the workspace", f"{remake_command} creates it again")


def _published_file(session: Session, document: Document, format_name: str) -> PublishedFile:
    if format_name not in _ROLE_BY_FORMAT:
        raise BadInput(f"{format_name!r} is not a format: {', '.join(FORMAT_NAMES)}")
    for file in session.library.files(document.id):
        if file.role == _ROLE_BY_FORMAT[format_name]:
            return file
    raise _not_exported(document, format_name)


def _not_exported(document: Document, format_name: str) -> NotExported:
    reason = document.note or "it was not created"
    if document.current_generation is None:
        reason = f"it is {document.status}"
    elif format_name == "pdf" and not document.has_page_images:
        reason = "it is a spreadsheet" if document.kind == "sheet" else "it has no pages of its own"
    return NotExported(f"document {document.id} ({document.name}) has no {format_name}: {reason}")


def _format_pieces(session: Session, document: Document, format_name: str) -> Iterator[bytes]:
    for part in write_format(session, document, format_name):
        yield part.encode("utf-8", "replace")


def _unique_stem(document: Document) -> str:
    # Two documents may have the same name; the id keeps them apart. A name may have backslashes, which other systems
    # take for folders, and control characters.
    return f"{safe_name(Path(document.name).stem or 'document')}-{document.id}"
