"""`pagemill add`: read files, directories, folders and addresses as a batch."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import click
from msgspec import to_builtins
from msgspec.structs import replace

from job_handlers.crawl.requests import CrawlOptions, crawl_job, jobs_of_sources
from job_handlers.reading.find_files import LeftOut, absolute
from worker_service.base.errors import BadInput
from worker_service.base.path_text import legible, path_of, written
from worker_service.cli import output
from worker_service.cli.context import Invocation, completes_directory, read_stdin, verb
from worker_service.cli.estimate import ToRead, estimate_files, estimate_folder, show_estimate
from worker_service.cli.progress import await_batches, reporting_interruption
from worker_service.cli.submit import (
    Submission,
    credential_option,
    extend_batch,
    folder_options,
    force_option,
    read_options,
    report_waiting,
    say_what_is_left_out,
    shorten_name,
    start_batch,
    submission_options,
    tag_option,
)
from worker_service.cli.typed_password import TypedPassword, password_options
from worker_service.jobs.batches import BatchAdded
from worker_service.jobs.digest import canonical
from worker_service.jobs.follow_ups import read_action
from worker_service.jobs.job import NewJob
from worker_service.services import enqueue
from worker_service.services.schedules import watch_folder

_LIST_BYTES_MAX = 16_000_000
_SOURCES_KEPT_MAX = 100
_WATCHED_ALONE = (
    "a watched folder is no batch, because it never ends",
    "use --watch with --every, --owner and reading options only",
)
_BATCH_ENDED = {"type": "batch.{state}", "data": {"batch": "{batch_id}", "state": "{state}"}}


@verb
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True, shell_complete=completes_directory)
@submission_options(
    "owner", "title", "notify", "is_waiting", "timeout", "dry_run", "priority", "batch_id", "then_batch"
)
@click.option("--watch", is_flag=True, help="Keep looking into the folders for new and changed files until stopped.")
@click.option("--every", metavar="LENGTH", help="With --watch: how often. Default: 5m for a directory, else 15m.")
@tag_option
@password_options
@read_options(CrawlOptions)
@force_option
@folder_options("--pattern")
@credential_option
def add(
    call: Invocation,
    sources: Sequence[str],
    watch: bool,
    every: str | None,
    *,
    submission: Submission,
    options: CrawlOptions,
    typed: TypedPassword | None,
) -> int:
    """\b
    pagemill add report.pdf scans/ --owner alice --wait
    pagemill add https://drive.google.com/drive/folders/1a2B3c… https://example.org/report.pdf
    find reports -name '*.pdf' | pagemill add - --name reports
    pagemill add reports/ --dry-run
    pagemill add scan.tiff --lang deu --quality best --force
    pagemill add /srv/scans --watch

    Read files, all files below directories, folders of Google Drive, and addresses. - reads a list of them from stdin,
    one per line. What is added together is a batch: the command prints batch:7, which `wait`, `ls` and `priority` take.

    Files that have been read and have not changed are neither downloaded nor read again, except with --force or other
    reading options. Hidden files, symbolic links and files of unknown formats below a directory are skipped and listed.
    The options that choose files of folders also apply to directories, which the daemon then lists.

    With --watch, a schedule reads what is new or changed in each folder, now and again and again; it is no batch.
    `pagemill schedules` lists what is watched.

    --notify sends one message when the batch has ended, with the names of its files: by mail, to a URL, to what the
    credential apprise-NAME names, or to the owner's address in [addresses] (me).

    An owner has one active batch; the setting owner_policy decides what happens to the others. --then and --on-failure
    apply to each document, each time it is read. With --wait, the exit code is 1 if a part of the batch failed, and 124
    after the timeout.
    """
    words = [word for source in sources for word in (_listed_sources() if source == "-" else [source])]
    if watch or every is not None:
        if not watch or typed is not None:
            raise BadInput(*_WATCHED_ALONE)
        return watch_folders(call, words, every, submission, options)
    left_out = LeftOut()
    jobs = jobs_of_sources(words, options, owner=submission.owner, left_out=left_out)
    if submission.dry_run:
        show_estimate(call, _estimate(call, jobs, options, submission.owner), left_out)
        return 0
    say_what_is_left_out(call, left_out)
    if typed is not None:
        typed.save_for_files(call, jobs)
    added = _submit(call, words, jobs, submission, options)
    if submission.is_waiting:
        with reporting_interruption():
            report_waiting(call, added.jobs)
            return await_batches(call, [added.batch.id], timeout=submission.timeout)
    answer = {"batch": added.batch, "items": added.jobs, "replaced": added.replaced, **left_out.as_answer()}
    if not call.printed_json(answer):
        output.show(f"batch:{added.batch.id}")
    return 0


def _submit(
    call: Invocation, words: Sequence[str], jobs: Sequence[NewJob], submission: Submission, options: CrawlOptions
) -> BatchAdded:
    if submission.batch_id is not None:
        if submission.then_batch or submission.title or submission.notify:
            raise BadInput("--name, --notify and --then-batch are for a new batch", "leave them or --batch out")
        return extend_batch(call, submission.batch_id, jobs, submission)
    actions = [_action_of_batch(call, word) for word in submission.then_batch]
    asked = {
        "sources": _first_sources(words),
        **options.reading_settings(),
        **options.force_in_payload(),
        **options.actions_and_tags(standing=True),
    }
    submission = replace(submission, title=submission.title or _default_name(words))
    return start_batch(call, jobs, submission, asked=asked, actions=actions)


def watch_folders(
    call: Invocation, folders: Sequence[str], every: str | None, submission: Submission, options: CrawlOptions
) -> int:
    if submission != Submission(owner=submission.owner):
        raise BadInput(*_WATCHED_ALONE)
    defaults = to_builtins(CrawlOptions())
    given = {name: value for name, value in to_builtins(options).items() if value != defaults[name]}
    # The daemon, which runs the schedule, has another working directory.
    paths = [folder if "://" in folder else written(absolute(folder)) for folder in folders]
    watched = [watch_folder(call.session, path, given, owner=submission.owner, every=every)[0] for path in paths]
    if not call.printed_json({"items": watched}):
        for one in watched:
            output.show(one.name)
            output.say(f"{one.what}: {one.when.lower()}; to stop: pagemill schedules rm {shlex.quote(one.name)}")
    return 0


def _default_name(words: Sequence[str]) -> str:
    first = words[0] if "://" in words[0] else legible(absolute(words[0]).name)
    return shorten_name(first if len(words) == 1 else f"{first} and {len(words) - 1} more")


def _listed_sources() -> list[str]:
    raw = read_stdin(_LIST_BYTES_MAX + 1)
    if len(raw) > _LIST_BYTES_MAX:
        raise BadInput(f"the list on stdin is longer than {output.size(_LIST_BYTES_MAX)}", "split it into batches")
    # The name of a file may be any bytes.
    words = [os.fsdecode(line) for line in raw.splitlines() if line.strip()]
    if not words:
        raise BadInput("the list on stdin is empty", "write a file, directory, folder or address on each line")
    return words


def _first_sources(words: Sequence[str]) -> list[str]:
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


def _estimate(call: Invocation, jobs: Sequence[NewJob], options: CrawlOptions, owner: str) -> ToRead:
    """Each folder is counted by a job, which compares it with earlier crawls."""
    files = [path_of(job.source_key or "") for job in jobs if job.job_type == "download" and job.platform == "local"]
    found = estimate_files(call, files, owner=owner, is_read_again=options.force or bool(options.reading_settings()))
    addresses = sum(job.job_type == "download" and job.platform != "local" for job in jobs)
    found += ToRead(addresses, to_read=addresses, unsized=addresses)
    for folder in (json.loads(job.payload or "")["folder"] for job in jobs if job.job_type != "download"):
        found += estimate_folder(call, crawl_job(folder, options, owner=owner, is_dry_run=True))
    return found
