"""How many modules a job passes, from its INSERT to `completed`: the fewer, the sooner somebody has read its way."""

from __future__ import annotations

from pathlib import Path

from tests.system.conftest import System, wait_until
from worker_service.jobs.job import Status

MODULES_MOST = 26

# In every process of the daemon's: the name of each module of ours in which anything is called while `recording` is
# there. Its `sitecustomize` is found by way of the path that the handlers are found by.
RECORDER = """
import os, sys, threading

PLACE = os.path.dirname(os.path.abspath(__file__))
RECORDING = os.path.join(PLACE, "recording")
seen = set()

def note(frame, event, argument):
    name = frame.f_code.co_filename
    if event == "call" and "/worker_service/" in name and name not in seen and os.access(RECORDING, os.F_OK):
        seen.add(name)
        line = os.open(os.path.join(PLACE, "modules"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.write(line, (name.partition("/worker_service/")[2] + chr(10)).encode())
        os.close(line)

threading.setprofile(note)
sys.setprofile(note)
"""


def test_a_job_passes_few_modules_from_its_insert_to_completed(system: System) -> None:
    place = Path(system.environment()["PYTHONPATH"].partition(":")[0])
    (place / "sitecustomize.py").write_text(RECORDER)
    system.start(sandbox="off", recovery_interval=3600, heartbeat_interval=3600, orphan_after=10000)
    wait_until(lambda: system.store.reading.workers(), "it has registered")
    system.wait_for(system.enqueue("noop"), Status.COMPLETED)

    (place / "recording").touch()
    inserted = system.sqlite3("INSERT INTO worker_job_queue (job_type, platform) VALUES ('noop', 'local') RETURNING id")
    system.wait_for(int(inserted.stdout), Status.COMPLETED)
    (place / "recording").unlink()

    passed = sorted(set((place / "modules").read_text().split()))
    assert len(passed) <= MODULES_MOST, "\n".join(passed)
