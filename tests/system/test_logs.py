from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.full_length import short
from tests.kit.system import System, wait_until
from worker_service.jobs.history import LOG_LINES_MOST
from worker_service.jobs.job import Status
from worker_service.runner.log_lines import GAP


def lines(system: System, job_id: int) -> list[str]:
    return [line.line for line in system.store.history.logs(job_id, most=2 * LOG_LINES_MOST)]


def numbers(several: list[str]) -> list[int]:
    return [int(line.split()[1]) for line in several if line != GAP]


def test_the_newest_lines_of_a_program_and_a_handler_are_kept(system: System) -> None:
    (system.place / "pagemill.toml").write_text(
        '[commands.counts]\nargv = ["/usr/bin/seq", "-f", "line %.0f", "9000"]\n'
    )
    program, handler = system.enqueue("counts"), system.enqueue("flood", lines=9000)

    assert system.begin("--drain", config=system.place / "pagemill.toml").wait_for_exit() == 0

    for job in (program, handler):
        assert (system.status(job), numbers(lines(system, job))) == (Status.COMPLETED, [*range(6001, 9001)])


@pytest.mark.parametrize("long", short([1900], full=[0, 1900]))
def test_a_flood_of_log_lines_slows_no_other_job(system: System, long: int) -> None:
    daemon = system.start(concurrency=2)
    system.wait_for(system.enqueue(), Status.COMPLETED)
    before = _memory_bytes(daemon.pid)
    flood = system.enqueue("flood", long=long)
    wait_until(lambda: len(lines(system, flood)) == LOG_LINES_MOST, "the log is full", seconds=60)

    waits: list[float] = []
    for number in range(10):
        began = time.monotonic()
        assert system.sqlite3(f"UPDATE worker_job_queue SET priority = {1 + number} WHERE id = -1").returncode == 0
        waits.append(time.monotonic() - began)
        system.wait_for(system.enqueue("fetch"), Status.COMPLETED)

    parts = "\n".join(lines(system, flood)).split(GAP)
    for part in parts:
        # The first and the last line of a part may be cut.
        if whole_lines := numbers(part.split("\n")[1:-1]):
            assert whole_lines == [*range(whole_lines[0], whole_lines[-1] + 1)]
    assert max(waits) < 1.0
    assert _memory_bytes(daemon.pid) - before < 64 << 20
    system.assert_sound()


def _memory_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    [kibibytes] = re.findall(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    return int(kibibytes) << 10
