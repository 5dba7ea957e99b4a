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
from worker_service.daemon.outcomes import OutcomeWriter, Publisher
from worker_service.daemon.reporting import ASK_SECONDS, BACKLOG_BYTES_MAX, CannotLand, Reporter
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


class Desk:
    """The writing half of a daemon: slots, what was heard, and what was answered."""

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
            context,
            lambda asked, answer, *, code="", message="": self.told.append((asked, answer, code)),
            patience_seconds=60,
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
def desk(store: Store, clock: MovableClock, log: Any, tmp_path: Path) -> Desk:
    return Desk(store, clock, log, tmp_path)


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


def test_pages_and_checkpoints_land_before_the_end_of_their_attempt(desk: Desk, reading: MakeAttempt) -> None:
    one = reading()
    crawl = CrawlPage("c", [CrawlItem("a")])
    desk.hear(one, page(1), checkpoint("[1]", NewJob("leaf"), crawl=crawl), page(2), checkpoint("[2]"), done)

    desk.turn()

    assert desk.store.reading.get(one.job.id).status is Status.COMPLETED
    assert pages_of(desk.store, one) == [1, 2]
    assert desk.store.reading.count(Selector(job_types=("leaf",))) == 1


def test_whoever_has_nothing_more_to_say_is_not_looked_at_again(desk: Desk, reading: MakeAttempt) -> None:
    one, other = reading(), reading()
    desk.hear(one, page(1), progress(10))
    desk.hear(other, progress(10))

    desk.turn()
    desk.turn()

    assert not desk.slots.reporting
    desk.hear(one, page(2), done)
    assert [*desk.slots.reporting] == [one.key]
    desk.turn()
    assert pages_of(desk.store, one) == [1, 2]
    assert (len(desk.slots), desk.slots.free("cpu"), len(desk.slots.reporting)) == (1, 7, 0)


def test_a_handler_reads_its_own_writes(desk: Desk, reading: MakeAttempt) -> None:
    one = reading()
    desk.hear(one, page(1, text="one"), page(2), question("DocumentPages", '{"first":1,"last":1}'))

    desk.turn()

    [(_, answer, code)] = desk.told
    assert isinstance(answer, PagesAnswer)
    assert ([each.text for each in answer.pages], code) == (["one"], "")


def test_the_pages_of_all_attempts_are_written_together_a_few_times_a_second(
    desk: Desk, reading: MakeAttempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    save = desk.store.attempts.save_pages

    def count(batch: Sequence[tuple[Lease, PageResult]]) -> list[Lease]:
        written.append(len(batch))
        return save(batch)

    monkeypatch.setattr(desk.store.attempts, "save_pages", count)
    one, other = reading(), reading()
    desk.hear(one, page(1))
    desk.turn()

    desk.hear(one, page(2), page(3))
    desk.hear(other, page(1))
    desk.turn()
    desk.now = desk.reporter.next_at or 0.0
    desk.turn()

    assert written == [1, 3]


def test_many_pages_are_written_before_their_time_so_that_the_end_finds_few_left(
    desk: Desk, store: Store, reading: MakeAttempt
) -> None:
    one = reading()
    desk.hear(one, page(1))
    desk.turn()
    desk.hear(one, page(2))
    desk.turn()
    assert pages_of(store, one) == [1]

    desk.hear(one, *(page(number, text="x" * 10_000) for number in range(3, 33)))
    desk.turn()

    assert pages_of(store, one) == [*range(1, 33)]


def test_a_checkpoint_that_says_no_more_than_a_state_is_overtaken_by_the_next(desk: Desk, attempt: MakeAttempt) -> None:
    one = attempt()
    desk.hear(one, checkpoint("[1]"), checkpoint("[2]", NewJob("leaf")), checkpoint("[3]"), checkpoint("[4]"))

    assert [said.state for said in one.unwritten if isinstance(said, Checkpointed)] == ["[2]", "[4]"]
    desk.turn()
    assert desk.store.attempts.checkpoint_of(one.job.id) == "[4]"
    assert (len(one.unwritten), one.unwritten_bytes) == (0, 0)


def test_what_the_store_does_not_take_waits_and_the_end_waits_behind_it(
    desk: Desk, reading: MakeAttempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = reading()
    desk.hear(one, page(1), checkpoint("[1]"), done)
    with monkeypatch.context() as full:
        full.setattr(desk.store.attempts, "save_pages", refuse)
        desk.turn()
        assert desk.store.reading.get(one.job.id).status is Status.RUNNING
        assert desk.outcomes.again_at is None
    desk.now = desk.reporter.next_at or 0.0
    assert desk.now >= 1.0

    desk.turn()

    assert desk.store.reading.get(one.job.id).status is Status.COMPLETED
    assert pages_of(desk.store, one) == [1]


def test_what_waits_is_bounded_and_when_it_cannot_be_written_for_too_long_the_daemon_is_to_exit(
    desk: Desk, reading: MakeAttempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = reading()
    monkeypatch.setattr(desk.store.attempts, "save_pages", refuse)
    desk.hear(one, page(1))
    desk.turn()
    before = desk.reporter.is_full
    desk.hear(one, page(2, text="x" * BACKLOG_BYTES_MAX))
    assert (before, desk.reporter.is_full) == (False, True)
    desk.now = 61.0

    with pytest.raises(CannotLand, match="2 pages and checkpoints"):
        desk.turn()


def test_a_question_that_cannot_be_answered_is_refused_after_some_seconds(
    desk: Desk, reading: MakeAttempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = reading()
    monkeypatch.setattr(desk.store.attempts, "save_pages", refuse)
    desk.hear(one, page(1), question("IsCurrent", "{}"))
    desk.turn()
    assert desk.told == []
    desk.now = ASK_SECONDS + 0.1

    desk.turn()

    assert [(answer, code) for _, answer, code in desk.told] == [(None, "ASK_FAILED")]
    assert [type(said) for said in one.unwritten] == [PagesRead]


@pytest.mark.parametrize("said", [page(1), checkpoint("[1]")], ids=["page", "checkpoint"])
def test_p2_under_a_lost_lease_nothing_is_written_and_nobody_is_left_waiting(
    desk: Desk, reading: MakeAttempt, said: Said
) -> None:
    one = reading()
    desk.store.leases.requeue("w1")
    desk.hear(one, said, question("KnownPages", '{"digests":["d1"]}'))

    desk.turn()

    assert one.is_lost
    assert [code for _, _, code in desk.told] == ["ASK_FAILED"]
    assert not one.unwritten
    assert desk.store.attempts.checkpoint_of(one.job.id) is None
    assert pages_of(desk.store, one) == []


@pytest.mark.parametrize("first", [page(1), checkpoint("[1]"), progress(50)], ids=["page", "checkpoint", "progress"])
def test_p7_a_cancelled_attempt_keeps_its_pages_and_nothing_else_and_is_still_ours_to_end(
    desk: Desk, reading: MakeAttempt, first: Said
) -> None:
    one = reading()
    desk.store.steering.cancel(ids(one.job.id), actor="test")
    desk.hear(one, first, page(2), checkpoint("[2]"), page(3), done)

    desk.turn()

    assert (one.is_cancelled, one.is_lost) == (True, False)
    assert desk.store.reading.get(one.job.id).status is Status.CANCELLED
    assert pages_of(desk.store, one)[-2:] == [2, 3]
    assert desk.store.attempts.checkpoint_of(one.job.id) is None


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (checkpoint("[1]", NewJob("leaf", payload="{no json")), "CHECKPOINT_REFUSED"),
        (page(0), "PAGE_REFUSED"),
    ],
    ids=["checkpoint", "page"],
)
def test_what_the_table_refuses_fails_its_own_job_only(desk: Desk, reading: MakeAttempt, said: Said, code: str) -> None:
    bad, good = reading(), reading()
    desk.hear(bad, said, done)
    desk.hear(good, page(1), checkpoint("[1]"), done)

    desk.turn()

    job = desk.store.reading.get(bad.job.id)
    assert (job.status, job.error_code) == (Status.FAILED, code)
    assert desk.store.reading.get(good.job.id).status is Status.COMPLETED
    assert pages_of(desk.store, good) == [1]


def test_a_question_that_was_asked_in_the_last_moment_holds_up_no_end(desk: Desk, attempt: MakeAttempt) -> None:
    one = attempt()
    desk.hear(one, question("KnownPages", '{"digests":[]}'), lambda a: ended(a, How.STOPPED))

    desk.turn()

    assert desk.told == []
    assert desk.store.reading.attempts(one.job.id)[0].outcome == "released"


def test_what_is_known_is_answered(desk: Desk, reading: MakeAttempt) -> None:
    one, other = reading(), reading()
    desk.hear(one, page(1, digest="shared"))
    desk.turn()

    desk.hear(other, question("KnownPages", '{"digests":["shared","other"]}'))
    desk.turn()

    assert [answer for _, answer, _ in desk.told] == [KnownDigests(["shared"])]


def test_a_file_that_somebody_removed_from_the_workspace_is_no_same_content(
    desk: Desk, reading: MakeAttempt, tmp_path: Path
) -> None:
    first, one = reading(), reading()
    files = [NewFile(name, f"objects/1-1/{name}", "", 4, "c1") for name in ("there.pdf", "gone.pdf")]
    there = tmp_path / "workspace/objects/1-1/there.pdf"
    there.parent.mkdir(parents=True)
    there.write_text("text")
    desk.store.leases.complete_many([Completion(first.lease, files=files)])

    desk.hear(one, question("SameContent", '{"sha256":"c1"}'))
    desk.turn()

    [(_, answer, _)] = desk.told
    assert isinstance(answer, Files)
    assert [file.name for file in answer.files] == ["there.pdf"]


def test_a_crawl_hears_of_no_revision_of_a_file_that_was_read_and_whose_copy_somebody_removed(
    desk: Desk, reading: MakeAttempt, attempt: MakeAttempt, tmp_path: Path
) -> None:
    for one in (reading(), reading()):
        copy = NewFile("a.pdf", f"objects/{one.job.id}-1/a.pdf", "original", 4, "ab")
        desk.store.leases.complete_many([Completion(one.lease, files=[copy], publishes=True)])
    there = tmp_path / "workspace/objects/1-1/a.pdf"
    there.parent.mkdir(parents=True)
    there.write_text("text")
    items = [CrawlItem(id, kind="file", revision="r1") for id in ("/0.pdf", "/1.pdf", "/2.pdf")]

    crawler = attempt()
    desk.hear(crawler, checkpoint("{}", crawl=CrawlPage("c", items)))
    desk.hear(crawler, question("CrawlItems", '{"crawl":"c","ids":["/0.pdf","/1.pdf","/2.pdf"]}'))
    desk.turn()

    [(_, answer, _)] = desk.told
    assert isinstance(answer, CrawlMemory)
    assert [(item.id, item.revision) for item in answer.items] == [("/0.pdf", "r1"), ("/1.pdf", ""), ("/2.pdf", "r1")]
