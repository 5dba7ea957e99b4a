"""Changes of the job table by the distribution's own `sqlite3` program, and the refusals that users read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.store.kit import (
    ByHand,
    Enqueue,
    MovableClock,
    RefusedByHand,
    all_jobs,
    claim_one,
    claimed_ids,
    end_job,
    gate_codes,
    status_of,
)
from worker_service.base.errors import CancelRequested
from worker_service.jobs.attempts import Failure, Report
from worker_service.jobs.job import NewJob, Status
from worker_service.store.store import Store

pytestmark = pytest.mark.usefixtures("worker_is_there")

PENDING, RUNNING, COMPLETED, FAILED, CANCELLED = Status
ROOT = Path(__file__).resolve().parents[2]
SCHEMA = ROOT / "schema.sql"
CANONICAL = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}")

# The original proposal's INSERT, its parameters written out; and its two shorter forms.
SCHEDULER_INSERT = """
        INSERT INTO worker_job_queue (job_type, platform, account, payload)
        VALUES ('scrape_account', 'instagram', 'user123', '{"scrape_type": "full"}')
"""
WITH_PRIORITY = """
        INSERT INTO worker_job_queue (job_type, platform, account, priority, payload)
        VALUES ('scrape_account', 'instagram', 'user123', 1, '{"scrape_type": "full"}')
"""
ONLY_NOT_NULL = "INSERT INTO worker_job_queue (job_type, platform) VALUES ('scrape_account', 'instagram')"
CRON_LINE = (
    "INSERT INTO worker_job_queue (job_type, platform, account, payload) VALUES "
    "('scrape_account', 'instagram', 'user123', '{\"scrape_type\":\"full\"}');"
)


# ── INSERT ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("insert", [SCHEDULER_INSERT, WITH_PRIORITY, ONLY_NOT_NULL, CRON_LINE])
def test_the_inserts_of_the_original_proposal_work_verbatim(store: Store, by_hand: ByHand, insert: str) -> None:
    by_hand(insert)

    job = claim_one(store)
    assert (job.job_type, job.platform) == ("scrape_account", "instagram")
    assert job.priority == (1 if insert is WITH_PRIORITY else 5)
    assert (job.account, job.payload is None) == ((None, True) if insert is ONLY_NOT_NULL else ("user123", False))
    assert (job.retry_count, job.max_retries, job.progress_percent) == (0, 3, 0)
    assert CANONICAL.fullmatch(job.created_at)


def test_null_in_a_column_that_has_a_default_is_the_default(store: Store, by_hand: ByHand) -> None:
    by_hand(
        "INSERT INTO worker_job_queue (job_type, platform, priority, status, retry_count, max_retries, created_at, "
        "progress_percent, owner, source, held, fence) VALUES ('t', 'p', NULL, NULL, NULL, NULL, NULL, NULL, NULL, "
        "NULL, NULL, NULL)"
    )

    job = store.job_queries.get(1)
    assert (job.priority, job.status, job.max_retries, job.owner, job.held, job.fence) == (5, PENDING, 3, "", 0, 0)
    assert CANONICAL.fullmatch(job.created_at)


BAD_ROWS = [
    ("payload", "'{not json'", "payload is JSON"),
    ("payload", "''", "payload is JSON"),
    ("priority", "0", "priority is 1 (highest) to 10 (lowest)"),
    ("priority", "11", "priority is 1 (highest) to 10 (lowest)"),
    ("priority", "'high'", "priority"),
    ("priority", "2.5", "priority"),
    ("run_at", "'2026-02-30 10:00'", "run_at is a time"),
    ("run_at", "'2026-13-01'", "run_at is a time"),
    ("run_at", "'2026-11-18 25:00'", "run_at is a time"),
    ("run_at", "'2026-11-18 10:61'", "run_at is a time"),
    ("run_at", "'tomorrow'", "run_at is a time"),
    ("run_at", "'now'", "run_at is a time"),
    ("run_at", "'10:00'", "run_at is a time"),
    ("run_at", "''", "run_at is a time"),
    ("run_at", "1763460000", "run_at is a time"),
    ("run_at", "2460000.5", "run_at is a time"),
    ("run_at", "'1763460000'", "run_at is a time"),
    ("created_at", "'2026-02-30 10:00'", "created_at is a time"),
    ("created_at", "1763460000", "created_at is a time"),
    ("created_at", "'yesterday'", "created_at is a time"),
    ("created_at", "''", "created_at is a time"),
    ("created_at", "'2026-06-31 10:00:00.000'", "created_at is a time"),
    ("max_retries", "-1", "max_retries"),
    ("timeout_seconds", "0", "timeout_seconds is 1 to 31536000, a year"),
    ("timeout_seconds", "1000000000000000000", "timeout_seconds is 1 to 31536000, a year"),
    ("run_at", "'0000-01-01 00:00:00'", "created_at and run_at are of 1970 or later"),
    ("created_at", "'1969-12-31 23:59:59'", "created_at and run_at are of 1970 or later"),
    (
        "account",
        "printf('%.*c', 40000000, 'x')",
        "account, owner, source, name and each key have at most 30000 bytes",
    ),
    ("owner", "char(0) || printf('%.*c', 30000, 'x')", "each key have at most 30000 bytes"),
    ("max_retries", "9223372036854775807", "retry_count, max_retries and requeue_count are 0 to 1000000"),
    ("progress_percent", "101", "progress_percent is 0 to 100"),
    ("status", "'running'", "a new job is pending"),
    ("status", "'completed'", "a new job is pending"),
    ("status", "'waiting'", "pending"),
    ("fence", "3", "a new job has no history"),
    ("retry_count", "1", "a new job has no history"),
    ("requeue_count", "1", "a new job has no history"),
    ("cancel_requested_at", "'2026-11-18 10:00:00.000'", "a new job has no history"),
    ("worker_id", "'me'", "a running job has worker_id"),
    ("started_at", "'2026-11-18 10:00:00.000'", "a running job has worker_id"),
    ("completed_at", "'2026-11-18 10:00:00.000'", "completed_at is set on ended jobs only"),
    ("result", "'{'", "result is JSON"),
    ("payload", "json_quote(hex(zeroblob(600000)))", "payload is too large"),
]


def test_a_bad_row_is_refused_by_name(store: Store, by_hand: ByHand) -> None:
    before = by_hand.dump()

    refusals = by_hand.refusals(
        [
            f"INSERT INTO worker_job_queue (job_type, platform, {columns}) VALUES ('t', 'p', {values})"
            for columns, values, _ in BAD_ROWS
        ]
    )

    for (columns, values, sentence), refusal in zip(BAD_ROWS, refusals, strict=True):
        assert sentence in refusal, f"{columns} = {values}"
    assert by_hand.dump() == before
    assert all_jobs(store) == {}


def test_a_row_without_its_type_or_platform_is_refused(store: Store, by_hand: ByHand) -> None:
    refused = {
        "(job_type, platform) VALUES ('', 'p')": "job_type is not empty",
        "(platform) VALUES ('p')": "job_type is missing: name the handler",
        "(job_type) VALUES ('t')": "platform is missing: say what the job works with",
    }

    refusals = by_hand.refusals([f"INSERT INTO worker_job_queue {row}" for row in refused])

    for sentence, refusal in zip(refused.values(), refusals, strict=True):
        assert sentence in refusal
    assert all_jobs(store) == {}


TIMES = {
    "2026-11-18": "2026-11-18 00:00:00.000",
    "2026-11-18 10:00": "2026-11-18 10:00:00.000",
    "2026-11-18 10:00:07": "2026-11-18 10:00:07.000",
    "2026-11-18T10:00:07": "2026-11-18 10:00:07.000",
    "2026-11-18T10:00:07Z": "2026-11-18 10:00:07.000",
    "2026-11-18 10:00:07.5": "2026-11-18 10:00:07.500",
    "2026-11-18 10:00+02:00": "2026-11-18 08:00:00.000",
    "2026-11-18 10:00:07.123": "2026-11-18 10:00:07.123",
    "2028-02-29 23:59:59.999": "2028-02-29 23:59:59.999",
}


def test_any_other_valid_time_is_brought_to_the_canonical_form(store: Store, by_hand: ByHand) -> None:
    by_hand(
        "".join(
            "INSERT INTO worker_job_queue (job_type, platform, created_at, run_at)"
            f" VALUES ('t', 'p', '{written}', '{written}');"
            "INSERT INTO worker_job_queue (job_type, platform) VALUES ('t', 'p');"
            f"UPDATE worker_job_queue SET run_at = '{written}' WHERE id = last_insert_rowid();"
            for written in TIMES
        )
    )

    for number, canonical in enumerate(TIMES.values()):
        inserted, updated = store.job_queries.get(2 * number + 1), store.job_queries.get(2 * number + 2)
        assert (inserted.created_at, inserted.run_at, updated.run_at) == (canonical, canonical, canonical)


def test_a_unique_key_inserted_twice_by_hand_is_refused_or_ignored(store: Store, by_hand: ByHand) -> None:
    rows = "INTO worker_job_queue (job_type, platform, unique_key) VALUES ('t', 'p', 'u'), ('t', 'p', '{}')"
    by_hand(f"INSERT {rows.format('v')}")

    with pytest.raises(RefusedByHand, match="a live job already has this unique_key: that one will do the work"):
        by_hand(f"INSERT {rows.format('w')}")
    by_hand(f"INSERT OR IGNORE {rows.format('x')}")
    by_hand(f"INSERT {rows.format('y')} ON CONFLICT DO NOTHING")

    assert [job.unique_key for job in all_jobs(store).values()] == ["y", "x", "v", "u"]


def test_the_documented_statement_adds_a_job_once_a_day(by_hand: ByHand) -> None:
    text = (ROOT / "docs/by-hand.md").read_text("utf-8")
    [once_a_day] = [part for part in text.split("```") if "WHERE NOT EXISTS" in part]
    statement = once_a_day.removeprefix("sql\n")

    by_hand(statement)
    by_hand("UPDATE worker_job_queue SET status = 'cancelled'")
    by_hand(statement)
    assert by_hand("SELECT id, status FROM worker_job_queue") == [{"id": 1, "status": "cancelled"}]

    # A job of yesterday that is live is not doubled; one that has ended is no obstacle.
    by_hand("DELETE FROM worker_job_queue")
    by_hand(
        "INSERT INTO worker_job_queue (job_type, platform, unique_key, created_at)"
        " VALUES ('nightly_report', 'local', 'nightly', datetime('now', '-1 day'))"
    )
    by_hand(statement)
    by_hand("UPDATE worker_job_queue SET status = 'cancelled'")
    by_hand(statement)
    assert [row["status"] for row in by_hand("SELECT status FROM worker_job_queue ORDER BY id")] == [
        "cancelled", "pending",
    ]  # fmt: skip


def test_a_dependency_inserted_by_hand_holds_the_job(store: Store, by_hand: ByHand) -> None:
    by_hand(ONLY_NOT_NULL)
    by_hand(ONLY_NOT_NULL)

    by_hand("INSERT INTO worker_job_dependency (job_id, needs_id) VALUES (2, 1)")

    assert gate_codes(store, 2) == ["WAITS_FOR"]
    assert claimed_ids(store) == [1]
    by_hand("DELETE FROM worker_job_dependency WHERE job_id = 2")
    assert claimed_ids(store) == [2]


def test_an_impossible_dependency_is_refused(store: Store, by_hand: ByHand) -> None:
    by_hand(f"{ONLY_NOT_NULL}; {ONLY_NOT_NULL}")
    before = by_hand.dump()

    refusals = by_hand.refusals(
        [
            f"INSERT INTO worker_job_dependency (job_id, needs_id) VALUES ({job_id}, {needs_id})"
            for job_id, needs_id in ((1, 2), (1, 1), (2, 99), (99, 1), (2, -1))
        ]
    )

    assert all("wait" in refusal for refusal in refusals)
    assert by_hand.dump() == before
    assert gate_codes(store, 1) == []


# ── The moves that work ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_pending_job_set_to_cancelled_is_cancelled(store: Store, enqueue: Enqueue, by_hand: ByHand) -> None:
    job_id = enqueue()

    by_hand(f"UPDATE worker_job_queue SET status = 'cancelled' WHERE id = {job_id}")

    job = store.job_queries.get(job_id)
    assert job.status is CANCELLED
    assert CANONICAL.fullmatch(job.completed_at or "")
    assert claimed_ids(store) == []
    assert [(event.from_status, event.to_status) for event in store.history.events(job_id)] == [
        ("pending", "cancelled")
    ]


@pytest.mark.parametrize("hold", ["run_at", "key", "need"])
def test_a_held_job_can_be_cancelled_and_run_again_by_hand(
    store: Store, enqueue: Enqueue, by_hand: ByHand, clock: MovableClock, hold: str
) -> None:
    first = enqueue(concurrency_key="k")
    claim_one(store)
    fields: dict[str, dict[str, Any]] = {
        "run_at": {"run_at": clock.after(60)},
        "key": {"concurrency_key": "k"},
        "need": {"after": (first,)},
    }
    job_id = enqueue(**fields[hold])

    by_hand(f"UPDATE worker_job_queue SET status = 'cancelled' WHERE id = {job_id}")
    assert (status_of(store, job_id), store.job_queries.get(job_id).held) == (CANCELLED, 0)
    by_hand(f"UPDATE worker_job_queue SET status = 'pending' WHERE id = {job_id}")

    assert gate_codes(store, job_id) == {"run_at": [], "key": ["KEY_BUSY"], "need": ["WAITS_FOR"]}[hold]
    store.leases.complete(store.job_queries.get(first).lease)
    assert claimed_ids(store) == [job_id]


def test_p7_a_running_job_set_to_cancelled_is_asked_to_stop(store: Store, enqueue: Enqueue, by_hand: ByHand) -> None:
    job_id = enqueue()
    lease = claim_one(store).lease

    by_hand(f"UPDATE worker_job_queue SET status = 'cancelled' WHERE id = {job_id}")

    job = store.job_queries.get(job_id)
    assert job.status is RUNNING
    assert CANONICAL.fullmatch(job.cancel_requested_at or "")
    assert list(store.leases.beat("w1", [lease]).to_cancel) == [lease]
    with pytest.raises(CancelRequested):
        store.leases.complete(lease)
    before = by_hand.dump()
    changes = ("cancel_requested_at = NULL", "status = 'pending'", "status = 'failed'", "status = 'completed'")
    by_hand.refusals([f"UPDATE worker_job_queue SET {change} WHERE id = {job_id}" for change in changes])
    assert by_hand.dump() == before
    store.leases.confirm_cancel(lease)
    assert status_of(store, job_id) is CANCELLED


# ── The moves that are refused ──────────────────────────────────────────────────────────────────────────────────────

MOVES_REFUSED = [
    (PENDING, "status = 'running'", "worker"),
    (PENDING, "status = 'running', worker_id = 'w1', started_at = '2026-11-18 10:00:00.000', "
              "heartbeat_at = '2026-11-18 10:00:00.000', fence = fence", "only a worker can start a job"),
    (PENDING, "status = 'completed'", "can only be set to cancelled, or deleted"),
    (PENDING, "status = 'completed', completed_at = '2026-11-18 10:00:00.000'", "can only be set to cancelled"),
    (PENDING, "status = 'failed'", "can only be set to cancelled, or deleted"),
    (PENDING, "status = 'waiting'", "cancelled"),
    (PENDING, "fence = fence + 1", "fence of a job changes only when a worker claims it"),
    (PENDING, "fence = 0", "fence of a job changes only when a worker claims it"),
    (PENDING, "fence = NULL", "fence of a job changes only when a worker claims it"),
    (PENDING, "id = 77", "id of a job never changes"),
    (PENDING, "id = NULL", "datatype mismatch"),
    *((PENDING, f"held = {held}", "held is kept by the table") for held in ("NULL", 1, 4, 8)),
    (PENDING, "batch_id = 7", "batch_id of a job is given when it is inserted"),
    (PENDING, "held = 16", "held is kept by the table"),
    (PENDING, "concurrency_key = 'k'", "concurrency_key of a job is fixed"),
    (PENDING, "created_at = '2020-01-01 00:00:00.000'", "created_at is when the job was inserted"),
    (PENDING, "priority = 0", "priority is 1"),
    (PENDING, "priority = 11", "priority is 1"),
    (PENDING, "priority = 'high'", "priority"),
    (PENDING, "payload = '{'", "payload is JSON"),
    (PENDING, "run_at = '2026-02-30'", "run_at is a time"),
    (PENDING, "run_at = 'soon'", "run_at is a time"),
    (PENDING, "run_at = 1763460000", "run_at is a time"),
    (PENDING, "worker_id = 'me'", "a running job has worker_id"),
    (PENDING, "completed_at = '2026-11-18 10:00:00.000'", "completed_at is set on ended jobs only"),
    (RUNNING, "status = 'pending'", "only the worker that runs a job can end it"),
    (RUNNING, "status = 'completed'", "only the worker that runs a job can end it"),
    (RUNNING, "status = 'completed', completed_at = '2026-11-18 10:00:00.000'", "only the worker that runs a job"),
    (RUNNING, "status = 'failed'", "only the worker that runs a job can end it"),
    (RUNNING, "worker_id = 'me'", "a running job can only be asked to stop"),
    (RUNNING, "source = 's', owner = 'o'", "a running job can only be asked to stop"),
    (RUNNING, "job_type = 'x'", "a running job can only be asked to stop"),
    (RUNNING, "run_at = '2026-11-19'", "a running job can only be asked to stop"),
    (RUNNING, "fence = fence + 1", "fence of a job changes only when a worker claims it"),
    (RUNNING, "progress_percent = 1", "progress of an attempt never falls"),
    (RUNNING, "id = 77", "id of a job never changes"),
    *(
        (how, change, sentence)
        for how in (COMPLETED, FAILED, CANCELLED)
        for change, sentence in (
            ("status = 'running'", "an ended job can only be set to pending"),
            ("status = 'running', worker_id = 'w1', started_at = '2026-11-18 10:00:00.000', completed_at = NULL, "
             "heartbeat_at = '2026-11-18 10:00:00.000', fence = fence + 1", "fence of a job changes only"),
            ("fence = 0", "fence of a job changes only"),
            ("priority = 1", "an ended job does not change"),
            ("payload = '{}'", "an ended job does not change"),
            ("result = '{}'", "an ended job does not change"),
            ("retry_count = 0, error_message = 'x'", "an ended job does not change"),
            ("completed_at = '2020-01-01 00:00:00.000'", "an ended job does not change"),
            ("id = 77", "id of a job never changes"),
        )
    ),
    (COMPLETED, "status = 'failed'", "an ended job can only be set to pending"),
    (COMPLETED, "status = 'cancelled'", "an ended job can only be set to pending"),
    (FAILED, "status = 'completed'", "an ended job can only be set to pending"),
    (FAILED, "status = 'cancelled'", "an ended job can only be set to pending"),
    (CANCELLED, "status = 'failed'", "an ended job can only be set to pending"),
    (CANCELLED, "status = 'completed'", "an ended job can only be set to pending"),
]  # fmt: skip


def _in_state(store: Store, enqueue: Enqueue, status: Status) -> int:
    job_id = enqueue()
    lease = claim_one(store).lease
    if status is PENDING:
        store.leases.release(lease)
    elif status is RUNNING:
        store.leases.report([Report(lease, 40)])
    else:
        end_job(store, lease, status)
    return job_id


@pytest.mark.parametrize("status", Status)
def test_each_other_move_is_refused_with_a_sentence(
    store: Store, enqueue: Enqueue, by_hand: ByHand, status: Status
) -> None:
    job_id = _in_state(store, enqueue, status)
    moves = [(change, sentence) for from_status, change, sentence in MOVES_REFUSED if from_status is status]
    before = by_hand.dump()

    refusals = by_hand.refusals([f"UPDATE worker_job_queue SET {change} WHERE id = {job_id}" for change, _ in moves])

    for (change, sentence), refusal in zip(moves, refusals, strict=True):
        assert sentence in refusal, change
        assert len(refusal) > 20
    assert by_hand.dump() == before


def test_a_running_job_cannot_be_deleted_by_hand(store: Store, enqueue: Enqueue, by_hand: ByHand) -> None:
    _in_state(store, enqueue, RUNNING)
    before = by_hand.dump()

    with pytest.raises(RefusedByHand, match="a running job cannot be deleted: set its status to cancelled first"):
        by_hand("DELETE FROM worker_job_queue")

    assert by_hand.dump() == before


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT OR REPLACE INTO worker_job_queue (job_type, platform, unique_key) VALUES ('t', 'p', 'u')",
        "REPLACE INTO worker_job_queue (job_type, platform, unique_key) VALUES ('t', 'p', 'u')",
        "REPLACE INTO worker_job_queue (id, job_type, platform) VALUES (1, 't', 'p')",
        "UPDATE OR REPLACE worker_job_queue SET unique_key = 'u' WHERE id = 2",
        "UPDATE OR REPLACE worker_job_queue SET id = 1 WHERE id = 2",
        "INSERT INTO worker_job_queue (id, job_type, platform) VALUES (1, 't', 'p') "
        "ON CONFLICT (id) DO UPDATE SET status = 'completed', completed_at = '2026-11-18 10:00:00.000'",
    ],
)
def test_no_conflict_clause_ends_a_running_job(store: Store, enqueue: Enqueue, by_hand: ByHand, statement: str) -> None:
    enqueue(unique_key="u")
    enqueue(unique_key="other")
    lease = store.leases.claim("w1", 1)[0].lease
    before = all_jobs(store)

    by_hand.try_each([statement])

    assert all_jobs(store) == before
    store.leases.complete(lease)


@pytest.mark.parametrize("hold", ["key", "need"])
def test_held_is_kept_by_the_table(store: Store, enqueue: Enqueue, by_hand: ByHand, hold: str) -> None:
    first = enqueue(concurrency_key="k")
    claim_one(store)
    job_id = enqueue(concurrency_key="k") if hold == "key" else enqueue(after=(first,))
    before = by_hand.dump()

    with pytest.raises(RefusedByHand, match="held is kept by the table"):
        by_hand(f"UPDATE worker_job_queue SET held = 0 WHERE id = {job_id}")

    assert by_hand.dump() == before
    assert claimed_ids(store) == []


@pytest.mark.parametrize("held", ["0", "held & ~3", "held & ~1"])
@pytest.mark.parametrize("hold", ["scheduled", "backoff"])
def test_a_job_that_waits_for_its_time_is_not_released_by_hand(
    store: Store, enqueue: Enqueue, by_hand: ByHand, clock: MovableClock, hold: str, held: str
) -> None:
    job_id = enqueue(run_at=clock.after(60)) if hold == "scheduled" else enqueue(max_retries=3)
    if hold == "backoff":
        store.leases.fail(claim_one(store).lease, Failure("X", "x"), retry_at=clock.after(60))
    before = by_hand.dump()

    if hold == "backoff" and held == "held & ~1":
        by_hand(f"UPDATE worker_job_queue SET held = {held} WHERE id = {job_id}")
    else:
        with pytest.raises(RefusedByHand, match="held is kept by the table: this job waits for its run_at"):
            by_hand(f"UPDATE worker_job_queue SET held = {held} WHERE id = {job_id}")

    assert by_hand.dump() == before
    assert claimed_ids(store) == []
    clock.advance(60)
    assert claimed_ids(store) == [job_id]


def test_removing_the_run_at_frees_the_job(
    store: Store, enqueue: Enqueue, by_hand: ByHand, clock: MovableClock
) -> None:
    job_id = enqueue(run_at=clock.after(60))

    by_hand(f"UPDATE worker_job_queue SET run_at = NULL, held = 0 WHERE id = {job_id}")

    assert claimed_ids(store) == [job_id]


def test_a_retry_by_hand_is_refused_while_the_key_is_live(store: Store, enqueue: Enqueue, by_hand: ByHand) -> None:
    first = enqueue(unique_key="u")
    store.leases.fail(claim_one(store).lease, Failure("X", "x"), retry_at=None)
    enqueue(unique_key="u")
    before = by_hand.dump()

    with pytest.raises(RefusedByHand, match="a live job has the same unique_key"):
        by_hand(f"UPDATE worker_job_queue SET status = 'pending' WHERE id = {first}")

    assert by_hand.dump() == before


# ── schema.sql for people ───────────────────────────────────────────────────────────────────────────────────────────


def test_schema_sql_loads_and_works_under_the_distributions_own_program(tmp_path: Path) -> None:
    program = ByHand(tmp_path / "plain.db")

    program.run(f".read {SCHEMA}")
    for insert in (SCHEDULER_INSERT, WITH_PRIORITY, ONLY_NOT_NULL):
        program(insert)
    program("UPDATE worker_job_queue SET status = 'cancelled' WHERE id = 1")
    program("UPDATE worker_job_queue SET status = 'pending' WHERE id = 1")
    program("UPDATE worker_job_queue SET run_at = '2026-11-19 06:00' WHERE id = 2")
    program("DELETE FROM worker_job_queue WHERE id = 3")

    assert [(row["id"], row["state"]) for row in program("SELECT * FROM v_jobs ORDER BY id")] == [
        (1, "pending"),
        (2, "scheduled"),
    ]
    assert program("SELECT platform, ready, held FROM v_queue") == [{"platform": "instagram", "ready": 1, "held": 1}]
    assert program("SELECT * FROM v_workers") == []
    assert program.value("PRAGMA integrity_check") == "ok"


def test_schema_sql_uses_nothing_newer_than_sqlite_3_37() -> None:
    text = re.sub(r"--.*", "", SCHEMA.read_text())

    newer = "-> returning right·join full·join unixepoch timediff jsonb is·distinct concat( octet_length unhex 'subsec"
    newer += " filter·(order string_agg json_error iif("
    assert [word for word in newer.split() if word.replace("·", " ") in text.lower()] == []


def test_the_view_v_jobs_shows_each_state(store: Store, enqueue: Enqueue, by_hand: ByHand, clock: MovableClock) -> None:
    stopping = enqueue(priority=1)
    claim_one(store)
    by_hand(f"UPDATE worker_job_queue SET status = 'cancelled' WHERE id = {stopping}")
    busy = enqueue(concurrency_key="k", priority=1)
    claim_one(store)
    enqueue(run_at=clock.after(60)), enqueue(after=(busy,)), enqueue(concurrency_key="k"), enqueue()

    states = [row["state"] for row in by_hand("SELECT state FROM v_jobs ORDER BY id")]

    assert states == ["stopping", "running", "scheduled", "waiting", "key-busy", "pending"]
    assert by_hand.value("SELECT running FROM v_workers") == 2


# ── Workers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("DELETE FROM worker", "this worker holds running jobs: stop it"),
        ("UPDATE worker SET id = 'w9'", "the id of a worker never changes"),
    ],
)
def test_a_worker_with_jobs_keeps_its_row(
    store: Store, enqueue: Enqueue, by_hand: ByHand, statement: str, sentence: str
) -> None:
    job = enqueue()
    claim_one(store)
    before = by_hand.dump()

    with pytest.raises(RefusedByHand, match=sentence):
        by_hand(statement)

    assert by_hand.dump() == before
    store.leases.requeue("w1")
    assert (status_of(store, job), store.overview.workers()) == (PENDING, [])


def test_a_worker_without_jobs_may_be_removed_by_hand(store: Store, by_hand: ByHand) -> None:
    by_hand("DELETE FROM worker")

    assert store.overview.workers() == []


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("UPDATE worker_job_queue SET payload = json_quote(hex(zeroblob(600000)))", "payload is too large"),
        ("INSERT INTO source_rest VALUES ('', '2099-01-01 00:00:00.000', NULL)", "source is not empty"),
        ("INSERT INTO source_rest VALUES ('s', '0000-01-01 00:00:00.000', NULL)", "until is a time"),
        ("INSERT INTO pause (scope, until) VALUES ('all', '0000-01-01 00:00:00.000')", "until is a time"),
        ("INSERT INTO pause (scope, until) VALUES ('all', 'tomorrow')", "until is a time"),
        ("INSERT INTO worker VALUES ('../x', '', '', 1, '', 1, 1, 0, 0, '{now}', '{now}', 0)", "id is a plain name"),
        (
            "INSERT INTO worker VALUES ('w' || char(0), '', '', 1, '', 1, 1, 0, 0, '{now}', '{now}', 0)",
            "id is a plain name",
        ),
        ("INSERT INTO worker VALUES ('w', '', '', 1, '', 1, 1, 0, 0, '{now}', 'then', 0)", "heartbeat_at are times"),
        ("INSERT INTO pagemill_schema VALUES (3, '0000')", "pagemill db migrate alone"),
        ("INSERT INTO document (platform, source_key, settings) VALUES ('local', 'k', 'what')", "settings are JSON"),
    ],
)
def test_a_row_that_would_stop_others_is_refused(store: Store, by_hand: ByHand, statement: str, sentence: str) -> None:
    store.intake.enqueue(NewJob("t"))
    before = by_hand.dump()

    with pytest.raises(RefusedByHand, match=sentence):
        by_hand(statement.replace("{now}", "2026-11-18 10:00:00.000"))

    assert by_hand.dump() == before


def test_a_turn_number_written_by_hand_stops_no_claim(store: Store, by_hand: ByHand) -> None:
    by_hand("INSERT INTO owner_served VALUES ('ann', 9223372036854775807)")
    jobs = [store.intake.enqueue(NewJob("ocr_pages", owner=owner)).job_id for owner in ("ann", "bob", "ann")]

    assert sorted(job.id for job in store.leases.claim("w1", 5)) == jobs
