"""RQ. Its worker forks for each job, as pagemill does, without a sandbox and without writing to disk."""

from __future__ import annotations

from redis import Redis
from rq import Queue

from benchmarks import peers

queue = Queue("noop", connection=Redis(unix_socket_path=str(peers.redis_socket())))


def nothing() -> None:
    pass


def timed() -> None:
    peers.report_now()


def enqueue(count: int) -> None:
    queue.enqueue_many([Queue.prepare_data(nothing) for _ in range(count)])


def enqueue_timed() -> None:
    queue.enqueue(timed)


def pending() -> int:
    return int(queue.count)
