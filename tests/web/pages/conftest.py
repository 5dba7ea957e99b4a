from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from worker_service.jobs.attempts import Failure, Report
from worker_service.jobs.job import Job, NewJob
from worker_service.jobs.workers import HandlerFacts, Worker
from worker_service.runner.worker_identity import boot_id, own_host
from worker_service.services.session import Session

AddJob = Callable[..., Job]


@pytest.fixture
def worker(session: Session) -> str:
    facts = [HandlerFacts(job_type, "cpu") for job_type in ("ocr_pages", "download")]
    session.store.workers.register(Worker("w1", own_host(), boot_id(), 1, "0", 4, 4, facts))
    return "w1"


@pytest.fixture
def add_pending(session: Session) -> AddJob:
    def add(job_type: str = "ocr_pages", **fields: Any) -> Job:
        return session.store.job_queries.get(session.store.intake.enqueue(NewJob(job_type, **fields)).job_id)

    return add


@pytest.fixture
def add_running(session: Session, worker: str, add_pending: AddJob) -> AddJob:
    def add(job_type: str = "ocr_pages", *, percent: float = 0, message: str = "", **fields: Any) -> Job:
        enqueued = add_pending(job_type, **fields)
        [job] = session.store.leases.claim(worker, 1)
        assert job.id == enqueued.id
        session.store.leases.report([Report(job.lease, percent=percent, message=message)])
        return session.store.job_queries.get(job.id)

    return add


@pytest.fixture
def add_failed(session: Session, add_running: AddJob) -> AddJob:
    def add(code: str = "PDF_DAMAGED", message: str = "it cannot be read", **fields: Any) -> Job:
        job = add_running(**fields)
        session.store.leases.fail(job.lease, Failure(code, message, remedy="ask for another copy"), retry_at=None)
        return session.store.job_queries.get(job.id)

    return add
