"""`pagemill` alone: the state in five lines."""

from __future__ import annotations

from worker_service.clock import wall_clock
from worker_service.commands import output
from worker_service.commands.desk import Desk
from worker_service.jobs.model import Counts, Pause, Status


def show_state(as_json: bool, database: str | None) -> None:
    desk = Desk(as_json=as_json, database=database)
    try:
        store = desk.queue.store
        counts, pauses = store.reading.counts(), store.reading.pauses()
        alive = sum(one.is_alive for one in desk.known_workers(wall_clock()))
    finally:
        desk.close()
    if as_json:
        output.show_json(
            {
                "database": str(desk.settings.database),
                "origin": desk.settings.origins["database"],
                "workers_alive": alive,
                "oldest_pending_at": output.iso(counts.oldest_pending_at),
                "jobs": {status.value: counts.by_status.get(status, 0) for status in Status},
                "pauses": [output.as_object(pause) for pause in pauses],
            }
        )
        return
    output.show(f"database  {desk.settings.database} ({desk.settings.origins['database']})")
    output.show(f"workers   {alive or 'none'} alive")
    output.show(f"live      {_live(counts)}")
    output.show(f"ended     {_ended(counts)}")
    output.show(f"paused    {', '.join(map(_pause, pauses)) or 'nothing'}")


def _live(counts: Counts) -> str:
    numbers = counts.by_status
    oldest = counts.oldest_pending_at
    waiting = f" (the oldest for {output.age(oldest, now=wall_clock())})" if oldest else ""
    return f"{numbers.get(Status.PENDING, 0):,} pending{waiting}, {numbers.get(Status.RUNNING, 0):,} running"


def _ended(counts: Counts) -> str:
    return ", ".join(f"{counts.by_status.get(status, 0):,} {status}" for status in Status if status.is_ended)


def _pause(pause: Pause) -> str:
    name = "everything" if pause.scope == "all" else f"{pause.scope} {pause.name}"
    until = f" until {output.seconds(pause.until)}" if pause.until else ""
    reason = f" ({pause.reason})" if pause.reason else ""
    return name + until + reason
