"""How things stand: `pagemill` alone, `workers`, `status` and `doctor`."""

from __future__ import annotations

import sys

import click

from worker_service.clock import parse_length
from worker_service.commands import output
from worker_service.commands.desk import Desk, verb
from worker_service.errors import PagemillError
from worker_service.jobs.model import Counts, Pause, Status
from worker_service.operations import overview
from worker_service.operations.objects import as_object, iso

_SIGNS = {0: ("✓", "green"), 1: ("!", "yellow"), 2: ("✗", "red")}


def show_state(as_json: bool, database: str | None) -> None:
    desk = Desk(as_json=as_json, database=database)
    try:
        found = overview.look(desk.session)
    finally:
        desk.close()
    at, origin, counts = desk.settings.database, desk.settings.origins["database"], found.counts
    if as_json:
        output.show_json(
            {
                "database": str(at),
                "origin": origin,
                "workers_alive": found.workers_alive,
                "oldest_pending_at": iso(counts.oldest_pending_at),
                "jobs": _by_status(counts),
                "pauses": [as_object(pause) for pause in found.pauses],
            }
        )
        return
    oldest = counts.oldest_pending_at
    waiting = f" (the oldest for {output.age(oldest, now=found.at)})" if oldest else ""
    by_status = _by_status(counts)
    output.show(f"database  {at} ({origin})")
    output.show(f"workers   {found.workers_alive or 'none'} alive")
    output.show(f"live      {by_status['pending']:,} pending{waiting}, {by_status['running']:,} running")
    ended = (f"{by_status[status]:,} {status}" for status in Status if status.is_ended)
    output.show(f"ended     {', '.join(ended)}")
    output.show(f"paused    {', '.join(map(_pause, found.pauses)) or 'nothing'}")


@verb
def workers(desk: Desk) -> None:
    """\b
    pagemill workers
    pagemill workers --json

    The daemons on this database: what they run, and when they last said that they live.
    """
    found = overview.workers(desk.session)
    if desk.as_json:
        output.show_json({"items": [{**as_object(one.worker), "state": one.state} for one in found]})
        return
    if not found:
        output.say("no worker: start one with `systemctl start pagemill`, or here with `pagemill run`")
        return
    headers = ("WORKER", "STATE", "HOST", "PID", "RUNNING", "CPU", "IO", "BEAT", "VERSION")
    rows = []
    for one in found:
        w = one.worker
        beat = f"{output.age(w.heartbeat_at, now=desk.session.clock())} ago"
        rows.append((w.id, one.state, w.host, w.pid or None, w.running, w.cpu_slots, w.io_slots, beat, w.version))
    output.show_table(headers, rows)


@verb
@click.option("--oldest", metavar="LENGTH", help="Warn when a job has been pending for longer than this, e.g. 1h.")
def status(desk: Desk, oldest: str | None) -> int:
    """\b
    pagemill status
    pagemill status --oldest 1h

    Whether all is well, in one line. Exit code as monitoring wants it: 0 ok, 1 warning, 2 critical, 3 unknown.
    """
    from worker_service.operations.health import Level, health, summary

    oldest_most = None if oldest is None else parse_length(oldest)
    try:
        found = health(desk.session, oldest_most=oldest_most)
    except PagemillError as error:
        if desk.as_json:
            output.show_json({"level": "unknown", "reasons": [str(error)]})
        else:
            output.show(f"UNKNOWN: {error}")
        return Level.UNKNOWN.value
    level, by_status = found.level.name, _by_status(found.counts)
    if desk.as_json:
        output.show_json(
            {"level": level.lower(), "reasons": found.reasons, "workers": found.workers_alive, "jobs": by_status}
        )
    else:
        numbers = " ".join(f"{status}={number}" for status, number in by_status.items())
        output.show(f"{level}: {summary(found)} | workers={found.workers_alive} {numbers}")
    return found.level.value


@verb
@click.option("--audit", is_flag=True, help="Read all rows and their whole history: has any promise been broken?")
@click.option("--online", is_flag=True, help="Ask Google as well: who each credential is, and what it may do.")
def doctor(desk: Desk, audit: bool, online: bool) -> int:
    """\b
    pagemill doctor
    pagemill doctor --json
    pagemill doctor --audit
    pagemill doctor --online

    Look for what is wrong, and say how to put it right. ✓ is good, ! is worth a look, ✗ is wrong; then exit code 1.

    --audit asks one thing only: whether rows, attempts and events tell of a broken promise (P1 … P13), each by its
    number.
    """
    from worker_service.operations import health

    findings = list(health.audit(desk.session) if audit else health.examine(desk.session))
    if online:
        from worker_service.operations.handlers import examine_online  # starts a nursery

        findings += examine_online(desk.settings)
    if desk.as_json:
        items = [
            {"level": f.level.name.lower(), "name": f.name, "detail": f.detail, "fix": f.fix if f.level else ""}
            for f in findings
        ]
        output.show_json({"items": items})
    else:
        for finding in findings:
            sign, colour = _SIGNS[finding.level]
            styled = output.styled(sign, fg=colour) if output.is_terminal(sys.stdout) else sign
            output.show(output.joined(styled, f" {finding.name}: {finding.detail}"))
            if finding.level and finding.fix:
                output.show(f"    {finding.fix}")
    return 1 if any(finding.level is health.Level.CRITICAL for finding in findings) else 0


def _by_status(counts: Counts) -> dict[str, int]:
    return {status.value: counts.by_status.get(status, 0) for status in Status}


def _pause(pause: Pause) -> str:
    until = f" until {output.seconds(pause.until)}" if pause.until else ""
    reason = f" ({pause.reason})" if pause.reason else ""
    return overview.title_of_pause(pause.scope, pause.name) + until + reason
