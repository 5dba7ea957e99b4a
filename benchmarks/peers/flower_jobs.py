"""Flower's state after many Celery tasks: `python -m benchmarks.peers.flower_jobs COUNT FILE`.

Feeds the events that a worker sends for each task into Flower's own state, and stores it in the file from which Flower
starts (`--persistent`). Running a million tasks instead would take ten minutes and give the same state.
"""

from __future__ import annotations

import shelve
import sys
import time
from collections.abc import Iterator
from typing import Any

from celery.events.state import State
from flower.events import EventsState

HOST = "bench@here"
TYPES = 5


def uuid(number: int) -> str:
    return f"{number:08d}-0000-4000-8000-000000000000"


def events(count: int, since: float, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield the events in order of time; one of fifty tasks has failed."""
    for number in range(count):
        at = since + seconds * number / count
        told = {"uuid": uuid(number), "hostname": HOST, "pid": 1, "utcoffset": 0, "clock": number * 3}
        name = f"ready{number % TYPES}"
        yield _event(
            told, "task-received", at, name=name, args="()", kwargs="{'scrape_type': 'full'}", root_id=uuid(number),
            parent_id=None, retries=0, eta=None, expires=None,
        )  # fmt: skip
        yield _event(told, "task-started", at)
        if number % 50:
            yield _event(told, "task-succeeded", at, result="None", runtime=0.001)
        else:
            yield _event(told, "task-failed", at, exception="Failed('it has failed')", traceback="")


def _event(told: dict[str, Any], kind: str, at: float, **more: object) -> dict[str, Any]:
    return {**told, "type": kind, "timestamp": at, "local_received": at, **more}


class _Flowers:
    """A state of Celery that is loaded as Flower's, which indexes it only then."""

    def __init__(self, state: State) -> None:
        self._state = state

    def __reduce__(self) -> tuple[Any, ...]:
        _, values = self._state.__reduce__()
        return EventsState, values


def write(count: int, file: str, seconds: float = 10 * 86_400) -> None:
    state = State(max_tasks_in_memory=count)
    for event in events(count, time.time() - seconds, seconds):
        state.event(event)
    with shelve.open(file, flag="n") as kept:
        kept["events"] = _Flowers(state)


if __name__ == "__main__":
    write(int(sys.argv[1]), sys.argv[2])
