"""`pagemill status` and `pagemill doctor`: is all well, for a program and for a person."""

from __future__ import annotations

import sys

import click

from worker_service.clock import parse_length, wall_clock
from worker_service.commands import output
from worker_service.commands.desk import Desk, verb
from worker_service.daemon.health import Level, audited, examine, health, summary
from worker_service.daemon.liveness import dead_ids
from worker_service.errors import PagemillError
from worker_service.jobs.model import Status

_SIGNS = {Level.OK: ("✓", "green"), Level.WARNING: ("!", "yellow"), Level.CRITICAL: ("✗", "red")}


@verb
@click.option("--oldest", metavar="LENGTH", help="Warn when a job has been pending for longer than this, e.g. 1h.")
def status(desk: Desk, oldest: str | None) -> int:
    """\b
    pagemill status
    pagemill status --oldest 1h

    Whether all is well, in one line. Exit code as monitoring wants it: 0 ok, 1 warning, 2 critical, 3 unknown.
    """
    oldest_most = None if oldest is None else parse_length(oldest)
    try:
        store, now = desk.queue.store, wall_clock()
        workers, counts = desk.known_workers(now), store.reading.counts()
        standstill = store.reading.standstill(dead=dead_ids(workers))
        found = health(workers, counts, store.reading.pauses(), standstill, now=now, oldest_most=oldest_most)
    except PagemillError as error:
        if desk.as_json:
            output.show_json({"level": "unknown", "reasons": [str(error)]})
        else:
            output.show(f"UNKNOWN: {error}")
        return Level.UNKNOWN.value
    alive = sum(one.is_alive for one in workers)
    if desk.as_json:
        output.show_json(
            {
                "level": found.level.name.lower(),
                "reasons": found.reasons,
                "workers": alive,
                "jobs": {status.value: counts.by_status.get(status, 0) for status in Status},
            }
        )
    else:
        numbers = " ".join(f"{s.value}={counts.by_status.get(s, 0)}" for s in Status)
        reasons = "; ".join(found.reasons) or summary(counts, alive)
        output.show(f"{found.level.name}: {reasons} | workers={alive} {numbers}")
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
    queue = desk.queue
    findings = list(audited(queue.audit()) if audit else examine(desk.settings, queue.store, now=wall_clock()))
    if online:
        from worker_service.commands.online import examine_online  # starts a nursery

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
    return 1 if any(finding.level is Level.CRITICAL for finding in findings) else 0
