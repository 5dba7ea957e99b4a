"""Files of documents for users: published files, and formats made on demand."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO

from msgspec import Struct

from worker_service.base.errors import BadInput, PagemillError
from worker_service.jobs.documents import PublishedFile
from worker_service.jobs.library import Document
from worker_service.jobs.names import safe_name
from worker_service.services.document_formats import FORMATS, write_format
from worker_service.services.documents import with_full_path
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
        return FileSource(_export_name(document, kind, file), session.settings.workspace / file.path)
    _require_text(document, kind)
    return FileSource(_format_name(document, kind), partial(_format_pieces, session, document, kind))


def find_file(session: Session, document_id: int, kind: str) -> tuple[PublishedFile, str]:
    """Return the file with its full path, and a name for a copy."""
    document = session.library.document(document_id)
    file = _published_file(session, document, kind)
    with_path = _require_in_workspace(session, file, f"pagemill reindex {document_id} --force")
    return with_path, _export_name(document, kind, file)


def find_job_file(session: Session, job_id: int, file_id: int) -> PublishedFile:
    session.job_queries.get(job_id)
    for file in session.library.job_files(job_id):
        if file.id == file_id:
            return _require_in_workspace(session, file, f"pagemill retry {job_id}")
    raise NotExported(f"job {job_id} has published no file {file_id}")


def make_file(session: Session, document_id: int, kind: str) -> tuple[IO[bytes], str]:
    """Return a format in a temporary file, which the caller closes, and a name for a copy."""
    document = session.library.document(document_id)
    _require_text(document, kind)
    file = tempfile.TemporaryFile(dir=session.settings.workspace)  # noqa: SIM115
    file.writelines(_format_pieces(session, document, kind))
    return file, _format_name(document, kind)


def has_original(session: Session, document: Document) -> bool:
    originals = [file for file in session.library.files(document.id) if file.role == "original"]
    return bool(originals) and file_exists(session.settings.workspace / originals[0].path)


def file_gone(path: str | Path, remake_command: str) -> FileGone:
    return FileGone(f"{path} is no longer in the workspace", f"{remake_command} creates it again")


def _require_in_workspace(session: Session, file: PublishedFile, remake_command: str) -> PublishedFile:
    """Return the file with its full path. Refuse a row that names a path outside the workspace."""
    with_path = with_full_path(session, file)
    path = Path(with_path.path).resolve()
    if not path.is_relative_to(session.settings.workspace.resolve()) or not path.is_file():
        raise file_gone(with_path.path, remake_command)
    return with_path


def _published_file(session: Session, document: Document, kind: str) -> PublishedFile:
    if kind not in _ROLE_BY_KIND:
        raise BadInput(f"{kind!r} is not a format: {', '.join(KINDS)}")
    for file in session.library.files(document.id):
        if file.role == _ROLE_BY_KIND[kind]:
            return file
    raise NotExported(f"document {document.id} ({document.name}) has no {kind}: {_why_absent(document, kind)}")


def _require_text(document: Document, kind: str) -> None:
    if document.current_generation is None:
        raise NotExported(f"document {document.id} ({document.name}) has no {kind}: {_why_absent(document, kind)}")


def _why_absent(document: Document, kind: str) -> str:
    if document.current_generation is None:
        return f"it is {document.status}"
    if not document.has_pages_to_see and kind == "pdf":
        return "it is a spreadsheet" if document.kind == "sheet" else "it has no pages of its own"
    return document.note or "it was not created"


def _format_pieces(session: Session, document: Document, kind: str) -> Iterator[bytes]:
    for part in write_format(session, document, kind):
        yield part.encode("utf-8", "replace")


def _export_name(document: Document, kind: str, file: PublishedFile) -> str:
    return f"{_unique_stem(document)}{Path(safe_name(file.name)).suffix if kind == 'original' else f'.{kind}'}"


def _format_name(document: Document, kind: str) -> str:
    return f"{_unique_stem(document)}{FORMATS[kind].ending}"


def _unique_stem(document: Document) -> str:
    # Two documents may have the same name; the id keeps them apart. A name may have backslashes, which other systems
    # take for folders, and control characters.
    return f"{safe_name(Path(document.name).stem or 'document')}-{document.id}"
