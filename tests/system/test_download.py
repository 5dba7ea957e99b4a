from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.drive_server import DriveServer, Fault
from tests.job_handlers.fetch.kit import drive_for, pdf
from tests.kit.system import System, wait_until
from worker_service.jobs.job import NewJob, Status

SIZE = 60_000_000


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    made = System(tmp_path, shipped=["download"])
    yield made
    made.close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[DriveServer]:
    with drive_for(monkeypatch, tmp_path) as server:
        yield server


def test_a_download_resumes_after_two_kills_of_the_daemon(system: System, server: DriveServer) -> None:
    content = pdf(SIZE)
    item = server.store.add("report.pdf", content)
    payload = json.dumps({"source": item.id, "ingest": False})
    job = system.store.intake.enqueue(NewJob("download", platform="gdrive", payload=payload)).job_id
    keep = system.workspace / "keep"
    lengths: list[int] = []

    for kills in range(1, 3):
        # Silent after so much, so that each daemon is met in the middle of a chunk.
        server.arm(Fault("stall", skip=2, at=(1 << 20) * kills))
        daemon = system.start(drive_endpoint=server.url)
        wait_until(lambda: not server.faults.armed(), "the Drive has fallen silent", seconds=60)
        begin = server.requests_for("media")[-1].begin
        wait_until(partial(_is_at, keep, begin + (1 << 20) * kills), "what it said is kept")
        lengths.append(begin + (1 << 20) * kills)
        daemon.signal(signal.SIGKILL)
        daemon.wait_for_exit()
        assert list((system.workspace / "objects").rglob("*.pdf")) == []

    daemon = system.start(drive_endpoint=server.url)
    wait_until(lambda: system.status(job).is_ended, "it has ended", seconds=90)

    assert system.status(job) is Status.COMPLETED, system.job(job).error_message
    [published] = (system.workspace / "objects").rglob("*.pdf")
    assert published.read_bytes() == content
    begins = [request.begin for request in server.requests_for("media")]
    assert begins == sorted(begins)
    # Each daemon went on at the byte where the one before was killed.
    assert set(lengths) <= set(begins)
    assert list(keep.rglob("file.*")) == []
    system.assert_sound()


def test_a_cancelled_download_ends_and_keeps_its_bytes(system: System, server: DriveServer) -> None:
    item = server.store.add("report.pdf", pdf(6_000_000))
    server.arm(Fault("stall", at=3 << 20))
    payload = json.dumps({"source": item.id, "ingest": False})
    job = system.store.intake.enqueue(NewJob("download", platform="gdrive", payload=payload)).job_id
    system.start(drive_endpoint=server.url)
    wait_until(partial(_is_at, system.workspace / "keep", 3 << 20), "the Drive has fallen silent", seconds=60)

    system.sqlite3(f"UPDATE worker_job_queue SET status = 'cancelled' WHERE id = {job}")
    system.wait_for(job, Status.CANCELLED)

    # It ended by itself: the grace is longer than the test's patience, and nobody had to use force.
    assert system.store.history.attempts(job)[0].signal is None
    assert _is_at(system.workspace / "keep", 3 << 20)


def _is_at(keep: Path, length: int) -> bool:
    return [part.stat().st_size for part in keep.rglob("file.part")] == [length]
