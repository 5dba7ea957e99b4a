from __future__ import annotations

import csv
import io
from pathlib import Path

import httpx
import pytest

from tests.web.pages.conftest import AddJob
from tests.web.pages.html_page import open_page
from worker_service.jobs.batches import NewBatch
from worker_service.jobs.job import NewJob
from worker_service.jobs.selector import Selector
from worker_service.services.session import Session


@pytest.fixture
def batch(session: Session) -> int:
    jobs = [NewJob("ocr_pages", owner="ann", name=f"{name}.pdf") for name in ("one", "two")]
    return session.store.batches.add(NewBatch(owner="ann", name="reports"), jobs).batch.id


@pytest.fixture
def empty_batch(session: Session, batch: int) -> int:
    session.store.job_control.delete(Selector(batch_ids=(batch,)), actor="test")
    return batch


def test_without_batches_the_page_offers_to_start_one(site: httpx.Client) -> None:
    page = open_page(site, "/batches")

    assert "No batches yet" in page.text
    assert page.links["Start a batch…"] == "/batches/new"


def test_a_batch_is_stopped_and_resumed(site: httpx.Client, session: Session, batch: int) -> None:
    listed = open_page(site, "/batches")
    assert "reports" in listed.links

    stopped = open_page(site, f"/batches/{batch}").press(site, "Stop")
    assert "Batch stopped" in stopped.text
    assert session.store.batches.get(batch).state == "stopped"

    stopped.press(site, "Resume")
    assert session.store.batches.get(batch).state == "active"


def test_failed_files_of_a_batch_are_listed_and_retried(
    site: httpx.Client, session: Session, add_failed: AddJob, empty_batch: int
) -> None:
    add_failed("CONNECTION_LOST", batch_id=empty_batch, owner="ann", name="one.pdf")

    page = open_page(site, f"/batches/{empty_batch}")
    assert "Needs attention" in page.text
    assert "one.pdf" in page.links
    again = page.press(site, "Retry failed")

    assert "are being retried" in again.text
    assert session.store.batches.facts(empty_batch).jobs == {"pending": 1}


def test_a_failure_that_no_retry_can_mend_offers_no_retry(
    site: httpx.Client, session: Session, add_failed: AddJob, empty_batch: int
) -> None:
    add_failed("PDF_BROKEN", batch_id=empty_batch, owner="ann", name="one.pdf")

    page = open_page(site, f"/batches/{empty_batch}")

    assert "Upload again" in page.text
    assert "Retry failed" not in page.text


def test_cancelling_a_batch_needs_a_confirmation(site: httpx.Client, session: Session, batch: int) -> None:
    page = open_page(site, f"/batches/{batch}")

    confirmation = open_page(site, page.links["Cancel the rest…"])
    assert "2 jobs left" in confirmation.text
    assert f"pagemill batch cancel {batch}" in confirmation.text
    confirmation.press(site, "Cancel the rest")

    assert session.store.batches.facts(batch).jobs == {"cancelled": 2}


def test_the_file_list_of_a_batch_is_a_csv_without_formulas(
    site: httpx.Client, session: Session, add_failed: AddJob, empty_batch: int
) -> None:
    add_failed("NET", "gone", job_type="download", batch_id=empty_batch, owner="ann", name="=cmd()", source_key="a")

    answer = site.get(f"/documents.csv?batch={empty_batch}")

    assert answer.headers["content-type"].startswith("text/csv")
    assert "documents.csv" in answer.headers["content-disposition"]
    header, row = csv.reader(io.StringIO(answer.text))
    assert (header[1], row[1]) == ("NAME", "'=cmd()")


def test_a_batch_is_started_by_a_form_without_scripts(site: httpx.Client, session: Session, tmp_path: Path) -> None:
    for name in ("a.pdf", "b.pdf"):
        (tmp_path / name).write_bytes(b"%PDF")
    form = open_page(site, open_page(site, "/batches").links["Start a batch…"])

    refused = form.press(site, "Start", sources=f"{tmp_path}\nreports/", name="the first", owner="ann")
    done = refused.press(site, "Start", sources=f"{tmp_path}\n\n{tmp_path / 'a.pdf'}")

    assert "'reports/' is neither an absolute path" in refused.text
    assert "'owner' holds a NUL byte" in form.press(site, "Start", sources=f"{tmp_path}", owner="a\0").text
    assert f"{tmp_path} reports/" in refused.text
    assert "Batch queued" in done.text
    [batch] = session.store.batches.list(most=2)
    assert (batch.name, batch.owner, batch.priority) == ("the first", "ann", 3)
    assert sorted(job.name or "" for job in session.store.job_queries.list(Selector(batch_id=batch.id), most=9)) == [
        "a.pdf", "b.pdf",
    ]  # fmt: skip
