"""List and explain jobs: `ls`, `show`, `why` and `logs`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import click

from worker_service.base.humanize import counted
from worker_service.cli import output
from worker_service.cli.context import (
    DocumentId,
    Invocation,
    JobId,
    completer,
    job_selector_options,
    number_option,
    optional_job_id_argument,
    verb,
)
from worker_service.jobs.job import Job
from worker_service.jobs.selector import COLUMNS, Selector
from worker_service.services import jobs
from worker_service.services.jobs import progress_in_words, state_of, title_of_job

if TYPE_CHECKING:
    from worker_service.jobs.attempts import AttemptRow
    from worker_service.services.job_advice import Why

EXIT_NOT_YET = 3

_FILES_SHOWN_MAX = 50
_NOTABLE_SILENCE_SECONDS = 10.0
_LISTED_COLUMNS = [column for column in COLUMNS if column.heading]
_HEADINGS = (
    "ID", "STATE", *(column.heading for column in _LISTED_COLUMNS), "PRI", "TRIES", "DONE", "CREATED", "ERROR", "NAME",
    "NOTE",
)  # fmt: skip
_DROP_FIRST = ("CREATED", "PLATFORM", "PRI", "TRIES", "ACCOUNT", "DONE", "OWNER")

_ATTEMPT_COLUMNS = (
    "FENCE", "WORKER", "NODE", "STARTED (UTC)", "ENDED (UTC)", "OUTCOME", "ERROR", "SIGNAL", "CPU S", "PEAK MB",
    "SANDBOX",
)  # fmt: skip

_LOST_WORKER_PHRASES = {
    "dead": ", which is dead", "dying": ", which is dead", "silent": ", which sends no heartbeat",
    "no row": ", which is unknown",
}  # fmt: skip
"""Phrase about the job's daemon, by its state. In another state, the daemon lives."""
_END_PHRASES = {"completed": "completed", "failed": "failed", "cancelled": "was cancelled"}
_REQUEUE_HINT = "start a daemon, which puts it back into the queue: "


@verb
@job_selector_options
@number_option("--limit", "limit", 50, "Number of jobs.")
@click.option("--before", "before_id", type=JobId(), metavar="ID", help="Next page: jobs with smaller ids.")
def ls(call: Invocation, selector: Selector, limit: int, before_id: int | None) -> None:
    """\b
    pagemill ls
    pagemill ls --status failed --since 1d
    pagemill ls --type ocr_pages,download --owner alice --json
    pagemill ls --match payload.source=/srv/a.pdf

    List jobs, newest first.
    """
    page = jobs.list_jobs(call.session, selector, limit=limit, before_id=before_id)
    if call.print_if_json(page):
        return
    if page.items:
        now = call.session.clock()
        output.show_table(
            _HEADINGS, [_job_cells(job, now) for job in page.items], drop_first=_DROP_FIRST, never_cut=("ERROR",)
        )
    else:
        output.note("the queue is empty" if selector.is_empty and before_id is None else "no job matches")
    if page.next is not None:
        output.note(f"for more, add --before {page.next}")


@verb
@click.argument("reference", metavar="ID", shell_complete=completer("id"))
def show(call: Invocation, reference: str) -> None:
    """\b
    pagemill show 42
    pagemill show document:7
    pagemill show 42 --json

    Show one job (its attempts, events, dependencies, files and the end of its log) or one document (its pages, how each
    was read, and its files). --json shows every field.
    """
    if reference.startswith("document:"):
        from worker_service.cli.show_document import show_document

        show_document(call, DocumentId().convert(reference, None, None))
        return
    if reference.startswith("batch:"):
        raise click.UsageError(f"show takes a job or a document; for a batch: pagemill batch show {reference}")
    _show_job(call, JobId().convert(reference, None, None))


def _show_job(call: Invocation, job_id: int) -> None:
    # A listing needs neither module.
    from worker_service.services.job_details import get_job_details
    from worker_service.services.serialize import as_object

    details = get_job_details(call.session, job_id)
    if call.as_json:
        fields = as_object(details)
        output.show_json(fields.pop("job") | fields)
        return
    output.show_values(_facts_of(details.job))
    output.show_section(_ATTEMPT_COLUMNS, [*map(_attempt_row, details.attempts)], title="attempts")
    output.show_section(("ID", "STATUS"), details.waits_for, title="waits for")
    events = [(output.whole_seconds(event.at), event.from_status, event.to_status) for event in details.events]
    output.show_section(("AT (UTC)", "FROM", "TO"), events, title="events")
    files = [(file.name, file.size, file.path) for file in details.files[:_FILES_SHOWN_MAX]]
    output.show_section(("NAME", "BYTES", "PATH"), files, title="files")
    files_left = len(details.files) - len(files)
    if files_left:
        output.note(
            f"and {counted(files_left, 'file')} more: --json lists all, pagemill export --job {job_id} copies them"
        )
    log = [(output.whole_seconds(line.at), line.line) for line in details.log]
    output.show_section(("AT (UTC)", "LINE"), log, title="log")


@verb
@optional_job_id_argument
def why(call: Invocation, job_id: int | None) -> int:
    """\b
    pagemill why
    pagemill why 42
    pagemill why 42 --json

    Explain why a job waits or has failed, and what to do. For a pending job, this lists each gate that holds it; the
    gates are the conditions under which the daemon starts jobs. Without an ID, it explains the newest job with a
    problem.

    Exit code 3 if a gate holds the job, otherwise 0.
    """
    from worker_service.services import job_advice  # a listing needs neither workers nor batches

    has_given_id = job_id is not None
    job_id = job_id or _find_newest_problem(call)
    if job_id is None:
        return 0
    explanation = job_advice.why(call.session, job_id)
    job, gates = explanation.job, explanation.gates
    exit_code = EXIT_NOT_YET if gates else 0
    answer = {"id": job.id, "status": job.status, "state": state_of(job), "items": gates}
    answer |= {"silent_seconds": explanation.silent_seconds, "limit_seconds": explanation.limit_seconds}
    if call.print_if_json({**answer, "next": explanation.helps}):
        return exit_code
    if job.status != "pending":
        _show_why_started(call, explanation)
    elif not gates:
        output.show(f"nothing holds {title_of_job(job)}: it starts as soon as a slot is free")
    elif job.name or not has_given_id:
        output.show(f"{title_of_job(job)} waits:")
    for gate in gates:
        output.show(f"{gate.code}  {gate.detail}")
        output.show(f"    next: {gate.next}")
    return exit_code


def _show_why_started(call: Invocation, explanation: Why) -> None:
    lost_worker = _LOST_WORKER_PHRASES.get(explanation.worker_state, "")
    silence = "" if lost_worker else _describe_silence(explanation)
    output.show(_describe_job(explanation.job, lost_worker) + silence)
    next_step = _REQUEUE_HINT + call.settings.start_command if lost_worker else explanation.helps
    if next_step:
        output.show(f"    next: {next_step}")


@verb
@optional_job_id_argument
@click.option("--follow", "-f", is_flag=True, help="Print new lines until the job has ended.")
def logs(call: Invocation, job_id: int | None, follow: bool) -> None:
    """\b
    pagemill logs 42
    pagemill logs -f 42

    Print the log of a job: what its handler logged or printed, the newest 3,000 lines. Without an ID, this is the
    newest job with a problem. With --json and -f, each line is one object.
    """
    from worker_service.services.job_details import follow_log, read_log

    job_id = job_id or _find_newest_problem(call)
    if job_id is None:
        return
    if call.as_json and not follow:
        output.show_json({"items": read_log(call.session, job_id), "next": None})
        return
    is_empty = True
    for line in follow_log(call.session, job_id) if follow else read_log(call.session, job_id):
        is_empty = False
        if not call.print_if_json(line):
            output.show(f"{output.whole_seconds(line.at)}  {line.line}")
    if is_empty and not call.as_json:
        output.note(f"job {job_id} has no log; what happened: pagemill why {job_id}")


# ── A job in words ──────────────────────────────────────────────────────────────────────────────────────────────


def _job_cells(job: Job, now: datetime) -> Sequence[object]:
    state = state_of(job, now=now)
    note = job.error_text or progress_in_words(job, now=now)
    if state in ("scheduled", "backoff"):
        note = f"at {output.whole_seconds(job.run_at)}"
    tries = f"{job.retry_count}/{job.max_retries}"
    created = output.short_time(job.created_at, now=now)
    columns = (getattr(job, column.name) for column in _LISTED_COLUMNS)
    progress = f"{job.progress_percent}%"
    return (job.id, state, *columns, job.priority, tries, progress, created, job.error_code, job.name, note)


def _facts_of(job: Job) -> dict[str, object]:
    return {
        "job": job.id,
        "type": job.job_type,
        "name": job.name,
        "state": state_of(job),
        "error": job.error_message,
        "code": job.error_code,
        "next": job.error_remedy,
        "progress": progress_in_words(job) or job.progress_message,
        "owner": job.owner,
        "account": job.account,
        "document": job.document_id,
        "batch": job.batch_id,
        "follows job": job.parent_id,
        "priority": job.priority,
        "retries": f"{job.retry_count} of {job.max_retries}" if job.retry_count else None,
        "worker deaths": job.requeue_count or None,
        "starts (UTC)": output.whole_seconds(job.run_at),
        "added (UTC)": output.whole_seconds(job.created_at),
        "started (UTC)": output.whole_seconds(job.started_at),
        "ended (UTC)": output.whole_seconds(job.completed_at),
        "source": job.source_key,
        "payload": job.payload,
        "result": job.result,
    }


def _attempt_row(attempt: AttemptRow) -> Sequence[object]:
    peak = attempt.memory_peak_bytes
    return (
        attempt.fence, attempt.worker_id, attempt.node, output.whole_seconds(attempt.started_at),
        output.whole_seconds(attempt.ended_at), attempt.outcome or "open", attempt.error_code, attempt.signal,
        attempt.cpu_seconds, None if peak is None else peak // 1_000_000, attempt.sandbox,
    )  # fmt: skip


def _describe_job(job: Job, lost_worker: str) -> str:
    if job.status == "running":
        asked = "; it was asked to stop" if job.cancel_requested_at else ""
        since = output.whole_seconds(job.started_at)
        return f"{title_of_job(job)} has been running since {since} on {job.worker_id}{lost_worker}{asked}"
    code = f" with {job.error_code}" if job.error_code else ""
    message = f": {job.error_message.splitlines()[0]}" if job.error_message else ""
    return f"{title_of_job(job)} {_END_PHRASES[job.status]}{code} at {output.whole_seconds(job.completed_at)}{message}"


def _describe_silence(explanation: Why) -> str:
    silent_seconds, limit_seconds = explanation.silent_seconds, explanation.limit_seconds
    parts = []
    if silent_seconds is not None and silent_seconds >= _NOTABLE_SILENCE_SECONDS:
        parts.append(f"no progress for {output.format_length(timedelta(seconds=int(silent_seconds)))}")
    if limit_seconds is not None:
        parts.append(f"its time limit is {output.format_length(timedelta(seconds=limit_seconds))}")
    return f"; {', '.join(parts)}" if parts else ""


def _find_newest_problem(call: Invocation) -> int | None:
    """Return a job, or print that none has a problem."""
    from worker_service.services.job_advice import newest_job_with_a_problem

    job_id = newest_job_with_a_problem(call.session)
    if job_id is None and not call.print_if_json({"id": None, "items": []}):
        output.note("no job has a problem")
    return job_id
