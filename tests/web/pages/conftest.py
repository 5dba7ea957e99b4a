from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from worker_service.jobs.attempts import Failure, Report
from worker_service.jobs.job import Job, NewJob
from worker_service.jobs.workers import HandlerFacts, Worker
from worker_service.runner.worker_identity import boot_id, own_host
from worker_service.services.session import Session

Make = Callable[..., Job]


@pytest.fixture
def worker(session: Session) -> str:
    facts = [HandlerFacts(job_type, "cpu") for job_type in ("ocr_pages", "download")]
    session.store.workers.register(Worker("w1", own_host(), boot_id(), 1, "0", 4, 4, facts))
    return "w1"


@pytest.fixture
def pending(session: Session) -> Make:
    def make(job_type: str = "ocr_pages", **fields: Any) -> Job:
        return session.store.job_queries.get(session.store.intake.enqueue(NewJob(job_type, **fields)).job_id)

    return make


@pytest.fixture
def running(session: Session, worker: str, pending: Make) -> Make:
    def make(job_type: str = "ocr_pages", *, percent: float = 0, message: str = "", **fields: Any) -> Job:
        enqueued = pending(job_type, **fields)
        [job] = session.store.leases.claim(worker, 1)
        assert job.id == enqueued.id
        session.store.leases.report([Report(job.lease, percent=percent, message=message)])
        return session.store.job_queries.get(job.id)

    return make


@pytest.fixture
def failed(session: Session, running: Make) -> Make:
    def make(code: str = "PDF_DAMAGED", message: str = "it cannot be read", **fields: Any) -> Job:
        job = running(**fields)
        session.store.leases.fail(job.lease, Failure(code, message, remedy="ask for another copy"), retry_at=None)
        return session.store.job_queries.get(job.id)

    return make
