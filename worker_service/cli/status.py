"""The state of the service: `pagemill` alone, `workers`, `status` and `stats`."""

from __future__ import annotations

from contextlib import closing
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
    """Show the state, for `pagemill` without a verb."""
    with closing(Invocation(as_json=as_json, database=database)) as call:
        _show_state(call)


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
    sentence = f"{changed_id} reads {counted(number, 'document')} at once from now on, until it restarts"
    call.show_result({"worker": changed_id, "slots": number}, sentence)


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
        health = check_health(Overview(call.session), oldest_wait_max=oldest_wait_max)
    except PagemillError as error:
        call.show_result({"level": Level.UNKNOWN, "reasons": [str(error)]}, f"UNKNOWN: {error}")
        return Level.UNKNOWN.value
    numbers: dict[str, int] = {"workers": health.workers}
    numbers |= {str(status): number for status, number in health.jobs.items()}
    if health.batches_replaced:
        numbers["replaced_batches"] = health.batches_replaced
    if health.failures:
        numbers["failures"] = health.failures
    # Nagios reads the numbers after the bar.
    numbers_text = " ".join(f"{name}={number}" for name, number in numbers.items())
    call.show_result(health, f"{health.level.name}: {_summarise(health)} | {numbers_text}")
    return health.level.value


def _summarise(health: Health) -> str:
    if health.reasons:
        return "; ".join(reason.detail for reason in health.reasons)
    running, pending = health.jobs[Status.RUNNING], health.jobs[Status.PENDING]
    return f"{counted(health.workers, 'worker')}, {running} running, {pending} pending"


def _describe_pause(pause: Pause) -> str:
    until = f" until {output.whole_seconds(pause.until)}" if pause.until else ""
    reason = f" ({pause.reason})" if pause.reason else ""
    return overview.title_of_pause(pause.scope, pause.name) + until + reason


# ── Numbers ─────────────────────────────────────────────────────────────────────────────────────────────────────


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
    statistics, rates = overview.statistics(call.session), work_rates(call.session, hours=hours)
    if call.print_if_json({**as_object(statistics), "rates": rates}):
        return
    types = statistics.items
    counts = [(row.pending, row.held, row.running, row.completed, row.failed, row.cancelled) for row in types]
    type_rows: list[tuple[object, ...]] = [(row.job_type, *numbers) for row, numbers in zip(types, counts, strict=True)]
    if len(type_rows) > 1:
        type_rows.append(("all", *map(sum, zip(*counts, strict=True))))
    output.show_table(("TYPE", "PENDING", "HELD", "RUNNING", "COMPLETED", "FAILED", "CANCELLED"), type_rows)
    platforms = [(row.platform, row.count) for row in statistics.pending_by_platform]
    output.show_section(("PLATFORM", "PENDING"), platforms)
    owners = statistics.by_owner
    owner_rows = [(row.owner, row.documents, row.pages, row.files, output.format_size(row.size)) for row in owners]
    if len(owner_rows) > 1:
        documents, pages = sum(row.documents for row in owners), sum(row.pages for row in owners)
        # A file of two owners counts once in the total.
        owner_rows.append(("all", documents, pages, statistics.files, output.format_size(statistics.size)))
    output.show_section(("OWNER", "DOCUMENTS", "PAGES", "FILES", "SIZE"), owner_rows)
    output.show_section(
        (f"ENDED IN {hours} H", "JOBS", "FAILED", "PAGES", "TOOK", "LONGEST", "WAITED", "LONGEST"),
        [
            (
                rate.job_type, rate.jobs, rate.failed or None, rate.pages or None, _seconds(rate.seconds_each),
                _seconds(rate.longest_seconds), _seconds(rate.waited_seconds_each), _seconds(rate.longest_wait_seconds),
            )
            for rate in rates
        ],
    )  # fmt: skip


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else output.format_length(timedelta(seconds=seconds))
