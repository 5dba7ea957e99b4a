"""Queries of users and operators: lists, counts, the change counter, `explain`, checks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.store.kit import (
    EVERY_JOB,
    AddWorker,
    ByHand,
    Enqueue,
    MovableClock,
    all_jobs,
    claim_one,
    jobs_with_ids,
    new_worker,
    open_at,
)
from worker_service.base.errors import BadInput, PagemillError
from worker_service.jobs.attempts import Count, Failure, Report
from worker_service.jobs.job import NewJob, Status
from worker_service.jobs.selector import Selector
from worker_service.jobs.workers import HandlerFacts
from worker_service.store.backup_and_restore import back_up
from worker_service.store.store import Store

PENDING, RUNNING, COMPLETED, FAILED, CANCELLED = Status


# ── Lists ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_list_is_the_newest_first_and_pages_by_key(store: Store) -> None:
    made = [enqueued.job_id for enqueued in store.intake.enqueue_many([NewJob("ocr_pages") for _ in range(25)])]
    pages = []
    before_id: int | None = None

    while page := store.job_queries.list(EVERY_JOB, most=10, before_id=before_id):
        pages.append([job.id for job in page])
        before_id = page[-1].id

    assert [len(page) for page in pages] == [10, 10, 5]
    assert [job_id for page in pages for job_id in page] == made[::-1]


def test_a_page_does_not_shift_when_jobs_arrive_or_go_between(store: Store, enqueue: Enqueue) -> None:
    made = [enqueued.job_id for enqueued in store.intake.enqueue_many([NewJob("ocr_pages") for _ in range(20)])]
    first = store.job_queries.list(EVERY_JOB, most=10)

    enqueue()
    store.job_control.delete(jobs_with_ids(first[3].id), actor="ann")
    second = store.job_queries.list(EVERY_JOB, most=10, before_id=first[-1].id)

    assert [job.id for job in second] == made[9::-1]


def _filled(store: Store, worker: AddWorker, clock: MovableClock) -> dict[str, int]:
    worker()
    made = {}
    made["completed"] = store.intake.enqueue(
        NewJob("ocr_pages", owner="ann", batch_id=1, payload='{"file_id":"abc","page_range":[1,12],"n":1}')
    ).job_id
    store.leases.complete(claim_one(store).lease)
    clock.advance(60)
    made["failed"] = store.intake.enqueue(
        NewJob("assemble", platform="gdrive", owner="bob", payload='{"file_id":"def"}')
    ).job_id
    store.leases.fail(claim_one(store).lease, Failure("OOM", "no memory"), retry_at=None)
    clock.advance(60)
    made["running"] = store.intake.enqueue(NewJob("assemble", owner="ann", payload='{"file_id":null,"n":"1"}')).job_id
    claim_one(store)
    clock.advance(60)
    made["pending"] = store.intake.enqueue(
        NewJob("ocr_pages", batch_id=1, payload='{"deep":{"er":[{"x":true}]}}')
    ).job_id
    return made


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        (Selector(), {"completed", "failed", "running", "pending"}),
        (Selector(ids=(1, 3, 99)), {"completed", "running"}),
        (Selector(statuses=(COMPLETED, FAILED)), {"completed", "failed"}),
        (Selector(statuses=(CANCELLED,)), set()),
        (Selector(job_types=("assemble",)), {"failed", "running"}),
        (Selector(job_types=("assemble", "ocr_pages")), {"completed", "failed", "running", "pending"}),
        (Selector(platforms=("gdrive",)), {"failed"}),
        (Selector(owners=("ann",)), {"completed", "running"}),
        (Selector(owners=("",)), {"pending"}),
        (Selector(batch_id=1), {"completed", "pending"}),
        (Selector(error_code="OOM"), {"failed"}),
        (Selector(since="2026-11-18 10:01:00.000"), {"failed", "running", "pending"}),
        (Selector(older_than="2026-11-18 10:01:00.000"), {"completed"}),
        (Selector(older_than="2026-11-18 10:02:30.000"), {"completed", "failed", "running"}),
        (Selector(match=(("file_id", "abc"),)), {"completed"}),
        (Selector(match=(("n", 1),)), {"completed"}),
        (Selector(match=(("n", "1"),)), {"running"}),
        (Selector(match=(("file_id", None),)), {"running"}),
        (Selector(match=(("page_range[1]", 12),)), {"completed"}),
        (Selector(match=(("page_range", [1, 12]),)), {"completed"}),
        (Selector(match=(("deep.er[0].x", True),)), {"pending"}),
        (Selector(match=(("deep.er[0].x", 1),)), set()),
        (Selector(owners=("ann",), statuses=(RUNNING,), job_types=("assemble",)), {"running"}),
        (Selector(owners=("ann",), statuses=(PENDING,)), set()),
    ],
    ids=lambda value: "-".join(sorted(value)) if isinstance(value, set) else "",
)
def test_a_selector_means_the_jobs_that_match_all_of_it(
    store: Store, worker: AddWorker, clock: MovableClock, selector: Selector, names: set[str]
) -> None:
    made = _filled(store, worker, clock)

    found = {job.id for job in store.job_queries.list(selector)}

    assert found == {made[name] for name in names}
    assert store.job_queries.count(selector) == len(names)


@pytest.mark.parametrize("place", ["a'b", 'a"b', "[", "a[", "$", "a..b", "a[x]", "é", ""])
def test_a_strange_path_matches_nothing_or_is_refused_in_words(store: Store, enqueue: Enqueue, place: str) -> None:
    enqueue(payload='{"a":1}')

    try:
        is_told = store.job_queries.count(Selector(match=((place, "1"),))) == 0
    except BadInput as refusal:
        is_told = "path" in str(refusal)

    assert is_told


def test_a_payload_that_is_no_object_matches_nothing(store: Store, enqueue: Enqueue) -> None:
    enqueue(payload="[1,2]")
    enqueue(payload=None)
    enqueue(payload='"text"')

    assert store.job_queries.count(Selector(match=(("a", 1),))) == 0


# ── Counts ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_counts_are_by_status_with_the_oldest_pending_job(store: Store, worker: AddWorker, clock: MovableClock) -> None:
    assert store.overview.counts().oldest_pending_at is None
    _filled(store, worker, clock)

    counts = store.overview.counts()

    assert dict(counts.by_status) == {COMPLETED: 1, FAILED: 1, RUNNING: 1, PENDING: 1, CANCELLED: 0}
    assert counts.oldest_pending_at == "2026-11-18 10:03:00.000"


def test_the_oldest_pending_job_is_the_one_that_has_been_ready_longest(store: Store, clock: MovableClock) -> None:
    store.workers.register(new_worker("w1", types=["download"]))
    store.intake.enqueue(NewJob("ocr_pages", run_at=clock.after(600)))
    assert store.overview.counts().oldest_pending_at is None

    clock.advance(660)
    store.intake.enqueue(NewJob("assemble"))
    assert store.leases.claim("w1", 1, "io") == [], "a claim frees what is due"
    assert store.overview.counts().oldest_pending_at == "2026-11-18 10:10:00.000"


def test_the_time_limit_of_a_job_is_its_own_or_that_of_its_handler(store: Store) -> None:
    worker = new_worker("w1", types=[])
    store.workers.register(replace(worker, handlers=[HandlerFacts("ocr_pages", timeout_seconds=90)]))
    store.intake.enqueue_many([NewJob("ocr_pages"), NewJob("ocr_pages", timeout_seconds=5), NewJob("ocr_pages")])
    store.leases.claim("w1", 2)

    assert [store.job_queries.time_limit(job_id) for job_id in (1, 2, 3)] == [90, 5, None]


def test_counts_by_type_separate_held_from_ready_jobs(store: Store, worker: AddWorker, clock: MovableClock) -> None:
    _filled(store, worker, clock)
    store.intake.enqueue(NewJob("assemble", run_at=clock.after(60)))

    found = {
        counts.job_type: (
            counts.pending,
            counts.held,
            counts.running,
            counts.completed,
            counts.failed,
            counts.cancelled,
        )
        for counts in store.overview.counts_by_type()
    }

    assert found["ocr_pages"] == (1, 0, 0, 1, 0, 0)
    assert found["assemble"] in ((0, 1, 1, 0, 1, 0), (1, 1, 1, 0, 1, 0))


def test_errors_are_counted_by_code_and_type_with_the_newest_message(
    store: Store, enqueue: Enqueue, worker: AddWorker, clock: MovableClock
) -> None:
    worker()
    for number, code in enumerate(("OOM", "NET", "OOM")):
        enqueue(owner="bob" if code == "NET" else "ann")
        store.leases.fail(claim_one(store).lease, Failure(code, f"message {number}"), retry_at=None)

    first, second = store.overview.errors(since="2026-11-18 00:00:00.000")
    [of_bob] = store.overview.errors(since="2026-11-18 00:00:00.000", owner="bob")

    assert (first.code, first.job_type, first.jobs) == ("OOM", "ocr_pages", 2)
    assert (first.newest_job_id, first.newest_message) == (3, "message 2")
    assert (second.code, second.jobs, of_bob.code) == ("NET", 1, "NET")
    clock.advance(1)
    assert list(store.overview.errors(since=clock.text)) == []


def test_ended_jobs_are_counted_by_hour_and_type_with_waiting_and_running_times(
    store: Store, enqueue: Enqueue, worker: AddWorker, clock: MovableClock
) -> None:
    worker()
    enqueue(run_at=clock.after(30))
    enqueue()
    clock.advance(40)
    first, second = claim_one(store), claim_one(store)
    clock.advance(5)
    store.leases.report([Report(first.lease, 50, count=Count(1, 3, "pages"))])
    store.leases.complete(first.lease)
    store.leases.fail(second.lease, Failure("OOM", "too large"), retry_at=None)

    [hour] = store.overview.hours_of_work("2026")

    assert (hour.at, hour.job_type, hour.completed, hour.failed) == (clock.text[:14] + "00:00.000", "ocr_pages", 1, 1)
    assert hour.pages == 3
    # The first job waited only since its run_at.
    assert (round(hour.seconds), round(hour.longest_seconds)) == (10, 5)
    assert (round(hour.waited_seconds), round(hour.longest_wait_seconds)) == (50, 40)


def test_names_are_completed_from_their_beginning(store: Store, enqueue: Enqueue) -> None:
    for job_type, owner in (("ocr_pages", "ann"), ("ocr_rows", "anton"), ("assemble", "bob"), ("ocr%", "")):
        enqueue(job_type, owner=owner)

    assert sorted(store.job_queries.names("job_type", "ocr_")) == ["ocr_pages", "ocr_rows"]
    assert sorted(store.job_queries.names("job_type", "")) == ["assemble", "ocr%", "ocr_pages", "ocr_rows"]
    assert sorted(store.job_queries.names("job_type", "%")) == []
    assert sorted(store.job_queries.names("owner", "an")) == ["ann", "anton"]
    assert "" not in store.job_queries.names("owner", "")
    assert sorted(store.job_queries.names("id", "")) == ["1", "2", "3", "4"]
    assert len(store.job_queries.names("id", "", most=2)) == 2


# ── What a reader may rely on ───────────────────────────────────────────────────────────────────────────────────────


def test_the_change_counter_changes_only_when_another_connection_commits(
    store: Store, path: Path, clock: MovableClock, by_hand: ByHand
) -> None:
    watcher = open_at(path, clock)
    seen = [watcher.database.change_counter()]
    assert watcher.database.change_counter() == seen[0]

    by_hand("INSERT INTO worker_job_queue (job_type, platform) VALUES ('ocr_pages', 'x')")
    seen.append(watcher.database.change_counter())
    store.intake.enqueue(NewJob("ocr_pages"))
    seen.append(watcher.database.change_counter())

    assert len(set(seen)) == 3
    assert watcher.database.change_counter() == seen[-1]
    by_hand("SELECT count(*) FROM worker_job_queue")
    assert watcher.database.change_counter() == seen[-1]
    watcher.close()


def test_reading_never_writes(store: Store, worker: AddWorker, clock: MovableClock, by_hand: ByHand) -> None:
    made = _filled(store, worker, clock)
    store.job_control.pause("all", until=clock.after(1))
    store.intake.enqueue(NewJob("ocr_pages", run_at=clock.after(1), after=(made["pending"],)))
    clock.advance(5)
    before = by_hand.dump()

    queries: list[Callable[..., object]] = [store.overview.counts, store.overview.counts_by_type]
    queries += [store.leases.next_deadline, store.job_queries.pauses, store.history.actions]
    of_a_job: list[Callable[..., object]] = [store.gates.explain, store.history.attempts, store.history.events]
    of_a_job += [store.history.logs, store.job_queries.waits_for]
    for query in queries:
        query()
    for job_id in all_jobs(store):
        for query in of_a_job:
            query(job_id)
    store.overview.errors(since="2000")
    store.job_queries.names("id", "")

    assert by_hand.dump() == before


# ── Upkeep ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_backup_never_overwrites(store: Store, path: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious.txt"
    target.write_text("precious")

    with pytest.raises(PagemillError):
        back_up(path, target)

    assert target.read_text() == "precious"


def test_check_finds_no_fault_in_a_sound_database(store: Store, worker: AddWorker, clock: MovableClock) -> None:
    _filled(store, worker, clock)

    checks = store.integrity.check()

    # Other checks depend on the machine: installed programs, free space.
    ours = [check for check in checks if check.name in {"integrity", "consistency", "SQLite", "write-ahead log"}]
    assert len(ours) == 4
    assert [check for check in ours if not check.is_good] == []
    assert len({check.name for check in checks}) == len(checks)


@pytest.mark.parametrize("index", ["job_by_owner", "job_by_status", "job_ready"])
def test_check_finds_a_page_that_is_damaged(
    store: Store, path: Path, enqueue: Enqueue, clock: MovableClock, tmp_path: Path, index: str
) -> None:
    enqueue(owner="ann")
    copy = tmp_path / "copy.db"
    back_up(path, copy)
    page = ByHand(copy).value(f"SELECT rootpage FROM sqlite_schema WHERE name = '{index}'")
    with copy.open("r+b") as file:
        file.seek((int(str(page)) - 1) * 4096)
        file.write(b"\xff" * 4096)

    damaged = open_at(copy, clock)
    bad = [check for check in damaged.integrity.check() if not check.is_good]

    assert "integrity" in [check.name for check in bad]
    assert all(check.detail and check.fix for check in bad)
    damaged.close()


def test_a_checkpoint_moves_everything_into_the_file(store: Store, enqueue: Enqueue, path: Path) -> None:
    job_id = enqueue(account="in-the-file")

    store.integrity.truncate_wal(even_if_small=True)

    # immutable: this reader does not look at the write-ahead log.
    main_file_only = ByHand(Path(f"file:{path}?immutable=1"))
    assert main_file_only.value(f"SELECT account FROM worker_job_queue WHERE id = {job_id}") == "in-the-file"
    assert store.job_queries.get(job_id).account == "in-the-file"
