"""The cache of lanes: a claim with it takes the job that a walk over all lanes would find (P9, P12)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.store.kit import MovableClock, claimed_ids, jobs_with_ids, lay_out, new_worker, open_at
from worker_service.jobs.attempts import Failure
from worker_service.jobs.job import Job, NewJob
from worker_service.store.claim_order import claim_values, make_ready
from worker_service.store.database import Row
from worker_service.store.store import Store

TYPES = ("ocr_pages", "assemble", "scrape_account")
OWNERS = ("", "ann", "bob", "cid", "dan", "eva")
SOURCES = ("", "", "drive")


class Queue:
    """A database with the stores of a daemon and of another program. `ran` counts the statements of the daemon."""

    def __init__(self, path: Path) -> None:
        lay_out(path)
        self.clock = MovableClock()
        self.daemon, self.other_program = open_at(path, self.clock), open_at(path, self.clock)
        self.ran = Counter[str]()
        database = self.daemon.database
        database.write = self._counted(database.write)  # type: ignore[method-assign]
        database.read_locked = self._counted(database.read_locked)  # type: ignore[method-assign]
        self.daemon.workers.register(new_worker(cpu=1000))
        self.other_program.workers.register(new_worker("w2", cpu=1000))

    def _counted(self, run: Callable[..., list[Row]]) -> Callable[..., list[Row]]:
        def count_and_run(name: str, /, *row: object, **values: object) -> list[Row]:
            self.ran[name] += 1
            return run(name, *row, **values)

        return count_and_run

    def next_by_a_walk(self) -> list[int]:
        database = self.other_program.database
        with database.rehearsal():
            make_ready(database, database.now())
            return [job_id for (job_id,) in database.read_locked("next_turn", **claim_values(database, "w1", "cpu"))]

    def close(self) -> None:
        self.daemon.close()
        self.other_program.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_claim_takes_whom_a_walk_over_all_lanes_finds(path: Path, seed: int) -> None:
    queue, random = Queue(path), Random(seed)
    running: list[Job] = []

    def enqueue(store: Store) -> None:
        store.intake.enqueue_many(
            [
                NewJob(
                    random.choice(TYPES),
                    owner=random.choice(OWNERS),
                    source=random.choice(SOURCES),
                    priority=random.randint(1, 10),
                    concurrency_key=random.choice((None, None, None, "k", "l")),
                )
                for _ in range(random.choice((1, 1, 30)))
            ]
        )

    def anyone() -> int:
        [(last,)] = queue.other_program.database.read_sql("SELECT ifnull(max(id), 1) FROM worker_job_queue", [])
        return random.randint(1, last)

    def claim(store: Store) -> None:
        expected = queue.next_by_a_walk()
        taken = store.leases.claim("w1", 1)
        assert [job.id for job in taken] == expected
        running.extend(taken)

    def end(store: Store) -> None:
        if not running:
            return
        lease = running.pop(random.randrange(len(running))).lease
        match random.choice(("complete", "complete", "complete", "release", "fail", "later")):
            case "complete":
                store.leases.complete(lease)
            case "release":
                store.leases.release(lease)
            case "fail":
                store.leases.fail(lease, Failure("X", "x"), retry_at=None)
            case _:
                store.leases.fail(lease, Failure("X", "x"), retry_at=queue.clock.after(5))

    def steer(store: Store) -> None:
        job_control, name = store.job_control, random.choice(OWNERS[1:])
        match random.choice((0, 1, 1, 2, 2, 4, 5, 6, 7, 3 if seed % 2 else 7)):
            case 0:
                job_control.cancel(jobs_with_ids(anyone()), actor="x")
                for job in [job for job in running if store.leases.beat("w1", [job.lease]).to_cancel]:
                    running.remove(job)
                    store.leases.confirm_cancel(job.lease)
            case 1:
                job_control.priority(jobs_with_ids(anyone()), random.randint(1, 10), actor="x")
            case 2:
                job_id = anyone()
                if job_id not in {job.id for job in running}:
                    job_control.delete(jobs_with_ids(job_id), actor="x")
            case 3:
                job_control.pause("owner", name)
            case 4:
                job_control.unpause("owner", name)
            case 5:
                store.workers.set_limits("owner", random.choice(({}, {"*": 1}, {name: 2})))
            case 6:
                store.workers.set_limits("type", random.choice(({}, {"assemble": 1})))
            case _:
                queue.clock.advance(2)

    steps: list[Callable[[Store], None]] = [enqueue, claim, claim, claim, claim, end, end, steer]
    weights = [4, 4, 4, 4, 4, 3, 3, 1]
    enqueue(queue.daemon)
    for _ in range(250):
        # Mostly the daemon itself, because each change of the other program clears the cache.
        store = queue.daemon if random.random() < 0.9 else queue.other_program
        step = random.choices(steps, weights)[0]
        step(queue.daemon if step is claim else store)

    # While something is paused (odd seeds), the cache is not used.
    assert queue.ran["claim_one"] > 10 or seed % 2, queue.ran
    queue.close()


@pytest.fixture
def queue_with_lanes(path: Path) -> Queue:
    """Six owners with one job each. The first job has been claimed, so the lanes are cached."""
    queue = Queue(path)
    queue.daemon.intake.enqueue_many([NewJob("ocr_pages", owner=owner) for owner in OWNERS])
    assert claimed_ids(queue.daemon, most=1) == [1]
    return queue


def test_lanes_that_are_known_are_not_walked_over_again(queue_with_lanes: Queue) -> None:
    assert [claimed_ids(queue_with_lanes.daemon, most=1) for _ in range(4)] == [[2], [3], [4], [5]]

    assert (queue_with_lanes.ran["lanes_of_worker"], queue_with_lanes.ran["claim_one"]) == (1, 4)


def test_a_job_that_anybody_inserts_is_seen_by_the_next_claim(queue_with_lanes: Queue) -> None:
    [mine] = queue_with_lanes.daemon.intake.enqueue_many([NewJob("assemble", owner="fay", priority=1)])
    assert claimed_ids(queue_with_lanes.daemon, most=1) == [mine.job_id]
    [theirs] = queue_with_lanes.other_program.intake.enqueue_many([NewJob("assemble", owner="gus", priority=1)])
    assert claimed_ids(queue_with_lanes.daemon, most=1) == [theirs.job_id]


def test_a_pause_of_the_one_whose_turn_it_is_holds_at_once(queue_with_lanes: Queue) -> None:
    queue_with_lanes.daemon.job_control.pause("owner", "ann")

    assert claimed_ids(queue_with_lanes.daemon, most=1) == [3]


@pytest.mark.parametrize("most", [1, 5])
@pytest.mark.parametrize("lanes", [1, 2, 6])
def test_a_claim_for_some_types_ends_where_the_turn_of_another_begins(path: Path, lanes: int, most: int) -> None:
    """Prefetching overtakes no job."""
    queue = Queue(path)
    claim = queue.daemon.leases.claim
    queue.daemon.intake.enqueue_many([NewJob("ocr_pages", priority=1), NewJob("ocr_pages", priority=1)])
    if lanes > 1:
        queue.daemon.intake.enqueue_many([NewJob("assemble", priority=2), NewJob("ocr_pages", priority=3)])
    queue.daemon.intake.enqueue_many(
        [NewJob("ocr_pages", source=f"s{number}", priority=9) for number in range(lanes - 2)]
    )

    assert claim("w1", most, only=["scrape_account"]) == []
    taken = [job.id for _ in range(3) for job in claim("w1", most, only=["ocr_pages"])]

    assert taken == [1, 2]
    queue.close()
