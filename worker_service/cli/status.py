"""The state of the service: `pagemill` alone, `status`, `workers`, `stats`, `doctor` and `report`."""

from __future__ import annotations

import sys

import click

from worker_service.base.clock import parse_length
from worker_service.base.errors import PagemillError
from worker_service.base.humanize import counted
from worker_service.cli import output
from worker_service.cli.context import Invocation, verb
from worker_service.cli.output import NODE_COLUMNS, node_row
from worker_service.jobs.job import Pause, Status
from worker_service.services import overview
from worker_service.services.batches import titled_progress
from worker_service.services.overview import Overview
from worker_service.services.serialize import iso

_SIGNS = {0: ("✓", "green"), 1: ("!", "yellow"), 2: ("✗", "red")}


def show_state(as_json: bool, database: str | None) -> None:
    call = Invocation(as_json=as_json, database=database)
    try:
        _show_state(call)
    finally:
        call.close()


def _show_state(call: Invocation) -> None:
    found = Overview(call.session)
    at, origin = call.settings.database, call.settings.origins["database"]
    oldest, jobs = found.counts.oldest_pending_at, found.counts.by_status
    alive, batches = len(found.live_workers), found.batches
    whole = {"database": at, "origin": origin, "workers_alive": alive, "oldest_pending_at": iso(oldest)}
    if call.printed_json(
        {**whole, "jobs": jobs, "pauses": found.pauses, "batches": batches, "failures": found.failures}
    ):
        return
    waiting = f" (the oldest for {output.age(oldest, now=found.at)})" if oldest else ""
    output.show(f"database  {at} ({origin})")
    output.show(f"workers   {alive or 'none'} alive")
    output.show(f"live      {jobs[Status.PENDING]:,} pending{waiting}, {jobs[Status.RUNNING]:,} running")
    ended = (f"{number:,} {status}" for status, number in jobs.items() if status.is_ended)
    output.show(f"ended     {', '.join(ended)}")
    if found.failures:
        output.show(f"failures  {counted(found.failures, 'file')} to look at: pagemill failures")
    output.show(f"paused    {', '.join(map(_pause, found.pauses)) or 'nothing'}")
    if batches:
        output.show(f"batches   {'; '.join(map(titled_progress, batches))}")


@verb
def workers(call: Invocation) -> None:
    """\b
    pagemill workers
    pagemill workers --json

    List the daemons on this database, with their running jobs and last heartbeat, and their cluster nodes.
    """
    state = Overview(call.session)
    found, nodes = state.workers, state.nodes
    if call.printed_json({"items": found, "nodes": nodes}):
        return
    if not found:
        output.say(f"no daemon is running; to start one: {call.settings.start_command}")
        return
    now = state.at
    output.show_table(
        ("WORKER", "STATE", "HOST", "PID", "RUNNING", "CPU", "IO", "BEAT", "VERSION"),
        [
            (
                w.id, w.state, w.host, w.pid or None, w.running, w.cpu_slots, w.io_slots,
                f"{output.age(w.heartbeat_at, now=now)} ago", w.version,
            )
            for w in found
        ],
    )  # fmt: skip
    output.show_section(NODE_COLUMNS, [node_row(one) for one in nodes])


@verb
@click.option("--oldest", metavar="LENGTH", help="Warn if a job has been pending for longer than this, such as 1h.")
def status(call: Invocation, oldest: str | None) -> int:
    """\b
    pagemill status
    pagemill status --oldest 1h

    Print the health in one line. The exit code is as in Nagios: 0 ok, 1 warning, 2 critical, 3 unknown.
    """
    from worker_service.services.health import Level, check_health, summary

    oldest_most = None if oldest is None else parse_length(oldest)
    try:
        found = check_health(Overview(call.session), oldest_most=oldest_most)
    except PagemillError as error:
        if not call.printed_json({"level": Level.UNKNOWN, "reasons": [str(error)]}):
            output.show(f"UNKNOWN: {error}")
        return Level.UNKNOWN.value
    if not call.printed_json(found):
        numbers = " ".join(f"{status}={number}" for status, number in found.jobs.items())
        more = f" replaced_batches={found.batches_replaced}" * bool(found.batches_replaced)
        more += f" failures={found.failures}" * bool(found.failures)
        output.show(f"{found.level.name}: {summary(found)} | workers={found.workers} {numbers}{more}")
    return found.level.value


@verb
@click.option("--audit", is_flag=True, help="Check all rows, their history and every published file instead.")
@click.option("--online", is_flag=True, help="Ask Google, too, which account each credential has, and what it may do.")
def doctor(call: Invocation, audit: bool, online: bool) -> int:
    """\b
    pagemill doctor
    pagemill doctor --json
    pagemill doctor --audit
    pagemill doctor --online

    Find problems and say how to fix them. ✓ is good, ! is a warning, ✗ is a problem, with exit code 1.

    --audit only checks whether rows, attempts, events and published files break a promise (P1 … P13). It reads every
    published file; without it, doctor compares sizes.
    """
    from worker_service.services import doctor as findings_of
    from worker_service.services.health import Level

    findings = list(findings_of.audit_promises(call.session) if audit else findings_of.examine(call.session))
    if online:
        from worker_service.services.handlers import examine_online  # starts a fork server

        findings += examine_online(call.settings)
    if not call.printed_json({"items": findings}):
        for finding in findings:
            sign, colour = _SIGNS[finding.level]
            styled = output.styled(sign, fg=colour) if output.is_terminal(sys.stdout) else sign
            output.show(output.joined(styled, f" {finding.name}: {finding.detail}"))
            if finding.fix:
                output.show(f"    {finding.fix}")
    return 1 if any(finding.level is Level.CRITICAL for finding in findings) else 0


def _pause(pause: Pause) -> str:
    until = f" until {output.to_the_second(pause.until)}" if pause.until else ""
    reason = f" ({pause.reason})" if pause.reason else ""
    return overview.title_of_pause(pause.scope, pause.name) + until + reason


# ── Numbers and the report ──────────────────────────────────────────────────────────────────────────────────────────


@verb
def stats(call: Invocation) -> None:
    """\b
    pagemill stats
    pagemill stats --json

    Count jobs by type and status, pending jobs by platform, and each owner's documents and files. HELD are pending jobs
    that wait for a time, another job or a busy key. A file of two owners counts for both, and once in the total.
    """
    found = overview.statistics(call.session)
    if call.printed_json(found):
        return
    types, platforms, owners = found.items, found.pending_by_platform, found.by_owner
    rows: list[tuple[object, ...]] = [
        (t.job_type, t.pending, t.held, t.running, t.completed, t.failed, t.cancelled) for t in types
    ]
    if len(rows) > 1:
        rows.append(("all", *(sum(column) for column in zip(*(row[1:] for row in rows), strict=True))))
    output.show_table(("TYPE", "PENDING", "HELD", "RUNNING", "COMPLETED", "FAILED", "CANCELLED"), rows)
    output.show_section(("PLATFORM", "PENDING"), [(one.platform, one.count) for one in platforms])
    kept = [(one.owner, one.documents, one.pages, one.files, output.size(one.size)) for one in owners]
    if len(kept) > 1:
        read = (sum(one.documents for one in owners), sum(one.pages for one in owners))
        kept.append(("all", *read, found.files, output.size(found.size)))
    output.show_section(("OWNER", "DOCUMENTS", "PAGES", "FILES", "SIZE"), kept)
