"""The first page says what needs somebody, what to press, and what runs."""

from __future__ import annotations

import httpx

from tests.cli.stored_documents import Shelf
from tests.store.kit import claim, work_as
from tests.web.pages.conftest import Make
from tests.web.pages.html_page import look
from worker_service.jobs.attempts import Failure
from worker_service.jobs.batches import NewBatch
from worker_service.jobs.job import NewJob, Status
from worker_service.services import job_control
from worker_service.services.database import Session


def test_where_nothing_has_come_in_it_says_what_to_do_first(site: httpx.Client) -> None:
    home = look(site, "/")

    assert "No documents yet" in home.text
    assert "pagemill batch add reports/" in home.text


def test_without_a_worker_it_says_how_to_start_one(site: httpx.Client, pending: Make) -> None:
    pending()

    home = look(site, "/")

    assert "No worker is running" in home.text
    assert "systemctl start pagemill" in home.text
    assert "pagemill run" in home.text


def test_failed_jobs_are_listed_with_a_retry_button_and_no_shell_command(
    site: httpx.Client, session: Session, worker: str
) -> None:
    session.store.intake.enqueue(NewJob("ocr_pages", max_retries=1))
    for _ in range(2):
        [job] = session.store.leases.claim(worker, 1)
        session.store.leases.fail(job.lease, Failure("PDF_DAMAGED", "it cannot be read"), retry_at=session.clock())
    home = look(site, "/")
    assert "1 file could not be read It cannot be read PDF_DAMAGED" in home.text
    assert "pagemill retry" not in home.text

    asked = home.press(site, "Retry…")
    assert "Retry 1 job?" in asked.text
    assert session.store.reading.get(job.id).status is Status.FAILED
    done = asked.press(site, "Retry 1 job")

    assert "1 job retried" in done.text
    assert session.store.reading.get(job.id).status is Status.PENDING


def test_where_nothing_can_start_it_says_why_and_shows_what_waits(
    site: httpx.Client, worker: str, pending: Make
) -> None:
    pending("made_up", name="report.pdf")

    home = look(site, "/")

    assert "No pending job can start" in home.text
    assert "report.pdf" in look(site, home.links["Show"]).links


def test_a_pause_is_told_and_lifted(site: httpx.Client, session: Session, pending: Make) -> None:
    pending()
    job_control.pause(session, "type", "ocr_pages", reason="the disk is being moved")

    home = look(site, "/")
    assert "Type ocr_pages is paused" in home.text
    assert "the disk is being moved" in home.text
    home.press(site, "Unpause")

    assert session.store.reading.pauses() == []


def test_what_runs_is_told_with_its_file_its_page_and_how_far_it_is(site: httpx.Client, running: Make) -> None:
    running(percent=18, message="page 8 of 44", name="report.pdf")

    home = look(site, "/")

    assert "report.pdf" in home.links
    assert "page 8 of 44" in home.text
    assert ("progress", "18") in [(tag, own.get("value")) for tag, own in home.tags]


def test_a_stopped_batch_can_be_resumed_from_there(site: httpx.Client, session: Session) -> None:
    added = session.store.batches.add(NewBatch(owner="ann", name="reports"), [NewJob("ocr_pages", owner="ann")])
    session.store.batches.stop(added.batch.id, actor="ann")

    home = look(site, "/")

    assert "Batch 1 (reports) is stopped" in home.text
    assert home.form("Resume").action == "/batches/1/resume"


def test_each_chart_has_its_table(site: httpx.Client, failed: Make) -> None:
    failed()

    home = look(site, "/")

    charts = [own for tag, own in home.tags if tag == "svg" and own.get("role") == "img"]
    assert len(charts) == 4
    assert all(own["aria-label"] for own in charts)
    assert sum(tag == "table" for tag, _ in home.tags) == 4
    assert "Jobs ended 1 in 24 hours" in home.text
    assert "Failures 1 in 24 hours" in home.text


def test_what_failed_of_a_document_that_was_read_since_needs_nobody(site: httpx.Client, session: Session) -> None:
    work_as(session.store)
    shelf = Shelf(session.store, session.settings.workspace)
    shelf.fail("a.pdf", "PDF_DAMAGED", "it cannot be read")
    shelf.fail("b.pdf", "PDF_DAMAGED", "it cannot be read")
    assert "2 files could not be read" in look(site, "/").text

    shelf.read("a.pdf", "now it can", content="c2")

    assert "b.pdf could not be read" in look(site, "/").text


def test_what_failed_after_its_document_was_read_still_needs_somebody(site: httpx.Client, session: Session) -> None:
    work_as(session.store)
    document_id = Shelf(session.store, session.settings.workspace).read("a.pdf", "text")
    hook = session.store.intake.enqueue(NewJob("action", document_id=document_id)).job_id
    session.store.leases.fail(claim(session.store).lease, Failure("GONE", "nobody listens"), retry_at=None)

    assert session.store.reading.get(hook).status is Status.FAILED
    assert "1 action job failed" in look(site, "/").text
