"""Ends are written: together, each as what it is, and never half."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.conftest import MakeAttempt, Watch, context_in, ended
from tests.store.kit import MovableClock, ids
from worker_service.base.errors import DiskFull
from worker_service.daemon.attempts import Attempt
from worker_service.daemon.outcomes import OutcomeWriter
from worker_service.daemon.publisher import Publisher
from worker_service.daemon.reporting import PATIENCE_SECONDS, CannotLand
from worker_service.jobs.documents import DocumentFacts, DocumentRequest, RepublishedFile
from worker_service.jobs.job import NewJob, Status
from worker_service.jobs.retries import REQUEUES_MAX
from worker_service.runner.messages import How, Publication
from worker_service.store.store import Store


@pytest.fixture
def outcomes(store: Store, tmp_path: Path, clock: MovableClock, watch: Watch, log: Any) -> OutcomeWriter:
    context = context_in(tmp_path, store, log, clock, monotonic=watch)
    return OutcomeWriter(context, Publisher(tmp_path / "workspace", tmp_path / "staging"))


def staged(tmp_path: Path, attempt: Attempt, name: str = "text/page.txt") -> Path:
    file = tmp_path / "staging" / f"{attempt.job.id}-{attempt.job.fence}" / name
    file.parent.mkdir(parents=True)
    file.write_text("text")
    return file


def test_several_ends_land_each_as_what_it_is(outcomes: OutcomeWriter, store: Store, attempt: MakeAttempt) -> None:
    done, broken, asleep, stopped = (attempt() for _ in range(4))
    outcomes.add(done, ended(done, result='{"pages":3}'))
    outcomes.add(broken, ended(broken, How.PERMANENT, code="BROKEN", message="it broke"))
    outcomes.add(asleep, ended(asleep, How.SNOOZED, after_seconds=60.0))
    outcomes.add(stopped, ended(stopped, How.STOPPED))

    landed = outcomes.write()

    assert {one.job.id for one in landed} == {1, 2, 3, 4}
    assert [store.job_queries.get(n).status for n in (1, 2, 3, 4)] == [
        Status.COMPLETED, Status.FAILED, Status.PENDING, Status.PENDING,
    ]  # fmt: skip
    assert [store.history.attempts(n)[0].outcome for n in (1, 2, 3, 4)] == [
        "completed",
        "failed",
        "snoozed",
        "released",
    ]
    assert len(outcomes) == 0


def test_a_cancel_in_the_last_moment_wins_and_removes_the_files(
    outcomes: OutcomeWriter, store: Store, attempt: MakeAttempt, tmp_path: Path
) -> None:
    one = attempt()
    store.job_control.cancel(ids(one.job.id), actor="test")
    outcomes.add(one, ended(one, published=[Publication(staged(tmp_path, one))]))

    outcomes.write()

    assert store.job_queries.get(one.job.id).status is Status.CANCELLED
    assert list((tmp_path / "workspace/objects").iterdir()) == []
    assert list((tmp_path / "staging").iterdir()) == []


def test_files_keep_their_names_below_the_attempts_own_place(
    outcomes: OutcomeWriter, attempt: MakeAttempt, tmp_path: Path
) -> None:
    one = attempt()
    outcomes.add(one, ended(one, published=[Publication(staged(tmp_path, one))]))

    outcomes.write()

    assert (tmp_path / f"workspace/objects/{one.job.id}-1/text/page.txt").read_text() == "text"
    assert list((tmp_path / "staging").iterdir()) == []


def test_a_staged_file_that_somebody_removes_fails_its_own_job_and_the_others_land(
    outcomes: OutcomeWriter, store: Store, attempt: MakeAttempt, tmp_path: Path
) -> None:
    robbed, whole = attempt(), attempt()
    lost = staged(tmp_path, robbed)
    outcomes.add(robbed, ended(robbed, published=[Publication(lost)]))
    outcomes.add(whole, ended(whole, published=[Publication(staged(tmp_path, whole))]))
    lost.unlink()

    landed = outcomes.write()

    assert {one.job.id for one in landed} == {robbed.job.id, whole.job.id}
    assert store.job_queries.get(whole.job.id).status is Status.COMPLETED
    row = store.job_queries.get(robbed.job.id)
    assert (row.status, row.error_code) == (Status.PENDING, "FILES_VANISHED")
    assert "page.txt" in (row.error_message or "")
    assert not list((tmp_path / "workspace" / "objects").glob(f"{robbed.job.id}-*"))


@pytest.mark.parametrize("linked", ["text/page.txt", "text", ""])
def test_no_file_is_published_through_a_link(
    outcomes: OutcomeWriter, store: Store, attempt: MakeAttempt, tmp_path: Path, linked: str
) -> None:
    one = attempt()
    file = staged(tmp_path, one)
    place = file.parent.parent / linked
    place.rename(tmp_path / "outside")
    place.symlink_to(tmp_path / "outside")
    outcomes.add(one, ended(one, published=[Publication(file)]))

    assert outcomes.write() == [one]

    row = store.job_queries.get(one.job.id)
    assert (row.status, row.error_code) == (Status.PENDING, "FILES_VANISHED")
    outside = (tmp_path / "outside").joinpath(file.relative_to(place))
    assert outside.read_text() == "text"
    assert not list((tmp_path / "workspace" / "objects").iterdir())


def test_while_the_whole_staging_directory_is_away_nobodys_job_is_failed(
    outcomes: OutcomeWriter, store: Store, attempt: MakeAttempt, tmp_path: Path, watch: Watch
) -> None:
    one = attempt()
    outcomes.add(one, ended(one, published=[Publication(staged(tmp_path, one))]))
    (tmp_path / "staging").rename(tmp_path / "unmounted")

    assert outcomes.write() == []
    assert store.job_queries.get(one.job.id).status is Status.RUNNING

    (tmp_path / "unmounted").rename(tmp_path / "staging")
    watch.now += 2
    outcomes.write()

    assert store.job_queries.get(one.job.id).status is Status.COMPLETED


def test_nothing_is_published_under_a_lost_lease(
    outcomes: OutcomeWriter, store: Store, attempt: MakeAttempt, tmp_path: Path
) -> None:
    one = attempt()
    store.leases.requeue("w1")
    outcomes.add(one, ended(one, published=[Publication(staged(tmp_path, one))]))

    assert outcomes.write() == [one]

    assert list((tmp_path / "workspace/objects").iterdir()) == []
    assert store.job_queries.get(one.job.id).status is Status.PENDING


@pytest.mark.parametrize(
    "wish",
    [
        NewJob("next", payload="{no json"),
        NewJob("next", after=[2**70]),
        NewJob("next", run_at=datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))),
    ],
    ids=["no JSON", "a number that no row holds", "a time that no row holds"],
)
def test_a_result_that_the_table_refuses_fails_its_own_job_only(
    wish: NewJob, outcomes: OutcomeWriter, store: Store, attempt: MakeAttempt
) -> None:
    good, bad = attempt(), attempt()
    outcomes.add(bad, ended(bad, follow_ups=[wish]))
    outcomes.add(good, ended(good))

    outcomes.write()

    assert store.job_queries.get(good.job.id).status is Status.COMPLETED
    assert (store.job_queries.get(bad.job.id).status, store.job_queries.get(bad.job.id).error_code) == (
        Status.FAILED,
        "RESULT_REFUSED",
    )


def test_an_end_that_cannot_be_written_is_tried_again_until_it_can(
    outcomes: OutcomeWriter, store: Store, attempt: MakeAttempt, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = attempt()
    outcomes.add(one, ended(one))
    with monkeypatch.context() as full:
        full.setattr(store.leases, "complete_many", _refuse)
        assert outcomes.write() == []
        assert outcomes.again_at == 1.0
    watch.now = 1.0

    assert outcomes.write() == [one]
    assert store.job_queries.get(one.job.id).status is Status.COMPLETED


def test_when_it_cannot_be_written_for_too_long_the_daemon_is_to_exit(
    outcomes: OutcomeWriter, store: Store, attempt: MakeAttempt, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = attempt()
    outcomes.add(one, ended(one))
    monkeypatch.setattr(store.leases, "complete_many", _refuse)
    outcomes.write()
    watch.now = PATIENCE_SECONDS + 1

    with pytest.raises(CannotLand):
        outcomes.write()


def _refuse(*_: object) -> None:
    raise DiskFull("no room")


def test_an_end_that_is_refused_while_nothing_can_be_written_lands_later_as_what_it_is(
    outcomes: OutcomeWriter,
    store: Store,
    attempt: MakeAttempt,
    watch: Watch,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cancelled, refused = attempt(), attempt()
    outcomes.add(cancelled, ended(cancelled, published=[Publication(staged(tmp_path, cancelled))]))
    bad = [NewJob("next", payload="{no json")]
    outcomes.add(refused, ended(refused, published=[Publication(staged(tmp_path, refused))], follow_ups=bad))
    store.job_control.cancel(ids(cancelled.job.id), actor="test")
    with monkeypatch.context() as full:
        full.setattr(store.leases, "confirm_cancel", _refuse)
        full.setattr(store.leases, "fail", _refuse)
        assert outcomes.write() == []
        watch.now = 1.0
        assert outcomes.write() == []
    watch.now = 2.0

    assert len(outcomes.write()) == 2
    assert store.job_queries.get(cancelled.job.id).status is Status.CANCELLED
    assert (store.job_queries.get(refused.job.id).status, store.job_queries.get(refused.job.id).error_code) == (
        Status.FAILED,
        "RESULT_REFUSED",
    )
    assert list((tmp_path / "workspace/objects").iterdir()) == []
    assert list((tmp_path / "staging").iterdir()) == []


def test_a_job_that_keeps_bringing_its_fork_server_down_ends_failed(
    outcomes: OutcomeWriter, store: Store, attempt: MakeAttempt
) -> None:
    one = attempt(max_retries=0)

    for _ in range(REQUEUES_MAX):
        outcomes.add(one, ended(one, How.CRASHED, code="FORK_SERVER_DIED"))
        outcomes.write()
        assert store.job_queries.get(one.job.id).status is Status.PENDING
        [job] = store.leases.claim("w1", 1)
        one = Attempt(job, job.lease, "cpu")
    outcomes.add(one, ended(one, How.CRASHED, code="FORK_SERVER_DIED"))
    outcomes.write()

    assert (store.job_queries.get(one.job.id).status, store.job_queries.get(one.job.id).error_code) == (
        Status.FAILED,
        "FORK_SERVER_DIED",
    )


def test_a_handlers_wish_for_rest_holds_all_jobs_of_its_source(
    outcomes: OutcomeWriter, store: Store, attempt: MakeAttempt
) -> None:
    one = attempt(source="drive")
    other = store.intake.enqueue(NewJob("ocr_pages", source="drive")).job_id
    end = ended(one, How.SNOOZED, after_seconds=600.0, pauses_source=True, message="the quota is used up")

    outcomes.add(one, end)
    outcomes.write()

    assert store.history.attempts(one.job.id)[0].outcome == "snoozed"
    assert [gate.code for gate in store.gates.explain(other)] == ["SOURCE_RESTING"]
    assert "quota" in store.gates.explain(other)[0].detail


def test_p5_a_completion_tells_of_its_files_and_what_is_known_of_them(
    outcomes: OutcomeWriter, store: Store, attempt: MakeAttempt, tmp_path: Path
) -> None:
    one = attempt(document=DocumentRequest("/a.pdf", "a.pdf", "ab"))
    file = staged(tmp_path, one)
    published = Publication(file, "text", "Report.txt", "ab" * 32, "cd" * 16)

    outcomes.add(one, ended(one, published=[published], document=DocumentFacts(pages=3), publishes=True))
    outcomes.write()

    [row] = store.attempts.inputs(one.job.document_id or 0)
    assert (row.role, row.name, row.size, row.sha256, row.md5) == ("text", "Report.txt", 4, "ab" * 32, "cd" * 16)
    assert (tmp_path / "workspace" / row.path).read_text() == "text"


def test_what_publishes_a_file_again_that_was_removed_meanwhile_is_tried_again_and_holds_nobody_up(
    outcomes: OutcomeWriter, store: Store, attempt: MakeAttempt
) -> None:
    late, other = attempt(), attempt()

    outcomes.add(late, ended(late, published_again=[RepublishedFile(99, "original")]))
    outcomes.add(other, ended(other))
    landed = outcomes.write()

    assert {one.job.id for one in landed} == {late.job.id, other.job.id}
    assert (store.job_queries.get(late.job.id).status, store.job_queries.get(late.job.id).error_code) == (
        Status.PENDING,
        "FILE_FORGOTTEN",
    )
    assert store.job_queries.get(other.job.id).status is Status.COMPLETED
