"""Copies of published files: one file of a document or job, or many into a directory."""

from __future__ import annotations

import filecmp
import shutil
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from worker_service.base.errors import BadInput, PagemillError, Refused
from worker_service.base.files import atomic_write
from worker_service.jobs.documents import PublishedFile
from worker_service.jobs.library import Document, DocumentSelector
from worker_service.services.database import Session
from worker_service.services.documents import selected_documents
from worker_service.services.jobs import with_full_path
from worker_service.workspace import file_exists

ROLES: Mapping[str, str] = {"txt": "text", "pdf": "pdf", "json": "pages", "hocr": "hocr", "original": "original"}
"""File formats as users name them, and the role of each file of a document."""

_Copy = tuple[PublishedFile, Path, str]
"""A file, its target, and the command that makes the file again if it is gone."""


def find_file(session: Session, document_id: int, form: str) -> tuple[PublishedFile, str]:
    """Return a file of the document with its full path, and a file name for a copy."""
    if form not in ROLES:
        raise BadInput(f"{form!r} is not a format: {', '.join(ROLES)}")
    document = session.store.library.document(document_id)
    file = _file(session, document, ROLES[form])
    if file is None:
        raise NotExported(f"document {document_id} has no {form}: {_why_none(document, form)}")
    return _there(session, file, f"pagemill reindex {document_id} --force"), _export_name(document, form, file)


def find_job_file(session: Session, job_id: int, file_id: int) -> PublishedFile:
    """Return a file that the job published, with its full path."""
    session.store.reading.get(job_id)
    for file in session.store.library.job_files(job_id):
        if file.id == file_id:
            return _there(session, file, f"pagemill retry {job_id}")
    raise NotExported(f"job {job_id} has published no file {file_id}")


def _there(session: Session, file: PublishedFile, again: str) -> PublishedFile:
    """Return the file with its full path. Raise `FileGone` unless it is in the workspace: a row may name any path."""
    found = with_full_path(session, file)
    path = Path(found.path).resolve()
    if not path.is_relative_to(session.settings.workspace.resolve()) or not path.is_file():
        raise FileGone(f"{found.path} is not in the workspace any more: {again} makes it again")
    return found


class NotExported(PagemillError):
    """The document or job has no file of this kind."""

    code = "not_exported"


class TargetExists(Refused):
    """The target of a copy exists already."""


class FileGone(PagemillError):
    """The file was deleted from the workspace by hand."""

    code = "file_gone"
    exit_code = 74


class IfExists(Enum):
    """Choice for a copy whose target exists already."""

    KEPT = "kept"
    UPDATED = "updated"
    REPLACED = "replaced"


class Export(Struct, frozen=True):
    chosen: int
    """Number of selected files."""
    items: Sequence[Path]
    """Files that were written."""
    unchanged: Sequence[Path]
    failures: Sequence[PagemillError]


def export_documents(
    session: Session, selector: DocumentSelector, form: str, directory: Path, there: IfExists
) -> Export:
    """Copy one file of each document to `directory`. A failed copy does not stop the others."""
    if form not in ROLES:
        raise BadInput(f"{form!r} is not a format: {', '.join(ROLES)}")
    if selector.is_empty:
        raise BadInput("say which documents to export: ids, or selectors such as --owner alice")
    if not selector.ids and not selector.statuses:
        selector = replace(selector, is_readable=True)
    copies, failures, chosen = list[_Copy](), list[PagemillError](), selected_documents(session, selector)
    for one in chosen:
        file = _file(session, one, ROLES[form])
        if file is None:
            failures.append(NotExported(f"document {one.id} ({one.name}) has no {form}: {_why_none(one, form)}"))
        else:
            target = directory / _export_name(one, form, file)
            copies.append((file, target, f"pagemill reindex {one.id} --force"))
    return _copied(session, copies, failures, there, chosen=len(chosen))


def export_job_files(session: Session, job_id: int, directory: Path, there: IfExists) -> Export:
    """Copy the files that a job published, keeping their paths within its own directory."""
    job, files = session.store.reading.get(job_id), session.store.library.job_files(job_id)
    if not files:
        raise NotExported(f"job {job_id} ({job.job_type}, {job.status}) has published no files")
    # Drop `objects` and the attempt's directory from the path.
    targets = {directory.joinpath(*Path(file.path).parts[2:]): file for file in files}
    copies = [(file, target, f"pagemill retry {job_id}") for target, file in targets.items()]
    return _copied(session, copies, [], there, chosen=len(copies))


def has_original(session: Session, document: Document) -> bool:
    """Return whether the document's source file is in the workspace."""
    original = _file(session, document, "original")
    return original is not None and file_exists(session.settings.workspace / original.path)


def _copied(
    session: Session, copies: Sequence[_Copy], failures: list[PagemillError], there: IfExists, *, chosen: int
) -> Export:
    written, unchanged = list[Path](), list[Path]()
    for published, target, again in copies:
        file = session.settings.workspace / published.path
        try:
            if target.exists() and there is IfExists.KEPT:
                raise TargetExists(f"{target} is there already: --update replaces what has changed, --force everything")
            if there is IfExists.UPDATED and target.exists() and filecmp.cmp(file, target, shallow=False):
                unchanged.append(target)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with file.open("rb") as source, atomic_write(target) as copy:
                shutil.copyfileobj(source, copy)
            written.append(target)
        except TargetExists as error:
            failures.append(error)
        except FileNotFoundError:
            failures.append(FileGone(f"{file} is not in the workspace any more: {again} makes it again"))
    return Export(chosen, written, unchanged, failures)


def _file(session: Session, document: Document, role: str) -> PublishedFile | None:
    return next((file for file in session.store.library.files(document.id) if file.role == role), None)


def _why_none(document: Document, form: str) -> str:
    if document.current_generation is None:
        return f"it is {document.status}"
    if not document.has_pages_to_see and form in ("pdf", "hocr"):
        return f"of {'a spreadsheet' if document.kind == 'sheet' else 'what has no pages of its own'} there is none"
    if form == "hocr":
        return f"pagemill reindex {document.id} --hocr makes it"
    return document.note or "it was not made"


def _export_name(document: Document, form: str, file: PublishedFile) -> str:
    stem = Path(document.name).stem or f"document-{document.id}"
    suffix = Path(file.name).suffix if form == "original" else f".{form}"
    # Two documents may have the same name; the id keeps them apart.
    return f"{stem}-{document.id}{suffix}"
