"""The SQLite file: durable writes, readers that never wait, and errors with a remedy."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from threading import Thread

import pytest

from tests.kit.system import locked
from tests.store.kit import EVERY_JOB, ByHand, MovableClock, all_jobs, claim_one, gate_codes, new_worker
from worker_service.base.errors import DiskFull, RuleBroken, StoreBusy
from worker_service.jobs.attempts import Report
from worker_service.jobs.job import NewJob
from worker_service.store import connection
from worker_service.store.backup_and_restore import back_up
from worker_service.store.database import WriteOptions
from worker_service.store.lock_owner import lasting_lock_owner_of, lock_owner_of
from worker_service.store.opening import initialise, open_store
from worker_service.store.store import Store


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record each wait for a lock, and give up at once."""
    waits: list[int] = []

    def give_up(self: object, calls: int) -> bool:
        waits.append(calls)
        return False

    monkeypatch.setattr(connection.BusyHandler, "__call__", give_up)
    return waits


def test_the_write_connection_uses_wal_mode_and_full_synchronisation(store: Store, path: Path) -> None:
    pragmas = {
        name: store.database.writer.execute(f"PRAGMA {name}").fetchall()[0][0]
        for name in ("journal_mode", "synchronous")
    }

    assert pragmas == {"journal_mode": "wal", "synchronous": 2}


def test_a_store_for_beats_may_lose_its_last_writes(path: Path, store: Store) -> None:
    beats = open_store(path, writing=WriteOptions(is_durable=False))

    assert beats.database.writer.execute("PRAGMA synchronous").fetchall() == [(1,)]
    beats.close()


def test_after_a_relaxed_commit_the_next_one_is_durable(store: Store, path: Path, waits: list[int]) -> None:
    def level() -> object:
        [(level,)] = store.database.writer.execute("PRAGMA synchronous").fetchall()
        return level

    store.workers.register(new_worker())
    store.intake.enqueue(NewJob("ocr_pages"))
    lease = claim_one(store).lease
    hurried = store.relaxed_durability()
    watch = store.watch()
    watch.has_changed()

    hurried.leases.report([Report(lease, 50.0, "half")])
    with hurried.database.transaction():
        levels = [level()]
    levels.append(level())
    with pytest.raises(RuleBroken):
        hurried.intake.enqueue(NewJob(""))
    levels.append(level())
    with locked(path), pytest.raises(StoreBusy):
        hurried.leases.report([])
    levels.append(level())

    assert levels == [1, 2, 2, 2]
    assert not watch.has_changed()
    assert store.job_queries.get(lease.job_id).progress_percent == 50
    watch.close()


def test_the_write_ahead_log_stays_under_1000_pages(store: Store, path: Path) -> None:
    store.workers.register(new_worker())
    wal = path.with_name(path.name + "-wal")

    largest = 0
    for number in range(300):
        store.intake.enqueue(NewJob("ocr_pages", payload='"' + "x" * 20_000 + '"', account=str(number)))
        largest = max(largest, wal.stat().st_size)

    assert largest < 1000 * 4096


def test_a_database_kept_out_of_wal_mode_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    initialise(path)
    ByHand(path)("PRAGMA journal_mode = DELETE")
    monkeypatch.setattr(connection, "BUSY_SECONDS", 0.05)
    store = open_store(path)
    with locked(path), pytest.raises(StoreBusy, match="is not in WAL mode"):
        store.integrity.ensure_wal_mode()

    store.integrity.ensure_wal_mode()

    assert ByHand(path).value("PRAGMA journal_mode") == "wal"
    store.close()


def test_a_backup_is_in_wal_mode_as_well(store: Store, path: Path, tmp_path: Path) -> None:
    store.intake.enqueue(NewJob("ocr_pages"))
    copy = tmp_path / "copy.db"
    back_up(path, copy)

    restored = open_store(copy)
    assert all_jobs(restored) == all_jobs(store)
    restored.intake.enqueue(NewJob("ocr_pages"))

    assert ByHand(copy).value("PRAGMA journal_mode") == "wal"
    assert restored.job_queries.count(EVERY_JOB) == 2
    restored.close()


@pytest.mark.parametrize("moment", ["explain", "has_unsettled_or_due", "next_turn"])
def test_explain_returns_no_gate_for_a_job_that_is_claimed_meanwhile(
    store: Store, path: Path, clock: MovableClock, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    store.workers.register(new_worker())
    job = store.intake.enqueue(NewJob("ocr_pages")).job_id
    daemon, ask = open_store(path, clock=clock), store.database.read

    def claimed_meanwhile(name: str, **values: object) -> list[tuple[object, ...]]:
        if name == moment:
            daemon.leases.claim("w1", 1)
        return ask(name, **values)

    monkeypatch.setattr(store.database, "read", claimed_meanwhile)
    gates = store.gates.explain(job)
    daemon.close()

    assert gates == []
    assert store.job_queries.get(job).status == "running"


def test_readers_never_wait_for_a_writer(store: Store, path: Path, clock: MovableClock, waits: list[int]) -> None:
    store.workers.register(new_worker())
    running, ready = (store.intake.enqueue(NewJob("ocr_pages")).job_id for _ in range(2))
    store.leases.report([Report(claim_one(store).lease, 10, "x", ["a line"])])
    reader = open_store(path, clock=clock)

    with locked(path):
        assert [job.id for job in reader.job_queries.list(EVERY_JOB)] == [ready, running]
        assert reader.job_queries.get(running).progress_percent == 10
        assert (
            len(reader.history.logs(running))
            == len(reader.history.attempts(running))
            == len(reader.history.events(running))
            == 1
        )
        assert [worker.running for worker in reader.overview.workers()] == [1]
        assert reader.leases.next_deadline() is None
        assert (list(reader.job_queries.pauses()), list(reader.history.actions())) == ([], [])

    assert waits == []
    reader.close()


def test_p12_explain_works_beside_a_writer(store: Store, path: Path, clock: MovableClock, waits: list[int]) -> None:
    store.workers.register(new_worker())
    ready = store.intake.enqueue(NewJob("ocr_pages")).job_id
    after = store.intake.enqueue(NewJob("ocr_pages")).job_id

    with locked(path):
        assert gate_codes(store, after) == ["AHEAD_IN_QUEUE"]
        assert gate_codes(store, ready) == []


def test_a_writer_that_cannot_get_the_lock_raises_store_busy(store: Store, path: Path, waits: list[int]) -> None:
    with locked(path) as pid, pytest.raises(StoreBusy, match=rf"by process {pid} \(sqlite3 .*try again"):
        store.intake.enqueue(NewJob("ocr_pages"))

    assert waits
    assert store.job_queries.count(EVERY_JOB) == 0
    assert store.intake.enqueue(NewJob("ocr_pages")).job_id == 1


def test_a_program_that_commits_often_is_not_a_lasting_lock_owner(store: Store, path: Path) -> None:
    store.intake.enqueue(NewJob("ocr_pages"))
    busy = subprocess.Popen(["sqlite3", "-cmd", ".timeout 5000", str(path)], stdin=subprocess.PIPE, text=True)
    assert busy.stdin is not None
    commits = Thread(target=busy.communicate, args=("UPDATE worker_job_queue SET priority = 3;\n" * 20_000,))
    commits.start()
    deadline = time.monotonic() + 20
    while (owner := lock_owner_of(path)) is None or owner.pid != busy.pid:
        assert time.monotonic() < deadline, "it has been seen with the lock"

    assert lasting_lock_owner_of(path, seconds=1) is None

    assert busy.poll() is None, "it commits no more, so nothing was shown"
    busy.kill()
    commits.join()


def test_a_full_disk_is_reported_and_changes_nothing(store: Store) -> None:
    store.intake.enqueue(NewJob("ocr_pages"))
    before = all_jobs(store)
    [(pages,)] = store.database.writer.execute("PRAGMA page_count").fetchall()
    store.database.writer.execute(f"PRAGMA max_page_count = {pages}")

    with pytest.raises(DiskFull, match="free some space"):
        store.intake.enqueue_many([NewJob("ocr_pages", payload='"' + "x" * 100_000 + '"')] * 20)

    assert all_jobs(store) == before
    store.database.writer.execute("PRAGMA max_page_count = 1000000")
    assert store.intake.enqueue(NewJob("ocr_pages")).job_id == 2
