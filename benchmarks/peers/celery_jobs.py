"""Celery with two prefork children, without results, which is fastest."""

from __future__ import annotations

from typing import Any

from celery import Celery
from redis import Redis

from benchmarks import peers

app = Celery("noop", broker=f"redis+socket://{peers.redis_socket()}")
_redis = Redis(unix_socket_path=str(peers.redis_socket()))


def _nothing() -> None:
    pass


nothing: Any = app.task(_nothing, name="nothing", ignore_result=True)
timed: Any = app.task(peers.report_now, name="timed", ignore_result=True)


def enqueue(count: int) -> None:
    for _ in range(count):
        nothing.delay()


def enqueue_timed() -> None:
    timed.delay()


def pending() -> int:
    return int(_redis.llen("celery"))
