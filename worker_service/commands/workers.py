"""`pagemill workers`: the daemons on this database."""

from __future__ import annotations

from worker_service.clock import wall_clock
from worker_service.commands import output
from worker_service.commands.desk import Desk, verb
from worker_service.daemon.health import state_of


@verb
def workers(desk: Desk) -> None:
    """\b
    pagemill workers
    pagemill workers --json

    The daemons on this database: what they run, and when they last said that they live.
    """
    now, orphan_after = wall_clock(), desk.settings.orphan_after_seconds
    found = [(worker, state_of(worker, now=now, orphan_after_seconds=orphan_after))
             for worker in desk.queue.store.workers()]  # fmt: skip
    if desk.as_json:
        output.show_json({"items": [{**output.as_object(worker), "state": state} for worker, state in found]})
        return
    if not found:
        output.say("no worker: start one with `systemctl start pagemill`, or here with `pagemill run`")
        return
    headers = ("WORKER", "STATE", "HOST", "PID", "RUNNING", "CPU", "IO", "BEAT", "VERSION")
    rows = []
    for w, state in found:
        beat = f"{output.age(w.heartbeat_at, now=now)} ago"
        rows.append((w.id, state, w.host, w.pid, w.running, w.cpu_slots, w.io_slots, beat, w.version))
    output.show_table(headers, rows)
