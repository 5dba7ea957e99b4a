"""Faults that the simulation has found, each in the few steps that it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.store.kit import jobs_with_ids, new_worker
from worker_service.base.errors import CancelRequested, LeaseLost
from worker_service.jobs.job import NewJob, Status
from worker_service.store.opening import initialise, open_store


def test_a_worker_that_wakes_after_its_cancelled_job_was_taken_back_hears_that_the_lease_is_lost(
    tmp_path: Path,
) -> None:
    """It was told that the job had yet to be cancelled, tried that, was told the same, and so on without end."""
    initialise(tmp_path / "pagemill.db")
    store = open_store(tmp_path / "pagemill.db")
    store.workers.register(new_worker("w1"))
    job_id = store.intake.enqueue(NewJob("ocr_pages")).job_id
    [job] = store.leases.claim("w1", 1)
    store.job_control.cancel(jobs_with_ids(job_id), actor="test")
    with pytest.raises(CancelRequested):
        store.leases.complete(job.lease)

    store.leases.requeue("w1")

    assert store.job_queries.get(job_id).status is Status.CANCELLED
    for late in (store.leases.confirm_cancel, store.leases.complete, store.leases.release):
        with pytest.raises(LeaseLost) as refusal:
            late(job.lease)
        assert refusal.type is LeaseLost
    store.close()
