"""Looking at jobs: `ls`, `show`, `why`, `logs`. Nothing here changes anything."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime

import click

from worker_service.clock import wall_clock
from worker_service.commands import output
from worker_service.commands.desk import Desk, JobId, completes, job_or_problem_argument, selecting, verb
from worker_service.jobs.model import LOG_LINES_MOST, Attempt, Gate, Job, LogLine
from worker_service.operations import overview, problems
from worker_service.operations.overview import CheckedWorker
from worker_service.plurals import counted
from worker_service.queue import Queue, named, state_of
from worker_service.words import SelectorWords

EXIT_NOT_YET = 3

_FOLLOW_SECONDS = 0.05
_LOG_LINES_SHOWN = 10
_FILES_SHOWN = 50
_COLUMNS = (
    "ID", "STATE", "TYPE", "NAME", "PLATFORM", "ACCOUNT", "OWNER", "PRI", "TRIES", "DONE", "CREATED", "ERROR", "NOTE",
)  # fmt: skip
_GIVES_UP = ("CREATED", "PLATFORM", "PRI", "TRIES", "ACCOUNT", "DONE", "OWNER")

_ATTEMPT_COLUMNS = (
    "FENCE", "WORKER", "STARTED (UTC)", "ENDED (UTC)", "OUTCOME", "ERROR", "SIGNAL", "CPU S", "PEAK MB", "SANDBOX",
)  # fmt: skip

_AT_ONCE = 'to have it at once: pagemill db shell --write "UPDATE worker_job_queue SET run_at = NULL WHERE id = {id}"'
_LOST = {"dead": ", which is dead", "dying": ", which is dead", "silent": ", which has not beaten for long",
         "no row": ", which has no row"}  # fmt: skip
_TAKEN_BACK = "any daemon takes it back: systemctl start pagemill, or here: pagemill run"

NEXT_MOVES = {
    "WORKER_DOWN": "systemctl start pagemill, or here: pagemill run",
    "PAUSED": "to lift it: pagemill unpause {job_type}, or --owner NAME, or --all; `pagemill` alone shows the pauses",
    "DRAINING": "wait until the worker is back, or start another one",
    "NOT_YET": _AT_ONCE,
    "BACKOFF": "to see what failed: pagemill show {id}; " + _AT_ONCE,
    "WAITS_FOR": "to see what it waits for: pagemill show {id}, then pagemill why on those",
    "OWNER_BUSY": "to see what runs: pagemill ls --status running --owner '{owner}'",
    "KEY_BUSY": "to see what runs: pagemill ls --status running",
    "TYPE_FULL": "to see what runs: pagemill ls --status running --type {job_type}",
    "SLOTS_FULL": "to see what runs: pagemill ls --status running",
    "CAPABILITY_MISSING": "install what is missing, then restart the worker; what says when it starts again needs "
    "no restart",
    "UNKNOWN_TYPE": "install a handler for {job_type}; or, if the name is wrong: pagemill delete {id}",
    "DISK_LOW": "free some space: pagemill stats tells who keeps how much, pagemill documents rm removes",
    "SOURCE_RESTING": "wait: the source asked for it, and all its jobs go on together",
    "AHEAD_IN_QUEUE": "to move it ahead: pagemill priority 1 {id}",
}


@verb
@selecting
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=50, metavar="N", help="At most so many; 50 unless given."
)
@click.option("--before", "before_id", type=JobId(), metavar="ID", help="The next page: jobs with smaller ids.")
def ls(desk: Desk, words: SelectorWords, limit: int, before_id: int | None) -> None:
    """\b
    pagemill ls
    pagemill ls --status failed --since 1d
    pagemill ls --type ocr_pages,download --owner alice --json
    pagemill ls --match payload.source=/srv/a.pdf

    List jobs, the newest first.
    """
    queue = desk.queue
    selector = queue.selector(words)
    # One more than asked for tells whether there is another page.
    found = queue.store.reading.list(selector, most=limit + 1, before_id=before_id)
    jobs, more = found[:limit], len(found) > limit
    if desk.as_json:
        output.show_json({"items": [_job_object(job) for job in jobs], "next": jobs[-1].id if more else None})
        return
    if jobs:
        now = wall_clock()
        output.show_table(_COLUMNS, [_row(job, now) for job in jobs], gives_up=_GIVES_UP, whole=("ERROR",))
    else:
        output.say("the queue is empty" if selector.is_empty and before_id is None else "no job matches")
    if more:
        output.say(f"more: the same with --before {jobs[-1].id}")


@verb
@click.argument("what", metavar="ID", shell_complete=completes("id"))
def show(desk: Desk, what: str) -> None:
    """\b
    pagemill show 42
    pagemill show document:7
    pagemill show 42 --json

    Everything about one job: its row, attempts, events, what it waits for, and the last lines of its log; or about one
    document: its pages, how each was read, and where its files are.
    """
    if what.startswith("document:"):
        from worker_service.commands.documents import DocumentId, show_document

        show_document(desk, DocumentId().convert(what, None, None))
        return
    job_id = JobId().convert(what, None, None)
    store = desk.queue.store
    job = store.reading.get(job_id)
    attempts, events, waits = (
        store.reading.attempts(job_id),
        store.reading.events(job_id),
        store.reading.waits_for(job_id),
    )
    lines = store.reading.logs(job_id, most=LOG_LINES_MOST)[-_LOG_LINES_SHOWN:]
    files, workspace = store.library.job_files(job_id), desk.settings.workspace
    if desk.as_json:
        whole = _job_object(job)
        whole["attempts"] = [output.as_object(attempt) for attempt in attempts]
        whole["events"] = [output.as_object(event) for event in events]
        whole["waits_for"] = [{"id": needs_id, "status": status} for needs_id, status in waits]
        whole["files"] = [{**output.as_object(file), "path": str(workspace / file.path)} for file in files]
        whole["log"] = [output.as_object(line) for line in lines]
        output.show_json(whole)
        return
    _show_row(job)
    _show_section("attempts", _ATTEMPT_COLUMNS, [_attempt_row(attempt) for attempt in attempts])
    _show_section("waits for", ("ID", "STATUS"), waits)
    _show_section(
        "events", ("AT (UTC)", "FROM", "TO"), [(output.seconds(e.at), e.from_status, e.to_status) for e in events]
    )
    shown = [(file.name, file.size, workspace / file.path) for file in files[:_FILES_SHOWN]]
    _show_section("files", ("NAME", "BYTES", "PATH"), shown)
    if len(files) > len(shown):
        output.say(
            f"and {counted(len(files) - len(shown), 'file')} more: --json has all, "
            f"pagemill export --job {job_id} copies them"
        )
    _show_section("log", ("AT (UTC)", "LINE"), [(output.seconds(line.at), line.line) for line in lines])


@verb
@job_or_problem_argument
def why(desk: Desk, job_id: int | None) -> int:
    """\b
    pagemill why
    pagemill why 42
    pagemill why 42 --json

    Why a job has not started or has failed: each gate that holds it, and the next move. The gates are the claim's own
    conditions. Without an ID it is about the newest job that has a problem.

    Exit code 3 if something holds it, 0 if nothing does.
    """
    store = desk.queue.store
    job_id = job_id or _newest_with_a_problem(desk)
    if job_id is None:
        return 0
    job = store.reading.get(job_id)
    workers = overview.workers(desk.session)
    gates = store.reading.explain(job_id, dead=overview.dead_ids(workers))
    if desk.as_json:
        items = [{**output.as_object(gate), "next": _next_move(gate, job)} for gate in gates]
        whole = {
            "id": job.id,
            "status": job.status,
            "state": state_of(job),
            "items": items,
            "next": problems.helps(job),
        }
        output.show_json(whole)
    elif job.status != "pending":
        lost = _how_lost(job, workers)
        output.show(_what_it_is(job, lost))
        if move := _TAKEN_BACK if lost else problems.helps(job):
            output.show(f"    next: {move}")
    elif not gates:
        output.show(f"nothing holds {named(job)}: the next claim can take it")
    elif job.name:
        output.show(f"{named(job)} waits:")
    for gate in gates if not desk.as_json else ():
        output.show(f"{gate.code}  {gate.detail}")
        output.show(f"    next: {_next_move(gate, job)}")
    return EXIT_NOT_YET if gates else 0


@verb
@job_or_problem_argument
@click.option("--follow", "-f", is_flag=True, help="Go on until the job has ended.")
def logs(desk: Desk, job_id: int | None, follow: bool) -> None:
    """\b
    pagemill logs 42
    pagemill logs -f 42

    The lines that a job has logged or printed; the newest 3,000 are kept. Without an ID, those of the newest job that
    has a problem. With --json and -f, one object on each line.
    """
    queue = desk.queue
    job_id = job_id or _newest_with_a_problem(desk)
    if job_id is None:
        return
    queue.store.reading.get(job_id)
    if desk.as_json and not follow:
        lines = queue.store.reading.logs(job_id, most=LOG_LINES_MOST)
        output.show_json({"items": [output.as_object(line) for line in lines], "next": None})
        return
    show_line = _show_line_object if desk.as_json else _show_line
    shown = _show_lines_after(queue, job_id, 0, show_line)
    while follow:
        # The counter first: what is committed after this look is seen by the next.
        seen = queue.store.reading.change_counter()
        has_ended = queue.store.reading.get(job_id).status.is_ended
        shown = _show_lines_after(queue, job_id, shown, show_line)
        if has_ended:
            return
        while queue.store.reading.change_counter() == seen:
            time.sleep(_FOLLOW_SECONDS)


# ── One job in words ────────────────────────────────────────────────────────────────────────────────────────────


def _job_object(job: Job) -> dict[str, object]:
    return {**output.as_object(job), "state": state_of(job)}


def _row(job: Job, now: datetime) -> Sequence[object]:
    state = state_of(job, now=now)
    note = job.error_message or job.progress_message
    if state in ("scheduled", "backoff"):
        note = f"at {output.seconds(job.run_at)}"
    tries = f"{job.retry_count}/{job.max_retries}"
    created = output.when(job.created_at, now=now)
    return (
        job.id, state, job.job_type, job.name, job.platform, job.account, job.owner, job.priority, tries,
        f"{job.progress_percent}%", created, job.error_code, note,
    )  # fmt: skip


def _show_row(job: Job) -> None:
    values: dict[str, object] = {"id": job.id, "state": state_of(job)}
    values |= {name: getattr(job, name) for name in Job.__match_args__ if name not in ("id", "held")}
    for name, value in values.items():
        if value not in (None, ""):
            output.show(f"{name:20} {value}")


def _attempt_row(attempt: Attempt) -> Sequence[object]:
    peak = attempt.memory_peak_bytes
    return (
        attempt.fence, attempt.worker_id, output.seconds(attempt.started_at), output.seconds(attempt.ended_at),
        attempt.outcome or "open", attempt.error_code, attempt.signal, attempt.cpu_seconds,
        None if peak is None else peak // 1_000_000, attempt.sandbox,
    )  # fmt: skip


def _show_section(title: str, headers: Sequence[str], rows: output.Rows) -> None:
    if rows:
        output.show()
        output.show(title)
        output.show_table(headers, rows)


def _how_lost(job: Job, workers: Sequence[CheckedWorker]) -> str:
    """What is wrong with the worker that a running job is on, if anything is."""
    if job.status != "running":
        return ""
    return next((_LOST.get(one.state, "") for one in workers if one.worker.id == job.worker_id), "")


def _what_it_is(job: Job, lost: str) -> str:
    if job.status == "running":
        asked = ", and was asked to stop" if job.cancel_requested_at else ""
        return f"{named(job)} is running since {output.seconds(job.started_at)} on {job.worker_id}{lost}{asked}"
    code = f" with {job.error_code}" if job.error_code else ""
    message = f": {job.error_message.splitlines()[0]}" if job.error_message else ""
    return f"{named(job)} is {job.status}{code} since {output.seconds(job.completed_at)}{message}"


def _newest_with_a_problem(desk: Desk) -> int | None:
    job_id = problems.newest_with_a_problem(desk.session)
    if job_id is None and desk.as_json:
        output.show_json({"id": None, "items": []})
    elif job_id is None:
        output.say("no job has a problem")
    return job_id


def _next_move(gate: Gate, job: Job) -> str:
    move = NEXT_MOVES.get(gate.code, "pagemill show {id}")
    return move.format(id=job.id, job_type=job.job_type, owner=job.owner)


# ── Log lines ───────────────────────────────────────────────────────────────────────────────────────────────────


def _show_lines_after(queue: Queue, job_id: int, after_id: int, show_line: Callable[[LogLine], None]) -> int:
    while lines := queue.store.reading.logs(job_id, after_id=after_id):
        for line in lines:
            show_line(line)
        after_id = lines[-1].id
    return after_id


def _show_line(line: LogLine) -> None:
    output.show(f"{output.seconds(line.at)}  {line.line}")


def _show_line_object(line: LogLine) -> None:
    output.show_json(output.as_object(line))
