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

_ROLE_BY_KIND: Mapping[str, str] = {"txt": "text", "pdf": "pdf", "json": "pages", "original": "original"}
KINDS: Sequence[str] = (*_ROLE_BY_KIND, *FORMATS)


class NotExported(PagemillError, code="not_exported"): ...


class FileGone(PagemillError, code="file_gone", exit_code=74): ...


class FileSource(Struct, frozen=True):
    name: str
    content: Path | Callable[[], Iterator[bytes]]


def find_source(session: Session, document: Document, kind: str) -> FileSource:
    if kind not in FORMATS:
        file = _published_file(session, document, kind)
        ending = Path(safe_name(file.name)).suffix if kind == "original" else f".{kind}"
        return FileSource(f"{_unique_stem(document)}{ending}", session.settings.workspace / file.path)
    if document.current_generation is None:
        raise _not_exported(document, kind)
    name = f"{_unique_stem(document)}{FORMATS[kind].ending}"
    return FileSource(name, partial(_format_pieces, session, document, kind))


def find_job_file(session: Session, job_id: int, file_id: int) -> PublishedFile:
    """Return the file with its full path."""
    session.job_queries.get(job_id)
    for file in session.library.job_files(job_id):
        if file.id == file_id:
            path = session.settings.workspace / file.path
            require_in_workspace(session, path, f"pagemill retry {job_id}")
            return replace(file, path=str(path))
    raise NotExported(f"job {job_id} has published no file {file_id}")


def require_in_workspace(session: Session, path: Path, remake_command: str) -> None:
    """Refuse a row that names a path outside the workspace, too."""
    resolved = path.resolve()
    if not resolved.is_relative_to(session.settings.workspace.resolve()) or not resolved.is_file():
        raise file_gone(path, remake_command)


def has_original(session: Session, document: Document) -> bool:
    originals = [file for file in session.library.files(document.id) if file.role == "original"]
    return bool(originals) and file_exists(session.settings.workspace / originals[0].path)


def file_gone(path: str | Path, remake_command: str) -> FileGone:
    return FileGone(f"{path} is no longer in the workspace", f"{remake_command} creates it again")


def _published_file(session: Session, document: Document, kind: str) -> PublishedFile:
    if kind not in _ROLE_BY_KIND:
        raise BadInput(f"{kind!r} is not a format: {', '.join(KINDS)}")
    for file in session.library.files(document.id):
        if file.role == _ROLE_BY_KIND[kind]:
            return file
    raise _not_exported(document, kind)


def _not_exported(document: Document, kind: str) -> NotExported:
    return NotExported(f"document {document.id} ({document.name}) has no {kind}: {_why_absent(document, kind)}")


def _why_absent(document: Document, kind: str) -> str:
    if document.current_generation is None:
        return f"it is {document.status}"
    if not document.has_pages_to_see and kind == "pdf":
        return "it is a spreadsheet" if document.kind == "sheet" else "it has no pages of its own"
    return document.note or "it was not created"


def _format_pieces(session: Session, document: Document, kind: str) -> Iterator[bytes]:
    for part in write_format(session, document, kind):
        yield part.encode("utf-8", "replace")


def _unique_stem(document: Document) -> str:
    # Two documents may have the same name; the id keeps them apart. A name may have backslashes, which other systems
    # take for folders, and control characters.
    return f"{safe_name(Path(document.name).stem or 'document')}-{document.id}"
