"""Huey on a Redis that writes nothing to disk, which is fastest."""

from __future__ import annotations

from typing import Any

from huey import RedisHuey

from benchmarks import peers

huey = RedisHuey("noop", url=f"unix://{peers.redis_socket()}")


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
