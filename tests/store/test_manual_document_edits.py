"""Changes of documents by the distribution's own `sqlite3` program, and the refusals that users read."""

from __future__ import annotations

import pytest

from tests.store.kit import (
    ByHand,
    RefusedByHand,
    claim,
    document_state,
    findings_after,
    new_worker,
    request_document,
    save,
    start_reading,
    work_as,
)
from worker_service.jobs.attempts import Checkpoint, Completion, Failure
from worker_service.jobs.documents import NewFile
from worker_service.jobs.job import NewJob
from worker_service.store.store import Store


@pytest.fixture(autouse=True)
def a_small_library(store: Store) -> None:
    """Document 1 is read; document 2 is being read by job 2; job 3 keeps a checkpoint."""
    work_as(store)
    job = start_reading(store)
    save(store, job.lease, "text")
    files = [NewFile("a.txt", "objects/1-1/a.txt", "text", 4, "c1")]
    store.leases.complete_many([Completion(job.lease, files=files, publishes=True)])
    request_document(store, "other.pdf")
    save(store, claim(store).lease, "other", "more")
    store.intake.enqueue(NewJob("action"))
    store.attempts.checkpoint(claim(store).lease, Checkpoint("1"))


REFUSED = {
    "UPDATE document SET index_status = 'queued' WHERE id = 1": "a document is a success exactly while people read",
    "UPDATE document SET index_status = 'not_indexed' WHERE id = 2": "not_indexed exactly until it is first asked for",
    "UPDATE document SET index_status = 'done' WHERE id = 2": "index_status",
    "UPDATE document SET current_generation = 7 WHERE id = 1": "one that was asked for",
    "UPDATE document SET pages = -1": "pages is 0 to 1000000000",
    "UPDATE document SET updated_at = 'yesterday'": "updated_at is a time",
    "INSERT INTO document (id, platform, source_key) VALUES (9223372036854775807, 'p', 'k')": "chooses the id",
    "INSERT INTO document (platform, source_key) VALUES ('', 'k')": "not empty",
    "INSERT INTO worker_job_queue (job_type, platform, generation) VALUES ('t', 'p', 1)": "give document_id",
    "INSERT INTO worker_job_queue (job_type, platform, document_id) VALUES ('t', 'p', 99)": "no document",
    "INSERT INTO worker_job_queue (job_type, platform, document_id, generation) VALUES ('t', 'p', 1, 2)": "reindex",
    "UPDATE worker_job_queue SET generation = 7 WHERE id = 2": "do not change",
    "UPDATE worker_job_queue SET document_id = 1 WHERE id = 2": "do not change",
    "INSERT INTO file (id, job_id, fence, name, path, size, created_at)"
    " VALUES (9223372036854775807, 1, 1, 'x', 'x', 1, '')":
        "chooses the id",
    "INSERT INTO file (job_id, fence, name, path, size, created_at) VALUES (1, 1, 'x', '../x', 1, '')": "workspace",
    "INSERT INTO file (job_id, fence, name, path, size, created_at) VALUES (1, 1, 'x', '/etc/x', 1, '')": "workspace",
    "INSERT INTO page VALUES (2, 1, 0, 1)": "number is 1 or more",
}  # fmt: skip


def test_a_bad_change_of_a_document_is_refused_with_a_sentence(by_hand: ByHand) -> None:
    before = by_hand.dump()

    refusals = by_hand.refusals(list(REFUSED))

    for (statement, sentence), refusal in zip(REFUSED.items(), refusals, strict=True):
        assert sentence in refusal, statement
    assert by_hand.dump() == before


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE document SET name = 'Annual report', note = 'checked' WHERE id = 1",
        "UPDATE document SET gone_at = '2026-11-18 10:00:00.000' WHERE id = 1",
        "INSERT INTO document (platform, source_key) VALUES ('local', '/srv/a.pdf')",
        "DELETE FROM document WHERE id = 1",
        "DELETE FROM file WHERE id = 1",
        "DELETE FROM checkpoint",
        "DELETE FROM crawl",
    ],
)
def test_harmless_changes_of_documents_work_by_hand(store: Store, by_hand: ByHand, statement: str) -> None:
    by_hand(statement)

    assert [broken for broken in store.integrity.audit() if "has no file" not in broken.detail] == []


def commit_from_the_store(store: Store) -> None:
    assert store.leases.next_deadline() is not None, "the daemon's loop is told that there is something to do"
    store.workers.register(new_worker("other", types=["none"]))
    store.leases.claim("other", 1)


def test_the_next_commit_applies_a_cancel_and_a_retry_by_hand_to_the_document(store: Store, by_hand: ByHand) -> None:
    by_hand("UPDATE worker_job_queue SET status = 'cancelled' WHERE id = 2")
    assert document_state(by_hand, 2) == ("indexing", 1, None, None)
    store.leases.requeue("w1")
    assert document_state(by_hand, 2) == ("failed", 1, None, "CANCELLED")

    by_hand("UPDATE worker_job_queue SET status = 'pending' WHERE id = 2")
    assert store.integrity.audit() == []
    commit_from_the_store(store)

    assert document_state(by_hand, 2) == ("indexing", 1, None, None)
    assert store.integrity.audit() == []


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("UPDATE worker_job_queue SET status = 'cancelled'", "CANCELLED"),
        ("DELETE FROM worker_job_queue", "JOB_DELETED"),
    ],
)
def test_the_next_commit_fails_a_document_whose_pending_job_was_cancelled_or_deleted_by_hand(
    store: Store, by_hand: ByHand, statement: str, code: str
) -> None:
    requested = request_document(store, "third.pdf")

    by_hand(f"{statement} WHERE id = {requested.job_id}")
    assert store.integrity.audit() == []
    commit_from_the_store(store)

    assert document_state(by_hand, 3) == ("failed", 1, None, code)


def test_p11_a_job_of_an_older_generation_cannot_be_retried_by_hand(store: Store, by_hand: ByHand) -> None:
    older = request_document(store, "third.pdf")
    request_document(store, "third.pdf", is_forced=True)
    assert store.job_queries.get(older.job_id).status == "pending"
    by_hand("UPDATE document SET updated_at = '2026-01-01 00:00:00.000' WHERE id = 3")
    request_document(store, "third.pdf", is_forced=True)
    assert store.job_queries.get(older.job_id).error_code == "STALE_GENERATION"

    with pytest.raises(RefusedByHand, match="pagemill reindex"):
        by_hand(f"UPDATE worker_job_queue SET status = 'pending' WHERE id = {older.job_id}")


def test_a_page_range_is_named_in_either_spelling(store: Store, by_hand: ByHand) -> None:
    store.leases.requeue("w1")
    work_as(store)
    for payload in ('{"page_range": [3, 4]}', '{"pages": "5-6"}', '{"pages": 7}', "{}", None):
        requested = request_document(store, f"{payload}.pdf")
        [ingest] = [job for job in store.leases.claim("w1", 9) if job.id == requested.job_id]
        store.leases.complete_many([Completion(ingest.lease, follow_ups=[NewJob("ocr_pages", payload=payload)])])
        [part] = store.leases.claim("w1", 9)
        store.leases.fail(part.lease, Failure("X", "broke"), retry_at=None)

    messages = [row["error_message"] for row in by_hand("SELECT error_message FROM document WHERE id > 2 ORDER BY id")]

    assert messages == ["pages 3-4: broke", "pages 5-6: broke", "pages 7: broke", "broke", "broke"]


def test_the_view_v_documents_shows_states_and_progress(by_hand: ByHand) -> None:
    rows = by_hand("SELECT id, status, state, percent, readable FROM v_documents ORDER BY id")

    assert rows == [
        {"id": 1, "status": "success", "state": "success", "percent": 100, "readable": 1},
        {"id": 2, "status": "indexing", "state": "indexing", "percent": 0, "readable": None},
    ]


def test_the_sqlite3_program_can_search(by_hand: ByHand) -> None:
    rows = by_hand(
        "SELECT p.document_id, p.number, snippet(page_text, 0, '[', ']', '', 5) AS found FROM page_text"
        " JOIN page p ON p.result_id = page_text.rowid"
        " JOIN document d ON d.id = p.document_id AND d.current_generation = p.generation"
        " WHERE page_text MATCH 'text OR other'"
    )

    assert rows == [{"document_id": 1, "number": 1, "found": "[text]"}]
    by_hand("INSERT INTO page_text (page_text, rank) VALUES ('integrity-check', 1)")


# ── The audit ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("statement", "finding"),
    [
        (
            "UPDATE document SET index_generation = 2, index_status = 'queued' WHERE id = 2",
            "P11: job 2 works for generation 1 of document 2, whose newest is 2",
        ),
        (
            "UPDATE document SET index_generation = 2, index_status = 'queued' WHERE id = 1",
            "P11: document 1 is queued, and no job of its generation lives",
        ),
        ("INSERT INTO page VALUES (1, 2, 1, 1)", "P11: document 1 has pages of generation 2, and its newest is 1"),
        (
            "UPDATE document SET index_status = 'success' WHERE id = 2",
            "P11: document 2 is success, and people read generation 0 of 1",
        ),
        ("DELETE FROM file", "P5: document 1 is a success, and has no file"),
        ("DELETE FROM page_result WHERE id = 1", "P5: page 1 of document 1 has no result"),
        (
            "UPDATE worker_job_attempt SET outcome = 'failed' WHERE job_id = 1",
            "P5: file 1 was published by attempt 1 of job 1, which is failed",
        ),
    ],
)
def test_the_audit_names_document_rows_that_do_not_agree(store: Store, statement: str, finding: str) -> None:
    assert store.integrity.audit() == []

    assert finding in findings_after(store, statement)


def test_only_tables_that_users_write_have_triggers(by_hand: ByHand) -> None:
    rows = by_hand("SELECT tbl_name, count(*) AS n FROM sqlite_schema WHERE type = 'trigger' GROUP BY tbl_name")

    assert {str(row["tbl_name"]) for row in rows} == {
        "worker_job_queue", "worker_job_attempt", "worker_job_dependency", "worker", "batch", "page_result", "document",
        "passage",
    }  # fmt: skip
    assert sum(int(str(row["n"])) for row in rows) <= 36
