"""Backups, and restores: the backup is checked, fences are raised, and the replaced file is locked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.system import wait_until
from tests.store.kit import ByHand, MovableClock, RefusedByHand, new_worker, open_at
from tests.store.test_migrations import ORIGINAL
from worker_service.base.errors import BadInput, LeaseLost, SchemaMismatch, StoreBusy, StoreDamaged, StoreUnusable
from worker_service.jobs.attempts import Completion
from worker_service.jobs.job import NewJob, Status
from worker_service.store.backup_and_restore import RAISED_BY, Restored, back_up, check_backup, restore_backup
from worker_service.store.opening import initialise, open_store

BACK_UP = """
import sys
from pathlib import Path
from worker_service.store.backup_and_restore import back_up

back_up(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "place" / "pagemill.db"
    initialise(path)
    return path


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return tmp_path / "copy.db"


def restore(copy: Path, path: Path, clock: MovableClock) -> Restored:
    return restore_backup(check_backup(copy), path, clock)


def test_a_restore_requeues_running_jobs_and_fences_late_results(path: Path, copy: Path, clock: MovableClock) -> None:
    before = open_at(path, clock)
    before.workers.register(new_worker("w1"))
    job = before.intake.enqueue(NewJob("ocr_pages")).job_id
    [late] = before.leases.claim("w1", 1)
    back_up(path, copy)
    before.close()

    done = restore(copy, path, clock)

    store = open_at(path, clock)
    assert (done.requeued, store.job_queries.get(job).status) == (1, Status.PENDING)
    store.workers.register(new_worker("w1"))
    [again] = store.leases.claim("w1", 1)
    assert (again.lease.job_id, again.lease.fence) == (job, late.lease.fence + RAISED_BY + 1)
    with pytest.raises(LeaseLost):
        store.leases.release(late.lease)
    assert store.leases.complete_many([Completion(late.lease), Completion(again.lease)]) == [late.lease]
    assert store.integrity.audit() == []
    store.close()


def test_fences_of_attempts_after_the_backup_are_never_used_again(path: Path, copy: Path, clock: MovableClock) -> None:
    before = open_at(path, clock)
    before.workers.register(new_worker("w1"))
    before.intake.enqueue(NewJob("ocr_pages"))
    back_up(path, copy)
    [first] = before.leases.claim("w1", 1)
    before.leases.release(first.lease)
    [lost] = before.leases.claim("w1", 1)
    before.close()

    restore(copy, path, clock)
    between = open_at(path, clock)
    between.workers.register(new_worker("w2"))
    [lost_again] = between.leases.claim("w2", 1)
    between.close()
    clock.advance(1)
    restore(copy, path, clock)

    store = open_at(path, clock)
    store.workers.register(new_worker("w2"))
    [again] = store.leases.claim("w2", 1)
    assert again.lease.fence > lost_again.lease.fence > lost.lease.fence
    store.leases.release(again.lease)
    [third] = store.leases.claim("w2", 1)
    assert third.lease.fence == again.lease.fence + 1
    assert store.integrity.audit() == []
    store.close()


def test_no_number_is_given_twice(path: Path, copy: Path, clock: MovableClock) -> None:
    before = open_at(path, clock)
    first_id = before.intake.enqueue(NewJob("a")).job_id
    back_up(path, copy)
    lost = [before.intake.enqueue(NewJob("a")).job_id for _ in range(3)]
    before.close()

    restore(copy, path, clock)

    store = open_at(path, clock)
    assert store.intake.enqueue(NewJob("a")).job_id > max(first_id, *lost)
    store.close()


def test_the_replaced_database_is_kept_and_can_be_restored(path: Path, copy: Path, clock: MovableClock) -> None:
    before = open_at(path, clock)
    before.intake.enqueue(NewJob("a"))
    back_up(path, copy)
    later = before.intake.enqueue(NewJob("a")).job_id
    before.close()

    aside = restore(copy, path, clock).replaced
    assert aside is not None
    assert ByHand(path).value("SELECT count(*) FROM worker_job_queue") == 1
    clock.advance(1)
    restore(aside, path, clock)

    assert ByHand(path).value("SELECT max(id) FROM worker_job_queue") == later
    assert ByHand(path).value("PRAGMA journal_mode") == "wal"
    assert path.stat().st_mode == copy.stat().st_mode or os.geteuid() == 0


def test_a_restore_can_create_the_database(path: Path, copy: Path, clock: MovableClock, tmp_path: Path) -> None:
    back_up(path, copy)
    elsewhere = tmp_path / "elsewhere" / "pagemill.db"

    done = restore(copy, elsewhere, clock)

    assert done.replaced is None
    assert ByHand(elsewhere).value("PRAGMA integrity_check") == "ok"
    assert sorted(file.name for file in elsewhere.parent.iterdir()) == ["pagemill.db"]


def test_a_backup_of_the_plain_table_is_brought_to_todays_tables(path: Path, copy: Path, clock: MovableClock) -> None:
    ByHand(copy).run(f"PRAGMA journal_mode = wal; {ORIGINAL}")
    ByHand(copy)("INSERT INTO worker_job_queue (job_type, platform, payload) VALUES ('a', 'local', '{}')")

    done = restore(copy, path, clock)

    assert done.steps
    store = open_at(path, clock)
    assert store.job_queries.get(1).job_type == "a"
    store.close()


def test_a_restore_is_refused_while_the_database_is_open_elsewhere(path: Path, copy: Path, clock: MovableClock) -> None:
    back_up(path, copy)
    sqlite3 = subprocess.Popen(["sqlite3", str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert sqlite3.stdin is not None
    assert sqlite3.stdout is not None
    sqlite3.stdin.write("SELECT count(*) FROM worker_job_queue;\n")
    sqlite3.stdin.flush()
    assert sqlite3.stdout.readline() == "0\n"

    with pytest.raises(StoreBusy, match="pagemill serve"):
        restore(copy, path, clock)

    sqlite3.communicate(timeout=10)
    assert ByHand(path).value("PRAGMA journal_mode") == "wal"
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_no_program_can_write_into_the_replaced_file(path: Path, copy: Path, clock: MovableClock) -> None:
    back_up(path, copy)
    sqlite3 = subprocess.Popen(
        ["sqlite3", "-cmd", ".timeout 5000", str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert sqlite3.stdin is not None
    assert sqlite3.stdout is not None
    # The program has opened the file but read nothing yet, so it holds no lock.
    sqlite3.stdin.write(".print here\n")
    sqlite3.stdin.flush()
    assert sqlite3.stdout.readline() == "here\n"

    aside = restore(copy, path, clock).replaced
    _, refused = sqlite3.communicate(
        "INSERT INTO worker_job_queue (job_type, platform) VALUES ('a', 'b');\n", timeout=20
    )

    assert aside is not None
    rows = [ByHand(database).value("SELECT count(*) FROM worker_job_queue") for database in (aside, path)]
    assert rows == [0, 1] or (rows == [0, 0] and refused)


def test_a_damaged_database_and_its_log_are_kept_aside(path: Path, copy: Path, clock: MovableClock) -> None:
    back_up(path, copy)
    path.write_bytes(b"no database" * 1000)
    Path(f"{path}-wal").write_bytes(b"of it")

    aside = restore(copy, path, clock).replaced

    assert aside is not None
    assert aside.read_bytes().startswith(b"no database")
    assert Path(f"{aside}-wal").read_bytes() == b"of it"
    assert ByHand(path).value("PRAGMA integrity_check") == "ok"


def test_an_unsound_backup_is_refused(path: Path, copy: Path, clock: MovableClock, tmp_path: Path) -> None:
    back_up(path, copy)
    content_before = path.read_bytes()
    junk, cut, empty, other = (tmp_path / name for name in ("junk", "cut", "empty", "other"))
    junk.write_bytes(b"junk" * 1000)
    cut.write_bytes(copy.read_bytes()[:50_000])
    empty.write_bytes(b"")
    ByHand(other).run("CREATE TABLE mine (x)")
    newer = tmp_path / "newer"
    newer.write_bytes(copy.read_bytes())
    ByHand(newer).run("UPDATE pagemill_schema SET version = 99")

    for file, error, words in (
        (junk, StoreDamaged, "no sound backup"), (cut, StoreDamaged, "no sound backup"),
        (empty, StoreUnusable, "db backup"), (other, StoreUnusable, "db backup"),
        (newer, SchemaMismatch, "upgrade pagemill"), (tmp_path / "absent", BadInput, "there is no file"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            restore(file, path, clock)

    assert path.read_bytes() == content_before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_fence_cannot_be_raised_by_hand_through_the_table_of_restores(path: Path) -> None:
    by_hand = ByHand(path)
    by_hand("INSERT INTO worker_job_queue (job_type, platform) VALUES ('a', 'b')")

    with pytest.raises(RefusedByHand, match="fence of a job changes only when a worker claims it"):
        by_hand("UPDATE worker_job_queue SET fence = 1000001")


def test_the_next_backup_removes_the_file_of_a_killed_one(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copies"
    folder.mkdir()
    store = open_store(path)
    store.database.writer.execute(
        "CREATE TABLE filler AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200)"
        " SELECT randomblob(100000) AS x FROM n"
    )
    killed = subprocess.Popen([sys.executable, "-c", BACK_UP, path, folder / "copy.db"])
    left = folder / ".pagemill.db.unfinished"
    wait_until(lambda: left.exists() and left.stat().st_size > 0, "it writes the copy")
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    assert left.exists()

    back_up(path, folder / "other.db")

    assert [file.name for file in folder.iterdir()] == ["other.db"]
    assert check_backup(folder / "other.db").version == 1
    assert [check.name for check in store.integrity.check() if not check.is_good] == []
    store.close()
