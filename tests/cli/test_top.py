"""`pagemill top`: one frame, and the live screen on a terminal."""

from __future__ import annotations

import json
import os
import pty
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import ioctl

import pytest

from tests.cli.conftest import COMMAND, Daemon, Run
from worker_service.jobs.attempts import Report

pytestmark = pytest.mark.filterwarnings("error")


class Screen:
    """A terminal with `top` on it."""

    def __init__(self, child: subprocess.Popen[bytes], our_end: int, top_end: int) -> None:
        self.child = child
        self._our_end = our_end
        self._top_end = top_end
        self.text = ""

    def wait_for(self, text: str) -> None:
        while text not in self.text:
            self.text += os.read(self._our_end, 65536).decode()

    def press(self, key: str) -> None:
        os.write(self._our_end, key.encode())

    def wait(self) -> int:
        return self.child.wait(timeout=30)

    @property
    def is_restored(self) -> bool:
        wanted = termios.ECHO | termios.ICANON
        return bool(termios.tcgetattr(self._top_end)[3] & wanted == wanted)


@contextmanager
def top_on_a_terminal(*, lines: int = 24, columns: int = 100) -> Iterator[Screen]:
    our_end, top_end = pty.openpty()
    ioctl(top_end, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    environ = {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}
    for name in ("LINES", "COLUMNS"):
        environ.pop(name, None)
    child = subprocess.Popen([*COMMAND, "top"], stdin=top_end, stdout=top_end, stderr=top_end, env=environ)
    try:
        yield Screen(child, our_end, top_end)
    finally:
        with suppress(ProcessLookupError):
            child.kill()
        child.wait()
        os.close(our_end)
        os.close(top_end)


def test_a_frame_shows_slots_running_jobs_and_what_waits(run: Run, daemon: Daemon) -> None:
    run("enqueue", "ocr_pages", "--account", "alice", "--name", "report.pdf")
    [job] = daemon.claim()
    daemon.store.leases.report([Report(job.lease, 40, "page 4 of 10")])
    for job_type in ("download", "download", "assemble"):
        run("enqueue", job_type)

    lines = [" ".join(line.split()) for line in run("top", "--once").stdout.splitlines()]

    assert " UTC · 1 running · 3 pending, the oldest for 0 s" in lines[0]
    assert "w1 alive 1 of 200 (100 cpu, 100 io) here 0 s ago" in lines
    assert "1 ocr_pages report.pdf alice w1 0 s running 40% page 4 of 10" in lines
    assert lines.index("download 2 0") < lines.index("assemble 1 0")


@pytest.mark.usefixtures("database")
def test_held_jobs_count_as_pending(run: Run) -> None:
    run("enqueue", "ocr_pages", "--run-at", "+1h")

    stdout = run("top", "--once").stdout

    assert "ocr_pages 0 1" in " ".join(stdout.split())
    assert "no job is pending" not in stdout


@pytest.mark.usefixtures("database")
def test_top_shows_an_empty_queue_without_a_daemon(run: Run) -> None:
    stdout = run("top", "--once").stdout

    assert "no daemon is running" in stdout
    assert "no job is running" in stdout
    assert "no job is pending" in stdout


def test_with_json_top_prints_one_object(run: Run, daemon: Daemon) -> None:
    run("enqueue", "ocr_pages")
    daemon.claim()
    run("enqueue", "download")

    answer = json.loads(run("top", "--json").stdout)

    assert (answer["jobs"]["running"], answer["jobs"]["pending"]) == (1, 1)
    assert [(job["id"], job["state"]) for job in answer["running"]] == [(1, "running")]
    assert [(item["job_type"], item["pending"]) for item in answer["pending"]] == [("download", 1)]
    assert [(worker["id"], worker["state"]) for worker in answer["workers"]] == [("w1", "alive")]


@pytest.mark.usefixtures("database")
def test_top_draws_again_until_q_is_pressed(run: Run) -> None:
    with top_on_a_terminal() as screen:
        screen.wait_for("no job is pending")
        run("enqueue", "ocr_pages")
        screen.wait_for("1 pending")

        screen.press("x")
        screen.press("q")

        assert screen.wait() == 0
        assert screen.is_restored


@pytest.mark.usefixtures("database")
def test_ctrl_c_ends_top_and_restores_the_terminal() -> None:
    with top_on_a_terminal() as screen:
        screen.wait_for("no job is pending")

        screen.child.send_signal(signal.SIGINT)

        assert screen.wait() == 0
        assert screen.is_restored


def test_a_frame_fits_its_terminal(run: Run, daemon: Daemon) -> None:
    for _ in range(40):
        run("enqueue", "ocr_pages", "--account", "a" * 200)
    daemon.claim(40)
    run("enqueue", "download")

    with top_on_a_terminal(lines=20, columns=80) as screen:
        screen.wait_for("download")
        screen.press("q")
        screen.wait()

    first = screen.text.split("\x1b[H")[1].split("\x1b[J")[0]
    lines = [line.replace("\x1b[K", "") for line in first.replace("\r", "").split("\n")]
    assert len(lines) <= 20
    assert all(len(line) <= 80 for line in lines)
    assert any(line.startswith("… and ") and line.endswith(" jobs more") for line in lines)
