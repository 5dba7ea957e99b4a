"""`pagemill wait` and `logs -f`: they end when the jobs do, told by commits and not by the clock."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.commands.conftest import COMMAND, Daemon, Run
from worker_service.jobs.model import Report


def begin(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen([*COMMAND, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_wait_is_over_at_once_when_all_have_completed(run: Run, daemon: Daemon) -> None:
    run("enqueue", "ocr_pages")
    daemon.complete()

    assert run("wait", 1).stdout == "1 completed\n"


def test_wait_fails_when_some_have_failed_or_were_cancelled(run: Run, daemon: Daemon) -> None:
    for _ in range(3):
        run("enqueue", "ocr_pages")
    daemon.complete()
    daemon.fail()
    run("cancel", 3)

    answer = json.loads(run("wait", "--type", "ocr_pages", "--json", fails=1).stdout)

    assert answer == {"completed": 1, "failed": 1, "cancelled": 1, "gone": 0}


@pytest.mark.usefixtures("database")
def test_wait_gives_up_with_124_and_says_what_is_left(run: Run) -> None:
    run("enqueue", "ocr_pages")

    assert "1 job of 1 had not ended" in run("wait", 1, "--timeout", "0s", fails=124).stderr
    assert "is not a length of time" in run("wait", 1, "--timeout", "soon", fails=2).stderr


@pytest.mark.usefixtures("database")
def test_waiting_for_nothing_is_refused(run: Run) -> None:
    run("enqueue", "ocr_pages")

    assert "say which jobs" in run("wait", fails=2).stderr
    assert "no job matches" in run("wait", "--type", "nothing", fails=66).stderr


def test_wait_ends_when_the_last_job_does(run: Run, daemon: Daemon) -> None:
    run("enqueue", "ocr_pages")
    run("enqueue", "ocr_pages")
    first, second = daemon.claim(2)
    waiting = begin("wait", 1, 2, "--timeout", "60s")

    daemon.store.complete(first.lease)
    assert waiting.poll() is None
    daemon.store.complete(second.lease)

    assert waiting.communicate(timeout=60) == ("2 completed\n", "")
    assert waiting.returncode == 0


def test_following_prints_lines_as_they_come_and_ends_with_the_job(run: Run, daemon: Daemon, database: Path) -> None:
    run("enqueue", "ocr_pages")
    [job] = daemon.claim()
    following = begin("logs", "-f", 1)
    assert following.stdout is not None

    daemon.store.report([Report(job.lease, lines=["page one"])])
    assert "page one" in following.stdout.readline()
    daemon.store.report([Report(job.lease, lines=["page two"])])
    assert "page two" in following.stdout.readline()
    daemon.store.complete(job.lease)

    assert following.communicate(timeout=60) == ("", "")
    assert following.returncode == 0


def test_an_interrupt_ends_quietly_with_130(run: Run, daemon: Daemon) -> None:
    run("enqueue", "ocr_pages")
    [job] = daemon.claim()
    daemon.store.report([Report(job.lease, lines=["page one"])])
    following = begin("logs", "-f", 1)
    assert following.stdout is not None

    following.stdout.readline()
    following.send_signal(signal.SIGINT)

    _, talk = following.communicate(timeout=60)
    assert (following.returncode, talk.strip()) == (130, "")
