"""`ls`, `show`, `why`, `logs`, `stats`, `errors` and `pagemill` alone: what a person sees of the queue."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.cli.conftest import Daemon, Run, items
from tests.cli.stored_documents import Shelf
from tests.store.kit import ByHand
from worker_service.base.clock import as_text, wall_clock
from worker_service.jobs.attempts import Failure, Report
from worker_service.jobs.job import NewJob
from worker_service.services.job_advice import NEXT_MOVES_BY_GATE

pytestmark = pytest.mark.usefixtures("database")


def ids(run: Run, *words: object) -> list[int]:
    return [job["id"] for job in items(run("ls", "--json", *words))]


def test_the_newest_job_is_listed_first(run: Run) -> None:
    run("enqueue", "ocr_pages")
    run("enqueue", "download")

    lines = run("ls").stdout.splitlines()

    assert lines[0].split()[:3] == ["ID", "STATE", "TYPE"]
    assert [line.split()[:3] for line in lines[1:]] == [["2", "pending", "download"], ["1", "pending", "ocr_pages"]]


def test_an_empty_queue_is_said_beside_the_data(run: Run) -> None:
    result = run("ls")

    assert (result.stdout, result.stderr) == ("", "the queue is empty\n")
    assert json.loads(run("ls", "--json").stdout) == {"items": [], "next": None}


def test_every_selector_selects(run: Run, daemon: Daemon) -> None:
    run("enqueue", "ocr_pages", "--owner", "alice", "--platform", "gdrive", "--batch", 7, "--set", "file.id=abc")
    run("enqueue", "download", "--owner", "bob", "--set", "n=1", "--account", "user,124")
    daemon.store.leases.claim("w1", 1)
    daemon.fail("HTTP_503")

    assert ids(run, "--type", "ocr_pages") == [1]
    assert ids(run, "--type", "ocr_pages,download") == [2, 1]
    assert ids(run, "--owner", "alice") == [1]
    assert ids(run, "--platform", "gdrive") == [1]
    assert ids(run, "--batch", "7") == [1]
    assert ids(run, "--account", "user,124") == [2]
    assert ids(run, "--status", "failed", "--status", "running") == [2, 1]
    assert ids(run, "--status", "running") == [1]
    assert ids(run, "--error", "HTTP_503") == [2]
    assert ids(run, "--match", "payload.file.id=abc") == [1]
    assert ids(run, "--match", "payload.n=1") == [2]
    assert ids(run, "--since", "1h") == [2, 1]
    assert ids(run, "--since", "2199-01-01") == []
    assert ids(run, "--older-than", "1h") == []
    assert ids(run, 2) == [2]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--status", "faild"], "there is no status 'faild': did you mean failed?"),
        (["--status", "xyz"], "it is one of pending, running"),
        (["--since", "yesterday"], "is not a time"),
        (["--since", "2026-13-01"], "is not a time"),
        (["--older-than", "99999999999w"], "longer than time is kept"),
        (["--match", "file_id=abc"], "write it like payload.file_id=abc"),
        (["abc"], "names no job: write its id"),
        (["99999999999999999999"], "names no job: write its id"),
        (["--limit", "0"], "0 is not in the range"),
        (["--statsu", "failed"], "did you mean --status?"),
    ],
)
def test_a_selector_that_cannot_be_understood_says_how_to_write_it(run: Run, words: list[str], sentence: str) -> None:
    assert sentence.lower() in run("ls", *words, fails=2).stderr.lower()


def test_the_state_says_why_a_pending_job_is_not_looked_at(run: Run) -> None:
    run("enqueue", "a")
    run("enqueue", "a", "--run-at", "+10m")
    run("enqueue", "a", "--after", "1")

    assert [job["state"] for job in items(run("ls", "--json"))] == ["waiting", "scheduled", "pending"]


def test_show_tells_the_whole_story_of_a_job(run: Run, daemon: Daemon) -> None:
    run("enqueue", "ocr_pages", "--set", "a=1")
    [claimed] = daemon.claim()
    daemon.store.leases.report([Report(claimed.lease, 40, "page 4 of 10", ["first line", "second line"])])
    daemon.store.leases.complete(claimed.lease, '{"pages":12}')

    text = run("show", 1).stdout
    whole = json.loads(run("show", 1, "--json").stdout)

    for part in ("completed", "attempts", "events", "second line", '{"a":1}', '{"pages":12}'):
        assert part in text
    assert whole["result"] == {"pages": 12}
    assert [attempt["outcome"] for attempt in whole["attempts"]] == ["completed"]
    assert [(event["from_status"], event["to_status"]) for event in whole["events"]] == [
        ("pending", "running"),
        ("running", "completed"),
    ]
    assert [line["line"] for line in whole["log"]] == ["first line", "second line"]


@pytest.mark.parametrize("verb", ["show", "why", "logs", "cancel", "retry", "delete", "wait"])
def test_a_job_that_is_not_there_is_exit_66(run: Run, verb: str) -> None:
    result = run(verb, 99, fails=66)

    assert result.stderr.startswith("pagemill: there is no job 99")
    assert json.loads(run(verb, 99, "--json", fails=66).stderr)["error"]["code"] == "job_not_found"


def test_why_prints_each_gate_and_the_next_move(run: Run) -> None:
    run("enqueue", "a", "--run-at", "+10m")

    lines = run("why", 1, fails=3).stdout.splitlines()

    assert [line.split()[0] for line in lines[::2]] == ["WORKER_DOWN", "NOT_YET"]
    assert all(line.startswith("    next: ") for line in lines[1::2])


def test_why_says_to_restart_the_daemon_where_the_handler_came_after_it(
    run: Run, daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKER_HANDLERS_DIR", str(tmp_path / "dropped"))
    run("enqueue", "count_words")
    assert "install a handler for count_words" in run("why", 1, fails=3).stdout

    (tmp_path / "dropped").mkdir()
    (tmp_path / "dropped" / "count_words.py").write_text("")

    assert "its handler is installed" in (said := run("why", 1, fails=3).stdout)
    assert "stop and start pagemill run" in said


def test_why_is_silent_about_a_job_that_nothing_holds(run: Run, daemon: Daemon) -> None:
    run("enqueue", "ocr_pages")

    assert "nothing holds job 1" in run("why", 1).stdout
    assert json.loads(run("why", 1, "--json").stdout)["items"] == []

    daemon.claim()
    assert "has been running" in run("why", 1).stdout


def test_why_says_how_long_a_running_job_is_silent_and_how_long_it_may_take(
    run: Run, daemon: Daemon, database: Path
) -> None:
    run("enqueue", "ocr_pages", "--timeout", "2h")
    daemon.claim()
    heard = "UPDATE worker_job_attempt SET heard_at = strftime('%Y-%m-%d %H:%M:%f', 'now', '-15 seconds')"
    ByHand(database)(heard)

    said = run("why", 1).stdout

    assert re.search(r"; no progress for 1\d s, its time limit is 2 h", " ".join(said.split()))
    whole = json.loads(run("why", 1, "--json").stdout)
    assert whole["silent_seconds"] >= 15
    assert whole["limit_seconds"] == 7200


def test_why_says_what_an_ended_job_is(run: Run, daemon: Daemon) -> None:
    run("enqueue", "ocr_pages")
    daemon.fail("HTTP_503")

    ended, move = run("why", 1).stdout.splitlines()
    assert ended.startswith("job 1 (ocr_pages) failed with HTTP_503 at ")
    assert ended.endswith(": the server is busy")
    # It had retries left, and was given up all the same.
    assert move == "    next: it would fail again in the same way; when the cause is fixed: pagemill retry 1"


def test_why_tells_the_remedy_that_a_failed_job_names_and_no_retry_that_would_fail(run: Run, shelf: Shelf) -> None:
    document = shelf.fail(
        "secret.pdf", "PDF_ENCRYPTED", "the file is encrypted", "give its password with --password-file"
    )

    told = run("why").stdout

    assert told.endswith(f"    next: give its password with --password-file; then: pagemill reindex {document}\n")


def test_why_proposes_a_retry_where_retries_are_used_up(run: Run, daemon: Daemon) -> None:
    run("enqueue", "ocr_pages", "--max-retries", 1)
    [first] = daemon.claim()
    daemon.store.leases.fail(first.lease, Failure("HTTP_503", "busy"), retry_at=wall_clock())
    daemon.fail()

    assert "next: it was tried 2 times; to run it again: pagemill retry 1" in run("why", 1).stdout
    assert json.loads(run("why", 1, "--json").stdout)["next"].endswith("pagemill retry 1")


def in_an_hour() -> datetime:
    return wall_clock() + timedelta(hours=1)


def test_without_an_id_it_is_the_newest_job_that_has_a_problem(run: Run, daemon: Daemon) -> None:
    assert run("why").stderr == "no job has a problem\n"
    assert run("logs").stderr == "no job has a problem\n"

    run("enqueue", "ocr_pages")
    [failed] = daemon.claim()
    daemon.store.leases.report([Report(failed.lease, lines=["half way"])])
    daemon.store.leases.fail(failed.lease, Failure("HTTP_503", "busy"), retry_at=None)
    run("enqueue", "ocr_pages", "--run-at", "+1h")
    run("enqueue", "ocr_pages")
    daemon.complete()

    # What is to come, and what is done, is no problem.
    assert run("why").stdout.startswith("job 1 (ocr_pages) failed")
    assert run("logs").stdout.endswith("half way\n")

    run("enqueue", "ocr_pages")
    [put_off] = daemon.claim()
    daemon.store.leases.snooze(put_off.lease, in_an_hour(), Failure("SNOOZED", "the quota is used up"))
    assert "the quota is used up" in run("why", fails=3).stdout

    run("enqueue", "nobody_knows")
    first, second, *_ = run("why", fails=3).stdout.splitlines()
    assert (first.endswith(" (nobody_knows) waits:"), second.split()[0]) == (True, "UNKNOWN_TYPE")


def test_each_gate_has_a_next_move() -> None:
    gates = (
        "WORKER_DOWN PAUSED BATCH_STOPPED BATCH_WAITING DRAINING NOT_YET BACKOFF WAITS_FOR OWNER_BUSY KEY_BUSY"
        " TYPE_FULL SLOTS_FULL NO_NODE CAPABILITY_MISSING UNKNOWN_TYPE DISK_LOW SOURCE_RESTING AHEAD_IN_QUEUE"
    )

    assert list(NEXT_MOVES_BY_GATE) == gates.split()


def test_logs_prints_what_was_reported_in_order(run: Run, daemon: Daemon) -> None:
    run("enqueue", "ocr_pages")
    [claimed] = daemon.claim()
    daemon.store.leases.report([Report(claimed.lease, lines=[f"line {n}" for n in range(1500)])])

    lines = [line.split("  ", 1)[1] for line in run("logs", 1).stdout.splitlines()]

    assert lines == [f"line {n}" for n in range(1500)]
    assert len(items(run("logs", 1, "--json"))) == 1500


def test_following_the_log_of_an_ended_job_ends(run: Run, daemon: Daemon) -> None:
    run("enqueue", "ocr_pages")
    [claimed] = daemon.claim()
    daemon.store.leases.report([Report(claimed.lease, lines=["only line"])])
    daemon.store.leases.complete(claimed.lease)

    assert run("logs", "-f", 1).stdout.count("only line") == 1


def test_stats_counts_by_type_and_sums_up(run: Run, daemon: Daemon) -> None:
    for job_type in ("download", "ocr_pages", "ocr_pages"):
        run("enqueue", job_type)
    run("enqueue", "ocr_pages", "--run-at", "+1h")
    daemon.complete()

    lines = [line.split() for line in run("stats").stdout.splitlines()]

    assert ["all", "2", "1", "0", "1", "0", "0"] in lines
    assert sum(row["pending"] + row["held"] for row in items(run("stats", "--json"))) == 3


def test_stats_counts_what_is_pending_by_platform(run: Run, daemon: Daemon) -> None:
    for platform in ("instagram", "youtube", "instagram", "gdrive"):
        run("enqueue", "ocr_pages", "--platform", platform)
    daemon.claim()

    lines = [line.split() for line in run("stats").stdout.splitlines()]
    found = json.loads(run("stats", "--json").stdout)["pending_by_platform"]

    pending = {"gdrive": 1, "instagram": 1, "youtube": 1}
    assert lines[-4:] == [["PLATFORM", "PENDING"], *([platform, str(n)] for platform, n in pending.items())]
    assert found == [{"platform": platform, "count": n} for platform, n in pending.items()]


def test_failures_lists_files_in_plain_words_until_they_are_dismissed(run: Run, daemon: Daemon) -> None:
    for name, code in (("a.pdf", "PDF_ENCRYPTED"), ("b.pdf", "PDF_BROKEN"), ("c.pdf", "PDF_BROKEN")):
        run("enqueue", "ocr_pages", "--name", name)
        daemon.fail(code, f"message of {code}")

    assert "This PDF is locked with a password.  Enter the password to read it." in run("failures").stdout
    assert "failures  3 files to look at" in run().stdout
    assert "failures=3" in run("status").stdout
    run("failures", "dismiss", 1)
    assert "name jobs" in run("failures", "dismiss", fails=2).stderr
    run("failures", "dismiss", "--all", "--error", "PDF_BROKEN", "--yes")
    assert run("failures").stdout == ""
    run("undo", "--yes")
    assert [one["name"] for one in items(run("failures", "--json"))] == ["c.pdf", "b.pdf"]


def test_pagemill_alone_tells_the_state_in_five_lines(run: Run) -> None:
    run("enqueue", "a")
    run("pause", "--all", "--reason", "moving house")

    lines = run().stdout.splitlines()

    assert [line.split()[0] for line in lines] == ["database", "workers", "live", "ended", "paused"]
    assert "1 pending" in lines[2]
    assert "everything (moving house)" in lines[4]
    assert json.loads(run("--json").stdout)["jobs"]["pending"] == 1


def test_pagemill_alone_and_top_tell_how_far_batches_are(run: Run) -> None:
    for number in (7, 8):
        run("enqueue", "ocr_pages", "--batch", number)
    run("batch", "stop", 8)

    assert run().stdout.splitlines()[5:] == ["batches   batch 7: 0 of 1 job found so far"]
    assert [one["batch"]["id"] for one in json.loads(run("--json").stdout)["batches"]] == [7]
    assert run("top", "--once").stdout.splitlines()[1:3] == ["batch 7: 0 of 1 job found so far", ""]
    assert [one["batch"]["id"] for one in json.loads(run("top", "--json").stdout)["batches"]] == [7]


def test_status_says_which_source_rests_and_until_when_while_nothing_else_is_pending(run: Run, daemon: Daemon) -> None:
    until = wall_clock() + timedelta(hours=1)
    daemon.store.intake.enqueue(NewJob("download", platform="drive", source="gdrive:drive"))
    [job] = daemon.claim()
    daemon.store.leases.rest_source("gdrive:drive", until, "the quota is used up")
    daemon.store.leases.snooze(job.lease, until, Failure("DRIVE_QUOTA", "the quota is used up"))

    told = run("status", fails=1).stdout

    sentence = f"SOURCE_RESTING, gdrive:drive rests until {as_text(until)}: the quota is used up"
    assert told.startswith(f"WARNING: no pending job can start: {sentence} |")
    run("enqueue", "download")
    assert run("status").stdout.startswith("OK: ")


def test_who_asks_to_see_a_batch_is_told_where(run: Run) -> None:
    assert "for a batch: pagemill batch show batch:6" in run("show", "batch:6", fails=2).stderr
