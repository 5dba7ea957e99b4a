"""The state of the service: `pagemill` alone, `workers`, `status` and `stats`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import click

from worker_service.base.clock import parse_length
from worker_service.base.errors import PagemillError
from worker_service.base.humanize import counted
from worker_service.cli import DefaultVerbGroup, output
from worker_service.cli.context import Invocation, verb
from worker_service.cli.output import NODE_COLUMNS, node_row
from worker_service.jobs.job import Pause, Status
from worker_service.services import overview
from worker_service.services.batches import titled_progress
from worker_service.services.overview import Overview
from worker_service.services.serialize import as_object, iso
from worker_service.services.work_rates import HOURS_MOST, work_rates

if TYPE_CHECKING:
    from worker_service.services.health import Health


def show_state(as_json: bool, database: str | None) -> None:
    call = Invocation(as_json=as_json, database=database)
    try:
        _show_state(call)
    finally:
        call.close()


def _show_state(call: Invocation) -> None:
    state = Overview(call.session)
    database, origin = call.settings.database, call.settings.origins["database"]
    oldest, jobs = state.counts.oldest_pending_at, state.counts.by_status
    alive = len(state.live_workers)
    answer = {"database": database, "origin": origin, "workers_alive": alive, "oldest_pending_at": iso(oldest)}
    answer |= {"jobs": jobs, "pauses": state.pauses, "batches": state.batches, "failures": state.failures}
    if call.print_if_json(answer):
        return
    workers = f"{alive} alive" if alive else f"none alive; to start one: {call.settings.start_command}"
    waiting = f" (the oldest for {output.age(oldest, now=state.at)})" if oldest else ""
    ended = (f"{number:,} {status}" for status, number in jobs.items() if status.is_ended)
    output.show(f"database  {database} ({origin})")
    output.show(f"workers   {workers}")
    output.show(f"live      {jobs[Status.PENDING]:,} pending{waiting}, {jobs[Status.RUNNING]:,} running")
    output.show(f"ended     {', '.join(ended)}")
    if state.failures:
        output.show(f"failures  {counted(state.failures, 'file')} to look at: pagemill failures")
    output.show(f"paused    {', '.join(map(_describe_pause, state.pauses)) or 'nothing'}")
    if state.batches:
        output.show(f"batches   {'; '.join(map(titled_progress, state.batches))}")


@verb
def ls(call: Invocation) -> None:
    """\b
    pagemill workers
    pagemill workers ls --json

    List the daemons on this database, with their running jobs and last heartbeat, and their cluster nodes.
    """
    state = Overview(call.session)
    if call.print_if_json({"items": state.workers, "nodes": state.nodes}):
        return
    if not state.workers:
        output.note(f"no daemon is running; to start one: {call.settings.start_command}")
        return
    output.show_table(
        ("WORKER", "STATE", "HOST", "PID", "RUNNING", "CPU", "IO", "BEAT", "VERSION"),
        [
            (
                worker.id, worker.state, worker.host, worker.pid or None, worker.running, worker.cpu_slots,
                worker.io_slots, f"{output.age(worker.heartbeat_at, now=state.at)} ago", worker.version,
            )
            for worker in state.workers
        ],
    )  # fmt: skip
    output.show_section(NODE_COLUMNS, list(map(node_row, state.nodes)))


@verb
@click.argument("number", type=int)
@click.option("--worker", "worker_id", metavar="ID", help="Only needed with several workers.")
def slots(call: Invocation, number: int, worker_id: str | None) -> None:
    """\b
    pagemill workers slots 8

    Change how many documents are read at once (the setting `concurrency`) until the daemon restarts. Running jobs
    finish.
    """
    from worker_service.services.job_control import set_slots

    changed_id = set_slots(call.session, number, worker_id)
    if not call.print_if_json({"worker": changed_id, "slots": number}):
        output.show(f"{changed_id} reads {counted(number, 'document')} at once from now on, until it restarts")


workers = DefaultVerbGroup("workers", ls, slots)


@verb
@click.option("--oldest", metavar="LENGTH", help="Warn if a job has been pending for longer than this, such as 1h.")
def status(call: Invocation, oldest: str | None) -> int:
    """\b
    pagemill status
    pagemill status --oldest 1h

    Print the health in one line. The exit code is as in Nagios: 0 ok, 1 warning, 2 critical, 3 unknown.
    """
    from worker_service.services.health import Level, check_health

    oldest_wait_max = None if oldest is None else parse_length(oldest)
    try:
        found = check_health(Overview(call.session), oldest_wait_max=oldest_wait_max)
    except PagemillError as error:
        if not call.print_if_json({"level": Level.UNKNOWN, "reasons": [str(error)]}):
            output.show(f"UNKNOWN: {error}")
        return Level.UNKNOWN.value
    if not call.print_if_json(found):
        numbers: dict[str, int] = {"workers": found.workers}
        numbers |= {str(status): number for status, number in found.jobs.items()}
        if found.batches_replaced:
            numbers["replaced_batches"] = found.batches_replaced
        if found.failures:
            numbers["failures"] = found.failures
        # Nagios reads the numbers after the bar.
        listed = " ".join(f"{name}={number}" for name, number in numbers.items())
        output.show(f"{found.level.name}: {_summarise(found)} | {listed}")
    return found.level.value


def _summarise(health: Health) -> str:
    if health.reasons:
        return "; ".join(reason.detail for reason in health.reasons)
    running, pending = health.jobs[Status.RUNNING], health.jobs[Status.PENDING]
    return f"{counted(health.workers, 'worker')}, {running} running, {pending} pending"


def _describe_pause(pause: Pause) -> str:
    until = f" until {output.whole_seconds(pause.until)}" if pause.until else ""
    reason = f" ({pause.reason})" if pause.reason else ""
    return overview.title_of_pause(pause.scope, pause.name) + until + reason


# ── Numbers and the report ──────────────────────────────────────────────────────────────────────────────────────────


@verb
@click.option(
    "--hours",
    type=click.IntRange(1, HOURS_MOST),
    default=24,
    metavar="N",
    help="Rates of the last N hours. Default: 24.",
)
def stats(call: Invocation, hours: int) -> None:
    """\b
    pagemill stats
    pagemill stats --hours 168
    pagemill stats --json

    Count jobs by type and status, pending jobs by platform, each owner's documents and files, and what ended in the
    last hours. HELD are pending jobs that wait for a time, another job or a busy key. A file of two owners counts for
    both, and once in the total.
    """
    found, rates = overview.statistics(call.session), work_rates(call.session, hours=hours)
    if call.print_if_json({**as_object(found), "rates": rates}):
        return
    counts = [(one.pending, one.held, one.running, one.completed, one.failed, one.cancelled) for one in found.items]
    rows: list[tuple[object, ...]] = [
        (one.job_type, *numbers) for one, numbers in zip(found.items, counts, strict=True)
    ]
    if len(rows) > 1:
        rows.append(("all", *map(sum, zip(*counts, strict=True))))
    output.show_table(("TYPE", "PENDING", "HELD", "RUNNING", "COMPLETED", "FAILED", "CANCELLED"), rows)
    pending_by_platform = [(one.platform, one.count) for one in found.pending_by_platform]
    output.show_section(("PLATFORM", "PENDING"), pending_by_platform)
    owners = found.by_owner
    owner_rows = [(one.owner, one.documents, one.pages, one.files, output.size(one.size)) for one in owners]
    if len(owner_rows) > 1:
        documents, pages = sum(one.documents for one in owners), sum(one.pages for one in owners)
        # A file of two owners counts once in the total.
        owner_rows.append(("all", documents, pages, found.files, output.size(found.size)))
    output.show_section(("OWNER", "DOCUMENTS", "PAGES", "FILES", "SIZE"), owner_rows)
    output.show_section(
        (f"ENDED IN {hours} H", "JOBS", "FAILED", "PAGES", "TOOK", "LONGEST", "WAITED", "LONGEST"),
        [
            (
                one.job_type, one.jobs, one.failed or None, one.pages or None, _seconds(one.seconds_each),
                _seconds(one.longest_seconds), _seconds(one.waited_seconds_each), _seconds(one.longest_wait_seconds),
            )
            for one in rates
        ],
    )  # fmt: skip


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else output.length(timedelta(seconds=seconds))
