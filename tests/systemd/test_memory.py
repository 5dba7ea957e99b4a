"""A job that takes more memory than there is: the kernel ends that job's child, and the daemon lives.

The limit is set from outside the box, whose own systemd is not handed a memory controller.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.system import wait_until
from tests.systemd.booted_systemd import PYTHONPATH, Box
from tests.systemd.conftest import Service, install_handlers

MOST_BYTES = 256 << 20
HANDLER = """
from pathlib import Path
from worker_service.handlers import Done, Handler, Limits

def greedy(context):
    taken = []
    while True:
        taken.append(b"x" * (1 << 20))

def offers(context):
    return Done(int(Path("/proc/self/oom_score_adj").read_text()))

handlers = [Handler("greedy", greedy, dict, limits=Limits(memory_bytes=None)), Handler("offers", offers, dict)]
"""


@pytest.fixture
def service(box: Box) -> Service:
    """A service with a handler that takes all memory."""
    box.write("/opt/more/greedy.py", HANDLER)
    box.write("/opt/more/greedy-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: greedy\nVersion: 1\n")
    box.write("/opt/more/greedy-1.dist-info/entry_points.txt", "[worker_service.handlers]\ngreedy = greedy:handlers\n")
    made = Service(box)
    made.drop_in("more", f"Environment=PYTHONPATH={install_handlers(box, [])}:{PYTHONPATH}:/opt/more")
    return made


def test_a_child_killed_for_lack_of_memory_fails_only_its_job(service: Service) -> None:
    with memory_of(service):
        daemon = service.main_pid
        offer = service.enqueue("offers")
        greedy = service.enqueue("greedy", "--max-retries", "0")

        wait_until(lambda: service.status(greedy) == "failed", "the job has failed")
        wait_until(lambda: service.status(offer) == "completed", "the other job is done")
        found = service.job(greedy)
        assert (found["error_code"], found["attempts"][-1]["signal"]) == ("CRASHED", "SIGKILL")
        assert "where memory runs out" in found["error_message"]
        # Nobody but the child: neither daemon nor fork server was replaced, and they go on.
        again = service.enqueue("offers")
        wait_until(lambda: service.status(again) == "completed", "a job after it is done")
        assert (service.main_pid, service.unit_property("NRestarts"), service.unit_property("ActiveState")) == (
            daemon,
            "0",
            "active",
        )
        assert service.journal("PAGEMILL_EVENT=fork server.died") == []
        assert service.job(again)["result"] == 500


@contextlib.contextmanager
def memory_of(service: Service) -> Iterator[None]:
    """Start the service with a limit of memory."""
    group = service.box.cgroup(service.unit)
    service.systemctl("start")
    most = group.parents[1] / "memory.max"
    if most.exists():
        # All of the box, which had little to do so far.
        most.write_text(str(int(most.with_name("memory.current").read_text()) + MOST_BYTES))
        yield
        return
    place = _older_controller() / f"pagemill-memory-{secrets.token_hex(4)}"
    place.mkdir()
    try:
        (place / "memory.limit_in_bytes").write_text(str(MOST_BYTES))
        for pid in (group / "cgroup.procs").read_text().split():
            (place / "cgroup.procs").write_text(pid)
        yield
        assert int((place / "memory.failcnt").read_text()) > 0
    finally:
        # With its last process it can go.
        service.systemctl("stop")
        wait_until(lambda: not (place / "cgroup.procs").read_text(), "all of it have ended")
        place.rmdir()


def _older_controller() -> Path:
    """Return our own group in the tree of memory of cgroup 1."""
    own = [line.split(":", 2)[2] for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line]
    place = Path("/sys/fs/cgroup/memory", *[part.lstrip("/") for part in own])
    if not own or not place.is_dir():
        pytest.skip("this machine hands on no memory controller, of either kind")
    return place
