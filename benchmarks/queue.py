"""The queue beside raw SQLite, or beside itself without the load, in turns in the same run.

Throughput is measured on a disk, with every commit synced. The cost of a claim is measured in memory (/dev/shm, if
there is room), because a sync costs more than a claim.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

import apsw
from msgspec import structs

from benchmarks import processes
from benchmarks.fixtures import WORKER, Group, fill, fill_batches, opened
from benchmarks.raw import Raw
from benchmarks.table import Goal, Row, at_least, below, never_over, under
from worker_service.jobs.attempts import Completion
from worker_service.jobs.batches import NewBatch
from worker_service.jobs.job import NewJob
from worker_service.store.store import Store

PAYLOAD = '{"scrape_type":"full"}'
JOB = NewJob("ready", platform="instagram", account="user123", payload=PAYLOAD)
RAW_JOB = ("ready", "instagram", "user123", PAYLOAD)
LONG_AGO = "2020-01-01 00:00:00.000"
FAR_OFF = "2099-01-01 00:00:00.000"
_ROOM_BYTES = 4 * 2**30


@dataclass(frozen=True, slots=True)
class Sizes:
    repeats: int = 7
    commits: int = 2_000
    transactions: int = 10
    transaction: int = 1_000
    cycles: int = 1_000
    jobs_in_batches: int = 10_000
    claims: int = 200
    ended: int = 1_000_000
    few: int = 1_000
    many: int = 1_000_000
    blocked: int = 100_000
    command_jobs: int = 100_000
    command_repeats: int = 11
    batches: int = 10_000


QUICK = Sizes(repeats=2, commits=20, transactions=1, cycles=20, jobs_in_batches=200, claims=10, ended=2_000, few=100,
              many=2_000, blocked=2_000, command_jobs=500, command_repeats=1, batches=50)  # fmt: skip


def measure(is_quick: bool) -> Iterator[Row]:
    sizes = QUICK if is_quick else Sizes()
    with (
        tempfile.TemporaryDirectory(prefix="pagemill-bench-", dir=disk()) as on_disk,
        tempfile.TemporaryDirectory(prefix="pagemill-bench-", dir=memory()) as in_memory,
    ):
        yield from _enqueue(Path(on_disk), sizes)
        yield from _cycle(Path(on_disk), sizes)
        yield from _claim_at_depth(Path(in_memory), sizes)
        yield from _claim_behind(Path(in_memory), sizes)
        yield from _claim_over_lanes(Path(in_memory), sizes)
        yield from _beside_batches(Path(in_memory), sizes)
        yield from _fall_due(Path(on_disk), sizes)
        yield from _commands(Path(on_disk), sizes)


def disk() -> Path:
    """Return a directory on disk: /tmp may be memory, /var/tmp is not."""
    return Path("/var/tmp")


def memory() -> Path:
    place = Path("/dev/shm")
    return place if place.is_dir() and shutil.disk_usage(place).free > _ROOM_BYTES else disk()


# ── Throughput ──────────────────────────────────────────────────────────────────────────────────────────────────


def _enqueue(directory: Path, sizes: Sizes) -> Iterator[Row]:
    store, raw = opened(directory / "enqueue.db"), Raw(directory / "enqueue-raw.db")
    jobs, raw_jobs = [JOB] * sizes.transaction, [RAW_JOB] * sizes.transaction

    peer, ours = in_turns(
        sizes.repeats,
        lambda: _rate(sizes.commits, lambda: raw.enqueue(RAW_JOB)),
        lambda: _rate(sizes.commits, lambda: store.intake.enqueue(JOB)),
    )
    yield Row("enqueue", "enqueue, a commit each", "raw", "jobs/s", ours, peer, at_least(0.6))

    peer, ours = in_turns(
        sizes.repeats,
        lambda: _rate(sizes.transactions, lambda: raw.enqueue_many(raw_jobs)) * sizes.transaction,
        lambda: _rate(sizes.transactions, lambda: store.intake.enqueue_many(jobs)) * sizes.transaction,
    )
    what = f"enqueue, {sizes.transaction:,} a transaction"
    yield Row("enqueue_many", what, "raw", "jobs/s", ours, peer, at_least(0.4))
    store.close()
    raw.close()


def _cycle(directory: Path, sizes: Sizes) -> Iterator[Row]:
    store, raw = opened(directory / "cycle.db"), Raw(directory / "cycle-raw.db")

    def refill(count: int) -> None:
        for first in range(0, count, 1_000):
            store.intake.enqueue_many([JOB] * min(1_000, count - first))
            raw.enqueue_many([RAW_JOB] * min(1_000, count - first))

    def ours_one() -> None:
        store.leases.complete(store.leases.claim(WORKER, 1)[0].lease)

    def ours_batch(size: int) -> None:
        store.leases.complete_many([Completion(job.lease) for job in store.leases.claim(WORKER, size)])

    refill((sizes.repeats + 1) * sizes.cycles)
    peer, ours = in_turns(
        sizes.repeats,
        lambda: _rate(sizes.cycles, lambda: raw.complete(raw.claim())),
        lambda: _rate(sizes.cycles, ours_one),
    )
    yield Row("cycle", "claim + complete, one at a time", "raw", "jobs/s", ours, peer, at_least(0.6))

    def batches_of(size: int) -> Row:
        refill((sizes.repeats + 1) * sizes.jobs_in_batches)
        times = sizes.jobs_in_batches // size
        peer, ours = in_turns(
            sizes.repeats,
            lambda: _rate(times, lambda: raw.complete(raw.claim(size))) * size,
            lambda: _rate(times, lambda: ours_batch(size)) * size,
        )
        return Row(f"cycle_{size}", f"claim + complete, {size} at a time", "raw", "jobs/s", ours, peer, at_least(0.3))

    yield batches_of(10)
    yield batches_of(100)
    store.close()
    raw.close()


# ── The cost of a claim ─────────────────────────────────────────────────────────────────────────────────────────


def _claim_at_depth(directory: Path, sizes: Sizes) -> Iterator[Row]:
    ended, shallow, deep = (directory / name for name in ("ended.db", "shallow.db", "deep.db"))
    opened(ended).close()
    fill(ended, Group(sizes.ended, status="completed"))
    for path, count in (shallow, sizes.few), (deep, sizes.many):
        shutil.copy(ended, path)
        fill(path, Group(count))
    raw_shallow, raw_deep = Raw(directory / "shallow-raw.db"), Raw(directory / "deep-raw.db")
    for raw, count in (raw_shallow, sizes.few), (raw_deep, sizes.many):
        raw.fill(sizes.ended, "completed")
        raw.fill(count)

    few, many = f"{sizes.few:,} pending", f"{sizes.many:,} pending"
    beside = f"a claim at {many}, beside {sizes.ended:,} completed"
    yield _claim_row("claim_depth", beside, shallow, deep, few, sizes, below(1.5))

    store = opened(deep)
    peer, ours = in_turns(
        sizes.repeats,
        lambda: _raw_claim_cost(raw_deep, sizes.claims),
        lambda: _claim_cost(store, sizes.claims),
    )
    yield Row("claim_raw", "the same", f"raw at {many}", "ms", ours, peer)
    store.close()

    peer, ours = in_turns(
        sizes.repeats,
        lambda: _raw_claim_cost(raw_shallow, sizes.claims),
        lambda: _raw_claim_cost(raw_deep, sizes.claims),
    )
    yield Row("claim_depth_raw", f"raw at {many}", f"raw at {few}", "ms", ours, peer)
    raw_shallow.close()
    raw_deep.close()
    for path in directory.iterdir():
        path.unlink()


@dataclass(frozen=True, slots=True)
class _Obstacle:
    """Jobs that are first but cannot start."""

    key: str
    what: str
    blocked: Group
    prepare: Callable[[Store], object] = lambda store: None
    holder: NewJob | None = None
    """A running job that keeps the others from starting."""
    goal: Goal = field(default_factory=lambda: below(3))


def _obstacles(count: int) -> list[_Obstacle]:
    jobs = Group(count, "blocked", priority=1)
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    return [
        _Obstacle("behind_held", "held jobs", replace(jobs, held=1, run_at=FAR_OFF), goal=below(1.5)),
        _Obstacle("behind_paused_type", "jobs of a paused type", jobs,
                  lambda store: store.job_control.pause("type", "blocked")),
        _Obstacle("behind_full_type", "jobs of a full type", jobs,
                  lambda store: store.workers.set_limits("type", {"blocked": 1}), NewJob("blocked")),
        _Obstacle("behind_busy_owner", "jobs of a busy owner", replace(jobs, owner="busy"),
                  lambda store: store.workers.set_limits("owner", {"busy": 1}), NewJob("blocked", owner="busy")),
        _Obstacle("behind_busy_key", "jobs of one busy key", replace(jobs, concurrency_key="busy", held=8),
                  holder=NewJob("blocked", concurrency_key="busy")),
        _Obstacle("behind_resting_source", "jobs of a resting source", replace(jobs, source="resting"),
                  lambda store: store.leases.rest_source("resting", tomorrow, "quota")),
    ]  # fmt: skip


def _claim_behind(directory: Path, sizes: Sizes) -> Iterator[Row]:
    free = directory / "free.db"
    opened(free).close()
    fill(free, Group(sizes.few))

    for obstacle in _obstacles(sizes.blocked):
        path = directory / f"{obstacle.key}.db"
        store = opened(path)
        obstacle.prepare(store)
        if obstacle.holder is not None:
            store.intake.enqueue(obstacle.holder)
            assert store.leases.claim(WORKER, 1)
        store.close()
        fill(path, obstacle.blocked, Group(sizes.few))
        what = f"a claim behind {sizes.blocked:,} {obstacle.what}"
        yield _claim_row(obstacle.key, what, free, path, "behind none", sizes, obstacle.goal)


def _claim_over_lanes(directory: Path, sizes: Sizes) -> Iterator[Row]:
    one, many = directory / "one_lane.db", directory / "lanes.db"
    for path in one, many:
        opened(path).close()
    fill(one, Group(sizes.blocked))
    fill(many, Group(sizes.blocked, types=3, owners=100))
    job_types = ("ready", "ready0", "ready1", "ready2")
    what = f"a claim over 3 types × 100 owners, {sizes.blocked:,} jobs"
    yield _claim_row("lanes", what, one, many, "one type, no owner", sizes, below(3), job_types)


def _beside_batches(directory: Path, sizes: Sizes) -> Iterator[Row]:
    """Measure beside batches, of which a tenth are stopped with a held job each."""
    none, many = directory / "no-batches.db", directory / "batches.db"
    for path in none, many:
        opened(path).close()
        fill(path, Group(sizes.few))
    fill_batches(many, sizes.batches)
    beside = f"beside {sizes.batches:,} batches"
    yield _claim_row("batches_claim", f"a claim {beside}", none, many, "beside none", sizes, below(1.5))

    without, store = opened(none), opened(many)
    alone, of_batch = (
        [structs.replace(JOB, batch_id=number)] * sizes.transaction for number in (None, sizes.batches + 1)
    )
    peer, ours = in_turns(
        sizes.repeats,
        lambda: _rate(sizes.transactions, lambda: store.intake.enqueue_many(alone)) * sizes.transaction,
        lambda: _rate(sizes.transactions, lambda: store.intake.enqueue_many(of_batch)) * sizes.transaction,
    )
    what = f"enqueue into a batch, {sizes.transaction:,} a transaction, {beside}"
    yield Row("batches_enqueue", what, "into none", "jobs/s", ours, peer, at_least(0.3))

    new = NewBatch("bench")
    first, second = (one.batches.add(new, [JOB] * sizes.few).batch.id for one in (without, store))
    peer, ours = in_turns(
        sizes.repeats, lambda: _stop_and_resume(without, first), lambda: _stop_and_resume(store, second)
    )
    what = f"stop and resume a batch of {sizes.few:,} jobs, {beside}"
    yield Row("batches_stop", what, "beside none", "ms", ours, peer, below(1.5))
    without.close()
    store.close()


def _stop_and_resume(store: Store, batch_id: int) -> float:
    begin = time.perf_counter()
    store.batches.stop(batch_id, actor="bench")
    store.batches.resume(batch_id, actor="bench")
    return (time.perf_counter() - begin) * 1000


def _claim_row(
    key: str, what: str, base: Path, loaded: Path, beside: str, sizes: Sizes, goal: Goal,
    job_types: tuple[str, ...] = ("ready", "blocked"),
) -> Row:  # fmt: skip
    without, behind = opened(base, job_types=job_types), opened(loaded, job_types=job_types)
    peer, ours = in_turns(
        sizes.repeats, lambda: _claim_cost(without, sizes.claims), lambda: _claim_cost(behind, sizes.claims)
    )
    without.close()
    behind.close()
    return Row(key, what, beside, "ms", ours, peer, goal)


def _claim_cost(store: Store, claims: int) -> float:
    """Return the milliseconds of one claim. Releasing the job afterwards is not counted."""
    took = []
    for _ in range(claims):
        begin = time.perf_counter()
        jobs = store.leases.claim(WORKER, 1)
        took.append(time.perf_counter() - begin)
        assert [job.job_type.startswith("ready") for job in jobs] == [True]
        store.leases.release(jobs[0].lease)
    return median(took) * 1000


def _raw_claim_cost(raw: Raw, claims: int) -> float:
    took = []
    for _ in range(claims):
        begin = time.perf_counter()
        job_ids = raw.claim()
        took.append(time.perf_counter() - begin)
        raw.release(job_ids[0])
    return median(took) * 1000


# ── Many held jobs at once ──────────────────────────────────────────────────────────────────────────────────────


def _fall_due(directory: Path, sizes: Sizes) -> Iterator[Row]:
    """Claim until no due job is held. Each claim releases some of them in its own transaction."""
    prepared = directory / "due.db"
    opened(prepared).close()
    fill(prepared, *(Group(sizes.blocked // 10, held=1, priority=p, run_at=LONG_AGO) for p in range(1, 11)))
    raw_prepared = directory / "due-raw.db"
    raw = Raw(raw_prepared)
    raw.fill(sizes.blocked, "held")
    raw.close()

    longest: list[float] = []
    typical: list[float] = []
    raw_longest: list[float] = []
    raw_typical: list[float] = []
    for _ in range(sizes.repeats):
        took = _raw_due_once(raw_prepared, directory / "due-raw-now.db", sizes.blocked)
        raw_longest.append(max(took) * 1000)
        raw_typical.append(median(took) * 1000)
        took = _due_once(prepared, directory / "due-now.db")
        longest.append(max(took) * 1000)
        typical.append(median(took) * 1000)

    what = f"{sizes.blocked:,} held jobs fall due"
    beside = "raw, 1,000 rows made pending"
    yield Row("due", f"{what}: the longest transaction", beside, "ms", longest, raw_longest, never_over(20))
    yield Row("due_claims", f"{what}: claims meanwhile", beside, "ms", typical, raw_typical)


def _due_once(prepared: Path, path: Path) -> list[float]:
    _copy(prepared, path)
    store, eyes = opened(path), apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    due = "SELECT EXISTS (SELECT 1 FROM worker_job_queue WHERE status = 'pending' AND held & 3)"
    took = []
    while eyes.execute(due).fetchall() == [(1,)]:
        begin = time.perf_counter()
        jobs = store.leases.claim(WORKER, 1)
        took.append(time.perf_counter() - begin)
        assert jobs
    eyes.close()
    store.close()
    return took


def _raw_due_once(prepared: Path, path: Path, count: int) -> list[float]:
    _copy(prepared, path)
    raw = Raw(path)
    took = []
    for first in range(1, count + 1, 1_000):
        begin = time.perf_counter()
        raw.free(first, first + 999)
        took.append(time.perf_counter() - begin)
    raw.close()
    return took


def _copy(prepared: Path, path: Path) -> None:
    for old in path.parent.glob(f"{path.name}*"):
        old.unlink()
    shutil.copy(prepared, path)


# ── Commands ────────────────────────────────────────────────────────────────────────────────────────────────────


def _commands(directory: Path, sizes: Sizes) -> Iterator[Row]:
    """Measure commands with half of the jobs ended and half pending; `why` asks about the last one."""
    database = directory / "commands.db"
    opened(database).close()
    half = sizes.command_jobs // 2
    fill(database, Group(half, status="completed"), Group(half))

    def command(name: str, *arguments: str) -> Row:
        peer, ours = in_turns(
            sizes.command_repeats,
            lambda: processes.bare(database, name),
            lambda: processes.pagemill(database, name, *arguments),
        )
        what = f"`pagemill {name}` at {sizes.command_jobs:,} jobs"
        return Row(f"command_{name}", what, "a bare process", "ms", ours, peer, under(200))

    yield command("ls")
    yield command("why", str(2 * half))
    yield command("enqueue", "ready")


# ── Taking time ─────────────────────────────────────────────────────────────────────────────────────────────────


def in_turns(repeats: int, peer: Callable[[], float], ours: Callable[[], float]) -> tuple[list[float], list[float]]:
    """Measure the peer and pagemill in turns, so that a disturbance affects both. The first turn only warms up."""
    turns = [(peer(), ours()) for _ in range(repeats + 1)][1:]
    return [turn[0] for turn in turns], [turn[1] for turn in turns]


def _rate(times: int, work: Callable[[], object]) -> float:
    """Return how often `work` ran per second."""
    begin = time.perf_counter()
    for _ in range(times):
        work()
    return times / (time.perf_counter() - begin)
