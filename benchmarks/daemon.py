"""The daemon: no-op jobs per second beside other queues, start of a job, cost of an idle daemon.

Pagemill runs as a real daemon with two slots on a disk, every commit synced, each job in a child of its own in the
strict sandbox. The peers run in the same turns on the same machine, with two workers each (see `peers`). The quick form
measures pagemill alone.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from typing import TypeVar

from benchmarks import noop, peers
from benchmarks.own import SLOTS, Own
from benchmarks.peers import CELERY, REDIS_HUEY, RQ, SQLITE_HUEY, Peer
from benchmarks.running import cpu_seconds, memory_megabytes, with_all_below
from benchmarks.table import Goal, Row, at_least, at_most

OfPeer = TypeVar("OfPeer")
OfOurs = TypeVar("OfOurs")

OWNER_MAY_WAIT = 2 * SLOTS


@dataclass(frozen=True, slots=True)
class Sizes:
    repeats: int = 5
    fresh: int = 2_000
    reused: int = 20_000
    peer_forks: int = 1_000
    peer_jobs: int = 10_000
    latency_repeats: int = 3
    starts: int = 200
    settle_seconds: float = 5.0
    idle_repeats: int = 3
    idle_seconds: float = 30.0
    recoveries: int = 10
    backlog: int = 20_000
    others: int = 7
    is_bare: bool = False
    """Whether to leave out the shipped handlers, whose import costs each daemon 0.3 s of CPU."""


QUICK = Sizes(repeats=1, fresh=20, reused=50, latency_repeats=1, starts=3, settle_seconds=0.1, idle_repeats=1,
              idle_seconds=0.3, recoveries=1, backlog=200, others=1, is_bare=True)  # fmt: skip


def measure(is_quick: bool) -> Iterator[Row]:
    sizes, are_peers_asked = (QUICK, False) if is_quick else (Sizes(), True)
    if are_peers_asked and (sentence := peers.missing()) is not None:
        raise SystemExit(f"benchmarks: {sentence}")
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pagemill-bench-", dir="/var/tmp")))
        if are_peers_asked:
            stack.enter_context(peers.room(directory / "peers"))
        bench = _Bench(directory, sizes, are_peers_asked)
        yield from bench.throughput()
        yield from bench.start_of_a_job()
        yield from bench.idle()
        yield from bench.recovery()
        yield bench.fairness()


class _Bench:
    def __init__(self, directory: Path, sizes: Sizes, are_peers_asked: bool) -> None:
        self._places = (directory / f"own-{number}" for number in count())
        self._sizes = sizes
        self._are_peers_asked = are_peers_asked

    def _own(self) -> Own:
        return Own(next(self._places), is_bare=self._sizes.is_bare)

    def _turns(
        self, repeats: int, peer: Callable[[], OfPeer], ours: Callable[[], OfOurs]
    ) -> tuple[list[OfPeer], list[OfOurs]]:
        """Measure the peer and pagemill in turns, so that a disturbance affects both."""
        turns = [(peer() if self._are_peers_asked else None, ours()) for _ in range(repeats)]
        return [of_peer for of_peer, _ in turns if of_peer is not None], [own for _, own in turns]

    # ── Throughput ──────────────────────────────────────────────────────────────────────────────────────────────

    def throughput(self) -> Iterator[Row]:
        fresh = "no-op jobs, a fresh sandboxed child each"
        yield self._rate("fresh", fresh, noop.FRESH, RQ, at_least(2))
        yield self._rate("fresh_all", "the same, with all shipped handlers kept warm", noop.FRESH, RQ, Goal(), types="")
        reused = f"no-op jobs, a sandboxed child for {noop.REUSE}"
        yield self._rate("reused", reused, noop.REUSED, SQLITE_HUEY, at_least(1))
        yield self._rate("reused_celery", "the same", noop.REUSED, CELERY, at_least(3))
        yield self._rate("reused_redis_huey", "the same", noop.REUSED, REDIS_HUEY, Goal())

    def _rate(self, key: str, what: str, job_type: str, peer: Peer, goal: Goal, *, types: str | None = None) -> Row:
        """Measure jobs per second. `types` are those that the daemon takes; by default only this one."""
        jobs = self._sizes.fresh if job_type == noop.FRESH else self._sizes.reused
        peer_jobs = self._sizes.peer_forks if peer is RQ else self._sizes.peer_jobs
        beside, ours = self._turns(
            self._sizes.repeats,
            lambda: peers.rate(peer, peer_jobs),
            lambda: self._own_rate(job_type, jobs, job_type if types is None else types),
        )
        return Row(key, what, peer.name, "jobs/s", ours, beside, goal)

    def _own_rate(self, job_type: str, jobs: int, types: str) -> float:
        own = Own(next(self._places), is_bare=self._sizes.is_bare and types != "")
        own.enqueue(job_type, jobs)
        with own.daemon(types=types):
            own.wait_until_all_ended()
        rate = own.rate()
        own.close()
        return rate

    # ── The start of a job ──────────────────────────────────────────────────────────────────────────────────────

    def start_of_a_job(self) -> Iterator[Row]:
        """Insert one job at a time from another program into an idle daemon."""
        beside, ours = self._turns(self._sizes.latency_repeats, self._peer_starts, self._own_starts)
        claimed, begun = "INSERT by another program → claimed", "INSERT by another program → the handler's first line"
        for key, what, goal, figure in (
            ("claimed_p50", f"{claimed}, p50", Goal(), median),
            ("claimed_p99", f"{claimed}, p99", at_most(10, "ms"), _p99),
        ):
            yield Row(key, what, "", "ms", [figure(claims) for claims, _ in ours], [], goal)
        for key, what, goal, figure in (
            ("begun_p50", f"{begun}, p50", Goal(), median),
            ("begun_p99", f"{begun}, p99", at_most(60, "ms"), _p99),
        ):
            yield Row(key, what, RQ.name, "ms", [figure(lines) for _, lines in ours], list(map(figure, beside)), goal)

    def _own_starts(self) -> tuple[list[float], list[float]]:
        """Return the milliseconds until jobs were claimed, and until their handlers ran."""
        own = self._own()
        claims, lines = [], []
        with own.daemon(is_heard=True) as daemon:
            for _ in range(self._sizes.starts):
                job_id, _, committed = own.insert(noop.TIMED)
                claims.append((daemon.hear("job.claimed") - committed) * 1000)
                daemon.hear("job.completed")
                lines.append((own.result(job_id)["at"] - committed) * 1000)
                _let_it_rest()
        own.close()
        return claims, lines

    def _peer_starts(self) -> list[float]:
        starts = []
        with peers.working(RQ) as worker:
            worker.run_one()
            for _ in range(self._sizes.starts):
                starts.append(worker.run_one() * 1000)
                _let_it_rest()
        return starts

    # ── Idle ────────────────────────────────────────────────────────────────────────────────────────────────────

    def idle(self) -> Iterator[Row]:
        beside, ours = self._turns(self._sizes.idle_repeats, self._peer_idle, self._own_idle)
        own_cpu, peer_cpu = [cpu for cpu, _ in ours], [cpu for cpu, _ in beside]
        yield Row("idle_cpu", "CPU of an idle daemon", CELERY.name, "% of one core", own_cpu, peer_cpu,
                  at_most(0.1, "%"))  # fmt: skip
        own_memory, peer_memory = [size for _, size in ours], [size for _, size in beside]
        yield Row("idle_memory", "memory (PSS) of an idle daemon with its fork server", CELERY.name, "MB", own_memory,
                  peer_memory, at_most(120, "MB"))  # fmt: skip

    def _own_idle(self) -> tuple[float, float]:
        own = self._own()
        with own.daemon() as daemon:
            job_id, _, _ = own.insert(noop.FRESH)
            own.result(job_id)
            figures = self._used_by(daemon.pid)
        own.close()
        return figures

    def _peer_idle(self) -> tuple[float, float]:
        with peers.working(CELERY) as worker:
            worker.run_one()
            return self._used_by(worker.pid)

    def _used_by(self, pid: int) -> tuple[float, float]:
        """Return CPU (percent of one core) and memory (MB) of an idle service that has worked before."""
        time.sleep(self._sizes.settle_seconds)
        pids = with_all_below(pid)
        begin, before = time.monotonic(), cpu_seconds(pids)
        time.sleep(self._sizes.idle_seconds)
        used, took = cpu_seconds(pids) - before, time.monotonic() - begin
        return used / took * 100, memory_megabytes(pids)

    # ── Kill -9, and fairness ───────────────────────────────────────────────────────────────────────────────────

    def recovery(self) -> Iterator[Row]:
        turns = [self._recovered() for _ in range(self._sizes.recoveries)]
        for key, what, goal, figures in (
            ("requeued", "kill -9 → the jobs can be claimed, from the new daemon's start", 0.5, [t[0] for t in turns]),
            ("recovery", "kill -9 → the jobs run again, from the new daemon's start", 1.5, [t[1] for t in turns]),
        ):
            yield Row(key, what, "", "s", figures, [], at_most(goal, "s"))

    def _recovered(self) -> tuple[float, float]:
        own = self._own()
        first = own.begin()
        own.enqueue(noop.LONG, SLOTS)
        first.wait_for("job.started", SLOTS)
        first.stop_hard()
        second = own.begin()
        requeued = second.wait_for("job.requeued", SLOTS)
        began_again = second.wait_for("job.started", SLOTS)
        second.stop_now()
        own.close()
        return requeued - second.began, began_again - second.began

    def fairness(self) -> Row:
        """Count the claims between the INSERT of another owner's only job and its claim."""
        own = self._own()
        own.enqueue(noop.FRESH, self._sizes.backlog, owner="many")
        waited = []
        with own.daemon() as daemon:
            daemon.wait_for("job.completed")
            for number in range(self._sizes.others):
                job_id, event, _ = own.insert(noop.FRESH, owner=f"one {number}")
                waited.append(float(own.claims_between(event, job_id)))
        own.close()
        what = f"{self._sizes.backlog:,} jobs of one owner, then one of another: claims until it starts"
        return Row("fairness", what, "", "claims", waited, [], at_most(OWNER_MAY_WAIT, "claims"))


def _let_it_rest() -> None:
    """Wait until the service is idle again."""
    time.sleep(0.03)


def _p99(figures: list[float]) -> float:
    return quantiles(figures, n=100, method="inclusive")[98]
