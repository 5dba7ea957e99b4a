from __future__ import annotations

import json
import os
import time
from pathlib import Path

from tests.job_handlers.reading.documents import digital
from tests.kit.system import System, wait_until
from worker_service.jobs.job import Status
from worker_service.jobs.library import DocumentSelector

MODULES_MOST = 27
"""26 (runner 10, daemon 6, store 4, base 4, jobs 2), and one more if the daemon waits for the write lock."""
PDF_MODULES_MOST, PDF_PROCESSES_MOST = 23, 3
"""Modules of the handlers, and processes that run them: one for each of two jobs, and one for the pages."""

# In every process of the daemon's: the name of each module of ours in which anything is called while `recording` is
# there. Its `sitecustomize` is found by way of the path that the handlers are found by.
RECORDER = r"""
import os, sys, threading

PLACE = os.path.dirname(os.path.abspath(__file__))
RECORDING = os.path.join(PLACE, "recording")
seen = set()

def note(frame, event, argument):
    name = frame.f_code.co_filename
    is_ours = "/worker_service/" in name or "/job_handlers/" in name
    if event == "call" and is_ours and (os.getpid(), name) not in seen and os.access(RECORDING, os.F_OK):
        seen.add((os.getpid(), name))
        line = os.open(os.path.join(PLACE, "modules"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.write(line, f"{os.getpid()} {name}\n".encode())
        os.close(line)

threading.setprofile(note)
sys.setprofile(note)
"""


def test_a_job_passes_few_modules_from_its_insert_to_completed(system: System) -> None:
    place = Path(system.environment()["PYTHONPATH"].partition(":")[0])
    (place / "sitecustomize.py").write_text(RECORDER)
    system.start(sandbox="off", recovery_interval=3600, heartbeat_interval=3600, orphan_after=10000)
    wait_until(lambda: system.store.overview.workers(), "it has registered")
    system.wait_for(system.enqueue("noop"), Status.COMPLETED)

    (place / "recording").touch()
    inserted = system.sqlite3("INSERT INTO worker_job_queue (job_type, platform) VALUES ('noop', 'local') RETURNING id")
    system.wait_for(int(inserted.stdout), Status.COMPLETED)
    (place / "recording").unlink()

    _, modules = zip(*map(str.split, (place / "modules").read_text().splitlines()), strict=True)
    passed = sorted(path.partition("/worker_service/")[2] for path in set(modules))
    assert len(passed) <= MODULES_MOST, "\n".join(passed)


def test_a_pdf_of_one_page_passes_few_modules_and_processes(tmp_path: Path) -> None:
    system = System(tmp_path, shipped=None)
    place = Path(system.environment()["PYTHONPATH"].partition(":")[0])
    (place / "sitecustomize.py").write_text(RECORDER)
    paper = digital(tmp_path / "report.pdf", ["A page with text of its own."])
    os.utime(paper, (time.time() - 60,) * 2)
    try:
        system.start(sandbox="off", recovery_interval=3600, heartbeat_interval=3600, orphan_after=10000)
        wait_until(lambda: system.store.overview.workers(), "it has registered")

        (place / "recording").touch()
        payload = json.dumps({"source": str(paper)})
        columns = "worker_job_queue (job_type, platform, payload)"
        system.sqlite3(f"INSERT INTO {columns} VALUES ('download', 'local', '{payload}')")
        wait_until(
            lambda: [document.status for document in system.store.library.documents(DocumentSelector())] == ["success"],
            "it is read",
        )
        (place / "recording").unlink()
    finally:
        system.close()

    passed = [line.split() for line in (place / "modules").read_text().splitlines() if "/job_handlers/" in line]
    modules, processes = {module for _, module in passed}, {process for process, _ in passed}
    assert len(modules) <= PDF_MODULES_MOST, "\n".join(sorted(modules))
    assert len(processes) <= PDF_PROCESSES_MOST
