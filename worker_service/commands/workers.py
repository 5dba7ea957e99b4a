"""`pagemill workers`: the daemons on this database."""

from __future__ import annotations

from worker_service.clock import wall_clock
from worker_service.commands import output
from worker_service.commands.desk import Desk, verb


@verb
def workers(desk: Desk) -> None:
    """\b
    pagemill workers
    pagemill workers --json

    The daemons on this database: what they run, and when they last said that they live.
    """
    now = wall_clock()
    found = desk.known_workers(now)
    if desk.as_json:
        output.show_json({"items": [{**output.as_object(one.worker), "state": one.state} for one in found]})
        return
    if not found:
        output.say("no worker: start one with `systemctl start pagemill`, or here with `pagemill run`")
        return
    headers = ("WORKER", "STATE", "HOST", "PID", "RUNNING", "CPU", "IO", "BEAT", "VERSION")
    rows = []
    for one in found:
        w = one.worker
        beat = f"{output.age(w.heartbeat_at, now=now)} ago"
        rows.append((w.id, one.state, w.host, w.pid or None, w.running, w.cpu_slots, w.io_slots, beat, w.version))
    output.show_table(headers, rows)
