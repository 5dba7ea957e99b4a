"""Query plans of frequent statements on a large table.

Tests compare the output of EXPLAIN QUERY PLAN, and the number of steps of SQLite's virtual machine, which depends on no
clock.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.store.kit import EVERY_JOB, FAR_FUTURE, MovableClock, jobs_with_ids, new_worker, open_at
from worker_service.jobs.attempts import Completion
from worker_service.jobs.job import NewJob, Status
from worker_service.jobs.selector import Selector
from worker_service.store.connection import connect
from worker_service.store.database import Database
from worker_service.store.opening import initialise
from worker_service.store.statements import sqlite_statements
from worker_service.store.store import Store

MANY = 8_000
STATEMENTS = sqlite_statements()
# A scan of worker_job_queue, by its name or an alias, also over an index. Allowed are the first ready job, and the
# running jobs with a key.
WALK = re.compile(
    r"SCAN (worker_job_queue|q|n|r(?! USING COVERING INDEX job_key_running)|f(?! USING COVERING INDEX job_ready))\b"
)

Prepare = Callable[[Store, MovableClock], object]
StepsOf = Callable[[Prepare, Prepare], int]


@pytest.fixture(scope="module")
def large_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thousands of completed jobs and thousands of pending ones, with one running."""
    path, clock = tmp_path_factory.mktemp("plans") / "large.db", MovableClock()
    initialise(path)
    store = open_at(path, clock)
    store.workers.register(new_worker("w1", cpu=MANY))
    store.intake.enqueue_many([NewJob("ocr_pages", owner=("", "ann")[number % 2]) for number in range(MANY)])
    while jobs := store.leases.claim("w1", 500):
        store.leases.complete_many([Completion(job.lease) for job in jobs])
    store.intake.enqueue_many([NewJob("ocr_pages", priority=number % 10 + 1) for number in range(MANY)])
    store.leases.claim("w1", 1)
    store.integrity.truncate_wal(even_if_small=True)
    store.close()
    return path


@pytest.fixture(scope="module", params=["fresh", "analyzed"])
def plan(
    request: pytest.FixtureRequest, large_table: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], list[str]]]:
    """Explaining a statement runs nothing, so all tests share a copy."""
    path = tmp_path_factory.mktemp(request.param) / "plans.db"
    shutil.copyfile(large_table, path)
    connection = connect(path)
    if request.param == "analyzed":
        connection.execute("ANALYZE")

    def explain(statement: str) -> list[str]:
        names = re.findall(r":(\w+)", statement)
        values: Any = dict.fromkeys(names) if names else [None] * statement.count("?")
        return [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]

    yield explain
    connection.close()


# Statements that may scan: counts for users, and superseded_files for a chore. audit_… is for `pagemill db check`.
COUNTED = {"count_by_status", "oldest_ready", "counts_by_type", "errors", "superseded_files"}
OVER_JOBS = sorted(
    name
    for name, text in STATEMENTS.items()
    if "worker_job_queue" in text and name not in COUNTED and not name.startswith("audit_")
)


def test_no_statement_walks_over_all_jobs(plan: Callable[[str], list[str]]) -> None:
    plans = {name: plan(STATEMENTS[name]) for name in OVER_JOBS}

    assert {name: steps for name, steps in plans.items() if any(map(WALK.match, steps))} == {}


INDEXES = {
    "lanes_of_worker": "job_ready",
    "lanes_of_jobs": "job_ready",
    "jobs_behind": "job_ready",
    "claim": "INTEGER PRIMARY KEY",
    "claim_one": "INTEGER PRIMARY KEY",
    "next_turn": "job_ready",
    "free_due_jobs": "job_due",
    "next_deadline": "job_due",
    "has_job_due": "job_due",
    "orphans": "job_by_status",
    "live_with_unique_key": "a live job already has this unique_key: that one will do the work",
    "beat_leases": "INTEGER PRIMARY KEY|job_by_status",
    "requeue": "INTEGER PRIMARY KEY",
    "complete": "INTEGER PRIMARY KEY",
    "report": "INTEGER PRIMARY KEY",
    "close_attempt": "PRIMARY KEY",
    "prune": "INTEGER PRIMARY KEY",
    "free_met_dependents": "dependency_by_needs",
    "errors": "job_failed",
    "hours_of_work": "PRIMARY KEY",
    "not_brought_in": "job_not_brought_in",
    "mark_workspace_links_due_after_moves": r"PRIMARY KEY \(crawl=\? AND id=\?",
}


def test_each_hot_statement_finds_its_rows_by_its_index(plan: Callable[[str], list[str]]) -> None:
    plans = {name: plan(STATEMENTS[name]) for name in INDEXES}

    for name, steps in plans.items():
        assert any(re.match(f"SEARCH .* USING .*({INDEXES[name]})", step) for step in steps), (name, steps)


@pytest.mark.parametrize(
    ("selector", "index"),
    [
        (EVERY_JOB, "INTEGER PRIMARY KEY|SCAN worker_job_queue$"),
        (Selector(statuses=(Status.RUNNING,)), "job_by_status"),
        (Selector(statuses=(Status.PENDING,), job_types=("ocr_pages",)), "job_by_status"),
        (Selector(owners=("bob",)), "job_by_owner"),
        (Selector(accounts=("user123",), platforms=("instagram",)), "job_by_account"),
        (Selector(batch_id=7), "job_by_batch"),
        (Selector(error_code="OOM"), "job_by_error"),
        (Selector(ids=(1, 2, 3)), "INTEGER PRIMARY KEY"),
    ],
    ids=["all", "running", "pending", "owner", "account", "batch", "error", "ids"],
)
def test_a_list_sorts_nothing_and_finds_its_page_by_an_index(
    plan: Callable[[str], list[str]],
    large_table: Path,
    clock: MovableClock,
    monkeypatch: pytest.MonkeyPatch,
    selector: Selector,
    index: str,
) -> None:
    statements: list[str] = []

    def spy(self: Database, sql: str, values: object) -> list[object]:
        statements.append(sql)
        return []

    store = open_at(large_table, clock)
    monkeypatch.setattr(Database, "read_sql", spy)
    store.job_queries.list(selector, before_id=99)
    store.close()

    steps = plan(statements[0].replace("?", "NULL"))

    assert any(re.search(index, step) for step in steps), "\n".join(steps)
    if not selector.ids:
        assert not any("TEMP B-TREE" in step for step in steps), "\n".join(steps)


# ── Steps of SQLite's machine ───────────────────────────────────────────────────────────────────────────────────────


class _Steps:
    """Counts the instructions of SQLite's virtual machine."""

    def __init__(self, store: Store) -> None:
        self.store, self.count = store, 0

    def count_of(self, verb: Callable[[], object]) -> int:
        self.count = 0
        for connection in (self.store.database.writer, self.store.database.reader):
            connection.set_progress_handler(self._tick, 1)
        verb()
        for connection in (self.store.database.writer, self.store.database.reader):
            connection.set_progress_handler(None, 1)
        return self.count

    def _tick(self) -> bool:
        self.count += 1
        return False


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> StepsOf:
    """Return the steps of a verb on a copy of a prepared table; each table is prepared once."""
    place, clock = tmp_path_factory.mktemp("steps"), MovableClock()

    @cache
    def prepared(prepare: Prepare) -> bytes:
        path = place / "prepared.db"
        initialise(path)
        store = open_at(path, clock)
        store.workers.register(new_worker("w1", cpu=MANY))
        store.intake.enqueue_many([NewJob("ocr_pages", priority=9, unique_key=f"u{number}") for number in range(40)])
        prepare(store, clock)
        store.close()
        content = path.read_bytes()
        path.unlink()
        return content

    def count(prepare: Prepare, verb: Prepare) -> int:
        path = place / "measured.db"
        path.write_bytes(prepared(prepare))
        store = open_at(path, clock)
        # The first claim and the first insert do work that is not measured: free due jobs, read the statements.
        store.leases.claim("w1", 1)
        store.intake.enqueue(NewJob("ocr_pages", unique_key="u0"))
        number = _Steps(store).count_of(lambda: verb(store, clock))
        store.close()
        path.unlink()
        return number

    return count


def _nothing(store: Store, clock: MovableClock) -> None:
    pass


def _backlog(store: Store, clock: MovableClock) -> None:
    store.intake.enqueue_many([NewJob("ocr_pages", priority=number % 10 + 1) for number in range(MANY)])


def _completed(store: Store, clock: MovableClock) -> None:
    store.intake.enqueue_many([NewJob("ocr_pages", priority=1) for _ in range(MANY // 2)])
    for _ in range(MANY // 1000):
        store.leases.complete_many([Completion(job.lease) for job in store.leases.claim("w1", 500)])


def _busy_key(store: Store, clock: MovableClock) -> None:
    store.intake.enqueue_many([NewJob("ocr_pages", priority=1, concurrency_key="k") for _ in range(MANY // 4)])
    store.leases.claim("w1", 1)


def _many(gate: Callable[[Store], object] = lambda store: None, **fields: Any) -> Prepare:
    """Return a function that inserts many such jobs and closes a gate before them."""

    def prepare(store: Store, clock: MovableClock) -> None:
        store.intake.enqueue_many([NewJob(**{"job_type": "ocr_pages", "priority": 1, **fields}) for _ in range(MANY)])
        gate(store)

    return prepare


BEHIND: dict[str, tuple[Prepare, float]] = {
    "a backlog": (_backlog, 1.5),
    "completed jobs": (_completed, 1.5),
    "held jobs": (_many(run_at=FAR_FUTURE), 1.5),
    "a paused type": (_many(lambda store: store.job_control.pause("type", "assemble"), job_type="assemble"), 3),
    "a full type": (_many(lambda store: store.workers.set_limits("type", {"assemble": 0}), job_type="assemble"), 3),
    "a busy owner": (_many(lambda store: store.workers.set_limits("owner", {"ann": 0}), owner="ann"), 3),
    "a busy key": (_busy_key, 3),
    "a resting source": (_many(lambda store: store.leases.rest_source("drive", FAR_FUTURE, "q"), source="drive"), 3),
}


def _claim(store: Store, clock: MovableClock) -> object:
    jobs = store.leases.claim("w1", 1)
    assert len(jobs) == 1
    return jobs


@pytest.mark.parametrize("behind", BEHIND)
def test_the_work_of_a_claim_does_not_grow(steps: StepsOf, behind: str) -> None:
    prepare, factor = BEHIND[behind]

    alone = steps(_nothing, _claim)
    crowded = steps(prepare, _claim)

    assert crowded <= alone * factor + 50


RUNNING = Selector(statuses=(Status.RUNNING,))
VERBS: dict[str, Prepare] = {
    "complete": lambda store, clock: store.leases.complete(store.job_queries.list(RUNNING)[0].lease),
    "release": lambda store, clock: store.leases.release(store.job_queries.list(RUNNING)[0].lease),
    "beat": lambda store, clock: store.leases.beat("w1", [job.lease for job in store.job_queries.list(RUNNING)]),
    "enqueue": lambda store, clock: store.intake.enqueue(NewJob("ocr_pages", unique_key="u39")),
    "requeue": lambda store, clock: store.leases.requeue("w1"),
    "next_deadline": lambda store, clock: store.leases.next_deadline(),
    "explain": lambda store, clock: store.gates.explain(40),
    "get": lambda store, clock: store.job_queries.get(5),
    "list": lambda store, clock: store.job_queries.list(EVERY_JOB, most=20),
    "list running": lambda store, clock: store.job_queries.list(RUNNING),
    "cancel": lambda store, clock: store.job_control.cancel(jobs_with_ids(39), actor="ann"),
    "prune": lambda store, clock: store.pruning.prune(Selector(older_than="2020-01-01 00:00:00.000")),
    "change_counter": lambda store, clock: store.database.change_counter(),
}  # fmt: skip


# explain counts up to 1,000 jobs ahead, so a backlog takes it longer.
@pytest.mark.parametrize(
    ("verb", "behind"),
    [
        (verb, behind)
        for verb in VERBS
        for behind in ("a backlog", "completed jobs", "held jobs")
        if (verb, behind) != ("explain", "a backlog")
    ],
)
def test_the_work_of_a_verb_does_not_grow(steps: StepsOf, verb: str, behind: str) -> None:
    prepare, _ = BEHIND[behind]

    alone = steps(_nothing, VERBS[verb])
    crowded = steps(prepare, VERBS[verb])

    assert crowded <= alone * 1.5 + 200


def test_inserting_a_job_with_a_key_does_not_read_the_other_jobs_with_it(steps: StepsOf) -> None:
    def prepare(store: Store, clock: MovableClock) -> None:
        store.intake.enqueue_many([NewJob("ocr_pages", concurrency_key="k") for _ in range(MANY)])

    def insert(store: Store, clock: MovableClock) -> object:
        return store.intake.enqueue(NewJob("ocr_pages", concurrency_key="k"))

    few = steps(_nothing, insert)

    assert steps(prepare, insert) <= few * 1.5 + 200


def test_jobs_due_at_the_same_time_are_freed_in_bounded_steps(tmp_path: Path) -> None:
    clock = MovableClock()
    initialise(tmp_path / "due.db")
    store = open_at(tmp_path / "due.db", clock)
    store.workers.register(new_worker("w1", cpu=MANY))
    store.intake.enqueue_many([NewJob("ocr_pages", run_at=clock.after(5)) for _ in range(MANY)])
    clock.advance(10)
    count = _Steps(store)

    first = count.count_of(lambda: store.leases.claim("w1", 1))
    second = count.count_of(lambda: store.leases.claim("w1", 1))

    ready = store.overview.counts_by_type()[0].pending
    assert ready <= 2000
    assert second <= first * 1.5
    store.close()
