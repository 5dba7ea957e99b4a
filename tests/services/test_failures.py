"""Failures that need attention: which ones are listed, how they are explained, and what ends them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from job_handlers.fetch.error_rules import RULES
from worker_service.base.errors import JobNotFound
from worker_service.jobs.attempts import Completion, Failure
from worker_service.jobs.documents import DocumentRequest
from worker_service.jobs.job import NewJob
from worker_service.jobs.selector import Selector
from worker_service.services import failures, job_control
from worker_service.services.failure_sentences import explanation_of
from worker_service.services.session import Session
from worker_service.services.undo import find_undoable, undo_action


def enqueue(session: Session, job_type: str = "ocr_pages", **fields: object) -> int:
    return session.store.intake.enqueue(NewJob(job_type, **fields)).job_id  # type: ignore[arg-type]


def fail_next(session: Session, code: str = "PDF_BROKEN", remedy: str = "") -> None:
    [job] = session.store.leases.claim("w1", 1)
    session.store.leases.fail(job.lease, Failure(code, f"message of {code}", remedy=remedy), retry_at=None)


def listed(session: Session, owner: str | None = None) -> list[tuple[str, str]]:
    return [(failure.name, failure.code) for failure in failures.list_failures(session, owner).items]


def test_a_failure_names_the_file_what_happened_and_what_helps(session: Session) -> None:
    for name, code, remedy in (
        ("a.pdf", "PDF_ENCRYPTED", "give its password"),
        ("b.pdf", "ACCESS_REFUSED", "share it with x@y.z, then retry"),
        ("c.xlsx", "SHEET_BROKEN", ""),
        ("d.pdf", "ODD_CODE", ""),
    ):
        enqueue(session, name=name)
        fail_next(session, code, remedy)

    listed_failures = failures.list_failures(session, None).items

    assert {failure.name: (failure.happened, failure.advice, failure.helps) for failure in listed_failures} == {
        "a.pdf": ("This PDF is locked with a password.", "Enter the password to read it.", "password"),
        "b.pdf": ("This service is not allowed to read the file.", "Share it with x@y.z, then retry.", "retry"),
        "c.xlsx": ("This file is damaged and cannot be opened.", "Add a good copy of the file.", "upload"),
        "d.pdf": ("Message of ODD_CODE.", "", ""),
    }


def test_a_retry_a_later_success_and_a_deletion_end_a_failure(session: Session) -> None:
    ids = [enqueue(session, name=name, source_key=name) for name in ("retried", "fetched", "deleted")]
    for _ in ids:
        fail_next(session)
    assert len(listed(session)) == 3

    job_control.apply_plan(session, job_control.make_plan(session, "retry", Selector(ids=ids[:1])))
    session.store.job_control.delete(Selector(ids=ids[2:]), actor="ann")
    assert listed(session) == [("fetched", "PDF_BROKEN")]

    fail_next(session, "GONE")
    enqueue(session, name="fetched", source_key="fetched")
    [job] = session.store.leases.claim("w1", 1)
    session.store.leases.complete_many([Completion(job.lease)])
    assert listed(session) == [("retried", "GONE")]


def test_jobs_with_the_same_key_are_one_failure_until_one_succeeds(session: Session) -> None:
    for owner in ("ann", "ann", "bob"):
        enqueue(session, owner=owner, name="reports", unique_key="crawl:reports")
        fail_next(session, "FOLDER_NOT_FOUND")
    assert listed(session, "ann") == [("reports", "FOLDER_NOT_FOUND")]

    enqueue(session, owner="ann", unique_key="crawl:reports")
    [job] = session.store.leases.claim("w1", 1)
    session.store.leases.complete_many([Completion(job.lease)])

    assert (listed(session, "ann"), listed(session, "bob")) == ([], [("reports", "FOLDER_NOT_FOUND")])


def test_a_job_with_the_longest_names_can_fail(session: Session) -> None:
    for fields in ({"source_key": "\x01" * 5000}, {"unique_key": "\x01" * 30000}):
        enqueue(session, owner="\x01" * 30000, platform="\x01" * 30000, **fields)
        fail_next(session)

    assert len(listed(session)) == 2


def test_a_dismissed_failure_is_listed_again_after_undo_and_after_a_new_failure(session: Session) -> None:
    job_id = enqueue(session, name="a.pdf")
    fail_next(session)

    failures.dismiss_failures(session, None, job_ids=[job_id])
    assert listed(session) == []
    assert [action.verb for action in session.history.actions()] == ["dismiss"]
    undo_action(session, find_undoable(session, None))
    assert listed(session) == [("a.pdf", "PDF_BROKEN")]

    failures.dismiss_failures(session, None)
    job_control.apply_plan(session, job_control.make_plan(session, "retry", Selector(ids=(job_id,))))
    fail_next(session, "GONE")
    assert listed(session) == [("a.pdf", "GONE")]


def test_a_document_is_one_failure_until_all_its_jobs_are_retried_or_it_is_requested_again(session: Session) -> None:
    request = DocumentRequest("/srv/a.pdf", "a.pdf", content="a" * 64)
    first = enqueue(session, name="a.pdf", document=request)
    document_id = session.job_queries.get(first).document_id
    second = enqueue(session, name="a.pdf", document_id=document_id, generation=1)
    last = enqueue(session, "assemble", name="a.pdf", document_id=document_id, generation=1, after=(first, second))
    fail_next(session, "TIMED_OUT")
    fail_next(session, "OUT_OF_MEMORY")
    assert session.job_queries.get(last).error_code == "DEPENDENCY_FAILED"

    [failure] = failures.list_failures(session, None).items
    assert (failure.document_id, failure.name) == (document_id, "a.pdf")
    session.store.job_control.retry(Selector(ids=(failure.job_id,)), actor="ann")
    [remaining] = failures.list_failures(session, None).items
    assert {failure.job_id, remaining.job_id} == {first, second}
    failures.retry_failures(session, None, job_ids=[remaining.job_id])
    assert listed(session) == []

    fail_next(session, "TIMED_OUT")
    assert listed(session) == [("a.pdf", "TIMED_OUT")]
    enqueue(session, document=replace(request, content="b" * 64))
    assert listed(session) == []


def test_failures_of_another_owner_cannot_be_listed_dismissed_or_retried(session: Session) -> None:
    of_ann, of_bob = enqueue(session, owner="ann", name="a"), enqueue(session, owner="bob", name="b")
    fail_next(session)
    fail_next(session)

    assert listed(session, "bob") == [("b", "PDF_BROKEN")]
    assert [reason.count for reason in failures.count_failures(session, "bob")] == [1]
    for change in (failures.dismiss_failures, failures.retry_failures):
        with pytest.raises(JobNotFound):
            change(session, "bob", job_ids=[of_ann, of_bob])
    failures.dismiss_failures(session, "bob")
    assert listed(session) == [("a", "PDF_BROKEN")]


def test_each_code_of_a_permanent_error_is_explained() -> None:
    source = "\n".join(path.read_text() for path in Path("job_handlers").rglob("*.py"))
    internal = {"STALE_GENERATION", "NO_PAGE", "ENCRYPTED"}
    codes = {*RULES, *re.findall(r'Permanent\(\s*"([A-Z_]+)"', source)} - internal

    assert [code for code in sorted(codes) if explanation_of(code) is None] == []
    assert None not in [explanation_of(code) for code in ("HTTP_503", "SHEET_TOO_LARGE", "PDF_EMPTY")]
