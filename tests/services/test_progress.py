"""Rate, time left and silence of a running job."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from msgspec.structs import replace

from tests.store.kit import MovableClock, new_worker
from worker_service.base.clock import from_text
from worker_service.jobs.attempts import Count, Report
from worker_service.jobs.job import Job, NewJob
from worker_service.jobs.progress import Pace, pace_of
from worker_service.jobs.workers import HandlerFacts
from worker_service.services.job_advice import why
from worker_service.services.jobs import progress_in_words
from worker_service.services.session import Session


@pytest.fixture
def session(session: Session) -> Session:
    session.store.workers.register(replace(new_worker(), handlers=[HandlerFacts("ocr_pages", timeout_seconds=7200)]))
    return session


def running(session: Session, percent: float, message: str = "", count: Count | None = None) -> Job:
    session.store.intake.enqueue(NewJob("ocr_pages"))
    [job] = session.store.leases.claim("w1", 1, "cpu")
    session.store.leases.report([Report(job.lease, percent, message, count=count)])
    return session.job_queries.get(job.id)


def advanced(job: Job, seconds: float) -> tuple[Job, datetime]:
    """Return the job as it had last advanced `seconds` after its start, and that time."""
    assert job.started_at is not None
    at = from_text(job.started_at) + timedelta(seconds=seconds)
    return job._replace(progress_at=at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]), at


def test_rate_and_time_left_are_computed_from_the_count_and_not_the_message(session: Session) -> None:
    job, at = advanced(running(session, 20, "page 99 of 100 is hard", Count(2, 10, "pages")), 60)

    assert pace_of(job, at) == Pace(rate=2 / 60, seconds_left=240)
    assert progress_in_words(job, now=at) == "page 99 of 100 is hard · 2 pages/min · 4 min left"

    job, at = advanced(running(session, 20, "pages 5 of 10"), 60)
    assert progress_in_words(job, now=at) == "pages 5 of 10 · 4 min left"


def test_the_rate_of_the_handler_replaces_the_average(session: Session) -> None:
    job, at = advanced(running(session, 50, "", Count(5_000_000, 10_000_000, "bytes", rate=1_000_000)), 500)

    assert progress_in_words(job, now=at) == "5,000,000 of 10,000,000 bytes · 1.0 MB/s · 5 s left"


@pytest.mark.parametrize("rate", [0.0, 0.5], ids=["nothing comes", "a byte now and then"])
def test_a_stalled_download_has_no_time_left(session: Session, rate: float) -> None:
    job, at = advanced(running(session, 50, "1.0 MB of 3.2 MB", Count(1_000_000, 3_200_000, "bytes", rate)), 60)

    assert "left" not in progress_in_words(job, now=at)


def test_a_silent_job_has_no_estimate(session: Session) -> None:
    job, at = advanced(running(session, 20, "page 2 of 10", Count(2, 10, "pages")), 4)

    assert pace_of(job, at + timedelta(seconds=14)).silent_seconds is None
    assert progress_in_words(job, now=at + timedelta(seconds=16)) == "page 2 of 10 · no progress for 16 s"

    # At a page a minute, twenty seconds without one are no silence.
    slow_job, at = advanced(job, 120)
    assert progress_in_words(slow_job, now=at + timedelta(seconds=20)) == "page 2 of 10 · 1 pages/min · 8 min left"


def test_why_returns_the_silence_of_a_running_job_and_how_to_stop_it(session: Session, clock: MovableClock) -> None:
    job = running(session, 20, "page 2 of 10")
    clock.advance(60)

    reasons = why(session, job.id)

    assert (reasons.silent_seconds, reasons.limit_seconds) == (60, 7200)
    assert reasons.helps == f"to stop it at once: pagemill cancel {job.id} --now"
