from __future__ import annotations

import httpx
import pytest

from tests.cli.stored_documents import Shelf
from tests.web.pages.conftest import AddJob
from tests.web.pages.html_page import open_page
from worker_service.jobs.attempts import Report
from worker_service.jobs.job import NewJob, Status
from worker_service.jobs.selector import Selector
from worker_service.services.session import Session


def test_the_url_filters_jobs_by_the_options_of_the_command_line(site: httpx.Client, add_pending: AddJob) -> None:
    add_pending(name="one.pdf", owner="ann")
    add_pending("download", name="two.pdf", owner="bob")

    page = open_page(site, "/jobs?type=download&owner=bob&status=pending")

    assert "two.pdf" in page.links
    assert "one.pdf" not in page.links
    assert "pagemill ls --type download --owner bob --status pending" in page.text


def test_the_jobs_of_a_document_are_one_row_with_one_tick(site: httpx.Client, session: Session) -> None:
    shelf = Shelf(session.store, session.settings.workspace)
    shelf.ask("report.pdf", "ann")
    session.store.intake.enqueue(NewJob("assemble", document_id=1, generation=1))
    session.store.intake.enqueue(NewJob("download", name="other.pdf"))

    jobs = open_page(site, "/jobs")
    preview = jobs.press(site, "Cancel…", ticked=("2,1",), scope="ticked")

    assert "report.pdf ann · " in jobs.text
    assert "2 pending 2 jobs" in jobs.text
    assert [jobs.links[name] for name in ("other.pdf", "assemble 2", "ingest 1")] == ["/jobs/3", "/jobs/2", "/jobs/1"]
    assert "Cancel 2 jobs?" in preview.text


def test_ticked_jobs_are_changed_after_a_preview_and_the_change_is_undone(
    site: httpx.Client, session: Session, add_pending: AddJob
) -> None:
    first, second, third = add_pending(), add_pending(), add_pending()

    preview = open_page(site, "/jobs").press(site, "Cancel…", ticked=(str(first.id), str(third.id)), scope="ticked")
    assert "Cancel 2 jobs?" in preview.text
    assert f"pagemill cancel {third.id} {first.id}" in preview.text
    done = preview.press(site, "Cancel 2 jobs")

    assert "2 jobs cancelled" in done.text
    assert [session.store.job_queries.get(job.id).status for job in (first, second, third)] == [
        "cancelled",
        "pending",
        "cancelled",
    ]
    undone = done.press(site, "Undo")
    assert "Undone" in undone.text
    assert session.store.job_queries.count(Selector(statuses=(Status.PENDING,))) == 3


def test_a_change_of_all_matching_jobs_uses_the_filters_of_the_url(
    site: httpx.Client, session: Session, add_pending: AddJob
) -> None:
    mine = [add_pending(owner="ann") for _ in range(60)]
    other = add_pending(owner="bob")

    preview = open_page(site, "/jobs?owner=ann").press(site, "Set priority…", scope="all", priority="2")
    assert "60 jobs" in preview.text
    preview.press(site, preview.form("Set the priority of 60 jobs").buttons[0][2])

    assert {session.store.job_queries.get(job.id).priority for job in mine} == {2}
    assert session.store.job_queries.get(other.id).priority == 5


def test_without_ticked_jobs_nothing_is_changed(site: httpx.Client, session: Session, add_pending: AddJob) -> None:
    add_pending(owner="ann")

    done = open_page(site, "/jobs?owner=ann").press(site, "Delete…", scope="ticked")

    assert "Nothing to do" in done.text
    assert session.store.job_queries.count(Selector()) == 1


def test_a_job_shows_its_attempts_log_payload_and_progress(
    site: httpx.Client, session: Session, add_running: AddJob
) -> None:
    job = add_running(name="report.pdf", payload='{"pages": [1, 12]}', percent=40, message="page 5, 4 of 12 done")
    session.store.leases.report([Report(job.lease, lines=["first line", "second line"])])

    page = open_page(site, f"/jobs/{job.id}")

    for text in (
        "report.pdf",
        "Attempt 1 started",
        "first line",
        "second line",
        '"pages"',
        "40 %",
        "page 5, 4 of 12 done",
    ):
        assert text in page.text
    page.press(site, "Cancel")
    assert session.store.job_queries.get(job.id).cancel_requested_at is not None


def test_a_waiting_job_shows_its_gate(site: httpx.Client, add_pending: AddJob) -> None:
    job = add_pending()

    page = open_page(site, f"/jobs/{job.id}")

    assert "WORKER_DOWN" in page.text
    assert "pagemill run" in page.text


def test_a_preview_stops_in_time_and_the_change_covers_all_matches(
    site: httpx.Client, session: Session, add_pending: AddJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    rare = [add_pending("download", platform="drive") for _ in range(3)]
    for _ in range(5):
        add_pending()
    monkeypatch.setattr("worker_service.services.jobs._FIRST_RANGE_IDS", 2)
    monkeypatch.setattr("worker_service.web.views.jobs.SEARCH_SECONDS_MAX", 0.0)

    preview = open_page(site, "/jobs/change?verb=cancel&scope=all&platform=drive")
    assert "Cancel all jobs that match?" in preview.text
    assert "pagemill cancel --platform drive --dry-run" in preview.text
    partial = open_page(site, "/jobs/change?verb=cancel&scope=all&platform=local")
    assert "Cancel at least 2 jobs?" in partial.text
    done = preview.press(site, "Cancel all that match")

    assert "3 jobs cancelled" in done.text
    cancelled = session.store.job_queries.list(Selector(statuses=(Status.CANCELLED,)))
    assert sorted(job.id for job in cancelled) == [job.id for job in rare]


def test_a_job_is_enqueued_by_a_form_without_scripts(site: httpx.Client, session: Session) -> None:
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
