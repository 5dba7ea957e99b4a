"""Estimate how much there is to read and how long that takes, for --dry-run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict

from job_handlers.reading.batch_options import say_what_is_left_out
from job_handlers.reading.job_factory import LeftOut
from worker_service.base.files import sha256_of
from worker_service.verbs import Desk, DocumentSelector, IndexStatus, counted, documents, output, written


class ToRead(Struct, frozen=True):
    files: int = 0
    bytes: int = 0
    """Bytes of all files; for a crawled folder, of those that would be downloaded."""
    known: int = 0
    """Files that have been read and have not changed."""
    to_read: int = 0
    bytes_to_read: int = 0
    unsized: int = 0
    """Addresses to read, whose size is unknown until they are downloaded."""

    def __add__(self, other: ToRead) -> ToRead:
        return ToRead(*(mine + theirs for mine, theirs in zip(*map(_field_values, (self, other)), strict=True)))


def _field_values(one: ToRead) -> Sequence[int]:
    return [*asdict(one).values()]


def estimate_files(desk: Desk, files: Sequence[Path], *, owner: str, is_read_again: bool) -> ToRead:
    sizes = {file: file.stat().st_size for file in files}
    known = _unchanged_files(desk, sizes, owner)
    to_read = [file for file in files if is_read_again or file not in known]
    return ToRead(len(files), sum(sizes.values()), len(known), len(to_read), sum(sizes[file] for file in to_read))


def _unchanged_files(desk: Desk, sizes: Mapping[Path, int], owner: str) -> set[Path]:
    """Return the files whose current content has been read as a document of this owner."""
    by_key = {written(file): file for file in sizes}
    selector = DocumentSelector(
        statuses=(IndexStatus.SUCCESS,), owners=(owner,), platforms=("local",), source_keys=list(by_key)
    )
    documents_there = ((by_key[one.source_key], one.content) for one in documents.each(desk.session, selector))
    return {file for file, content in documents_there if content == sha256_of(file)}


def show(desk: Desk, found: ToRead, left_out: LeftOut) -> None:
    whole = {"dry_run": True, **asdict(found), **estimate_duration(desk, found.bytes_to_read), **left_out.as_answer()}
    if desk.answered(whole):
        return
    output.show(
        f"{counted(found.files, 'file')}, {output.size(found.bytes)}: {found.known} read already and unchanged, "
        f"{found.to_read} to read, {output.size(found.bytes_to_read)}"
    )
    if found.unsized:
        output.show(f"and nobody knows how large {counted(found.unsized, 'address', 'addresses')} of these will be")
    if found.to_read:
        output.show(describe_duration(desk, found.bytes_to_read))
    say_what_is_left_out(desk, left_out)


def estimate_duration(desk: Desk, size: int) -> dict[str, object]:
    """Return the estimate as JSON; null if no document has been read yet."""
    pace = desk.session.library.pace()
    return {"seconds": pace and round(pace.seconds_for(size)), "pace": pace}


def describe_duration(desk: Desk, size: int) -> str:
    pace = desk.session.library.pace()
    if pace is None:
        return "no document has been read yet, so nobody knows how long"
    minutes = pace.seconds / 60
    time = output.length(timedelta(seconds=max(1, round(pace.seconds_for(size)))))
    return (
        f"about {time} if nothing else is to be done, at {output.size(round(pace.size / minutes))} and "
        f"{counted(round(pace.pages / minutes), 'page')} a minute, as the newest {counted(pace.documents, 'document')} "
        f"{'was' if pace.documents == 1 else 'were'} read"
    )
