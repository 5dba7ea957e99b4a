from __future__ import annotations

import os
import signal
from typing import Any

import httpx

from tests.kit.system import System, wait_until
from tests.web.conftest import settings_for, site_of
from worker_service.jobs.job import NewJob, Status
from worker_service.services.session import Session

COLUMNS = set(
    "id job_type platform account priority status payload error_message retry_count max_retries created_at started_at "
    "completed_at worker_id progress_percent progress_message".split()
)


def enqueue_job(session: Session, **fields: Any) -> int:
    return session.store.intake.enqueue(NewJob(**{"job_type": "scrape_account", **fields})).job_id


def test_jobs_are_listed_with_filters_and_all_columns_of_the_proposal(site: httpx.Client, session: Session) -> None:
    job_id = enqueue_job(session, platform="instagram", account="user123", payload='{"scrape_type": "full"}')
    enqueue_job(session, platform="tiktok")
    site.post(f"/api/jobs/{enqueue_job(session, platform='instagram')}/cancel").raise_for_status()

    answer = site.get("/api/jobs", params={"status": "pending", "platform": "instagram"})

    assert answer.status_code == 200
    [job] = answer.json()["items"]
    assert job["id"] == job_id
    assert job.keys() >= COLUMNS
    assert job["payload"] == {"scrape_type": "full"}
    assert (job["status"], job["priority"], job["retry_count"], job["max_retries"]) == ("pending", 5, 0, 3)


def test_one_job_is_shown_with_its_progress_and_an_unknown_one_is_refused(site: httpx.Client, session: Session) -> None:
    job_id = enqueue_job(session)

    found = site.get(f"/api/jobs/{job_id}").json()
    absent = site.get("/api/jobs/999")

    assert found.keys() >= COLUMNS
    assert (found["id"], found["progress_percent"], found["attempts"]) == (job_id, 0, [])
    assert (absent.status_code, absent.headers["content-type"]) == (404, "application/problem+json")
    assert absent.json()["code"] == "job_not_found"


def test_a_job_is_cancelled_retried_and_deleted(site: httpx.Client, session: Session) -> None:
    job_id = enqueue_job(session)

    def status() -> str:
        return str(site.get(f"/api/jobs/{job_id}").json()["status"])

    assert site.post(f"/api/jobs/{job_id}/cancel").status_code == 200
    assert status() == "cancelled"
    assert site.post(f"/api/jobs/{job_id}/cancel").json()["code"] == "refused"
    assert site.post(f"/api/jobs/{job_id}/retry").status_code == 200
    assert status() == "pending"
    assert site.delete(f"/api/jobs/{job_id}").status_code == 200
    assert site.get(f"/api/jobs/{job_id}").status_code == 404


def test_the_scheduler_status_counts_pending_jobs_by_platform(site: httpx.Client, session: Session) -> None:
    for platform in ("instagram", "instagram", "tiktok"):
        enqueue_job(session, platform=platform)

    assert site.get("/api/scheduler/status").json() == {
        "running": [],
        "pending_counts": [{"platform": "instagram", "count": 2}, {"platform": "tiktok", "count": 1}],
        "worker_healthy": False,
    }


def test_running_jobs_are_listed_by_start_and_a_dead_worker_is_not_healthy(system: System) -> None:
    daemon = system.start()
    first, second = system.enqueue("sleep", seconds=60), system.enqueue("sleep", seconds=60)
    system.wait_for_all(Status.RUNNING, 2)
    settings = settings_for(system.database)
    with site_of(settings) as site:
        alive = site.get("/api/scheduler/status").json()
        assert site.delete(f"/api/jobs/{first}").status_code == 409
        cancelled = site.post(f"/api/jobs/{first}/cancel")
        wait_until(lambda: system.status(first) is Status.CANCELLED, "its processes are gone")

        os.kill(daemon.pid, signal.SIGKILL)
        daemon.wait_for_exit()
        dead = site.get("/api/scheduler/status").json()

    assert alive["worker_healthy"] is True
    assert {job["id"] for job in alive["running"]} == {first, second}
    assert [job["started_at"] for job in alive["running"]] == sorted(job["started_at"] for job in alive["running"])
    assert (cancelled.status_code, cancelled.json()["asked"]) == (202, [first])
    assert (dead["worker_healthy"], [job["id"] for job in dead["running"]]) == (False, [second])
