from __future__ import annotations

import httpx
import pytest

from tests.cli.stored_documents import Shelf
from tests.web.pages.conftest import Make
from tests.web.pages.html_page import open_page
from worker_service.jobs.attempts import Report
from worker_service.jobs.job import NewJob, Status
from worker_service.jobs.selector import Selector
from worker_service.services.session import Session

HOSTILE = '<script>alert(1)</script>" onload="x \u202egnp.exe\x1b[2J'


def test_the_address_chooses_by_the_words_of_the_command_line(site: httpx.Client, pending: Make) -> None:
    pending(name="one.pdf", owner="ann")
    pending("download", name="two.pdf", owner="bob")

    found = open_page(site, "/jobs?type=download&owner=bob&status=pending")

    assert "two.pdf" in found.links
    assert "one.pdf" not in found.links
    assert "pagemill ls --type download --owner bob --status pending" in found.text


def test_the_jobs_of_a_document_are_one_row_with_one_tick(site: httpx.Client, session: Session) -> None:
    shelf = Shelf(session.store, session.settings.workspace)
    shelf.ask("report.pdf", "ann")
    session.store.intake.enqueue(NewJob("assemble", document_id=1, generation=1))
    session.store.intake.enqueue(NewJob("download", name="other.pdf"))

    jobs = open_page(site, "/jobs")
    asked = jobs.press(site, "Cancel…", ticked=("2,1",), scope="ticked")

    assert "report.pdf ann · " in jobs.text
    assert "2 pending 2 jobs" in jobs.text
    assert [jobs.links[one] for one in ("other.pdf", "assemble 2", "ingest 1")] == ["/jobs/3", "/jobs/2", "/jobs/1"]
    assert "Cancel 2 jobs?" in asked.text


def test_ticked_jobs_are_changed_after_a_preview_and_the_change_is_undone(
    site: httpx.Client, session: Session, pending: Make
) -> None:
    one, two, three = pending(), pending(), pending()

    asked = open_page(site, "/jobs").press(site, "Cancel…", ticked=(str(one.id), str(three.id)), scope="ticked")
    assert "Cancel 2 jobs?" in asked.text
    assert f"pagemill cancel {three.id} {one.id}" in asked.text
    done = asked.press(site, "Cancel 2 jobs")

    assert "2 jobs cancelled" in done.text
    assert [session.store.job_queries.get(job.id).status for job in (one, two, three)] == [
        "cancelled",
        "pending",
        "cancelled",
    ]
    undone = done.press(site, "Undo")
    assert "Undone" in undone.text
    assert session.store.job_queries.count(Selector(statuses=(Status.PENDING,))) == 3


def test_a_change_of_all_matching_jobs_uses_the_filters_of_the_url(
    site: httpx.Client, session: Session, pending: Make
) -> None:
    mine = [pending(owner="ann") for _ in range(60)]
    other = pending(owner="bob")

    asked = open_page(site, "/jobs?owner=ann").press(site, "Set priority…", scope="all", priority="2")
    assert "60 jobs" in asked.text
    asked.press(site, asked.form("Set the priority of 60 jobs").buttons[0][2])

    assert {session.store.job_queries.get(job.id).priority for job in mine} == {2}
    assert session.store.job_queries.get(other.id).priority == 5


def test_where_nothing_is_ticked_nothing_is_done(site: httpx.Client, session: Session, pending: Make) -> None:
    pending(owner="ann")

    done = open_page(site, "/jobs?owner=ann").press(site, "Delete…", scope="ticked")

    assert "Nothing to do" in done.text
    assert session.store.job_queries.count(Selector()) == 1


def test_the_page_of_a_job_shows_all_of_it(site: httpx.Client, session: Session, running: Make) -> None:
    job = running(name="report.pdf", payload='{"pages": [1, 12]}', percent=40, message="page 5, 4 of 12 done")
    session.store.leases.report([Report(job.lease, lines=["first line", "second line"])])

    page = open_page(site, f"/jobs/{job.id}")

    for told in (
        "report.pdf",
        "Attempt 1 started",
        "first line",
        "second line",
        '"pages"',
        "40 %",
        "page 5, 4 of 12 done",
    ):
        assert told in page.text
    page.press(site, "Cancel")
    assert session.store.job_queries.get(job.id).cancel_requested_at is not None


def test_a_job_that_waits_says_why(site: httpx.Client, pending: Make) -> None:
    job = pending()

    page = open_page(site, f"/jobs/{job.id}")

    assert "WORKER_DOWN" in page.text
    assert "pagemill run" in page.text


def test_a_preview_stops_in_time_and_the_change_covers_all_matches(
    site: httpx.Client, session: Session, pending: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    rare = [pending("download", platform="drive") for _ in range(3)]
    for _ in range(5):
        pending()
    monkeypatch.setattr("worker_service.services.jobs._FIRST_RANGE_IDS", 2)
    monkeypatch.setattr("worker_service.web.views.jobs.SEARCH_SECONDS_MAX", 0.0)

    asked = open_page(site, "/jobs/change?verb=cancel&scope=all&platform=drive")
    assert "Cancel all jobs that match?" in asked.text
    assert "pagemill cancel --platform drive --dry-run" in asked.text
    many = open_page(site, "/jobs/change?verb=cancel&scope=all&platform=local")
    assert "Cancel at least 2 jobs?" in many.text
    done = asked.press(site, "Cancel all that match")

    assert "3 jobs cancelled" in done.text
    cancelled = session.store.job_queries.list(Selector(statuses=(Status.CANCELLED,)))
    assert sorted(job.id for job in cancelled) == [job.id for job in rare]


def test_a_job_is_enqueued_by_a_form_without_any_script(site: httpx.Client, session: Session) -> None:
    form = open_page(site, open_page(site, "/jobs").links["Enqueue a job…"])

    done = form.press(
        site, "Enqueue", job_type="scrape", payload='{"page": [1, 2]}', priority="2", name="the first", owner="ann"
    )

    assert "Job queued" in done.text
    [job] = session.store.job_queries.list(Selector(), most=2)
    assert (job.job_type, job.payload, job.priority, job.name, job.owner) == (
        "scrape", '{"page": [1, 2]}', 2, "the first", "ann",
    )  # fmt: skip


@pytest.mark.parametrize("payload", ["{", "@/etc/passwd", "-", "NaN"])
def test_an_invalid_payload_is_shown_again_with_the_problem(site: httpx.Client, session: Session, payload: str) -> None:
    form = open_page(site, "/jobs/new?job_type=filled-in")
    assert "filled-in" not in form.answer.text

    again = form.press(site, "Enqueue", job_type="scrape", payload=payload)

    assert again.answer.status_code == 422
    assert "the payload is not JSON" in again.text
    assert payload in again.text
    assert 'value="scrape"' in again.answer.text
    assert not session.store.job_queries.list(Selector(), most=2)
