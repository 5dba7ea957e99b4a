"""`pagemill batch add`: submit sources of any kind together."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import click
from msgspec.structs import asdict, replace

from job_handlers.crawl.requests import CrawlOptions, SourceOptions, crawl_job, jobs_of_sources
from job_handlers.reading.find_files import LeftOut
from worker_service.base.errors import BadInput
from worker_service.base.path_text import legible, path_of
from worker_service.cli import output
from worker_service.cli.batches import report_batch, report_replaced
from worker_service.cli.context import Invocation, completes_directory, read_stdin, verb
from worker_service.cli.estimate import ToRead, count_folder, estimate_files, show_estimate
from worker_service.cli.progress import await_batches, reporting_interruption
from worker_service.cli.submit import (
    credential_option,
    dry_run_option,
    owner_option,
    priority_option,
    read_options,
    refuse_timeout_without_wait,
    say_what_is_left_out,
    tag_option,
    timeout_option,
)
from worker_service.jobs.digest import canonical
from worker_service.jobs.follow_ups import read_action
from worker_service.jobs.job import NewJob
from worker_service.services import batches, enqueue
from worker_service.services.batches import PRIORITY

_LIST_BYTES_MAX = 16_000_000
_SOURCES_KEPT_MAX = 100
_BATCH_ENDED = {"type": "batch.{state}", "data": {"batch": "{batch_id}", "state": "{state}"}}


@verb
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True, shell_complete=completes_directory)
@click.option("--name", default="", metavar="NAME", help="Name of the batch in lists.")
@owner_option
@priority_option
@credential_option
@tag_option
@read_options(SourceOptions)
@click.option("--then-batch", multiple=True, metavar="TYPE[=JSON]", help="Enqueue this job when the batch has ended.")
@click.option("--wait", "is_waiting", is_flag=True, help="Show the progress and wait until the batch has ended.")
@timeout_option
@dry_run_option
def add(
    call: Invocation,
    sources: Sequence[str],
    name: str,
    owner: str,
    priority: int | None,
    then_batch: Sequence[str],
    is_waiting: bool,
    timeout: str | None,
    dry_run: bool,
    *,
    options: SourceOptions,
) -> int:
    """\b
    pagemill batch add reports/ --owner alice --name reports
    pagemill batch add https://drive.google.com/drive/folders/1a2B3c… report.pdf --owner alice --wait
    cat list.txt | pagemill batch add - --owner alice --then-batch 'webhook={"url": "https://example.com/done"}'
    pagemill batch add reports/ --dry-run

    Submit sources as one batch: files, directories, Google Drive folders and URLs. - reads a list of sources from
    stdin, one per line. Prints batch:7, which `pagemill wait`, `ls` and `priority` take.

    A file that is named twice is read once. Hidden files, symbolic links and files of unknown formats below a directory
    are skipped and counted. A Drive folder is listed completely; known files are neither downloaded nor read again.
    --then and --on-failure apply to each document, each time it is read.

    An owner has one active batch; the setting owner_policy decides what happens to the others. With --wait, the exit
    code is 1 if a part of the batch failed, and 124 after the timeout.
    """
    refuse_timeout_without_wait(timeout, is_waiting=is_waiting, is_dry_run=dry_run)
    left_out = LeftOut()
    words = [word for source in sources for word in (_listed_sources() if source == "-" else [source])]
    jobs = jobs_of_sources(words, options, owner=owner, left_out=left_out)
    actions = [_action_of_batch(call, word) for word in then_batch]
    if dry_run:
        show_estimate(call, _estimate(call, jobs, options, owner), left_out)
        return 0
    say_what_is_left_out(call, left_out)
    asked = {"sources": _shortened(words), **options.asked(), **options.follows(standing=True)}
    report_replaced(call, owner)
    added = batches.add_batch(
        call.session, jobs, owner=owner, name=name, priority=priority or PRIORITY, asked=asked, actions=actions
    )
    report_batch(call, added)
    if is_waiting:
        with reporting_interruption():
            return await_batches(call, [added.batch.id], timeout=timeout)
    answer = {"batch": added.batch, "items": added.jobs, "replaced": added.replaced, **left_out.as_answer()}
    if not call.printed_json(answer):
        output.show(f"batch:{added.batch.id}")
    return 0


def _listed_sources() -> list[str]:
    raw = read_stdin(_LIST_BYTES_MAX + 1)
    if len(raw) > _LIST_BYTES_MAX:
        raise BadInput(f"the list on stdin is longer than {output.size(_LIST_BYTES_MAX)}", "split it into batches")
    # The name of a file may be any bytes.
    words = [os.fsdecode(line) for line in raw.splitlines() if line.strip()]
    if not words:
        raise BadInput("the list on stdin is empty", "write a file, directory, folder or address on each line")
    return words


def _shortened(words: Sequence[str]) -> list[str]:
    more = len(words) - _SOURCES_KEPT_MAX
    return [*map(legible, words[:_SOURCES_KEPT_MAX]), *([f"and {more:,} more"] if more > 0 else [])]


def _action_of_batch(call: Invocation, word: str) -> Mapping[str, Any]:
    action = read_action(word)
    payload: dict[str, Any] = json.loads(action.payload) if action.payload else {}
    if action.job_type == "webhook" and "event" not in payload:
        payload["event"] = _BATCH_ENDED
    enqueue.check_action_payload(call.session, replace(action, payload=canonical(payload) if payload else ""))
    for sentence in enqueue.unknown_type_warnings(call.session, [action]):
        output.say(sentence)
    return {"job_type": action.job_type, **({"payload": payload} if payload else {})}


def _estimate(call: Invocation, jobs: Sequence[NewJob], options: SourceOptions, owner: str) -> ToRead:
    """Estimate the batch. Each folder is counted by a job, which compares it with what earlier crawls found."""
    files = [path_of(job.source_key or "") for job in jobs if job.job_type == "download" and job.platform == "local"]
    found = estimate_files(call, files, owner=owner, is_read_again=bool(options.asked()))
    addresses = sum(job.job_type == "download" and job.platform != "local" for job in jobs)
    found += ToRead(addresses, to_read=addresses, unsized=addresses)
    for folder in (json.loads(job.payload or "")["folder"] for job in jobs if job.job_type != "download"):
        crawl = crawl_job(folder, CrawlOptions(**asdict(options)), owner=owner, is_dry_run=True)
        counts = count_folder(call, crawl)
        new, size, known = counts.get("enqueued", 0), counts.get("bytes", 0), counts.get("unchanged", 0)
        found += ToRead(new + known, size, known, new, size)
    return found
