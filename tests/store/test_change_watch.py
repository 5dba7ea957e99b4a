"""Pauses between writes; noticing commits of other programs, and deleted or replaced files."""

from __future__ import annotations

import select
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit.system import wait_until
from tests.store.kit import ByHand
from worker_service.store.backup_and_restore import back_up
from worker_service.store.change_watch import FileWatch
from worker_service.store.database import WritePauses
from worker_service.store.store import Store


@contextmanager
def _write(pauses: WritePauses) -> Iterator[None]:
    pauses.begin_write()
    yield
    pauses.end_write()


def test_the_first_write_of_a_turn_waits_for_the_end_of_the_pause() -> None:
    now, slept = [0.0], list[float]()
    pauses = WritePauses(lambda: now[0], slept.append)
    with _write(pauses):
        now[0] = 0.002
    with _write(pauses):
        assert slept == []
    pauses.end_burst()
    with _write(pauses):
        assert slept == [pytest.approx(0.001)]
    now[0] = 1.0
    pauses.end_burst()
    with _write(pauses):
        assert len(slept) == 1


def test_a_daemon_that_writes_without_end_leaves_a_quarter_of_the_time_to_others() -> None:
    now, slept = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    pauses = WritePauses(lambda: now[0], sleep)
    for _ in range(300):
        with _write(pauses):
            now[0] += 0.002

    assert sum(slept) / now[0] == pytest.approx(0.25, abs=0.01)
    assert max(slept) < 0.005


def test_after_a_long_write_the_pause_is_as_long_as_the_write() -> None:
    now, slept = [0.0], list[float]()
    pauses = WritePauses(lambda: now[0], slept.append)
    with _write(pauses):
        now[0] = 0.02
    with _write(pauses):
        assert slept == [pytest.approx(0.02)]


def test_a_commit_by_the_sqlite3_program_is_noticed(store: Store, path: Path) -> None:
    watch = store.watch()
    wait_until(lambda: not watch.has_changed())
    ByHand(path)("INSERT INTO worker_job_queue (job_type, platform) VALUES ('a', 'local')")

    fd = watch.fileno()
    assert fd is not None
    assert select.select([fd], [], [], 10)[0]
    wait_until(watch.has_changed)
    watch.close()


def test_after_a_hint_the_watch_reads_the_counter_at_growing_intervals(path: Path) -> None:
    counter, now = [1], [0.0]
    watch = FileWatch(path, lambda: counter[0], lambda: now[0])
    assert watch.has_changed()
    with path.with_name(f"{path.name}-wal").open("ab") as file:
        file.write(b"x")

    read_times = []
    assert not watch.has_changed()
    while (read_at := watch.next_read_at) is not None:
        read_times.append(read_at)
        now[0] = read_at
        assert not watch.has_changed()
    assert read_times[0] < 0.001
    assert read_times[-1] > 0.5
    assert len(read_times) < 15
    counter[0] = 2
    assert watch.has_changed()
    watch.close()


def test_a_watch_finds_no_fault_in_an_open_database(store: Store, path: Path) -> None:
    watch = store.watch()
    store.overview.counts()

    assert watch.fault() is None


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_a_watch_reports_a_deleted_file(store: Store, path: Path, suffix: str) -> None:
    watch = store.watch()
    store.overview.counts()

    path.with_name(path.name + suffix).unlink()

    assert "was deleted" in str(watch.fault())


def test_a_watch_reports_a_replaced_file(store: Store, path: Path) -> None:
    watch = store.watch()
    copy = path.with_name("copy.db")
    back_up(path, copy)

    copy.rename(path)

    assert "was replaced" in str(watch.fault())
