"""`pagemill add`: read files, directories, folders and addresses as a batch, or watch folders."""

from __future__ import annotations

import functools
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import click
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from job_handlers.crawl.requests import CrawlOptions, jobs_of_sources
from job_handlers.reading.find_files import LeftOut, absolute
from worker_service.base.errors import BadInput
from worker_service.base.path_text import display_path, path_to_text
from worker_service.cli import output
from worker_service.cli.add_dry_run import estimate_reading, note_gates, note_left_out, show_estimate
from worker_service.cli.batches import note_added_batch, note_replaced_batches
from worker_service.cli.context import BatchId, Function, Invocation, Verb, add_options, complete_file, read_stdin, verb
from worker_service.cli.progress import await_batches, reporting_interruption
from worker_service.cli.read_options import TypedPassword, force_option, password_options, priority_option, read_options
from worker_service.jobs.batches import BatchAdded, BatchState
from worker_service.jobs.digest import canonical
from worker_service.jobs.follow_ups import read_action
from worker_service.jobs.job import NewJob
from worker_service.services import batches, enqueue
from worker_service.services.batches import PRIORITY, BatchRequest
from worker_service.services.notifications import channel_warnings, read_address
from worker_service.services.schedules import watch_folder

_STDIN_BYTES_MAX = 16_000_000
_SOURCES_RECORDED_MAX = 100
_BATCH_NAME_CHARACTERS_MAX = 60
_WATCH_HAS_NO_BATCH = (
    "a watched folder is no batch, because it never ends",
    "use --watch with --every, --owner and reading options only",
)
_BATCH_ENDED_EVENT = {"type": "batch.{state}", "data": {"batch": "{batch_id}", "state": "{state}"}}
"""Default event of `--then-batch webhook`. The placeholders are filled in when the batch ends."""


class Submission(Struct, frozen=True, kw_only=True):
    owner: str
    title: str
    batch_id: int | None
    priority: int | None
    notify: str
    then_batch: tuple[str, ...]
    is_waiting: bool
    timeout: str | None
    dry_run: bool
    watch: bool
    every: str | None

    def check(self) -> None:
        batch_options = (self.title, self.batch_id, self.priority, self.notify, self.then_batch, self.timeout)
        if self.every is not None and not self.watch:
            raise BadInput("--every works only with --watch", "add --watch")
        if self.watch and (self.is_waiting or self.dry_run or any(batch_options)):
            raise BadInput(*_WATCH_HAS_NO_BATCH)
        if self.batch_id is not None and (self.then_batch or self.title or self.notify):
            raise BadInput("--name, --notify and --then-batch are for a new batch", "leave them or --batch out")
        if self.timeout is not None and not self.is_waiting:
            raise BadInput("--timeout works only with --wait", "add --wait")
        if self.is_waiting and self.dry_run:
            raise BadInput(
                "--dry-run submits nothing, so there is nothing to wait for", "leave out --wait or --dry-run"
            )


def _submission_options(function: Function) -> Function:
    @functools.wraps(function)
    def run(call: Invocation, *arguments: Any, **values: Any) -> Any:
        submission = Submission(**{name: values.pop(name) for name in Submission.__struct_fields__})
        submission.check()
        return function(call, *arguments, submission=submission, **values)

    return add_options(
        run,
        click.option("--owner", default="", metavar="NAME", help="Owner of the documents."),
        click.option("--name", "title", default="", metavar="NAME",
                     help="Name of the batch. Default: that of the first source."),
        click.option("--notify", default="", metavar="ADDRESS",
                     help="Send a message at the end: me, ann@example.com, https://…"),
        click.option("--wait", "is_waiting", is_flag=True, help="Show the progress, and wait until all is read."),
        click.option("--timeout", metavar="LENGTH", help="With --wait: give up after this time, such as 10m."),
        click.option("--dry-run", is_flag=True, help="Only estimate how much there is to read, and how long it takes."),
        priority_option,
        click.option("--batch", "batch_id", type=BatchId(), metavar="N", help="Add to this unfinished batch."),
        click.option("--then-batch", multiple=True, metavar="TYPE[=JSON]",
                     help="Enqueue this job when the batch has ended."),
        click.option("--watch", is_flag=True, help="Keep looking for new and changed files in the folders."),
        click.option("--every", metavar="LENGTH",
                     help="With --watch: how often. Default: 5m for a directory, else 15m."),
    )  # fmt: skip


def _folder_options(function: Function) -> Function:
    return add_options(
        function,
        click.option("--mime", multiple=True, metavar="TYPE",
                     help="In folders, only files of this type: application/pdf, image/*. Default: all."),
        click.option("--pattern", "name", metavar="PATTERN",
                     help="In folders, only files with such names: '*report*.pdf'."),
        click.option("--max-size", "size_max", type=click.IntRange(1), metavar="BYTES",
                     help="In folders, only files up to this size."),
        click.option("--since", "newer_than", metavar="TIME",
                     help="In folders, only files changed since 2h or 3d (ago), or since 2026-01-31."),
        click.option("--depth", type=click.IntRange(0), metavar="N", help="Levels of subfolders. Default: all."),
        click.option("--reconcile", is_flag=True, help="Rescan folders as a whole, and notice deleted files."),
        click.option("--credential", default="", metavar="NAME", help="Credential for Google Drive. Default: drive."),
    )  # fmt: skip


@verb
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True, shell_complete=complete_file)
@_submission_options
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Tag the documents with this word, such as invoice.")
@password_options
@read_options(CrawlOptions)
@force_option
@_folder_options
def add(
    call: Invocation,
    sources: Sequence[str],
    *,
    submission: Submission,
    options: CrawlOptions,
    typed_password: TypedPassword | None,
) -> int:
    """\b
    pagemill add report.pdf scans/ --owner alice --wait
    pagemill add https://drive.google.com/drive/folders/1a2B3c… https://example.org/report.pdf
    find reports -name '*.pdf' | pagemill add - --name reports
    pagemill add reports/ --dry-run
    pagemill add scan.tiff --lang deu --quality best --force
    pagemill add /srv/scans --watch

    Read files, all files below directories, folders of Google Drive, and addresses. - reads a list of them from stdin,
    one per line. What is added together is a batch: it prints batch:7, which `wait`, `ls` and `priority` take.

    Files that have been read and have not changed are neither downloaded nor read again, except with --force or other
    reading options. Hidden files, symbolic links and files of unknown formats below a directory are skipped and listed.
    The options that choose files of folders also apply to directories, which the daemon then lists.

    With --watch, a schedule reads what is new or changed in each folder, at once and then regularly; this is no batch.
    `pagemill schedules` lists it.

    --notify sends one message at the end of the batch: by mail, to a URL, to apprise:NAME, or to the owner's address in
    [addresses] (me). --then and --on-failure apply to each document, each time it is read.

    An owner has one active batch; the setting owner_policy decides what happens to the others. With --wait, the exit
    code is 1 if a part of the batch failed, and 124 after the timeout.
    """
    sources = _with_sources_from_stdin(sources)
    if submission.watch:
        if typed_password is not None:
            raise BadInput(*_WATCH_HAS_NO_BATCH)
        _watch(call, sources, submission, options)
        return 0
    left_out = LeftOut()
    jobs = jobs_of_sources(sources, options, owner=submission.owner, left_out=left_out)
    if submission.dry_run:
        show_estimate(call, estimate_reading(call, jobs, options, submission.owner), left_out)
        return 0
    note_left_out(call, left_out)
    if typed_password is not None:
        _require_local_files(jobs)
        typed_password.save(call, jobs)
    added = _submit(call, sources, jobs, submission, options)
    if submission.is_waiting:
        with reporting_interruption():
            note_gates(call, added.jobs)
            return await_batches(call, [added.batch.id], timeout=submission.timeout)
    answer = {"batch": added.batch, "items": added.jobs, "replaced": added.replaced, **left_out.as_answer()}
    call.show_result(answer, f"batch:{added.batch.id}")
    return 0


def _with_sources_from_stdin(sources: Sequence[str]) -> list[str]:
    all_sources: list[str] = []
    for source in sources:
        all_sources += _sources_from_stdin() if source == "-" else [source]
    return all_sources


def _sources_from_stdin() -> list[str]:
    raw = read_stdin(_STDIN_BYTES_MAX + 1)
    if len(raw) > _STDIN_BYTES_MAX:
        raise BadInput(
            f"the list on stdin is longer than {output.format_size(_STDIN_BYTES_MAX)}", "split it into batches"
        )
    # The name of a file may be any bytes.
    sources = [os.fsdecode(line) for line in raw.splitlines() if line.strip()]
    if not sources:
        raise BadInput("the list on stdin is empty", "write a file, directory, folder or address on each line")
    return sources


def _require_local_files(jobs: Sequence[NewJob]) -> None:
    if any(job.job_type != "download" or job.platform != "local" for job in jobs):
        raise BadInput(
            "a password opens files, not what a folder or an address leads to",
            "add it without a password, then give the password of each document: pagemill reindex 7 --password",
        )


def _submit(
    call: Invocation, sources: Sequence[str], jobs: Sequence[NewJob], submission: Submission, options: CrawlOptions
) -> BatchAdded:
    owner = submission.owner
    if submission.batch_id is not None:
        jobs = [replace(job, priority=submission.priority) for job in jobs]
        added = batches.extend_batch(call.session, submission.batch_id, jobs, owner=owner)
        note_added_batch(call, added)
        return added
    actions = [_read_batch_action(call, word) for word in submission.then_batch]
    asked = {
        "sources": _sources_to_record(sources),
        **options.reading_settings(),
        **options.force_payload(),
        **options.actions_and_tags(is_standing=True),
    }
    notify = read_address(call.session, submission.notify, owner=owner)
    for sentence in channel_warnings(call.session, notify):
        output.note(sentence)
    note_replaced_batches(call, owner)
    added = batches.add_batch(
        call.session,
        jobs,
        BatchRequest(
            owner,
            name=submission.title or _default_name(sources),
            priority=submission.priority or PRIORITY,
            asked=asked,
            actions=actions,
            notify=notify,
        ),
    )
    if not submission.is_waiting or added.batch.state is not BatchState.ACTIVE:
        note_added_batch(call, added)
    return added


def _watch(call: Invocation, folders: Sequence[str], submission: Submission, options: CrawlOptions) -> None:
    defaults = to_builtins(CrawlOptions())
    changed_options = {name: value for name, value in to_builtins(options).items() if value != defaults[name]}
    schedules = []
    for folder in folders:
        # The daemon, which runs the schedule, has another working directory.
        address = folder if "://" in folder else path_to_text(absolute(folder))
        schedule, _first_run = watch_folder(
            call.session, address, changed_options, owner=submission.owner, every=submission.every
        )
        schedules.append(schedule)
    if call.print_if_json({"items": schedules}):
        return
    for schedule in schedules:
        output.show(schedule.name)
        stop_command = f"pagemill schedules rm {shlex.quote(schedule.name)}"
        output.note(f"{schedule.what}: {schedule.when.lower()}; to stop: {stop_command}")


def _default_name(sources: Sequence[str]) -> str:
    first = sources[0] if "://" in sources[0] else display_path(absolute(sources[0]).name)
    name = first if len(sources) == 1 else f"{first} and {len(sources) - 1} more"
    # The end of an address or a path says more than its beginning.
    return name if len(name) <= _BATCH_NAME_CHARACTERS_MAX else f"…{name[1 - _BATCH_NAME_CHARACTERS_MAX :]}"


def _sources_to_record(sources: Sequence[str]) -> list[str]:
    more = len(sources) - _SOURCES_RECORDED_MAX
    return [*map(display_path, sources[:_SOURCES_RECORDED_MAX]), *([f"and {more:,} more"] if more > 0 else [])]


def _read_batch_action(call: Invocation, word: str) -> Mapping[str, Any]:
    action = read_action(word)
    payload: dict[str, Any] = json.loads(action.payload) if action.payload else {}
    if action.job_type == "webhook" and "event" not in payload:
        payload["event"] = _BATCH_ENDED_EVENT
    enqueue.check_action_payload(call.session, replace(action, payload=canonical(payload) if payload else ""))
    for sentence in enqueue.unknown_type_warnings(call.session, [action]):
        output.note(sentence)
    return {"job_type": action.job_type, **({"payload": payload} if payload else {})}


# ── Former names ──


class _FormerAdd(Verb):
    """A former name of `add`. Its `--batch NAME` is now `--name NAME`; `--batch 7` still adds to batch 7."""

    def __init__(self, name: str, new_options: Mapping[str, Sequence[str]]) -> None:
        super().__init__(name, params=add.params, callback=add.callback, help=add.help)
        self._new_options = new_options

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words: list[str] = []
        for arg in args:
            # Both --batch=NAME and --batch NAME are allowed.
            name, *values = arg.split("=", 1) if arg.startswith("--") else [arg]
            words += [*self._new_options.get(name, [name]), *values]
        for index, (option, value) in enumerate(pairwise(words)):
            if option == "--batch" and not value.removeprefix("batch:").isdigit():
                words[index] = "--name"
        return super().parse_args(ctx, words)


ingest = _FormerAdd("ingest", {})
crawl = _FormerAdd("crawl", {"--name": ["--pattern"], "--newer-than": ["--since"], "--watch": ["--watch", "--every"]})
