"""Crawls and their downloads under a real daemon that is killed meanwhile."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import pytest

from tests.drive_server import DriveServer, Fault, Item
from tests.job_handlers.fetch.kit import pdf
from tests.kit.system import System, wait_until
from worker_service.jobs.job import Job, NewJob, Status
from worker_service.jobs.selector import Selector

ALICE = "alice"
LIVE = (Status.PENDING, Status.RUNNING)


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    running_system = System(tmp_path, shipped=("adopt", "download", "drive_crawl"))
    yield running_system
    running_system.close()


def test_a_directory_is_crawled_and_later_only_its_changes(system: System) -> None:
    folder = system.place / "reports"
    (folder / "2026" / "empty").mkdir(parents=True)
    (folder / os.fsdecode(b"in-\xe9")).mkdir()
    (folder / ".hidden").mkdir()
    for name in ("a.pdf", "2026/b.pdf", ".hidden/c.pdf"):
        _write(folder / name, pdf(5000, len(name)))
    _write(folder / "notes.log", b"text")
    (folder / "link").symlink_to(folder)
    _write(folder / os.fsdecode(b"latin-\xe9.pdf"), pdf(5000, 11))
    _write(folder / os.fsdecode(b"in-\xe9/") / " d.pdf", pdf(5000, 12))
    system.start()

    first = _run_crawl(system, folder)
    _write(folder / "2026/b.pdf", pdf(6000, 7))
    _write(folder / "new.pdf", pdf(5000, 9))
    (folder / "a.pdf").unlink()
    second = _run_crawl(system, folder)

    assert (first["folders"], first["found"], first["enqueued"], first["skipped"]) == (4, 5, 4, 1)
    assert (second["enqueued"], second.get("unchanged", 0), second["gone"]) == (2, 2, 1)
    contents = {pdf(5000, 5), pdf(5000, 10), pdf(6000, 7), pdf(5000, 9), pdf(5000, 11), pdf(5000, 12)}
    assert _published(system) == Counter(hashlib.sha256(content).hexdigest() for content in contents)
    system.assert_sound()


def test_both_names_of_the_job_type_work(system: System) -> None:
    folder = system.place / "reports"
    folder.mkdir()
    _write(folder / "a.pdf", pdf(5000, 1))
    names = ("crawl", "drive_crawl")
    payload = json.dumps({"folder": str(folder), "dry_run": True})
    for name in names:
        row = f"INSERT INTO worker_job_queue (job_type, platform, payload) VALUES ('{name}', 'local', '{payload}')"
        system.sqlite3(row)

    system.start()

    ended = [_ended_job(system, number) for number in (1, 2)]
    assert [(job.job_type, job.status) for job in ended] == [(name, Status.COMPLETED) for name in names]
    assert all(json.loads(job.result or "")["would_enqueue"] == ["a.pdf"] for job in ended)


def test_crawls_of_one_credential_share_their_pace(system: System, server: DriveServer) -> None:
    alices_folder, bobs_folder = (_library(server, folders=1, files=1) for _ in range(2))
    refused: list[float] = []
    slower = {"Retry-After": "2"}
    server.arm(
        Fault("status", on="any", skip=1, status=429, headers=slower, action=lambda: refused.append(monotonic()))
    )
    system.start(types="crawl", drive_endpoint=server.url)
    first = _enqueue(system, alices_folder.id)
    wait_until(lambda: refused, "Drive asks for a slower pace")

    second = _enqueue(system, bobs_folder.id, "bob")

    assert _ended_job(system, second).status is Status.COMPLETED
    assert _ended_job(system, first).status is Status.COMPLETED
    calls = [request.at for request in server.log if request.on != "token"]
    assert min(at for at in calls if at > refused[0]) >= refused[0] + 1.9


def test_every_file_is_published_once_despite_faults_and_kills(system: System, server: DriveServer) -> None:
    chance = random.Random(4)
    top = _library(server, folders=6, files=16, notes=60)
    server.page_size_max = 25
    for kind in ("reset", "cut", "swapped", "short"):
        server.arm(Fault(kind, skip=chance.randrange(25), at=500))
    server.arm(Fault("hang up", on="list", skip=5), Fault("page", on="list", skip=9, status=503))
    server.arm(Fault("status", on="metadata", skip=chance.randrange(25), status=503))
    _enqueue(system, top.id)
    kills = 2
    settings = {"drive_endpoint": server.url, "io_concurrency": 4}

    daemon = system.start(**settings)
    for number in range(1, kills + 1):
        wait_until(_has_completed(system, number * 5), f"{number * 5} downloads")
        daemon.signal(signal.SIGKILL)
        daemon.wait_for_exit()
        if number == 1:
            changed = next(item for item in server.store.items.values() if item.name == "15.pdf")
            server.store.write(changed, pdf(9000, 1))
            server.store.add("late.pdf", pdf(9000, 2), parents=[top.id])
        daemon = system.start(**settings)
    wait_until(lambda: not system.store.job_queries.count(Selector(statuses=LIVE)), "all have ended")
    again = _run_crawl(system, top.id)
    wait_until(lambda: not system.store.job_queries.count(Selector(statuses=LIVE)), "all have ended again")

    files = [item for item in server.store.items.values() if item.mime == "application/pdf"]
    failed = system.store.job_queries.list(Selector(statuses=(Status.FAILED,)))
    assert [(job.payload, job.error_message) for job in failed] == []
    assert {hashlib.sha256(item.content).hexdigest() for item in files} <= set(_published(system))
    assert max(_published(system).values()) == 1
    assert again["enqueued"] <= 2
    assert _run_crawl(system, top.id).get("enqueued", 0) == 0
    system.assert_sound()


def _write(path: Path, content: bytes) -> None:
    """Write a file that is a minute old."""
    path.write_bytes(content)
    os.utime(path, ns=(0, time.time_ns() - 60_000_000_000))


def _library(server: DriveServer, *, folders: int, files: int, notes: int = 0) -> Item:
    store = server.store
    top = store.folder("top")
    below = [store.folder(f"folder {number}", parents=[top.id]) for number in range(folders)]
    for number in range(files):
        store.add(f"{number}.pdf", pdf(2000 + number, number), parents=[below[number % folders].id])
    for number in range(notes):
        store.add(f"{number}.log", b"text", mime="text/plain", parents=[below[number % folders].id])
    return top


def _enqueue(system: System, folder: Path | str, owner: str = ALICE) -> int:
    platform = "local" if isinstance(folder, Path) else "gdrive"
    payload = json.dumps({"folder": str(folder), "download": {"ingest": False}})
    source = "" if isinstance(folder, Path) else "gdrive:drive"
    job = NewJob("crawl", platform=platform, owner=owner, payload=payload, source=source)
    return system.store.intake.enqueue(job).job_id


def _run_crawl(system: System, folder: Path | str) -> dict[str, int]:
    job_id = _enqueue(system, folder)
    job = _ended_job(system, job_id)
    assert job.status is Status.COMPLETED, job
    wait_until(
        lambda: not system.store.job_queries.count(Selector(job_types=("download",), statuses=LIVE)), "the downloads"
    )
    result: dict[str, int] = json.loads(job.result or "")
    return result


def _ended_job(system: System, job_id: int) -> Job:
    wait_until(lambda: system.status(job_id) not in LIVE, f"job {job_id} has ended")
    return system.job(job_id)


def _has_completed(system: System, downloads: int) -> Callable[[], bool]:
    done = Selector(job_types=("download",), statuses=(Status.COMPLETED,))
    count = system.store.job_queries.count
    return lambda: count(done) >= downloads or not count(Selector(statuses=LIVE))


def _published(system: System) -> Counter[str]:
    rows = system.sqlite3("SELECT DISTINCT path || '|' || sha256 FROM file").stdout.split("\n")
    count_by_digest = Counter(row.rpartition("|")[2] for row in rows if row)
    for path, _, sha256 in (row.rpartition("|") for row in rows if row):
        assert hashlib.sha256((system.workspace / path).read_bytes()).hexdigest() == sha256
    return count_by_digest
