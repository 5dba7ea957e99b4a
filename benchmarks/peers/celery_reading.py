"""Celery with two prefork children that read: a task is a range of pages, and Redis keeps what comes of it.

`python -m benchmarks.peers.celery_reading`: see `driver`. Its workers are somebody else's to start.
"""

from __future__ import annotations

from typing import Any

from celery import Celery, group

from benchmarks import peers
from benchmarks.peers import driver
from benchmarks.peers.reading import read_range

_redis = f"redis+socket://{peers.redis_socket()}"
app = Celery("reading", broker=_redis, backend=_redis)
read: Any = app.task(read_range, name="read")


def read_all(ranges: list[driver.Range]) -> list[driver.Pages]:
    found: list[driver.Pages] = group(read.s(*one) for one in ranges).apply_async().get(timeout=600)
    return found


if __name__ == "__main__":
    driver.serve(read_all)
