from __future__ import annotations

import httpx

from tests.cli.stored_documents import Shelf
from tests.store.kit import claim, page_range_jobs, save
from tests.web.conftest import bearer
from tests.web.pages.conftest import AddJob
from tests.web.pages.html_page import open_page
from worker_service.jobs.attempts import Completion, Failure
from worker_service.jobs.batches import NewBatch
from worker_service.jobs.documents import DocumentFacts
from worker_service.jobs.job import NewJob, Status
from worker_service.services import job_control, tags
from worker_service.services.failures import list_failures
from worker_service.services.session import Session
from worker_service.settings.config import Settings

# ── Documents ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_empty_home_says_how_to_add_documents(site: httpx.Client) -> None:
    home = open_page(site, "/")

    assert "No documents yet" in home.text
    assert "pagemill add reports/" in home.text
    assert home.links["Upload files…"] == "/upload"


def test_documents_that_were_read_are_counted_and_shown_newest_first(site: httpx.Client, shelf: Shelf) -> None:
    shelf.read("old.pdf", "one page")
    shelf.read("new.pdf", "one", "two", content="c2")

    home = open_page(site, "/")

    assert "Search 2 documents" in home.text
    assert home.text.index("new.pdf 2 pages") < home.text.index("old.pdf 1 page")


def test_progress_has_one_unit_and_no_estimate_before_the_pages_are_counted(
    site: httpx.Client, session: Session, shelf: Shelf
) -> None:
    job = shelf.wish("minutes.pdf")
    assert "minutes.pdf Counting pages, no estimate yet" in open_page(site, "/").text

    save(session.store, job.lease, "a", "b", "c")
    counted = Completion(job.lease, follow_ups=page_range_jobs((4, 412)), document=DocumentFacts("pdf", 412))
    session.store.leases.complete_many([counted])

    home = open_page(site, "/")
    assert "Page 3 of 412" in home.text
    assert {"max": "412", "value": "3", "aria-label": "minutes.pdf"} in [own for tag, own in home.tags]
    assert home.links["minutes.pdf"] == f"/documents/{job.document_id}"


def test_a_batch_of_several_files_is_one_entry_with_its_files_counted(site: httpx.Client, session: Session) -> None:
    jobs = [NewJob("download", platform="local", source_key=name) for name in "ab"]
    session.store.batches.add(NewBatch(name="reports"), jobs)

    home = open_page(site, "/")

    assert "reports 0 of 2 files · no estimate yet" in home.text
    assert home.links["reports"] == "/batches/1"


def test_a_batch_that_has_found_no_file_yet_is_shown(site: httpx.Client, session: Session) -> None:
    session.store.batches.add(NewBatch(name="reports"), [NewJob("crawl", platform="local")])

    home = open_page(site, "/")

    assert home.links["reports"] == "/batches/1"
    assert "No documents yet" not in home.text


def test_batches_of_one_file_do_not_displace_an_older_batch(site: httpx.Client, session: Session) -> None:
    for name, files in [("reports", "ab"), *((f"single-{number}", str(number)) for number in range(7))]:
        jobs = [NewJob("download", platform="local", source_key=f"{name}/{file}") for file in files]
        session.store.batches.add(NewBatch(name=name), jobs)

    assert open_page(site, "/").links["reports"] == "/batches/1"


# ── Needs attention ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_failure_is_a_file_a_sentence_and_one_action(site: httpx.Client, session: Session, shelf: Shelf) -> None:
    shelf.fail("slow.pdf", "TIMED_OUT", "it took 300 s")
    shelf.fail("broken.pdf", "PDF_BROKEN", "code=7")

    home = open_page(site, "/")
    assert "slow.pdf This took longer than its time limit and was stopped." in home.text
    assert "broken.pdf This file is damaged and cannot be opened." in home.text
    assert "code=7" not in home.text
    assert home.links["Upload again…"] == "/upload?again=2"

    again = home.press(site, "Try again")
    assert "1 job retried" in again.text
    assert "took longer" not in again.text
    assert session.store.job_queries.get(1).status is Status.PENDING


def test_a_good_copy_replaces_the_failure_of_a_broken_file(
    site: httpx.Client, settings: Settings, session: Session, shelf: Shelf
) -> None:
    document_id = shelf.fail("broken.pdf", "PDF_BROKEN", "it cannot be read")
    tags.add_tags(session, [document_id], ["invoice"])
    document, job = open_page(site, f"/documents/{document_id}"), open_page(site, "/jobs/1")
    upload = open_page(site, document.links["Upload again…"])
    files, fields = {"file": ("good.csv", b"a,b")}, {"replaces": "1"}

    theirs = site.post("/api/uploads", files=files, data=fields, headers=bearer(settings, "bob", owner="bob"))
    assert (theirs.status_code, len(list_failures(session, None).items)) == (201, 1)
    answer = site.post("/upload", files=files, data=fields)

    assert "Read again…" not in document.links
    assert "Retry" not in job.text
    assert ("input", "invoice") in [(tag, own.get("value")) for tag, own in upload.tags]
    assert answer.status_code == 303
    assert list_failures(session, None).items == []


def test_failures_are_dismissed_one_by_one_or_all(site: httpx.Client, shelf: Shelf) -> None:
    for name in ("a.pdf", "b.pdf", "c.pdf"):
        shelf.fail(name, "PDF_BROKEN", "it cannot be read")

    dismissed = open_page(site, "/").press(site, "")
    assert [name in dismissed.links for name in ("a.pdf", "b.pdf", "c.pdf")] == [True, True, False]

    none = dismissed.press(site, "Dismiss all 2 files")
    assert "Needs attention" not in none.text
    assert "b.pdf" in none.press(site, "Undo").links


def test_a_failed_action_names_its_document(site: httpx.Client, session: Session, shelf: Shelf) -> None:
    document_id = shelf.read("a.pdf", "text")
    session.store.intake.enqueue(NewJob("action", document_id=document_id))
    session.store.leases.fail(claim(session.store).lease, Failure("GONE", "nobody listens"), retry_at=None)

    home = open_page(site, "/")

    assert "Needs attention" in home.text
    assert home.links["a.pdf"] == f"/documents/{document_id}"


def test_home_without_a_worker_says_how_to_start_one(site: httpx.Client, add_pending: AddJob) -> None:
    add_pending()

    home = open_page(site, "/")

    assert "No worker is running" in home.text
    assert "systemctl start pagemill" in home.text


def test_home_says_why_no_job_can_start(site: httpx.Client, worker: str, add_pending: AddJob) -> None:
    add_pending("made_up", name="report.pdf")

    home = open_page(site, "/")

    assert "No pending job can start" in home.text
    assert "report.pdf" in open_page(site, home.links["Show"]).links


def test_a_pause_is_shown_and_lifted(site: httpx.Client, session: Session, add_pending: AddJob) -> None:
    add_pending()
    job_control.pause(session, "type", "ocr_pages", reason="the disk is being moved")

    home = open_page(site, "/")
    assert "Type ocr_pages is paused The disk is being moved" in home.text
    home.press(site, "Resume")

    assert session.store.job_queries.pauses() == []


def test_a_stopped_batch_can_be_resumed_from_home(site: httpx.Client, session: Session) -> None:
    added = session.store.batches.add(NewBatch(owner="ann", name="reports"), [NewJob("ocr_pages", owner="ann")])
    session.store.batches.stop(added.batch.id, actor="ann")

    home = open_page(site, "/")

    assert "Batch 1 (reports) is stopped" in home.text
    assert home.form("Resume").action == "/batches/1/resume"


# ── System ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_system_shows_the_machine_and_each_chart_has_its_table(site: httpx.Client, add_failed: AddJob) -> None:
    add_failed()

    system = open_page(site, "/system")

    charts = [own for tag, own in system.tags if tag == "svg" and own.get("role") == "img"]
    assert len(charts) == 4
    assert all(own["aria-label"] for own in charts)
    assert sum(tag == "table" for tag, _ in system.tags) == 4
    assert "Jobs ended 1 in 24 hours" in system.text
    assert "Failures 1 in 24 hours" in system.text
    assert "Disk free" in system.text
