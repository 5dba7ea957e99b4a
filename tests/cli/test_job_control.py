"""`cancel`, `retry`, `delete`, `priority`, `pause`, `undo`, `prune` and `run-now`."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from tests.cli.conftest import Daemon, Run, items, states
from tests.cli.stored_documents import Shelf
from worker_service.base.clock import wall_clock
from worker_service.cli import job_control
from worker_service.jobs.selector import Selector
from worker_service.store.opening import open_store

pytestmark = pytest.mark.usefixtures("database")


def enqueue(run: Run, number: int, job_type: str = "ocr_pages") -> None:
    for _ in range(number):
        run("enqueue", job_type)


def test_a_single_job_by_id_is_changed_without_a_question(run: Run) -> None:
    enqueue(run, 2)

    assert run("cancel", 1).stdout == "cancelled 1 job\n"
    assert run("retry", 1).stdout == "retried 1 job\n"
    assert run("priority", 1, 1).stdout == "reprioritised 1 job\n"

    assert states(run) == {1: "pending", 2: "pending"}


def test_a_delete_asks_first_even_for_one_job(run: Run) -> None:
    enqueue(run, 3)

    one, two = run("delete", 1, fails=1).stderr, run("delete", 1, 2, fails=1).stderr

    assert "Delete 1 job? This cannot be undone. Nothing was done" in one
    assert "Delete 2 jobs? This cannot be undone. Nothing was done, because this is not a terminal" in two
    assert states(run) == {1: "pending", 2: "pending", 3: "pending"}
    result = run("delete", 1, 2, "--yes")
    assert (result.stdout, result.stderr) == ("deleted 2 jobs\n", "")
    assert states(run) == {3: "pending"}
    [action] = items(run("undo", "--list", "--json"))
    assert "cannot be undone: it was a delete" in run("undo", action["id"], "--yes", fails=1).stderr
    assert "there is nothing to undo" in run("undo", fails=1).stderr


@pytest.mark.parametrize("words", [["--status", "pending"], ["1", "2"], ["--type", "ocr_pages"]])
def test_without_a_terminal_several_jobs_are_changed_only_with_yes(run: Run, words: list[str]) -> None:
    enqueue(run, 2)

    result = run("cancel", *words, fails=1)

    assert "Cancel 2 jobs?" in result.stderr
    assert "--yes" in result.stderr
    assert set(states(run).values()) == {"pending"}


def test_a_dry_run_shows_a_sample_and_changes_nothing(run: Run) -> None:
    enqueue(run, 7)

    text = run("cancel", "--status", "pending", "--dry-run", "--yes").stdout
    answer = json.loads(run("cancel", "--status", "pending", "--dry-run", "--json").stdout)

    assert text.startswith("would cancel 7 jobs\n")
    assert text.endswith("… and 2 more\n")
    assert answer == {"dry_run": True, "jobs": 7, "items": [7, 6, 5, 4, 3], "documents": []}
    assert set(states(run).values()) == {"pending"}


def test_yes_changes_all_matching_jobs_and_names_undo(run: Run) -> None:
    enqueue(run, 3)
    enqueue(run, 1, "download")

    result = run("cancel", "--type", "ocr_pages", "--yes")

    assert result.stdout == "cancelled 3 jobs\n"
    assert "pagemill undo" in result.stderr
    assert states(run) == {1: "cancelled", 2: "cancelled", 3: "cancelled", 4: "pending"}


@pytest.mark.parametrize(("verb", "code"), [("cancel", "CANCELLED"), ("delete", "JOB_DELETED")])
def test_documents_that_a_change_fails_are_named_before_and_after(run: Run, shelf: Shelf, verb: str, code: str) -> None:
    shelf.read("read.pdf", "text")
    for name in ("a.pdf", "b.pdf"):
        shelf.ask(name)
    enqueue(run, 1)
    sentence = f"2 documents {{}} failed ({code}); pagemill reindex 2 3 reads them again"

    stdout = run(verb, "--status", "pending", "--dry-run").stdout
    answer = json.loads(run(verb, "--status", "pending", "--dry-run", "--json").stdout)
    stderr = run(verb, "--status", "pending", fails=1).stderr
    done = run(verb, "--status", "pending", "--yes").stderr

    assert sentence.format("would be") in stdout
    assert answer["documents"] == [2, 3]
    assert sentence.format("will be") in stderr
    assert sentence.format("are") in done
    assert [item["error_code"] for item in items(run("documents", "--status", "failed", "--json"))] == [code, code]


def test_a_change_that_fails_no_document_mentions_none(run: Run, shelf: Shelf) -> None:
    shelf.fail("a.pdf", "PDF_BROKEN", "half of it is missing")
    enqueue(run, 1)

    assert "document" not in run("delete", 1, 2, "--yes").stderr
    assert "documents" not in json.loads(run("retry", "--type", "nothing", "--dry-run", "--json").stdout)


def test_a_change_without_a_selector_is_refused(run: Run) -> None:
    enqueue(run, 2)

    for words in (["cancel"], ["retry"], ["delete"], ["priority", "1"], ["cancel", "--yes"]):
        assert "say which jobs" in run(*words, fails=2).stderr

    assert set(states(run).values()) == {"pending"}


def test_a_selector_without_matches_is_no_error(run: Run) -> None:
    assert "no job matches" in run("retry", "--status", "failed").stderr


def test_a_change_that_the_state_of_a_job_forbids_is_refused(run: Run, daemon: Daemon) -> None:
    enqueue(run, 1)
    assert "job 1: it is pending" in run("retry", 1, fails=1).stderr

    [claimed] = daemon.claim()

    assert "it is running" in run("delete", 1, "--yes", fails=1).stderr
    assert json.loads(run("delete", 1, "--yes", "--json", fails=1).stderr)["error"]["code"] == "refused"
    daemon.store.leases.complete(claimed.lease)
    assert "it is completed" in run("priority", 3, 1, fails=1).stderr


def test_of_several_jobs_the_refused_ones_are_named_and_the_others_changed(run: Run) -> None:
    enqueue(run, 2)
    run("cancel", 1)

    result = run("cancel", 1, 2, "--yes", fails=1)

    assert result.stdout == "cancelled 1 job\n"
    assert "job 1: it is already cancelled" in result.stderr


def test_an_unknown_id_stops_the_whole_change(run: Run) -> None:
    enqueue(run, 1)

    run("cancel", 1, 99, "--yes", fails=66)

    assert states(run) == {1: "pending"}


def test_retry_by_type_skips_completed_jobs_unless_they_are_selected(run: Run, daemon: Daemon) -> None:
    enqueue(run, 3)
    daemon.complete()
    daemon.fail()
    run("cancel", 3)

    run("retry", "--type", "ocr_pages", "--yes")
    assert states(run) == {1: "completed", 2: "pending", 3: "pending"}

    run("retry", "--status", "completed", "--yes")
    assert states(run) == {1: "pending", 2: "pending", 3: "pending"}


def test_a_status_that_a_verb_cannot_change_is_refused(run: Run) -> None:
    assert (
        "only jobs that are pending or running can be cancelled" in run("cancel", "--status", "failed", fails=2).stderr
    )
    assert "can be pruned" in run("prune", "--older-than", "1d", "--status", "pending", fails=2).stderr


def test_undo_reverses_the_newest_action_that_is_not_undone(run: Run) -> None:
    enqueue(run, 3)
    run("cancel", "--status", "pending", "--yes")
    run("retry", 2)

    assert run("undo").stdout == "cancelled 1 job\n"
    assert states(run) == {1: "cancelled", 2: "cancelled", 3: "cancelled"}
    assert "Undo action 1, the cancel of 3 jobs by" in run("undo", fails=1).stderr
    assert run("undo", "--yes").stdout == "retried 3 jobs\n"
    assert states(run) == {1: "pending", 2: "pending", 3: "pending"}
    run("priority", 1, 1, 2, "--yes")
    assert run("undo", "--yes").stdout == "reprioritised 2 jobs\n"
    assert {item["priority"] for item in items(run("ls", "--json"))} == {5}

    assert "there is nothing to undo" in run("undo", fails=1).stderr


def test_undo_after_a_delete_asks_before_it_reverses_an_older_action(run: Run) -> None:
    enqueue(run, 2)
    run("cancel", 1, "--yes")
    run("delete", 2, "--yes")

    refused = run("undo", fails=1).stderr

    assert "The newest action, 2, cannot be undone: the delete of 1 job by" in refused
    assert "Undo action 1, the cancel of 1 job by" in refused
    assert states(run) == {1: "cancelled"}
    assert json.loads(run("undo", "--dry-run", "--json").stdout)["newest_final"]["id"] == 2
    assert run("undo", 1).stdout == "retried 1 job\n"


def test_undo_asks_before_it_reverses_what_another_user_did(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    enqueue(run, 1)
    with monkeypatch.context() as other:
        other.setenv("SUDO_USER", "alice")
        run("cancel", 1)

    assert "Undo action 1, the cancel of 1 job by alice" in run("undo", fails=1).stderr
    assert run("undo", "--yes").stdout == "retried 1 job\n"


def test_undo_says_if_every_job_has_changed_since(run: Run) -> None:
    enqueue(run, 1)
    run("cancel", 1, "--yes")
    run("retry", 1)
    run("cancel", 1, "--yes")

    refused = run("undo", 2, fails=1)

    assert "could not undo action 2, the retry of 1 job" in refused.stderr


def test_undo_lists_who_did_what(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    enqueue(run, 2)
    monkeypatch.setenv("SUDO_USER", "alice")
    run("cancel", 1, 2, "--yes")

    [action] = items(run("undo", "--list", "--json"))

    assert (action["actor"], action["verb"], action["jobs"], action["undone_at"]) == ("alice", "cancel", 2, None)
    assert "alice" in run("undo", "--list").stdout
    assert "would undo action" in run("undo", "--dry-run").stdout


def test_prune_removes_only_ended_jobs_that_are_old_enough(run: Run, daemon: Daemon) -> None:
    enqueue(run, 3)
    daemon.complete()
    daemon.fail()

    assert "0 jobs" in run("prune", "--older-than", "1d", "--yes").stdout
    assert run("prune", "--older-than", "2199-01-01", "--dry-run").stdout.startswith("would prune 2 jobs")
    assert "deletes 2 jobs for good" in run("prune", "--older-than", "2199-01-01", fails=1).stderr
    assert run("prune", "--older-than", "2199-01-01", "--status", "failed", "--yes").stdout == "pruned 1 job\n"

    assert states(run) == {1: "completed", 3: "pending"}


def test_prune_requires_an_age(run: Run) -> None:
    assert "--older-than" in run("prune", "--status", "failed", "--yes", fails=2).stderr


def test_a_paused_type_starts_no_job_until_unpause(run: Run, daemon: Daemon) -> None:
    enqueue(run, 1)

    run("pause", "ocr_pages", "--reason", "new disk")
    assert "new disk" in run("why", 1, fails=3).stdout
    assert daemon.claim() == []

    run("unpause", "ocr_pages")
    assert len(daemon.claim()) == 1


def test_a_pause_has_exactly_one_scope(run: Run) -> None:
    for words in ([], ["ocr_pages", "--all"], ["--owner", "a", "--all"]):
        assert "give one of TYPE" in run("pause", *words, fails=2).stderr


def test_unpause_of_something_else_lists_the_pauses(run: Run) -> None:
    run("pause", "ocr_pages")

    assert "type ocr was not paused; paused: type ocr_pages" in run("unpause", "ocr", fails=1).stderr


def test_a_pause_of_an_unknown_type_warns_about_the_spelling(run: Run) -> None:
    enqueue(run, 1)

    assert "check the spelling" in run("pause", "ocr_page").stderr
    assert run("pause", "ocr_pages").stderr == ""


# ── cancel --now ────────────────────────────────────────────────────────────────────────────────────────────────


def test_cancel_now_names_the_jobs_that_still_run(run: Run, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_control, "_KILL_SECONDS_MAX", 0.0)
    for _ in range(3):
        run("enqueue", "ocr_pages")
    daemon.claim(2)
    daemon.store.job_control.cancel(Selector(ids=(2,)), actor="somebody else")

    result = run("cancel", "1", "2", "3", "--now", "--yes", fails=1)
    as_json = json.loads(run("cancel", "1", "--now", "--json", fails=1).stdout)

    assert result.stdout == "cancelled 1 job\nasked 2 jobs to stop\n"
    assert "job 1 is still stopping: worker w1 (pid 1 on here) still has to prove its processes gone" in result.stderr
    assert (as_json["asked"], [item["id"] for item in as_json["unended"]]) == ([1], [1])
    assert {held.lease.job_id: held.without_grace for held in daemon.store.leases.leases_of("w1")} == {
        1: True,
        2: True,
    }


def test_cancel_now_of_a_job_of_a_dead_worker_says_who_ends_it(
    run: Run, daemon: Daemon, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_control, "_KILL_SECONDS_MAX", 0.0)
    run("enqueue", "ocr_pages")
    daemon.claim()
    an_hour_ago = open_store(database, clock=lambda: wall_clock() - timedelta(hours=1))
    an_hour_ago.leases.beat("w1", ())
    an_hour_ago.close()

    result = run("cancel", "1", "--now", fails=1)

    assert "its worker w1 is gone or silent: the next daemon ends the job" in result.stderr


def test_cancel_now_applies_to_one_attempt_only(run: Run, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_control, "_KILL_SECONDS_MAX", 0.0)
    run("enqueue", "ocr_pages")
    [job] = daemon.claim()
    run("cancel", "1", "--now", fails=1)

    daemon.store.leases.confirm_cancel(job.lease)
    run("retry", "1")
    daemon.claim()
    run("cancel", "1")

    assert [held.without_grace for held in daemon.store.leases.leases_of("w1")] == [False]
    assert [attempt.signal for attempt in daemon.store.history.attempts(1)] == [None, None]


def test_run_now_starts_a_job_that_waits_for_a_time(run: Run) -> None:
    run("enqueue", "ocr_pages", "--run-at", "+1d")
    enqueue(run, 2)
    assert "to start it now: pagemill run-now 1" in run("why", 1, fails=3).stdout

    assert run("run-now", 1, 2).stdout == "job 1 no longer waits for a time\njob 2 waits for no time\n"

    assert "NOT_YET" not in run("why", 1, fails=3).stdout
    run("cancel", 3)
    assert "job 3 is cancelled: only a pending job can be started now: to run it again: pagemill retry 3" in (
        run("run-now", 3, fails=1).stderr
    )
    assert "there is no job 9" in run("run-now", 9, fails=66).stderr
