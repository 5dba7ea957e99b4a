"""`pagemill export`: copy files of documents and jobs to a directory."""

from __future__ import annotations

import filecmp
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Literal

import click
from msgspec import Struct
from msgspec.structs import replace

from worker_service.base.errors import BadInput, PagemillError, Refused
from worker_service.base.files import atomic_write
from worker_service.base.humanize import counted
from worker_service.cli import output
from worker_service.cli.context import Invocation, JobId, verb
from worker_service.cli.documents import document_selector_options
from worker_service.jobs.library import DocumentSelector
from worker_service.services.documents import selected_documents
from worker_service.services.exports import FORMAT_NAMES, FileSource, NotExported, file_gone, find_source
from worker_service.services.session import Session


class _TargetExists(Refused): ...


_IfExists = Literal["keep", "replace if different", "replace"]


class _Copy(Struct, frozen=True):
    source: FileSource
    target: Path
    remake_command: str


class _Export(Struct, frozen=True):
    selected: int
    written: Sequence[Path]
    unchanged: Sequence[Path]
    failures: Sequence[PagemillError]


@verb
@document_selector_options
@click.option(
    "--format", "format_name", type=click.Choice(list(FORMAT_NAMES)), default="txt", help="Kind of file. Default: txt."
)
@click.option(
    "-o",
    "--output",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    metavar="DIR",
    help="Directory for the copies. Default: the current one.",
)
@click.option("--update", is_flag=True, help="Replace existing files that have changed.")
@click.option("--force", is_flag=True, help="Replace all existing files.")
@click.option("--job", "job_id", type=JobId(), metavar="ID", help="Copy the files of this job instead of documents.")
def export(
    call: Invocation,
    selector: DocumentSelector,
    format_name: str,
    directory: Path,
    update: bool,
    force: bool,
    job_id: int | None,
) -> int:
    """\b
    pagemill export 7
    pagemill export 7 8 9 --format pdf -o out/
    pagemill export 7 --format md
    pagemill export --owner alice --format json -o out/ --update
    pagemill export --batch 7 -o out/
    pagemill export --job 42 -o out/

    Copy files of documents: txt (the text), pdf (searchable), json (all words with their places), or original; or make
    md (Markdown), jsonl (passages), docling, pawls, alto or hocr of them. Prints the path of each copy.

    Exit code 1 if some files could not be copied; the others are copied.
    """
    if update and force:
        raise BadInput("--force replaces all existing files, --update only changed ones", "use one of them")
    if_exists: _IfExists = "replace" if force else "keep"
    if update:
        if_exists = "replace if different"
    if job_id is not None:
        if not selector.is_empty:
            raise BadInput("--job cannot be combined with documents", "leave out one of them")
        result = _export_job_files(call.session, job_id, directory, if_exists)
    else:
        result = _export_documents(call.session, selector, format_name, directory, if_exists)
    if result.selected == 1 and result.failures:
        raise result.failures[0]
    call.show_result({"items": result.written, "unchanged": result.unchanged}, *map(str, result.written))
    if result.unchanged and not call.as_json:
        output.note(f"{counted(len(result.unchanged), 'file')} already there, unchanged")
    if not result.selected and not call.as_json:
        output.note("no document matches")
    for sentence in _failure_sentences(result.failures):
        output.note(sentence)
    return 1 if result.failures else 0


def _export_documents(
    session: Session, selector: DocumentSelector, format_name: str, directory: Path, if_exists: _IfExists
) -> _Export:
    if selector.is_empty:
        raise BadInput("say which documents to export: ids, or selectors such as --owner alice")
    if not selector.ids and not selector.statuses:
        selector = replace(selector, is_readable=True)
    copies, failures, documents = list[_Copy](), list[PagemillError](), selected_documents(session, selector)
    for document in documents:
        try:
            source = find_source(session, document, format_name)
        except NotExported as error:
            failures.append(error)
        else:
            copies.append(_Copy(source, directory / source.name, f"pagemill reindex {document.id} --force"))
    return _copy_files(copies, failures, if_exists, selected=len(documents))


def _export_job_files(session: Session, job_id: int, directory: Path, if_exists: _IfExists) -> _Export:
    job, files = session.job_queries.get(job_id), session.library.job_files(job_id)
    if not files:
        raise NotExported(f"job {job_id} ({job.job_type}, {job.status}) has published no files")
    # The path of a published file begins with `objects` and the attempt's directory, which a copy does not need.
    path_by_target = {directory.joinpath(*Path(file.path).parts[2:]): file.path for file in files}
    workspace, remake_command = session.settings.workspace, f"pagemill retry {job_id}"
    copies = [
        _Copy(FileSource(target.name, workspace / path), target, remake_command)
        for target, path in path_by_target.items()
    ]
    return _copy_files(copies, [], if_exists, selected=len(copies))


def _copy_files(
    copies: Sequence[_Copy], failures: list[PagemillError], if_exists: _IfExists, *, selected: int
) -> _Export:
    written, unchanged = list[Path](), list[Path]()
    for copy in copies:
        exists = copy.target.exists()
        try:
            if exists and if_exists == "keep":
                remedy = "--update replaces what has changed, --force everything"
                failures.append(_TargetExists(f"{copy.target} exists already", remedy))
            elif exists and if_exists == "replace if different" and _is_unchanged(copy):
                unchanged.append(copy.target)
            else:
                copy.target.parent.mkdir(parents=True, exist_ok=True)
                with atomic_write(copy.target) as file:
                    _write_content(file, copy.source)
                written.append(copy.target)
        except FileNotFoundError:
            failures.append(file_gone(str(copy.source.content), copy.remake_command))
    return _Export(selected, written, unchanged, failures)


def _is_unchanged(copy: _Copy) -> bool:
    if isinstance(copy.source.content, Path):
        return filecmp.cmp(copy.source.content, copy.target, shallow=False)
    with tempfile.NamedTemporaryFile() as new_copy:
        _write_content(new_copy.file, copy.source)
        new_copy.flush()
        return filecmp.cmp(new_copy.name, copy.target, shallow=False)


def _write_content(file: IO[bytes], source: FileSource) -> None:
    if isinstance(source.content, Path):
        with source.content.open("rb") as published:
            shutil.copyfileobj(published, file)
    else:
        file.writelines(source.content())


def _failure_sentences(failures: Sequence[PagemillError]) -> list[str]:
    """Name only one of the files that exist already."""
    existing = [str(error) for error in failures if isinstance(error, _TargetExists)]
    sentences = existing[:1]
    if len(existing) > 1:
        sentences.append(f"{counted(len(existing) - 1, 'other file')} already there")
    return [*sentences, *(str(error) for error in failures if not isinstance(error, _TargetExists))]
