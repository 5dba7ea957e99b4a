"""Text that is not UTF-8, which SQLite stores: it is read with replacements, and a claim fails such a job only."""

from __future__ import annotations

import pytest

from tests.store.kit import ByHand, Enqueue, claim_one, status_of
from worker_service.jobs.attempts import Completion
from worker_service.jobs.job import Status
from worker_service.jobs.selector import Selector
from worker_service.store.store import Store

pytestmark = pytest.mark.usefixtures("worker_is_there")

BAD = "CAST(x'61ff62' AS TEXT)"


def test_every_row_is_read_with_replacement_characters(store: Store, enqueue: Enqueue, by_hand: ByHand) -> None:
    job = enqueue()
    by_hand(f"UPDATE worker_job_queue SET account = {BAD}, progress_message = {BAD} WHERE id = {job}")
    by_hand(f"INSERT INTO worker_job_log (job_id, fence, at, line) VALUES ({job}, 1, 'now', {BAD})")
    by_hand(f"INSERT INTO pause (scope, name, reason) VALUES ('type', 'other', {BAD})")
    by_hand(f"INSERT INTO job_limit (kind, name, most) VALUES ('owner', {BAD}, 1)")
    by_hand(f"INSERT INTO document (platform, source_key, name) VALUES ('local', '/d', {BAD})")
    by_hand(f"UPDATE worker SET host = {BAD}")

    assert store.job_queries.get(job).account == "a�b"
    assert [found.progress_message for found in store.job_queries.list(Selector())] == ["a�b"]
    assert [line.line for line in store.history.logs(job)] == ["a�b"]
    assert [pause.reason for pause in store.job_queries.pauses()] == ["a�b"]
    assert store.overview.limits()["owner"] == {"a�b": 1}
    assert store.library.document(1).name == "a�b"
    assert [found.host for found in store.overview.workers()] == ["a�b"]


def test_only_a_job_that_is_not_utf8_fails_at_its_claim(store: Store, enqueue: Enqueue, by_hand: ByHand) -> None:
    jobs = [enqueue() for _ in range(4)]
    by_hand(f"UPDATE worker_job_queue SET account = {BAD} WHERE id IN ({jobs[0]}, {jobs[2]})")
    by_hand(f"UPDATE worker_job_queue SET owner = {BAD} WHERE id = {jobs[2]}")

    claimed = [job.id for job in store.leases.claim("w1", 2)]

    assert claimed == [jobs[1], jobs[3]]
    failed = store.job_queries.get(jobs[0])
    assert (failed.status, failed.error_code) == (Status.FAILED, "NOT_UTF8")
    assert failed.error_message == "its account is not UTF-8 text"
    assert failed.error_remedy == "insert the job again, written as UTF-8"
    assert "its account and owner is" in str(store.job_queries.get(jobs[2]).error_message)
    assert [attempt.outcome for attempt in store.history.attempts(jobs[0])] == ["failed"]
    assert store.integrity.audit() == []
    # The same for a claim of one job.
    by_hand(f"INSERT INTO worker_job_queue (job_type, platform) VALUES ('ocr_pages', {BAD})")
    assert store.leases.claim("w1", 1) == []
    assert store.job_queries.count(Selector(statuses=(Status.FAILED,))) == 3


def test_an_attempt_ends_even_if_its_row_is_not_utf8(store: Store, enqueue: Enqueue, by_hand: ByHand) -> None:
    done, other = enqueue(), enqueue()
    leases = [claim_one(store).lease, claim_one(store).lease]
    by_hand(f"UPDATE worker_job_queue SET name = {BAD}, platform = {BAD}")

    assert store.leases.complete_many([Completion(leases[0])]) == []
    store.leases.release(leases[1])

    assert (status_of(store, done), status_of(store, other)) == (Status.COMPLETED, Status.PENDING)


def test_rows_keep_their_order_their_types_and_their_bytes(store: Store) -> None:
    values = "SELECT value, CAST(x'ff' AS TEXT), x'00ff' FROM json_each('[3, 1.5, null, \"x\"]') LIMIT ?"

    rows = store.database.read_sql(values, [4])

    assert rows == [(value, "�", b"\x00\xff") for value in (3, 1.5, None, "x")]
