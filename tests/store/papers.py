"""Hands that bring documents to where a test begins: a wish, a running job, pages, a publication."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.store.kit import ByHand, new_worker
from worker_service.jobs.attempts import Completion
from worker_service.jobs.documents import DeferredAction, DocumentRequest, PageResult
from worker_service.jobs.job import Enqueued, Job, Lease, NewJob
from worker_service.store.store import Store

TYPES = ("download", "ingest", "ocr_pages", "assemble", "action")


def work_as(store: Store, worker_id: str = "w1", types: Sequence[str] = TYPES) -> None:
    store.workers.register(new_worker(worker_id, types=types, cpu=1000, io=1000))


def wish(
    key: str = "report.pdf",
    *,
    owner: str = "",
    content: str = "c1",
    settings: str = "{}",
    is_forced: bool = False,
    is_standing: bool = False,
    actions: Sequence[DeferredAction] = (),
    revision: str = "",
) -> NewJob:
    name = f"{key} of {owner or 'nobody'}"
    request = DocumentRequest(key, name, content, settings, is_forced, is_standing, actions, revision)
    return NewJob("ingest", platform="gdrive", owner=owner, document=request)


def ask_for(store: Store, key: str = "report.pdf", **fields: Any) -> Enqueued:
    return store.intake.enqueue(wish(key, **fields))


def claim(store: Store, job_type: str | None = None) -> Job:
    """The one job that can run now."""
    jobs = store.leases.claim("w1", 1) or store.leases.claim("w1", 1, "io")
    [job] = jobs
    assert job_type in (None, job.job_type)
    return job


def begun(store: Store, key: str = "report.pdf", **fields: Any) -> Job:
    """A wish, and its job that runs."""
    ask_for(store, key, **fields)
    return claim(store, "ingest")


def pages_of(*texts: str, first: int = 1, mark: str = "") -> list[PageResult]:
    return [PageResult(number, f"{mark}{number}:{text}", text, "ocr", 90.0) for number, text in enumerate(texts, first)]


def save(store: Store, lease: Lease, *texts: str, first: int = 1) -> list[Lease]:
    return store.attempts.save_pages([(lease, page) for page in pages_of(*texts, first=first)])


def ranges(*parts: tuple[int, int]) -> list[NewJob]:
    """What an ingest leads to."""
    jobs = [NewJob("ocr_pages", payload=json.dumps({"pages": list(part)})) for part in parts]
    return [*jobs, NewJob("assemble", after_earlier=True)]


def publish(store: Store, key: str = "report.pdf", *texts: str, **fields: Any) -> int:
    """Read a document in one go, by its ingest alone; return its id."""
    asked = ask_for(store, key, **fields)
    job = claim(store, "ingest")
    assert save(store, job.lease, *texts) == []
    assert store.leases.complete_many([Completion(job.lease, publishes=True)]) == []
    assert asked.document_id is not None
    return asked.document_id


def document_row(by_hand: ByHand, document_id: int = 1) -> dict[str, object]:
    [row] = by_hand(f"SELECT * FROM document WHERE id = {document_id}")
    return row


def state(by_hand: ByHand, document_id: int = 1) -> tuple[object, object, object, object]:
    row = document_row(by_hand, document_id)
    return row["index_status"], row["index_generation"], row["current_generation"], row["error_code"]
