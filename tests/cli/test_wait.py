"""`pagemill wait`, `logs -f`, and the display of progress."""

from __future__ import annotations

import json
import signal
from io import StringIO
from pathlib import Path

import pytest

from tests.cli.conftest import Daemon, Run, Terminal, run_on_terminal, start_command
from worker_service.cli.progress import Display, watch_jobs
from worker_service.cli.waiting import JobsProgress
from worker_service.jobs.attempts import Report
from worker_service.jobs.job import NewJob, Status
from worker_service.jobs.selector import Selector


def test_wait_ends_at_once_if_all_have_completed(run: Run, daemon: Daemon) -> None:
    run("enqueue", "ocr_pages")
    daemon.complete()

    assert run("wait", 1).stdout == "1 completed\n"


def test_wait_fails_when_some_have_failed_or_were_cancelled(run: Run, daemon: Daemon) -> None:
    for _ in range(3):
        run("enqueue", "ocr_pages")
    daemon.complete()
    daemon.fail()
    run("cancel", 3)

    answer = json.loads(run("wait", 1, 2, 3, "--json", fails=1).stdout)

    assert answer == {"completed": 1, "failed": 1, "cancelled": 1, "gone": 0, "going_on": 0}


def test_waiting_for_a_batch_includes_its_follow_up_jobs(run: Run, daemon: Daemon) -> None:
    run("enqueue", "ocr_pages", "--batch", 7)
    [first] = daemon.claim()
    waiting = start_command("wait", "batch:7", "--progress")
    assert waiting.stderr is not None
    assert waiting.stderr.readline() == "0 of 1 job found so far\n"
    daemon.store.leases.complete(first.lease, None, [NewJob("ocr_pages")])
    daemon.fail()

    assert (waiting.communicate(timeout=60)[0], waiting.returncode) == ("batch 7: finished, 1 failed · 2 jobs\n", 1)
    assert "no batch 8" in run("wait", "batch:8", fails=66).stderr


def test_ended_jobs_count_if_they_are_named_but_not_if_they_only_match(run: Run, daemon: Daemon) -> None:
    run("enqueue", "ocr_pages", "--owner", "alice", "--batch", "7")
    daemon.fail()
    assert run("wait", "--owner", "alice").stdout == "no live job matches\n"

    run("enqueue", "ocr_pages", "--owner", "alice")
    [job] = daemon.claim()
    waiting = start_command("wait", "--owner", "alice", "--progress")
    assert waiting.stderr is not None
    assert waiting.stderr.readline() == "0 of 1 job ended; job 2 (ocr_pages) 0%\n"
    daemon.store.leases.complete(job.lease)

    assert (waiting.communicate(timeout=60)[0], waiting.returncode) == ("1 completed\n", 0)
    for named in (["1"], ["--batch", "7"], ["--status", "failed"]):
        assert run("wait", *named, fails=1).stdout == "1 failed\n"


def test_without_follow_wait_notes_live_follow_up_jobs(run: Run, daemon: Daemon) -> None:
    run("enqueue", "download")
    [job] = daemon.claim()
    daemon.store.leases.complete(job.lease, follow_ups=[NewJob("ocr_pages"), NewJob("ocr_pages")])

    waited = run("wait", 1)

    assert waited.stdout == "1 completed\n"
    assert waited.stderr == "2 follow-up jobs still live; --follow waits for them, too\n"


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
    waiting = start_command("wait", 1, 2, "--timeout", "60s")

    daemon.store.leases.complete(first.lease)
    assert waiting.poll() is None
    daemon.store.leases.complete(second.lease)

    assert waiting.communicate(timeout=60) == ("2 completed\n", "")
    assert waiting.returncode == 0


def test_following_prints_lines_as_they_come_and_ends_with_the_job(run: Run, daemon: Daemon, database: Path) -> None:
    run("enqueue", "ocr_pages")
    [job] = daemon.claim()
    following = start_command("logs", "-f", 1)
    assert following.stdout is not None

    daemon.store.leases.report([Report(job.lease, lines=["page one"])])
    assert "page one" in following.stdout.readline()
    daemon.store.leases.report([Report(job.lease, lines=["page two"])])
    assert "page two" in following.stdout.readline()
    daemon.store.leases.complete(job.lease)

    assert following.communicate(timeout=60) == ("", "")
    assert following.returncode == 0


def test_ctrl_c_ends_logs_with_130_and_no_message(run: Run, daemon: Daemon) -> None:
    run("enqueue", "ocr_pages")
    [job] = daemon.claim()
    daemon.store.leases.report([Report(job.lease, lines=["page one"])])
    following = start_command("logs", "-f", 1)
    assert following.stdout is not None

    following.stdout.readline()
    following.send_signal(signal.SIGINT)

    _, talk = following.communicate(timeout=60)
    assert (following.returncode, talk.strip()) == (130, "")


# ── --progress ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_a_terminal_progress_is_lines_on_stderr_and_stdout_stays_data(run: Run, daemon: Daemon) -> None:
    for _ in range(2):
        run("enqueue", "ocr_pages")
    first, second = daemon.claim(2)
    daemon.store.leases.report([Report(first.lease, percent=40, message="page 4 of 10")])
    waiting = start_command("wait", 1, 2, "--progress", "--json")
    assert waiting.stderr is not None

    line = waiting.stderr.readline()
    daemon.store.leases.complete(first.lease)
    daemon.store.leases.complete(second.lease)
    out, rest = waiting.communicate(timeout=60)

    assert line == "0 of 2 jobs ended; job 1 (ocr_pages) 40% page 4 of 10; job 2 (ocr_pages) 0%\n"
    assert rest == ""
    assert json.loads(out) == {
        "completed": 2, "failed": 0, "cancelled": 0, "gone": 0, "going_on": 0,
    }  # fmt: skip


def test_a_line_is_printed_every_ten_seconds(run: Run, daemon: Daemon) -> None:
    run("enqueue", "ocr_pages")
    progress, printed, now = JobsProgress(3, {Status.COMPLETED: 1}, daemon.claim()), StringIO(), [0.0]
    watch = watch_jobs(Display(printed, monotonic=lambda: now[0]))

    for moment in (0.0, 0.1, 9.9, 10.0, 10.1, 25.0, 34.9):
        now[0] = moment
        watch(lambda most: progress, False)
    watch(lambda most: progress, True)

    assert printed.getvalue().splitlines() == ["1 of 3 jobs ended; job 1 (ocr_pages) 0%"] * 3


def test_on_a_terminal_each_job_has_a_bar_with_its_end(run: Run, daemon: Daemon) -> None:
    for _ in range(3):
        run("enqueue", "ocr_pages", "--name", "report.pdf")
    daemon.complete()
    daemon.fail()
    run("cancel", 3)

    code, screen = run_on_terminal("wait", "1", "2", "3", "--progress", columns=100)

    assert code == 1
    bars = [" ".join(line.replace("\x1b[K", "").split()) for line in screen.splitlines()]
    assert f"1 ocr_pages {'█' * 10} 100% 0 s report.pdf completed" in bars
    assert f"2 ocr_pages {'░' * 10} 0% 0 s report.pdf failed HTTP_503" in bars
    assert f"3 ocr_pages {'░' * 10} 0% report.pdf cancelled" in bars


def test_bars_are_drawn_over_the_ones_before_and_never_wider_than_the_terminal(run: Run, daemon: Daemon) -> None:
    for _ in range(9):
        run("enqueue", "ocr_pages")
    [job] = daemon.claim()
    daemon.store.leases.report([Report(job.lease, percent=50, message="第" * 200)])
    screen, now = Terminal(), [0.0]
    watch = watch_jobs(Display(screen, monotonic=lambda: now[0], size=lambda: (60, 6)))

    for moment in (0.0, 0.1, 0.5):
        now[0] = moment
        watch(
            lambda most: JobsProgress(9, {Status.PENDING: 9}, daemon.store.job_queries.list(Selector())[-most:]), False
        )

    first, second = screen.getvalue().split("\x1b[5A")
    lines = [line.removesuffix("\x1b[K") for line in second.splitlines()]
    assert lines[4] == "0 of 9 jobs ended: 9 pending"
    assert "█████░░░░░   50%" in lines[3]
    assert all(len(line) + line.count("第") < 60 for line in lines[:5])
    assert "\x1b[5A" not in first


def test_of_many_jobs_the_screen_shows_running_and_failed_ones(run: Run, daemon: Daemon) -> None:
    daemon.store.intake.enqueue_many([NewJob("ocr_pages") for _ in range(60)])
    for _ in range(20):
        daemon.complete()
    for _ in range(8):
        daemon.fail()
    daemon.claim(17)

    code, screen = run_on_terminal("wait", *map(str, range(1, 61)), "--progress", "--timeout", "0s", columns=80)

    assert code == 124
    picture, _ = screen.split("\x1b[J")
    lines = [line.removesuffix("\x1b[K") for line in picture.splitlines()]
    # The terminal has 24 lines.
    assert len(lines) == 21
    assert [int(line.split()[0]) for line in lines[:15]] == list(range(31, 46))
    assert [line.split()[-1] for line in lines[15:20]] == ["HTTP_503"] * 5
    assert lines[20] == "28 of 60 jobs ended: 15 pending, 17 running, 20 completed, 8 failed"


def test_a_length_is_one_grammar_in_every_option_and_an_age_names_its_unit(run: Run, database: Path) -> None:
    run("enqueue", "a", "--timeout", "20")

    assert "after 0.1, 1 job of 1 had not ended" in run("wait", 1, "--timeout", "0.1", fails=124).stderr
    run("wait", "--type", "a", "--timeout", "0", fails=124)
    run("pause", "a", "--for", "20")
    run("status", "--oldest", "20", fails=2)
    for words in (("prune", "--older-than", "30"), ("ls", "--since", "30")):
        assert "is not a time" in run(*words, fails=2).stderr
