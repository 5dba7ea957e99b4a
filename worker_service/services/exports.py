"""Copy published files, and documents in formats that are made on demand."""

from __future__ import annotations

import filecmp
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import IO

from msgspec import Struct
from msgspec.structs import replace

from worker_service.base.errors import BadInput, PagemillError, Refused
from worker_service.base.files import atomic_write
from worker_service.jobs.documents import PublishedFile
from worker_service.jobs.library import Document, DocumentSelector
from worker_service.jobs.names import safe_name
from worker_service.services.database import Session
from worker_service.services.document_formats import FORMATS, write_format
from worker_service.services.documents import selected_documents
from worker_service.services.jobs import with_full_path
from worker_service.services.zip_files import zip_pieces
from worker_service.workspace import file_exists

ROLES: Mapping[str, str] = {"txt": "text", "pdf": "pdf", "json": "pages", "original": "original"}
CHOICES: Sequence[str] = (*ROLES, *FORMATS)
_FOLDERS: Mapping[str, str] = {"original": "originals", "txt": "texts", "pdf": "searchable PDFs"}
_LEFT_OUT_NAMED_MAX = 1000
_PIECE_BYTES = 256 * 1024


class NotExported(PagemillError, code="not_exported"): ...


class TargetExists(Refused): ...


class FileGone(PagemillError, code="file_gone", exit_code=74): ...


def _gone_error(path: str | Path, remake_command: str) -> FileGone:
    return FileGone(f"{path} is no longer in the workspace", f"{remake_command} creates it again")


class IfExists(Enum):
    """Treatment of existing files. UPDATED replaces a file that differs."""

    KEPT = "kept"
    UPDATED = "updated"
    REPLACED = "replaced"


class Export(Struct, frozen=True):
    selected: int
    written: Sequence[Path]
    unchanged: Sequence[Path]
    failures: Sequence[PagemillError]


_Source = Path | Callable[[], Iterator[bytes]]
"""A published file, or a function that makes the bytes of a format."""


class _Copy(Struct, frozen=True):
    source: _Source
    target: Path
    remake_command: str


def find_file(session: Session, document_id: int, kind: str) -> tuple[PublishedFile, str]:
    """Return the file with its full path, and a name for a copy."""
    document = session.library.document(document_id)
    file = _file_of(session, document, kind)
    found = _require_in_workspace(session, file, f"pagemill reindex {document_id} --force")
    return found, _export_name(document, kind, file)


def find_job_file(session: Session, job_id: int, file_id: int) -> PublishedFile:
    session.job_queries.get(job_id)
    for file in session.library.job_files(job_id):
        if file.id == file_id:
            return _require_in_workspace(session, file, f"pagemill retry {job_id}")
    raise NotExported(f"job {job_id} has published no file {file_id}")


def _require_in_workspace(session: Session, file: PublishedFile, remake_command: str) -> PublishedFile:
    """Return the file with its full path. Refuse a row that names a path outside the workspace."""
    found = with_full_path(session, file)
    path = Path(found.path).resolve()
    if not path.is_relative_to(session.settings.workspace.resolve()) or not path.is_file():
        raise _gone_error(found.path, remake_command)
    return found


def export_documents(
    session: Session, selector: DocumentSelector, kind: str, directory: Path, if_exists: IfExists
) -> Export:
    """Copy what can be copied, and return the failures."""
    if selector.is_empty:
        raise BadInput("say which documents to export: ids, or selectors such as --owner alice")
    if not selector.ids and not selector.statuses:
        selector = replace(selector, is_readable=True)
    copies, failures, chosen = list[_Copy](), list[PagemillError](), selected_documents(session, selector)
    for document in chosen:
        try:
            source, name = _source_of(session, document, kind)
        except NotExported as error:
            failures.append(error)
        else:
            copies.append(_Copy(source, directory / name, f"pagemill reindex {document.id} --force"))
    return _copy_files(copies, failures, if_exists, selected=len(chosen))


def make_file(session: Session, document_id: int, kind: str) -> tuple[IO[bytes], str]:
    """Return a format in a temporary file, which the caller closes, and a name for a copy."""
    document = session.library.document(document_id)
    _require_text(document, kind)
    made = tempfile.TemporaryFile(dir=session.settings.workspace)  # noqa: SIM115
    made.writelines(_format_pieces(session, document, kind))
    return made, f"{_unique_stem(document)}{FORMATS[kind].ending}"


def zip_documents(session: Session, chosen: Iterable[Document], kinds: Sequence[str]) -> Iterator[bytes]:
    """Add `left-out.txt` with the documents that could not be included, and why."""
    return zip_pieces(_zip_entries(session, chosen, kinds))


def _zip_entries(
    session: Session, chosen: Iterable[Document], kinds: Sequence[str]
) -> Iterator[tuple[str, Iterable[bytes]]]:
    left_out: list[str] = []
    for document in chosen:
        for kind in kinds:
            try:
                source, name = _source_of(session, document, kind)
                content = _file_pieces(source.open("rb")) if isinstance(source, Path) else source()
            except NotExported as error:
                left_out.append(f"{error}\n")
            except FileNotFoundError as error:
                left_out.append(f"document {document.id} ({document.name}): {error.filename} is gone\n")
            else:
                yield (name if len(kinds) == 1 else f"{_FOLDERS.get(kind, kind)}/{name}"), content
    if left_out:
        more = [f"and {len(left_out) - _LEFT_OUT_NAMED_MAX:,} more\n"] if len(left_out) > _LEFT_OUT_NAMED_MAX else []
        yield "left-out.txt", [line.encode() for line in [*left_out[:_LEFT_OUT_NAMED_MAX], *more]]


def _file_pieces(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while piece := file.read(_PIECE_BYTES):
            yield piece


def _source_of(session: Session, document: Document, kind: str) -> tuple[_Source, str]:
    if kind not in FORMATS:
        file = _file_of(session, document, kind)
        return session.settings.workspace / file.path, _export_name(document, kind, file)
    _require_text(document, kind)
    return partial(_format_pieces, session, document, kind), f"{_unique_stem(document)}{FORMATS[kind].ending}"


def _format_pieces(session: Session, document: Document, kind: str) -> Iterator[bytes]:
    for part in write_format(session, document, kind):
        yield part.encode("utf-8", "replace")


def _require_text(document: Document, kind: str) -> None:
    if document.current_generation is None:
        raise NotExported(f"document {document.id} ({document.name}) has no {kind}: {_why_absent(document, kind)}")


def export_job_files(session: Session, job_id: int, directory: Path, if_exists: IfExists) -> Export:
    job, files = session.job_queries.get(job_id), session.library.job_files(job_id)
    if not files:
        raise NotExported(f"job {job_id} ({job.job_type}, {job.status}) has published no files")
    # Drop `objects` and the attempt's directory from the path.
    sources = {directory.joinpath(*Path(file.path).parts[2:]): file.path for file in files}
    workspace, remake_command = session.settings.workspace, f"pagemill retry {job_id}"
    copies = [_Copy(workspace / path, target, remake_command) for target, path in sources.items()]
    return _copy_files(copies, [], if_exists, selected=len(copies))


def has_original(session: Session, document: Document) -> bool:
    originals = [file for file in session.library.files(document.id) if file.role == "original"]
    return bool(originals) and file_exists(session.settings.workspace / originals[0].path)


def _copy_files(
    copies: Sequence[_Copy], failures: list[PagemillError], if_exists: IfExists, *, selected: int
) -> Export:
    written, unchanged = list[Path](), list[Path]()
    for one in copies:
        exists = one.target.exists()
        try:
            if exists and if_exists is IfExists.KEPT:
                remedy = "--update replaces what has changed, --force everything"
                failures.append(TargetExists(f"{one.target} exists already", remedy))
            elif exists and if_exists is IfExists.UPDATED and _is_unchanged(one):
                unchanged.append(one.target)
            else:
                one.target.parent.mkdir(parents=True, exist_ok=True)
                with atomic_write(one.target) as copy:
                    _write_source(copy, one.source)
                written.append(one.target)
        except FileNotFoundError:
            failures.append(_gone_error(str(one.source), one.remake_command))
    return Export(selected, written, unchanged, failures)


def _write_source(file: IO[bytes], source: _Source) -> None:
    if isinstance(source, Path):
        with source.open("rb") as published:
            shutil.copyfileobj(published, file)
    else:
        file.writelines(source())


def _is_unchanged(copy: _Copy) -> bool:
    if isinstance(copy.source, Path):
        return filecmp.cmp(copy.source, copy.target, shallow=False)
    with tempfile.NamedTemporaryFile() as made:
        _write_source(made.file, copy.source)
        made.flush()
        return filecmp.cmp(made.name, copy.target, shallow=False)


def _file_of(session: Session, document: Document, kind: str) -> PublishedFile:
    if kind not in ROLES:
        raise BadInput(f"{kind!r} is not a format: {', '.join(CHOICES)}")
    for file in session.library.files(document.id):
        if file.role == ROLES[kind]:
            return file
    raise NotExported(f"document {document.id} ({document.name}) has no {kind}: {_why_absent(document, kind)}")


def _why_absent(document: Document, kind: str) -> str:
    if document.current_generation is None:
        return f"it is {document.status}"
    if not document.has_pages_to_see and kind == "pdf":
        return "it is a spreadsheet" if document.kind == "sheet" else "it has no pages of its own"
    return document.note or "it was not created"


def _export_name(document: Document, kind: str, file: PublishedFile) -> str:
    return f"{_unique_stem(document)}{Path(safe_name(file.name)).suffix if kind == 'original' else f'.{kind}'}"


def _unique_stem(document: Document) -> str:
    # Two documents may have the same name; the id keeps them apart. A name may have backslashes, which other systems
    # take for folders, and control characters.
    return f"{safe_name(Path(document.name).stem or 'document')}-{document.id}"
