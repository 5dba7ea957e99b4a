"""Huey on SQLite. `fsync` is its durable setting: what was enqueued survives a power cut."""

from __future__ import annotations

from typing import Any

from huey import SqliteHuey

from benchmarks import peers

huey = SqliteHuey("noop", filename=str(peers.place() / "huey.db"), fsync=True)


def _nothing() -> None:
    pass


nothing: Any = huey.task(name="nothing")(_nothing)
timed: Any = huey.task(name="timed")(peers.report_now)


def enqueue(count: int) -> None:
    for _ in range(count):
        nothing()


def enqueue_timed() -> None:
    timed()


def pending() -> int:
    return int(huey.pending_count())
