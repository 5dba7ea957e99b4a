from __future__ import annotations

from pathlib import Path

import httpx

from tests.web.pages.conftest import AddJob
from tests.web.pages.html_page import open_page
from worker_service.jobs.attempts import Completion
from worker_service.jobs.documents import DocumentRequest
from worker_service.jobs.job import NewJob
from worker_service.services import schedules
from worker_service.services.session import Session


def request_of(name: str) -> NewJob:
    return NewJob("ocr_pages", name=name, owner="ann", payload='{"pages":"1-12"}', document=DocumentRequest(name, name))


def test_a_document_is_one_row_with_its_jobs_as_steps(site: httpx.Client, session: Session, worker: str) -> None:
    for name in ("one.pdf", "two.pdf"):
        session.store.intake.enqueue(request_of(name))
    [job] = session.store.leases.claim(worker, 1)
    session.store.intake.enqueue(NewJob("assemble", name="one.pdf", document_id=job.document_id, generation=1))

    page = open_page(site, "/queue")

    assert "Reading 1 document, 1 waiting" in page.text
    assert f"ann · started {job.started_at[:16] if job.started_at else ''}" in page.text
    assert "2 jobs" in page.text
    assert "Read pages 1–12 Running" in page.text
    assert "Put together Waiting" in page.text
    assert "two.pdf" in page.links
    moved = page.press(site, "To the front")
    assert "1 job reprioritised" in moved.text


def test_the_queue_page_pauses_resumes_and_changes_the_slots(site: httpx.Client, session: Session, worker: str) -> None:
    paused = open_page(site, "/queue").press(site, "Pause")
    assert "Everything is paused" in paused.text
    assert "Everything is paused" not in paused.press(site, "Resume").text

    more = open_page(site, "/queue")
    form = next(form for form in more.forms if ("slots", "5") in form.fields)
    headers = {"Origin": str(site.base_url).rstrip("/")}
    assert site.post(form.action, data=dict(form.fields), headers=headers).status_code == 303
    assert [worker.cpu_slots for worker in session.overview.workers()] == [5]
    assert "5 slots" in open_page(site, "/queue").text


def test_rates_of_the_last_hours_have_durations(site: httpx.Client, session: Session, add_running: AddJob) -> None:
    session.store.leases.complete_many([Completion(add_running("download").lease)])

    page = open_page(site, "/queue")

    assert "Fetching files 1 job" in page.text
    assert "a job on average" in page.text
    assert "Last 7 days" in open_page(site, "/queue?hours=168").text


def test_a_dismissed_failure_is_listed_again_after_undo(site: httpx.Client, add_failed: AddJob) -> None:
    add_failed("PDF_ENCRYPTED", name="locked.pdf")
    add_failed("NET", "the source cannot be reached", name="away.pdf")

    page = open_page(site, "/failures")
    assert "locked.pdf This PDF is locked with a password. Enter the password to read it." in page.text
    assert "away.pdf The source cannot be reached. Ask for another copy." in page.text
    assert "locked.pdf" not in open_page(site, "/failures?error=NET").text

    done = page.press(site, "Dismiss all 2")
    assert "2 failures dismissed" in done.text
    assert "Nothing needs attention" in done.text
    done.press(site, "Undo")
    assert "locked.pdf" in open_page(site, "/failures").text
    assert "1 job retried" in open_page(site, "/failures?error=NET").press(site, "Try again").text


def test_a_watched_folder_is_added_changed_paused_and_removed(
    site: httpx.Client, session: Session, tmp_path: Path
) -> None:
    form = open_page(site, "/schedules/new")
    refused = form.press(site, "Add schedule", name="scans", folder="/nowhere", kind="crawl", every="15m")
    assert "no directory /nowhere" in refused.text
    refused.press(site, "Add schedule", folder=str(tmp_path), kind="crawl", every="15m")

    [schedule] = schedules.list_schedules(session)
    assert (schedule.name, schedule.when) == ("scans", "Every 15 minutes")
    open_page(site, "/schedules/new?name=scans").press(site, "Save", kind="crawl", every="1h")
    assert "At the start of every hour (UTC)" in open_page(site, "/schedules").text
    assert "Paused" in open_page(site, "/schedules").press(site, "Pause").text
    removed = open_page(site, "/schedules").press(site, "Remove")
    assert "Schedule scans removed" in removed.text
    removed.press(site, "Undo")
    assert "scans" in open_page(site, "/schedules").text
