"""`ls`, `show`, `why`, `logs`, `stats`, `failures`, `status` and `pagemill` without a verb."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path

import pytest

from tests.cli.conftest import Daemon, Run, items
from tests.cli.stored_documents import Shelf
from tests.store.kit import ByHand
from worker_service.base.clock import as_text, wall_clock
from worker_service.jobs.attempts import Failure, Report
from worker_service.jobs.job import NewJob

pytestmark = pytest.mark.usefixtures("database")


def ids(run: Run, *words: object) -> list[int]:
    return [job["id"] for job in items(run("ls", "--json", *words))]


def test_the_newest_job_is_listed_first(run: Run) -> None:
    run("enqueue", "ocr_pages")
    run("enqueue", "download")

    lines = run("ls").stdout.splitlines()

    assert lines[0].split()[:3] == ["ID", "STATE", "TYPE"]
    assert [line.split()[:3] for line in lines[1:]] == [["2", "pending", "download"], ["1", "pending", "ocr_pages"]]


def test_an_empty_queue_is_noted_on_stderr(run: Run) -> None:
    result = run("ls")

    assert (result.stdout, result.stderr) == ("", "the queue is empty\n")
    assert json.loads(run("ls", "--json").stdout) == {"items": [], "next": None}


def test_each_option_selects_jobs(run: Run, daemon: Daemon) -> None:
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
def test_an_invalid_selector_is_refused_with_an_example(run: Run, words: list[str], sentence: str) -> None:
    assert sentence.lower() in run("ls", *words, fails=2).stderr.lower()


def test_the_state_of_a_pending_job_says_what_it_waits_for(run: Run) -> None:
    run("enqueue", "a")
    run("enqueue", "a", "--run-at", "+10m")
    run("enqueue", "a", "--after", "1")

    assert [job["state"] for job in items(run("ls", "--json"))] == ["waiting", "scheduled", "pending"]


def test_show_prints_attempts_events_log_and_result(run: Run, daemon: Daemon) -> None:
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
def test_an_unknown_job_ends_with_exit_code_66(run: Run, verb: str) -> None:
    result = run(verb, 99, fails=66)

    assert result.stderr.startswith("pagemill: there is no job 99")
    assert json.loads(run(verb, 99, "--json", fails=66).stderr)["error"]["code"] == "job_not_found"


def test_why_prints_each_gate_with_the_next_step(run: Run) -> None:
    run("enqueue", "a", "--run-at", "+10m")

    lines = run("why", 1, fails=3).stdout.splitlines()

    assert [line.split()[0] for line in lines[::2]] == ["WORKER_DOWN", "NOT_YET"]
    assert all(line.startswith("    next: ") for line in lines[1::2])


def test_why_says_to_restart_a_daemon_that_is_older_than_the_handler(
    run: Run, daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKER_HANDLERS_DIR", str(tmp_path / "dropped"))
    run("enqueue", "count_words")
    assert "install a handler for count_words" in run("why", 1, fails=3).stdout

    (tmp_path / "dropped").mkdir()
    (tmp_path / "dropped" / "count_words.py").write_text("")

    assert "its handler is installed" in (stdout := run("why", 1, fails=3).stdout)
    assert "stop and start pagemill run" in stdout


def test_why_lists_no_gate_of_a_job_that_can_start(run: Run, daemon: Daemon) -> None:
    run("enqueue", "ocr_pages")

    assert "nothing holds job 1" in run("why", 1).stdout
    assert json.loads(run("why", 1, "--json").stdout)["items"] == []

    daemon.claim()
    assert "has been running" in run("why", 1).stdout


def test_why_shows_the_silence_and_the_time_limit_of_a_running_job(run: Run, daemon: Daemon, database: Path) -> None:
    run("enqueue", "ocr_pages", "--timeout", "2h")
    daemon.claim()
    silent_for_15_seconds = (
        "UPDATE worker_job_attempt SET heard_at = strftime('%Y-%m-%d %H:%M:%f', 'now', '-15 seconds')"
    )
    ByHand(database)(silent_for_15_seconds)

    stdout = run("why", 1).stdout

    assert re.search(r"; no progress for 1\d s, its time limit is 2 h", " ".join(stdout.split()))
    whole = json.loads(run("why", 1, "--json").stdout)
    assert whole["silent_seconds"] >= 15
    assert whole["limit_seconds"] == 7200


def test_why_explains_a_failed_job(run: Run, daemon: Daemon) -> None:
    run("enqueue", "ocr_pages")
    daemon.fail("HTTP_503")

    ended, move = run("why", 1).stdout.splitlines()
    assert ended.startswith("job 1 (ocr_pages) failed with HTTP_503 at ")
    assert ended.endswith(": the server is busy")
    # It failed finally, although it had retries left.
    assert move == "    next: it would fail again in the same way; when the cause is fixed: pagemill retry 1"


def test_why_prints_the_remedy_of_the_error_instead_of_a_retry(run: Run, shelf: Shelf) -> None:
    document = shelf.fail(
        "secret.pdf", "PDF_ENCRYPTED", "the file is encrypted", "give its password with --password-file"
    )

    stdout = run("why").stdout

    assert stdout.endswith(f"    next: give its password with --password-file; then: pagemill reindex {document}\n")


def test_why_proposes_a_retry_after_the_last_one(run: Run, daemon: Daemon) -> None:
    run("enqueue", "ocr_pages", "--max-retries", 1)
    [first] = daemon.claim()
    daemon.store.leases.fail(first.lease, Failure("HTTP_503", "busy"), retry_at=wall_clock())
    daemon.fail()

    assert "next: it was tried 2 times; to run it again: pagemill retry 1" in run("why", 1).stdout
    assert json.loads(run("why", 1, "--json").stdout)["next"].endswith("pagemill retry 1")


def test_without_an_id_why_and_logs_show_the_newest_job_with_a_problem(run: Run, daemon: Daemon) -> None:
    assert run("why").stderr == "no job has a problem\n"
    assert run("logs").stderr == "no job has a problem\n"

    run("enqueue", "ocr_pages")
    [failed] = daemon.claim()
    daemon.store.leases.report([Report(failed.lease, lines=["half way"])])
    daemon.store.leases.fail(failed.lease, Failure("HTTP_503", "busy"), retry_at=None)
    run("enqueue", "ocr_pages", "--run-at", "+1h")
    run("enqueue", "ocr_pages")
    daemon.complete()

    # A scheduled and a completed job are no problem.
    assert run("why").stdout.startswith("job 1 (ocr_pages) failed")
    assert run("logs").stdout.endswith("half way\n")

    run("enqueue", "ocr_pages")
    [put_off] = daemon.claim()
    daemon.store.leases.snooze(
        put_off.lease, wall_clock() + timedelta(hours=1), Failure("SNOOZED", "the quota is used up")
    )
    assert "the quota is used up" in run("why", fails=3).stdout

    run("enqueue", "nobody_knows")
    first, second, *_ = run("why", fails=3).stdout.splitlines()
    assert (first.endswith(" (nobody_knows) waits:"), second.split()[0]) == (True, "UNKNOWN_TYPE")


def test_logs_prints_all_lines_in_order(run: Run, daemon: Daemon) -> None:
    run("enqueue", "ocr_pages")
    [claimed] = daemon.claim()
    daemon.store.leases.report([Report(claimed.lease, lines=[f"line {n}" for n in range(1500)])])

    lines = [line.split("  ", 1)[1] for line in run("logs", 1).stdout.splitlines()]

    assert lines == [f"line {n}" for n in range(1500)]
    assert len(items(run("logs", 1, "--json"))) == 1500


def test_logs_follow_ends_at_once_for_an_ended_job(run: Run, daemon: Daemon) -> None:
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


def test_stats_counts_pending_jobs_by_platform(run: Run, daemon: Daemon) -> None:
    for platform in ("instagram", "youtube", "instagram", "gdrive"):
        run("enqueue", "ocr_pages", "--platform", platform)
    daemon.claim()

    lines = [line.split() for line in run("stats").stdout.splitlines()]
    items_of_json = json.loads(run("stats", "--json").stdout)["pending_by_platform"]

    pending = {"gdrive": 1, "instagram": 1, "youtube": 1}
    assert lines[-4:] == [["PLATFORM", "PENDING"], *([platform, str(n)] for platform, n in pending.items())]
    assert items_of_json == [{"platform": platform, "count": n} for platform, n in pending.items()]


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
    assert [item["name"] for item in items(run("failures", "--json"))] == ["c.pdf", "b.pdf"]


def test_pagemill_without_a_verb_prints_the_state_in_five_lines(run: Run) -> None:
    run("enqueue", "a")
    run("pause", "--all", "--reason", "moving house")

    lines = run().stdout.splitlines()

    assert [line.split()[0] for line in lines] == ["database", "workers", "live", "ended", "paused"]
    assert "1 pending" in lines[2]
    assert "everything (moving house)" in lines[4]
    assert json.loads(run("--json").stdout)["jobs"]["pending"] == 1


def test_pagemill_without_a_verb_and_top_show_active_batches(run: Run) -> None:
    for number in (7, 8):
        run("enqueue", "ocr_pages", "--batch", number)
    run("batch", "stop", 8)

    assert run().stdout.splitlines()[5:] == ["batches   batch 7: 0 of 1 job found so far"]
    assert [item["batch"]["id"] for item in json.loads(run("--json").stdout)["batches"]] == [7]
    assert run("top", "--once").stdout.splitlines()[1:3] == ["batch 7: 0 of 1 job found so far", ""]
    assert [item["batch"]["id"] for item in json.loads(run("top", "--json").stdout)["batches"]] == [7]


def test_status_names_a_resting_source_that_holds_all_pending_jobs(run: Run, daemon: Daemon) -> None:
    until = wall_clock() + timedelta(hours=1)
    daemon.store.intake.enqueue(NewJob("download", platform="drive", source="gdrive:drive"))
    [job] = daemon.claim()
    daemon.store.leases.rest_source("gdrive:drive", until, "the quota is used up")
    daemon.store.leases.snooze(job.lease, until, Failure("DRIVE_QUOTA", "the quota is used up"))

    stdout = run("status", fails=1).stdout

    sentence = f"SOURCE_RESTING, gdrive:drive rests until {as_text(until)}: the quota is used up"
    assert stdout.startswith(f"WARNING: no pending job can start: {sentence} |")
    run("enqueue", "download")
    assert run("status").stdout.startswith("OK: ")


def test_show_of_a_batch_names_batch_show(run: Run) -> None:
    assert "for a batch: pagemill batch show batch:6" in run("show", "batch:6", fails=2).stderr
