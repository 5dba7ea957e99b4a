"""Reports of running attempts: order, transactions, and failures of the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.conftest import MakeAttempt, context_in, ended
from tests.store.kit import MovableClock, jobs_with_ids
from worker_service.base.errors import DiskFull
from worker_service.daemon.attempts import Attempt, Slots
from worker_service.daemon.loop import apply_child_events
from worker_service.daemon.outcomes import OutcomeWriter
from worker_service.daemon.publisher import Publisher
from worker_service.daemon.reporting import (
    ASK_SECONDS,
    BACKLOG_BYTES_MAX,
    PATIENCE_SECONDS,
    Reporter,
    StoreFailedTooLong,
)
from worker_service.jobs.attempts import Completion, Count
from worker_service.jobs.documents import (
    CrawlItem,
    CrawlMemory,
    CrawlPage,
    DocumentPages,
    DocumentRequest,
    Files,
    KnownDigests,
    NewFile,
    PageResult,
    PagesAnswer,
    QuestionAnswer,
)
from worker_service.jobs.history import LOG_LINES_MOST
from worker_service.jobs.job import Lease, NewJob, Status
from worker_service.jobs.selector import Selector
from worker_service.runner.log_lines import GAP
from worker_service.runner.messages import Asked, AttemptEvent, Checkpointed, Ended, How, PagesRead, Progressed
from worker_service.store.store import Store

MakeEvent = Callable[[Attempt], AttemptEvent]


class ReportingDaemon:
    def __init__(self, store: Store, clock: MovableClock, log: Any, place: Path) -> None:
        self.store = store
        self.now = 0.0
        self.log = log
        self.slots = Slots({"cpu": 8})
        context = self.context = context_in(place, store, log, clock, slots=self.slots, monotonic=lambda: self.now)
        self.outcomes = OutcomeWriter(
            context_in(place, store, log, clock, slots=self.slots, monotonic=lambda: 0.0),
            Publisher(place / "workspace", place / "staging"),
        )
        self.answers: list[tuple[Asked, QuestionAnswer | None, str]] = []
        self.reporter = Reporter(
            context, lambda asked, answer, *, code="", message="": self.answers.append((asked, answer, code))
        )

    def apply(self, attempt: Attempt, *make_events: MakeEvent) -> None:
        if self.slots.get(attempt.key) is None:
            self.slots.add(attempt)
        apply_child_events([make_event(attempt) for make_event in make_events], self.context, self.outcomes)

    def turn(self) -> None:
        self.reporter.report(self.outcomes.attempts_with_unwritten_reports())
        for attempt in self.outcomes.write():
            self.slots.remove(attempt)


@pytest.fixture
def daemon(store: Store, clock: MovableClock, log: Any, tmp_path: Path) -> ReportingDaemon:
    return ReportingDaemon(store, clock, log, tmp_path)


@pytest.fixture
def make_reading_attempt(store: Store) -> MakeAttempt:
    numbers = iter(range(1000))

    def make() -> Attempt:
        store.intake.enqueue(NewJob("ocr_pages", document=DocumentRequest(f"/{next(numbers)}.pdf", "a.pdf", "ab")))
        [job] = store.leases.claim("w1", 1)
        return Attempt(job, job.lease, "cpu")

    return make


def page(number: int, digest: str = "", text: str = "text", confidence: float | None = None) -> MakeEvent:
    result = PageResult(number, digest or f"d{number}", text, "layer", confidence)
    return lambda a: PagesRead(a.job.id, a.job.fence, [result])


def checkpoint(state: str, *jobs: NewJob, crawl: CrawlPage | None = None) -> MakeEvent:
    return lambda a: Checkpointed(a.job.id, a.job.fence, state, jobs, crawl)


def question(kind: str, body: str) -> MakeEvent:
    return lambda a: Asked(a.job.id, a.job.fence, 1, kind, body)


def progress(percent: float) -> MakeEvent:
    return lambda a: Progressed(a.job.id, a.job.fence, percent, "")


def done(attempt: Attempt) -> Ended:
    return ended(attempt)


def pages_of(store: Store, attempt: Attempt) -> list[int]:
    return [page.number for page in store.attempts.answer(attempt.lease, DocumentPages(1, 100)).pages]


def refuse(*_: object) -> None:
    raise DiskFull("no room")


def test_pages_and_checkpoints_are_written_before_the_outcome(
    daemon: ReportingDaemon, make_reading_attempt: MakeAttempt
) -> None:
    attempt = make_reading_attempt()
    crawl = CrawlPage("c", [CrawlItem("a")])
    daemon.apply(attempt, page(1), checkpoint("[1]", NewJob("leaf"), crawl=crawl), page(2), checkpoint("[2]"), done)

    daemon.turn()

    assert daemon.store.job_queries.get(attempt.job.id).status is Status.COMPLETED
    assert pages_of(daemon.store, attempt) == [1, 2]
    assert daemon.store.job_queries.count(Selector(job_types=("leaf",))) == 1


def test_attempts_without_unwritten_reports_are_skipped(
    daemon: ReportingDaemon, make_reading_attempt: MakeAttempt
) -> None:
    attempt, other = make_reading_attempt(), make_reading_attempt()
    daemon.apply(attempt, page(1), progress(10))
    daemon.apply(other, progress(10))

    daemon.turn()
    daemon.turn()

    assert not daemon.slots.reporting
    daemon.apply(attempt, page(2), done)
    assert [*daemon.slots.reporting] == [attempt.key]
    daemon.turn()
    assert pages_of(daemon.store, attempt) == [1, 2]
    assert (len(daemon.slots), daemon.slots.free("cpu"), len(daemon.slots.reporting)) == (1, 7, 0)


def test_a_handler_reads_its_own_writes(daemon: ReportingDaemon, make_reading_attempt: MakeAttempt) -> None:
    attempt = make_reading_attempt()
    daemon.apply(attempt, page(1, text="attempt"), page(2), question("DocumentPages", '{"first":1,"last":1}'))

    daemon.turn()

    [(_, answer, code)] = daemon.answers
    assert isinstance(answer, PagesAnswer)
    assert ([page.text for page in answer.pages], code) == (["attempt"], "")


def test_pages_of_all_attempts_share_a_transaction_a_few_times_a_second(
    daemon: ReportingDaemon, make_reading_attempt: MakeAttempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    save = daemon.store.attempts.save_pages

    def count(batch: Sequence[tuple[Lease, PageResult]]) -> list[Lease]:
        written.append(len(batch))
        return save(batch)

    monkeypatch.setattr(daemon.store.attempts, "save_pages", count)
    attempt, other = make_reading_attempt(), make_reading_attempt()
    daemon.apply(attempt, page(1))
    daemon.turn()

    daemon.apply(attempt, page(2), page(3))
    daemon.apply(other, page(1))
    daemon.turn()
    daemon.now = daemon.reporter.next_at or 0.0
    daemon.turn()

    assert written == [1, 3]


def test_many_pages_are_written_at_once(
    daemon: ReportingDaemon, store: Store, make_reading_attempt: MakeAttempt
) -> None:
    attempt = make_reading_attempt()
    daemon.apply(attempt, page(1))
    daemon.turn()
    daemon.apply(attempt, page(2))
    daemon.turn()
    assert pages_of(store, attempt) == [1]

    daemon.apply(attempt, *(page(number, text="x" * 10_000) for number in range(3, 33)))
    daemon.turn()

    assert pages_of(store, attempt) == [*range(1, 33)]


def test_a_checkpoint_with_only_a_state_is_superseded_by_the_next(
    daemon: ReportingDaemon, make_attempt: MakeAttempt
) -> None:
    attempt = make_attempt()
    daemon.apply(attempt, checkpoint("[1]"), checkpoint("[2]", NewJob("leaf")), checkpoint("[3]"), checkpoint("[4]"))

    assert [report.state for report in attempt.ordered_reports if isinstance(report, Checkpointed)] == ["[2]", "[4]"]
    daemon.turn()
    assert daemon.store.attempts.checkpoint_of(attempt.job.id) == "[4]"
    assert (len(attempt.ordered_reports), attempt.ordered_bytes) == (0, 0)


def test_an_outcome_waits_for_reports_that_cannot_be_written(
    daemon: ReportingDaemon, make_reading_attempt: MakeAttempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = make_reading_attempt()
    daemon.apply(attempt, page(1), checkpoint("[1]"), done)
    with monkeypatch.context() as full:
        full.setattr(daemon.store.attempts, "save_pages", refuse)
        daemon.turn()
        assert daemon.store.job_queries.get(attempt.job.id).status is Status.RUNNING
        assert daemon.outcomes.again_at is None
    daemon.now = daemon.reporter.next_at or 0.0
    assert daemon.now >= 1.0

    daemon.turn()

    assert daemon.store.job_queries.get(attempt.job.id).status is Status.COMPLETED
    assert pages_of(daemon.store, attempt) == [1]


def test_unwritten_reports_are_bounded_and_end_the_daemon_after_too_long(
    daemon: ReportingDaemon, make_reading_attempt: MakeAttempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = make_reading_attempt()
    monkeypatch.setattr(daemon.store.attempts, "save_pages", refuse)
    daemon.apply(attempt, page(1))
    daemon.turn()
    before = daemon.reporter.is_full
    daemon.apply(attempt, page(2, text="x" * BACKLOG_BYTES_MAX))
    assert (before, daemon.reporter.is_full) == (False, True)
    daemon.now = PATIENCE_SECONDS + 1

    with pytest.raises(StoreFailedTooLong, match="2 pages and checkpoints"):
        daemon.turn()


def test_a_question_that_cannot_be_answered_is_refused_after_some_seconds(
    daemon: ReportingDaemon, make_reading_attempt: MakeAttempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = make_reading_attempt()
    monkeypatch.setattr(daemon.store.attempts, "save_pages", refuse)
    daemon.apply(attempt, page(1), question("IsCurrent", "{}"))
    daemon.turn()
    assert daemon.answers == []
    daemon.now = ASK_SECONDS + 0.1

    daemon.turn()

    assert [(answer, code) for _, answer, code in daemon.answers] == [(None, "ASK_FAILED")]
    assert [type(report) for report in attempt.ordered_reports] == [PagesRead]


@pytest.mark.parametrize("make_event", [page(1), checkpoint("[1]")], ids=["page", "checkpoint"])
def test_p2_a_lost_lease_writes_nothing_and_refuses_the_open_question(
    daemon: ReportingDaemon, make_reading_attempt: MakeAttempt, make_event: MakeEvent
) -> None:
    attempt = make_reading_attempt()
    daemon.store.leases.requeue("w1")
    daemon.apply(attempt, make_event, question("KnownPages", '{"digests":["d1"]}'))

    daemon.turn()

    assert attempt.is_lost
    assert [code for _, _, code in daemon.answers] == ["ASK_FAILED"]
    assert not attempt.ordered_reports
    assert daemon.store.attempts.checkpoint_of(attempt.job.id) is None
    assert pages_of(daemon.store, attempt) == []


@pytest.mark.parametrize("first", [page(1), checkpoint("[1]"), progress(50)], ids=["page", "checkpoint", "progress"])
def test_p7_a_cancelled_attempt_stores_pages_but_no_checkpoints_and_ends_cancelled(
    daemon: ReportingDaemon, make_reading_attempt: MakeAttempt, first: MakeEvent
) -> None:
    attempt = make_reading_attempt()
    daemon.store.job_control.cancel(jobs_with_ids(attempt.job.id), actor="test")
    daemon.apply(attempt, first, page(2), checkpoint("[2]"), page(3), done)

    daemon.turn()

    assert (attempt.is_cancelled, attempt.is_lost) == (True, False)
    assert daemon.store.job_queries.get(attempt.job.id).status is Status.CANCELLED
    assert pages_of(daemon.store, attempt)[-2:] == [2, 3]
    assert daemon.store.attempts.checkpoint_of(attempt.job.id) is None


@pytest.mark.parametrize(
    ("make_event", "code"),
    [
        (checkpoint("[1]", NewJob("leaf", payload="{no json")), "CHECKPOINT_REFUSED"),
        (page(0), "PAGE_REFUSED"),
    ],
    ids=["checkpoint", "page"],
)
def test_a_rejected_report_fails_only_its_own_job(
    daemon: ReportingDaemon, make_reading_attempt: MakeAttempt, make_event: MakeEvent, code: str
) -> None:
    bad, good = make_reading_attempt(), make_reading_attempt()
    daemon.apply(bad, make_event, done)
    daemon.apply(good, page(1), checkpoint("[1]"), done)

    daemon.turn()

    job = daemon.store.job_queries.get(bad.job.id)
    assert (job.status, job.error_code) == (Status.FAILED, code)
    assert daemon.store.job_queries.get(good.job.id).status is Status.COMPLETED
    assert pages_of(daemon.store, good) == [1]


def test_an_unanswered_question_does_not_delay_the_outcome(daemon: ReportingDaemon, make_attempt: MakeAttempt) -> None:
    attempt = make_attempt()
    daemon.apply(attempt, question("KnownPages", '{"digests":[]}'), lambda a: ended(a, How.STOPPED))

    daemon.turn()

    assert daemon.answers == []
    assert daemon.store.history.attempts(attempt.job.id)[0].outcome == "released"


def test_known_pages_are_answered_across_attempts(daemon: ReportingDaemon, make_reading_attempt: MakeAttempt) -> None:
    attempt, other = make_reading_attempt(), make_reading_attempt()
    daemon.apply(attempt, page(1, digest="shared"))
    daemon.turn()

    daemon.apply(other, question("KnownPages", '{"digests":["shared","other"]}'))
    daemon.turn()

    assert [answer for _, answer, _ in daemon.answers] == [KnownDigests(["shared"])]


def test_a_file_deleted_from_the_workspace_is_left_out_of_answers(
    daemon: ReportingDaemon, make_reading_attempt: MakeAttempt, tmp_path: Path
) -> None:
    first, attempt = make_reading_attempt(), make_reading_attempt()
    files = [NewFile(name, f"objects/1-1/{name}", "", 4, "c1") for name in ("there.pdf", "gone.pdf")]
    existing = tmp_path / "workspace/objects/1-1/there.pdf"
    existing.parent.mkdir(parents=True)
    existing.write_text("text")
    daemon.store.leases.complete_many([Completion(first.lease, files=files)])

    daemon.apply(attempt, question("SameContent", '{"sha256":"c1"}'))
    daemon.turn()

    [(_, answer, _)] = daemon.answers
    assert isinstance(answer, Files)
    assert [file.name for file in answer.files] == ["there.pdf"]


def test_a_crawled_item_whose_copy_was_deleted_has_no_revision(
    daemon: ReportingDaemon, make_reading_attempt: MakeAttempt, make_attempt: MakeAttempt, tmp_path: Path
) -> None:
    for attempt in (make_reading_attempt(), make_reading_attempt()):
        copy = NewFile("a.pdf", f"objects/{attempt.job.id}-1/a.pdf", "original", 4, "ab")
        daemon.store.leases.complete_many([Completion(attempt.lease, files=[copy], publishes=True)])
    existing = tmp_path / "workspace/objects/1-1/a.pdf"
    existing.parent.mkdir(parents=True)
    existing.write_text("text")
    items = [CrawlItem(id, kind="file", revision="r1") for id in ("/0.pdf", "/1.pdf", "/2.pdf")]

    crawler = make_attempt()
    daemon.apply(crawler, checkpoint("{}", crawl=CrawlPage("c", items)))
    daemon.apply(crawler, question("CrawlItems", '{"crawl":"c","ids":["/0.pdf","/1.pdf","/2.pdf"]}'))
    daemon.turn()

    [(_, answer, _)] = daemon.answers
    assert isinstance(answer, CrawlMemory)
    assert [(item.id, item.revision) for item in answer.items] == [("/0.pdf", "r1"), ("/1.pdf", ""), ("/2.pdf", "r1")]


def test_progress_is_merged_and_the_newest_lines_keep_their_order(make_attempt: MakeAttempt) -> None:
    attempt = make_attempt()
    for percent, message, count in ((10, "a", None), (50, "b", None), (20, "", Count(2, 10, "pages"))):
        attempt.add_progress(Progressed(*attempt.key, percent, message, count))
    attempt.add_lines(f"line {n}" for n in range(LOG_LINES_MOST + 5))

    report = attempt.pop_progress(lines_most=1000)
    assert (report.percent, report.message, report.count) == (50, "b", Count(2, 10, "pages"))
    assert report.lines == [GAP, *(f"line {n}" for n in range(5, 1005))]
    assert attempt.has_unwritten_progress

    attempt.restore_progress(report)
    restored, other_lines = attempt.pop_progress(lines_most=1000), attempt.pop_progress(lines_most=LOG_LINES_MOST)
    assert (restored.percent, restored.lines) == (50, report.lines)
    assert (other_lines.percent, len(other_lines.lines), other_lines.lines[-1]) == (
        None,
        2000,
        f"line {LOG_LINES_MOST + 4}",
    )
    assert (attempt.has_unwritten_progress, attempt.lines.characters) == (False, 0)
