"""What children say while they run is written in its order, once, and never lost while its attempt can land."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.conftest import MakeAttempt, context_in, ended
from tests.store.kit import MovableClock, ids
from worker_service.base.errors import DiskFull
from worker_service.daemon.attempts import Attempt, Slots
from worker_service.daemon.loop import apply_child_events
from worker_service.daemon.outcomes import OutcomeWriter
from worker_service.daemon.publisher import Publisher
from worker_service.daemon.reporting import ASK_SECONDS, BACKLOG_BYTES_MAX, PATIENCE_SECONDS, CannotLand, Reporter
from worker_service.jobs.attempts import Completion
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
from worker_service.jobs.job import Lease, NewJob, Status
from worker_service.jobs.selector import Selector
from worker_service.runner.messages import Asked, AttemptEvent, Checkpointed, Ended, How, PagesRead, Progressed
from worker_service.store.store import Store

Said = Callable[[Attempt], AttemptEvent]


class ReportingDaemon:
    """The half of a daemon that writes reports and outcomes."""

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
        self.told: list[tuple[Asked, QuestionAnswer | None, str]] = []
        self.reporter = Reporter(
            context, lambda asked, answer, *, code="", message="": self.told.append((asked, answer, code))
        )

    def hear(self, attempt: Attempt, *said: Said) -> None:
        if self.slots.get(attempt.key) is None:
            self.slots.add(attempt)
        apply_child_events([one(attempt) for one in said], self.context, self.outcomes)

    def turn(self) -> None:
        self.reporter.report(self.outcomes.with_unwritten_reports())
        for attempt in self.outcomes.write():
            self.slots.remove(attempt)


@pytest.fixture
def daemon(store: Store, clock: MovableClock, log: Any, tmp_path: Path) -> ReportingDaemon:
    return ReportingDaemon(store, clock, log, tmp_path)


@pytest.fixture
def reading(store: Store) -> MakeAttempt:
    """A job that reads a document of its own, claimed just now."""
    numbers = iter(range(1000))

    def make() -> Attempt:
        store.intake.enqueue(NewJob("ocr_pages", document=DocumentRequest(f"/{next(numbers)}.pdf", "a.pdf", "ab")))
        [job] = store.leases.claim("w1", 1)
        return Attempt(job, job.lease, "cpu")

    return make


def page(number: int, digest: str = "", text: str = "text", confidence: float | None = None) -> Said:
    result = PageResult(number, digest or f"d{number}", text, "layer", confidence)
    return lambda a: PagesRead(a.job.id, a.job.fence, [result])


def checkpoint(state: str, *jobs: NewJob, crawl: CrawlPage | None = None) -> Said:
    return lambda a: Checkpointed(a.job.id, a.job.fence, state, jobs, crawl)


def question(kind: str, body: str) -> Said:
    return lambda a: Asked(a.job.id, a.job.fence, 1, kind, body)


def progress(percent: float) -> Said:
    return lambda a: Progressed(a.job.id, a.job.fence, percent, "")


def done(attempt: Attempt) -> Ended:
    return ended(attempt)


def pages_of(store: Store, attempt: Attempt) -> list[int]:
    return [one.number for one in store.attempts.answer(attempt.lease, DocumentPages(1, 100)).pages]


def refuse(*_: object) -> None:
    raise DiskFull("no room")


def test_pages_and_checkpoints_land_before_the_end_of_their_attempt(
    daemon: ReportingDaemon, reading: MakeAttempt
) -> None:
    one = reading()
    crawl = CrawlPage("c", [CrawlItem("a")])
    daemon.hear(one, page(1), checkpoint("[1]", NewJob("leaf"), crawl=crawl), page(2), checkpoint("[2]"), done)

    daemon.turn()

    assert daemon.store.job_queries.get(one.job.id).status is Status.COMPLETED
    assert pages_of(daemon.store, one) == [1, 2]
    assert daemon.store.job_queries.count(Selector(job_types=("leaf",))) == 1


def test_whoever_has_nothing_more_to_say_is_not_looked_at_again(daemon: ReportingDaemon, reading: MakeAttempt) -> None:
    one, other = reading(), reading()
    daemon.hear(one, page(1), progress(10))
    daemon.hear(other, progress(10))

    daemon.turn()
    daemon.turn()

    assert not daemon.slots.reporting
    daemon.hear(one, page(2), done)
    assert [*daemon.slots.reporting] == [one.key]
    daemon.turn()
    assert pages_of(daemon.store, one) == [1, 2]
    assert (len(daemon.slots), daemon.slots.free("cpu"), len(daemon.slots.reporting)) == (1, 7, 0)


def test_a_handler_reads_its_own_writes(daemon: ReportingDaemon, reading: MakeAttempt) -> None:
    one = reading()
    daemon.hear(one, page(1, text="one"), page(2), question("DocumentPages", '{"first":1,"last":1}'))

    daemon.turn()

    [(_, answer, code)] = daemon.told
    assert isinstance(answer, PagesAnswer)
    assert ([each.text for each in answer.pages], code) == (["one"], "")


def test_the_pages_of_all_attempts_are_written_together_a_few_times_a_second(
    daemon: ReportingDaemon, reading: MakeAttempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    save = daemon.store.attempts.save_pages

    def count(batch: Sequence[tuple[Lease, PageResult]]) -> list[Lease]:
        written.append(len(batch))
        return save(batch)

    monkeypatch.setattr(daemon.store.attempts, "save_pages", count)
    one, other = reading(), reading()
    daemon.hear(one, page(1))
    daemon.turn()

    daemon.hear(one, page(2), page(3))
    daemon.hear(other, page(1))
    daemon.turn()
    daemon.now = daemon.reporter.next_at or 0.0
    daemon.turn()

    assert written == [1, 3]


def test_many_pages_are_written_before_their_time_so_that_the_end_finds_few_left(
    daemon: ReportingDaemon, store: Store, reading: MakeAttempt
) -> None:
    one = reading()
    daemon.hear(one, page(1))
    daemon.turn()
    daemon.hear(one, page(2))
    daemon.turn()
    assert pages_of(store, one) == [1]

    daemon.hear(one, *(page(number, text="x" * 10_000) for number in range(3, 33)))
    daemon.turn()

    assert pages_of(store, one) == [*range(1, 33)]


def test_a_checkpoint_that_says_no_more_than_a_state_is_overtaken_by_the_next(
    daemon: ReportingDaemon, attempt: MakeAttempt
) -> None:
    one = attempt()
    daemon.hear(one, checkpoint("[1]"), checkpoint("[2]", NewJob("leaf")), checkpoint("[3]"), checkpoint("[4]"))

    assert [said.state for said in one.unwritten if isinstance(said, Checkpointed)] == ["[2]", "[4]"]
    daemon.turn()
    assert daemon.store.attempts.checkpoint_of(one.job.id) == "[4]"
    assert (len(one.unwritten), one.unwritten_bytes) == (0, 0)


def test_what_the_store_does_not_take_waits_and_the_end_waits_behind_it(
    daemon: ReportingDaemon, reading: MakeAttempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = reading()
    daemon.hear(one, page(1), checkpoint("[1]"), done)
    with monkeypatch.context() as full:
        full.setattr(daemon.store.attempts, "save_pages", refuse)
        daemon.turn()
        assert daemon.store.job_queries.get(one.job.id).status is Status.RUNNING
        assert daemon.outcomes.again_at is None
    daemon.now = daemon.reporter.next_at or 0.0
    assert daemon.now >= 1.0

    daemon.turn()

    assert daemon.store.job_queries.get(one.job.id).status is Status.COMPLETED
    assert pages_of(daemon.store, one) == [1]


def test_what_waits_is_bounded_and_when_it_cannot_be_written_for_too_long_the_daemon_is_to_exit(
    daemon: ReportingDaemon, reading: MakeAttempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = reading()
    monkeypatch.setattr(daemon.store.attempts, "save_pages", refuse)
    daemon.hear(one, page(1))
    daemon.turn()
    before = daemon.reporter.is_full
    daemon.hear(one, page(2, text="x" * BACKLOG_BYTES_MAX))
    assert (before, daemon.reporter.is_full) == (False, True)
    daemon.now = PATIENCE_SECONDS + 1

    with pytest.raises(CannotLand, match="2 pages and checkpoints"):
        daemon.turn()


def test_a_question_that_cannot_be_answered_is_refused_after_some_seconds(
    daemon: ReportingDaemon, reading: MakeAttempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = reading()
    monkeypatch.setattr(daemon.store.attempts, "save_pages", refuse)
    daemon.hear(one, page(1), question("IsCurrent", "{}"))
    daemon.turn()
    assert daemon.told == []
    daemon.now = ASK_SECONDS + 0.1

    daemon.turn()

    assert [(answer, code) for _, answer, code in daemon.told] == [(None, "ASK_FAILED")]
    assert [type(said) for said in one.unwritten] == [PagesRead]


@pytest.mark.parametrize("said", [page(1), checkpoint("[1]")], ids=["page", "checkpoint"])
def test_p2_under_a_lost_lease_nothing_is_written_and_nobody_is_left_waiting(
    daemon: ReportingDaemon, reading: MakeAttempt, said: Said
) -> None:
    one = reading()
    daemon.store.leases.requeue("w1")
    daemon.hear(one, said, question("KnownPages", '{"digests":["d1"]}'))

    daemon.turn()

    assert one.is_lost
    assert [code for _, _, code in daemon.told] == ["ASK_FAILED"]
    assert not one.unwritten
    assert daemon.store.attempts.checkpoint_of(one.job.id) is None
    assert pages_of(daemon.store, one) == []


@pytest.mark.parametrize("first", [page(1), checkpoint("[1]"), progress(50)], ids=["page", "checkpoint", "progress"])
def test_p7_a_cancelled_attempt_keeps_its_pages_and_nothing_else_and_is_still_ours_to_end(
    daemon: ReportingDaemon, reading: MakeAttempt, first: Said
) -> None:
    one = reading()
    daemon.store.job_control.cancel(ids(one.job.id), actor="test")
    daemon.hear(one, first, page(2), checkpoint("[2]"), page(3), done)

    daemon.turn()

    assert (one.is_cancelled, one.is_lost) == (True, False)
    assert daemon.store.job_queries.get(one.job.id).status is Status.CANCELLED
    assert pages_of(daemon.store, one)[-2:] == [2, 3]
    assert daemon.store.attempts.checkpoint_of(one.job.id) is None


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (checkpoint("[1]", NewJob("leaf", payload="{no json")), "CHECKPOINT_REFUSED"),
        (page(0), "PAGE_REFUSED"),
    ],
    ids=["checkpoint", "page"],
)
def test_what_the_table_refuses_fails_its_own_job_only(
    daemon: ReportingDaemon, reading: MakeAttempt, said: Said, code: str
) -> None:
    bad, good = reading(), reading()
    daemon.hear(bad, said, done)
    daemon.hear(good, page(1), checkpoint("[1]"), done)

    daemon.turn()

    job = daemon.store.job_queries.get(bad.job.id)
    assert (job.status, job.error_code) == (Status.FAILED, code)
    assert daemon.store.job_queries.get(good.job.id).status is Status.COMPLETED
    assert pages_of(daemon.store, good) == [1]


def test_a_question_that_was_asked_in_the_last_moment_holds_up_no_end(
    daemon: ReportingDaemon, attempt: MakeAttempt
) -> None:
    one = attempt()
    daemon.hear(one, question("KnownPages", '{"digests":[]}'), lambda a: ended(a, How.STOPPED))

    daemon.turn()

    assert daemon.told == []
    assert daemon.store.history.attempts(one.job.id)[0].outcome == "released"


def test_what_is_known_is_answered(daemon: ReportingDaemon, reading: MakeAttempt) -> None:
    one, other = reading(), reading()
    daemon.hear(one, page(1, digest="shared"))
    daemon.turn()

    daemon.hear(other, question("KnownPages", '{"digests":["shared","other"]}'))
    daemon.turn()

    assert [answer for _, answer, _ in daemon.told] == [KnownDigests(["shared"])]


def test_a_file_that_somebody_removed_from_the_workspace_is_no_same_content(
    daemon: ReportingDaemon, reading: MakeAttempt, tmp_path: Path
) -> None:
    first, one = reading(), reading()
    files = [NewFile(name, f"objects/1-1/{name}", "", 4, "c1") for name in ("there.pdf", "gone.pdf")]
    there = tmp_path / "workspace/objects/1-1/there.pdf"
    there.parent.mkdir(parents=True)
    there.write_text("text")
    daemon.store.leases.complete_many([Completion(first.lease, files=files)])

    daemon.hear(one, question("SameContent", '{"sha256":"c1"}'))
    daemon.turn()

    [(_, answer, _)] = daemon.told
    assert isinstance(answer, Files)
    assert [file.name for file in answer.files] == ["there.pdf"]


def test_a_crawl_hears_of_no_revision_of_a_file_that_was_read_and_whose_copy_somebody_removed(
    daemon: ReportingDaemon, reading: MakeAttempt, attempt: MakeAttempt, tmp_path: Path
) -> None:
    for one in (reading(), reading()):
        copy = NewFile("a.pdf", f"objects/{one.job.id}-1/a.pdf", "original", 4, "ab")
        daemon.store.leases.complete_many([Completion(one.lease, files=[copy], publishes=True)])
    there = tmp_path / "workspace/objects/1-1/a.pdf"
    there.parent.mkdir(parents=True)
    there.write_text("text")
    items = [CrawlItem(id, kind="file", revision="r1") for id in ("/0.pdf", "/1.pdf", "/2.pdf")]

    crawler = attempt()
    daemon.hear(crawler, checkpoint("{}", crawl=CrawlPage("c", items)))
    daemon.hear(crawler, question("CrawlItems", '{"crawl":"c","ids":["/0.pdf","/1.pdf","/2.pdf"]}'))
    daemon.turn()

    [(_, answer, _)] = daemon.told
    assert isinstance(answer, CrawlMemory)
    assert [(item.id, item.revision) for item in answer.items] == [("/0.pdf", "r1"), ("/1.pdf", ""), ("/2.pdf", "r1")]
