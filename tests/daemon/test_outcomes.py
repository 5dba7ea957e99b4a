"""Outcomes: what is written, together and retried, and published files."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.conftest import MakeAttempt, ManualClock, context_in, ended, status_and_code
from tests.store.kit import MovableClock, jobs_with_ids
from worker_service.base.errors import DiskFull
from worker_service.daemon.attempts import Attempt
from worker_service.daemon.outcomes import OutcomeWriter
from worker_service.daemon.publisher import Publisher
from worker_service.daemon.reporting import PATIENCE_SECONDS, StoreFailedTooLong
from worker_service.jobs.documents import DocumentFacts, DocumentRequest, RepublishedFile
from worker_service.jobs.job import NewJob, Status
from worker_service.jobs.retries import REQUEUES_MAX
from worker_service.runner.messages import How, Publication
from worker_service.store.store import Store


@pytest.fixture
def outcomes(store: Store, tmp_path: Path, clock: MovableClock, monotonic: ManualClock, log: Any) -> OutcomeWriter:
    context = context_in(tmp_path, store, log, clock, monotonic=monotonic)
    return OutcomeWriter(context, Publisher(tmp_path / "workspace", tmp_path / "staging"))


def staged(tmp_path: Path, attempt: Attempt, name: str = "text/page.txt") -> Path:
    file = tmp_path / "staging" / f"{attempt.job.id}-{attempt.job.fence}" / name
    file.parent.mkdir(parents=True)
    file.write_text("text")
    return file


def test_each_kind_of_end_gets_its_own_status_and_outcome(
    outcomes: OutcomeWriter, store: Store, make_attempt: MakeAttempt
) -> None:
    done, broken, asleep, stopped = (make_attempt() for _ in range(4))
    outcomes.add(done, ended(done, result='{"pages":3}'))
    outcomes.add(broken, ended(broken, How.PERMANENT, code="BROKEN", message="it broke"))
    outcomes.add(asleep, ended(asleep, How.SNOOZED, after_seconds=60.0))
    outcomes.add(stopped, ended(stopped, How.STOPPED))

    assert len(outcomes.write()) == 4
    assert len(outcomes) == 0
    assert [(store.job_queries.get(n).status.value, store.history.attempts(n)[0].outcome) for n in (1, 2, 3, 4)] == [
        ("completed", "completed"),
        ("failed", "failed"),
        ("pending", "snoozed"),
        ("pending", "released"),
    ]


def test_a_cancel_before_the_completion_wins_and_deletes_the_files(
    outcomes: OutcomeWriter, store: Store, make_attempt: MakeAttempt, tmp_path: Path
) -> None:
    attempt = make_attempt()
    store.job_control.cancel(jobs_with_ids(attempt.job.id), actor="test")
    outcomes.add(attempt, ended(attempt, published=[Publication(staged(tmp_path, attempt))]))

    outcomes.write()

    assert store.job_queries.get(attempt.job.id).status is Status.CANCELLED
    assert list((tmp_path / "workspace/objects").iterdir()) == []
    assert list((tmp_path / "staging").iterdir()) == []


def test_published_files_keep_their_paths_below_the_directory_of_the_attempt(
    outcomes: OutcomeWriter, make_attempt: MakeAttempt, tmp_path: Path
) -> None:
    attempt = make_attempt()
    outcomes.add(attempt, ended(attempt, published=[Publication(staged(tmp_path, attempt))]))

    outcomes.write()

    assert (tmp_path / f"workspace/objects/{attempt.job.id}-1/text/page.txt").read_text() == "text"
    assert list((tmp_path / "staging").iterdir()) == []


def test_a_missing_staged_file_fails_only_its_own_job(
    outcomes: OutcomeWriter, store: Store, make_attempt: MakeAttempt, tmp_path: Path
) -> None:
    robbed, whole = make_attempt(), make_attempt()
    lost = staged(tmp_path, robbed)
    outcomes.add(robbed, ended(robbed, published=[Publication(lost)]))
    outcomes.add(whole, ended(whole, published=[Publication(staged(tmp_path, whole))]))
    lost.unlink()

    assert len(outcomes.write()) == 2
    assert store.job_queries.get(whole.job.id).status is Status.COMPLETED
    row = store.job_queries.get(robbed.job.id)
    assert (row.status, row.error_code) == (Status.PENDING, "FILES_VANISHED")
    assert "page.txt" in (row.error_message or "")
    assert not list((tmp_path / "workspace" / "objects").glob(f"{robbed.job.id}-*"))


@pytest.mark.parametrize("linked", ["text/page.txt", "text", ""])
def test_no_file_is_published_through_a_link(
    outcomes: OutcomeWriter, store: Store, make_attempt: MakeAttempt, tmp_path: Path, linked: str
) -> None:
    attempt = make_attempt()
    file = staged(tmp_path, attempt)
    place = file.parent.parent / linked
    place.rename(tmp_path / "outside")
    place.symlink_to(tmp_path / "outside")
    outcomes.add(attempt, ended(attempt, published=[Publication(file)]))

    assert outcomes.write() == [attempt]

    assert status_and_code(store, attempt) == (Status.PENDING, "FILES_VANISHED")
    outside = (tmp_path / "outside").joinpath(file.relative_to(place))
    assert outside.read_text() == "text"
    assert not list((tmp_path / "workspace" / "objects").iterdir())


def test_no_job_fails_while_the_staging_directory_is_unmounted(
    outcomes: OutcomeWriter, store: Store, make_attempt: MakeAttempt, tmp_path: Path, monotonic: ManualClock
) -> None:
    attempt = make_attempt()
    outcomes.add(attempt, ended(attempt, published=[Publication(staged(tmp_path, attempt))]))
    (tmp_path / "staging").rename(tmp_path / "unmounted")

    assert outcomes.write() == []
    assert store.job_queries.get(attempt.job.id).status is Status.RUNNING

    (tmp_path / "unmounted").rename(tmp_path / "staging")
    monotonic.now += 2
    outcomes.write()

    assert store.job_queries.get(attempt.job.id).status is Status.COMPLETED


def test_nothing_is_published_under_a_lost_lease(
    outcomes: OutcomeWriter, store: Store, make_attempt: MakeAttempt, tmp_path: Path
) -> None:
    attempt = make_attempt()
    store.leases.requeue("w1")
    outcomes.add(attempt, ended(attempt, published=[Publication(staged(tmp_path, attempt))]))

    assert outcomes.write() == [attempt]

    assert list((tmp_path / "workspace/objects").iterdir()) == []
    assert store.job_queries.get(attempt.job.id).status is Status.PENDING


@pytest.mark.parametrize(
    "wish",
    [
        NewJob("next", payload="{no json"),
        NewJob("next", after=[2**70]),
        NewJob("next", run_at=datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))),
    ],
    ids=["no JSON", "a number that no row holds", "a time that no row holds"],
)
def test_a_result_that_the_store_rejects_fails_only_its_own_job(
    wish: NewJob, outcomes: OutcomeWriter, store: Store, make_attempt: MakeAttempt
) -> None:
    good, bad = make_attempt(), make_attempt()
    outcomes.add(bad, ended(bad, follow_ups=[wish]))
    outcomes.add(good, ended(good))

    outcomes.write()

    assert store.job_queries.get(good.job.id).status is Status.COMPLETED
    assert status_and_code(store, bad) == (Status.FAILED, "RESULT_REFUSED")


def test_an_outcome_that_cannot_be_written_is_retried(
    outcomes: OutcomeWriter,
    store: Store,
    make_attempt: MakeAttempt,
    monotonic: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempt = make_attempt()
    outcomes.add(attempt, ended(attempt))
    with monkeypatch.context() as full:
        full.setattr(store.leases, "complete_many", _refuse)
        assert outcomes.write() == []
        assert outcomes.again_at == 1.0
    monotonic.now = 1.0

    assert outcomes.write() == [attempt]
    assert store.job_queries.get(attempt.job.id).status is Status.COMPLETED


def test_the_daemon_must_exit_if_an_outcome_cannot_be_written_for_too_long(
    outcomes: OutcomeWriter,
    store: Store,
    make_attempt: MakeAttempt,
    monotonic: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempt = make_attempt()
    outcomes.add(attempt, ended(attempt))
    monkeypatch.setattr(store.leases, "complete_many", _refuse)
    outcomes.write()
    monotonic.now = PATIENCE_SECONDS + 1

    with pytest.raises(StoreFailedTooLong):
        outcomes.write()


def _refuse(*_: object) -> None:
    raise DiskFull("no room")


def test_cancelled_and_rejected_completions_are_written_once_the_store_works_again(
    outcomes: OutcomeWriter,
    store: Store,
    make_attempt: MakeAttempt,
    monotonic: ManualClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cancelled, refused = make_attempt(), make_attempt()
    outcomes.add(cancelled, ended(cancelled, published=[Publication(staged(tmp_path, cancelled))]))
    bad = [NewJob("next", payload="{no json")]
    outcomes.add(refused, ended(refused, published=[Publication(staged(tmp_path, refused))], follow_ups=bad))
    store.job_control.cancel(jobs_with_ids(cancelled.job.id), actor="test")
    with monkeypatch.context() as full:
        full.setattr(store.leases, "confirm_cancel", _refuse)
        full.setattr(store.leases, "fail", _refuse)
        assert outcomes.write() == []
        monotonic.now = 1.0
        assert outcomes.write() == []
    monotonic.now = 2.0

    assert len(outcomes.write()) == 2
    assert store.job_queries.get(cancelled.job.id).status is Status.CANCELLED
    assert status_and_code(store, refused) == (Status.FAILED, "RESULT_REFUSED")
    assert list((tmp_path / "workspace/objects").iterdir()) == []
    assert list((tmp_path / "staging").iterdir()) == []


def test_a_job_that_repeatedly_crashes_its_fork_server_fails(
    outcomes: OutcomeWriter, store: Store, make_attempt: MakeAttempt
) -> None:
    attempt = make_attempt(max_retries=0)

    for _ in range(REQUEUES_MAX):
        outcomes.add(attempt, ended(attempt, How.CRASHED, code="FORK_SERVER_DIED"))
        outcomes.write()
        assert store.job_queries.get(attempt.job.id).status is Status.PENDING
        [job] = store.leases.claim("w1", 1)
        attempt = Attempt(job, job.lease, "cpu")
    outcomes.add(attempt, ended(attempt, How.CRASHED, code="FORK_SERVER_DIED"))
    outcomes.write()

    assert status_and_code(store, attempt) == (Status.FAILED, "FORK_SERVER_DIED")


def test_a_handler_that_pauses_its_source_holds_all_jobs_of_the_source(
    outcomes: OutcomeWriter, store: Store, make_attempt: MakeAttempt
) -> None:
    attempt = make_attempt(source="drive")
    other = store.intake.enqueue(NewJob("ocr_pages", source="drive")).job_id
    end = ended(attempt, How.SNOOZED, after_seconds=600.0, pauses_source=True, message="the quota is used up")

    outcomes.add(attempt, end)
    outcomes.write()

    assert store.history.attempts(attempt.job.id)[0].outcome == "snoozed"
    assert [gate.code for gate in store.gates.explain(other)] == ["SOURCE_RESTING"]
    assert "quota" in store.gates.explain(other)[0].detail


def test_p5_a_completion_stores_its_files_with_role_name_size_and_digests(
    outcomes: OutcomeWriter, store: Store, make_attempt: MakeAttempt, tmp_path: Path
) -> None:
    attempt = make_attempt(document=DocumentRequest("/a.pdf", "a.pdf", "ab"))
    file = staged(tmp_path, attempt)
    published = Publication(file, "text", "Report.txt", "ab" * 32, "cd" * 16)

    outcomes.add(attempt, ended(attempt, published=[published], document=DocumentFacts(pages=3), publishes=True))
    outcomes.write()

    [row] = store.attempts.inputs(attempt.job.document_id or 0)
    assert (row.role, row.name, row.size, row.sha256, row.md5) == ("text", "Report.txt", 4, "ab" * 32, "cd" * 16)
    assert (tmp_path / "workspace" / row.path).read_text() == "text"


def test_an_attempt_that_republishes_a_removed_file_is_retried_and_delays_no_other(
    outcomes: OutcomeWriter, store: Store, make_attempt: MakeAttempt
) -> None:
    late, other = make_attempt(), make_attempt()

    outcomes.add(late, ended(late, published_again=[RepublishedFile(99, "original")]))
    outcomes.add(other, ended(other))
    assert len(outcomes.write()) == 2
    assert status_and_code(store, late) == (Status.PENDING, "FILE_FORGOTTEN")
    assert store.job_queries.get(other.job.id).status is Status.COMPLETED
