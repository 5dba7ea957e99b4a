"""`pagemill add --dry-run`: estimate how much there is to read, and how long it takes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict, replace

from job_handlers.crawl.requests import CrawlOptions, crawl_job
from job_handlers.reading.find_files import LeftOut, in_words
from worker_service.base.errors import BadInput
from worker_service.base.files import sha256_of
from worker_service.base.humanize import counted
from worker_service.base.path_text import path_of, path_to_text
from worker_service.cli import output
from worker_service.cli.context import Invocation
from worker_service.cli.waiting import wait_for_jobs
from worker_service.jobs.batches import InBatch
from worker_service.jobs.documents import IndexStatus
from worker_service.jobs.job import Enqueued, NewJob
from worker_service.jobs.library import DocumentSelector, ReadingSpeed
from worker_service.jobs.selector import Selector
from worker_service.services import documents, enqueue
from worker_service.services.batches import PRIORITY

_LEFT_OUT_SHOWN_MAX = 10


class ReadingEstimate(Struct, frozen=True):
    files: int = 0
    bytes: int = 0
    known: int = 0
    """Files that have been read and have not changed."""
    to_read: int = 0
    bytes_to_read: int = 0
    unsized: int = 0
    """Addresses, whose size is unknown. They are in `to_read`, but not in the numbers of bytes."""

    def __add__(self, other: ReadingEstimate) -> ReadingEstimate:
        return ReadingEstimate(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))


def estimate_reading(call: Invocation, jobs: Sequence[NewJob], options: CrawlOptions, owner: str) -> ReadingEstimate:
    """Estimate downloads and crawls, the jobs that `jobs_of_sources` returns."""
    downloads = [job for job in jobs if job.job_type == "download"]
    crawls = [job for job in jobs if job.job_type != "download"]
    files = [path_of(job.source_key or "") for job in downloads if job.platform == "local"]
    addresses = len(downloads) - len(files)
    reads_known_files = options.force or bool(options.reading_settings())
    total = _estimate_files(call, files, owner=owner, reads_known_files=reads_known_files)
    total += ReadingEstimate(addresses, to_read=addresses, unsized=addresses)
    for crawl in crawls:
        folder = json.loads(crawl.payload or "")["folder"]
        total += _estimate_folder(call, crawl_job(folder, options, owner=owner, is_dry_run=True))
    return total


def _estimate_files(call: Invocation, files: Sequence[Path], *, owner: str, reads_known_files: bool) -> ReadingEstimate:
    size_by_file = {file: file.stat().st_size for file in files}
    known = _unchanged_files(call, files, owner)
    to_read = [file for file in files if reads_known_files or file not in known]
    return ReadingEstimate(
        files=len(files),
        bytes=sum(size_by_file.values()),
        known=len(known),
        to_read=len(to_read),
        bytes_to_read=sum(size_by_file[file] for file in to_read),
    )


def _unchanged_files(call: Invocation, files: Sequence[Path], owner: str) -> set[Path]:
    if not files:
        # A selector without source keys would choose all documents.
        return set()
    file_by_key = {path_to_text(file): file for file in files}
    selector = DocumentSelector(
        statuses=(IndexStatus.SUCCESS,), owners=(owner,), platforms=("local",), source_keys=list(file_by_key)
    )
    unchanged: set[Path] = set()
    for document in documents.each_document(call.session, selector):
        file = file_by_key[document.source_key]
        if document.content == sha256_of(file):
            unchanged.add(file)
    return unchanged


def _estimate_folder(call: Invocation, crawl: NewJob) -> ReadingEstimate:
    # A daemon lists the folder, in a crawl that enqueues nothing.
    enqueued = enqueue.enqueue_job(call.session, replace(crawl, priority=PRIORITY))
    note_gates(call, [enqueued])
    job_id = enqueued.job_id
    result = wait_for_jobs(call.session, Selector(ids=(job_id,)))
    job = call.session.job_queries.get(job_id)
    if not result.have_all_completed:
        raise BadInput(f"job {job_id}: {job.error_text or job.status}")
    counts: dict[str, int] = json.loads(job.result or "{}")
    new, known, new_bytes = counts.get("enqueued", 0), counts.get("unchanged", 0), counts.get("bytes", 0)
    # The crawl does not count the bytes of known files.
    return ReadingEstimate(files=new + known, bytes=new_bytes, known=known, to_read=new, bytes_to_read=new_bytes)


def show_estimate(call: Invocation, estimate: ReadingEstimate, left_out: LeftOut) -> None:
    speed, size = call.session.library.reading_speed(), estimate.bytes_to_read
    duration = {"seconds": speed and round(speed.seconds_for(size)), "pace": speed}
    if call.print_if_json({"dry_run": True, **asdict(estimate), **duration, **left_out.as_answer()}):
        return
    output.show(
        f"{counted(estimate.files, 'file')}, {output.format_size(estimate.bytes)}: {estimate.known} read already and "
        f"unchanged, {estimate.to_read} to read, {output.format_size(size)}"
    )
    if estimate.unsized:
        output.show(f"The size of {counted(estimate.unsized, 'address', 'addresses')} is unknown until the download.")
    if estimate.to_read:
        output.show(_describe_duration(speed, size))
    note_left_out(call, left_out)


def _describe_duration(speed: ReadingSpeed | None, size: int) -> str:
    if speed is None:
        return "no estimate of the time: no document has been read yet"
    minutes = speed.seconds / 60
    time = output.format_length(timedelta(seconds=max(1, round(speed.seconds_for(size)))))
    return (
        f"about {time} on an idle machine, at {output.format_size(round(speed.size / minutes))} and "
        f"{counted(round(speed.pages / minutes), 'page')} a minute (the speed of the last "
        f"{counted(speed.documents, 'document')})"
    )


def note_left_out(call: Invocation, left_out: LeftOut) -> None:
    if not left_out.counts or call.as_json:
        return
    output.note(f"skipped: {in_words(left_out.counts)}")
    for file in left_out.files[:_LEFT_OUT_SHOWN_MAX]:
        output.note(f"  {file['path']}")
    more = left_out.counts.total() - _LEFT_OUT_SHOWN_MAX
    if more > 0:
        output.note(f"  … and {more:,} more; --json lists up to 1,000")


def note_gates(call: Invocation, jobs: Sequence[Enqueued | InBatch]) -> None:
    """Note why the first job does not start at once."""
    job_id = next((job.job_id for job in jobs if job.job_id), None)
    gates = () if job_id is None else call.session.gates.explain(job_id)
    for gate in gates:
        if gate.code == "WORKER_DOWN":
            output.note(f"no daemon is running, so nothing is read yet; to start one: {call.settings.start_command}")
        else:
            output.note(f"job {job_id} waits: {gate.detail} ({gate.code}); what to do: pagemill why {job_id}")
