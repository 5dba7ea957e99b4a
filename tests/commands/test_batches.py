"""`batch`, and the documents of one: what people type for what was submitted together."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.commands.conftest import Run, items
from tests.commands.shelf import Shelf
from worker_service.jobs.batches import BatchState, NewBatch
from worker_service.jobs.documents import DocumentRequest
from worker_service.jobs.model import Failure, NewJob, Status
from worker_service.jobs.selector import Selector


def begun(shelf: Shelf, *names: str, owner: str = "ann", name: str = "reports") -> int:
    """A batch that asks for these files."""
    jobs = [NewJob("ingest", platform="local", document=DocumentRequest(f"/srv/{one}", one, "c1")) for one in names]
    return shelf.store.batches.add(NewBatch(owner, name), jobs).batch.id


def fail(shelf: Shelf, code: str, message: str) -> None:
    shelf.store.leases.fail(shelf.next_job().lease, Failure(code, message), retry_at=None)


def state_of(shelf: Shelf, batch_id: int) -> BatchState:
    return shelf.store.batches.get(batch_id).state


def test_the_list_tells_of_each_how_far_it_is(run: Run, shelf: Shelf) -> None:
    assert "there is no batch yet: pagemill batch add" in run("batch", "ls").stderr
    begun(shelf, "a.pdf", "b.pdf", "c.pdf")
    begun(shelf, "d.pdf", owner="bob", name="")
    shelf.publish(shelf.next_job(), "a.pdf", "one", "two")
    fail(shelf, "DAMAGED", "it is damaged")

    lines = run("batch", "ls").stdout.splitlines()

    assert lines[0].split() == ["ID", "STATE", "OWNER", "NAME", "FILES", "FAILED", "PAGES", "PRIORITY", "BEGAN", "NOTE"]
    assert [line.split()[:6] for line in lines[1:]] == [
        ["2", "failed", "bob", "-", "1/1", "1"],
        ["1", "active", "ann", "reports", "1/3", "-"],
    ]
    assert [one["batch"]["id"] for one in items(run("batch", "ls", "--owner", "ann", "--json"))] == [1]
    assert items(run("batch", "ls", "--status", "done,stopped", "--json")) == []
    assert "--before 2" in run("batch", "ls", "--limit", 1).stderr
    assert [one["batch"]["id"] for one in items(run("batch", "ls", "--before", 2, "--json"))] == [1]


def test_a_batch_is_shown_with_what_was_asked_and_what_to_do_next(run: Run, shelf: Shelf) -> None:
    begun(shelf, "a.pdf")
    fail(shelf, "DAMAGED", "it is damaged")

    shown = run("batch", "show", "batch:1")

    assert shown.stdout.startswith("batch 1 (reports): failed · 1 file, 1 failed · 0 pages\n")
    assert "by_job_status        1 failed" in shown.stdout
    assert "pagemill batch retry 1" in shown.stderr
    assert json.loads(run("batch", "show", 1, "--json").stdout)["batch"]["note"] is None


def test_a_batch_is_stopped_and_gone_on_with(run: Run, shelf: Shelf) -> None:
    begun(shelf, "a.pdf", "b.pdf")

    assert run("batch", "stop", 1).stdout == "stopped batch 1 (reports)\n"
    assert state_of(shelf, 1) is BatchState.STOPPED
    assert "pagemill batch resume 1" in run("batch", "show", 1).stderr
    assert run("batch", "resume", 1).stdout == "batch 1 (reports) goes on\n"
    assert state_of(shelf, 1) is BatchState.ACTIVE


def test_resume_says_which_other_batch_of_the_owner_it_has_stopped(run: Run, shelf: Shelf) -> None:
    first, second = begun(shelf, "a.pdf"), begun(shelf, "b.pdf", name="")
    assert state_of(shelf, first) is BatchState.STOPPED

    resumed = run("batch", "resume", first)

    assert resumed.stderr == "batch 2 of the same owner was stopped for it: pagemill batch resume 2\n"
    assert state_of(shelf, second) is BatchState.STOPPED


def test_retry_tries_again_what_failed_and_nothing_else(run: Run, shelf: Shelf) -> None:
    begun(shelf, "a.pdf", "b.pdf")
    shelf.publish(shelf.next_job(), "a.pdf", "one")
    fail(shelf, "DAMAGED", "it is damaged")
    assert state_of(shelf, 1) is BatchState.FAILED

    assert run("batch", "retry", 1).stdout == "batch 1 (reports) tries again, with 1 job again\n"

    assert shelf.store.reading.count(Selector(batch_id=1, statuses=(Status.PENDING,))) == 1
    assert "nothing of it is left to do" in _done(run, shelf)


def _done(run: Run, shelf: Shelf) -> str:
    shelf.publish(shelf.next_job(), "b.pdf", "two")
    return run("batch", "retry", 1, fails=1).stderr


def test_cancel_asks_first_and_leaves_a_batch_that_can_be_gone_on_with(run: Run, shelf: Shelf) -> None:
    begun(shelf, "a.pdf", "b.pdf", "c.pdf")
    shelf.next_job()

    assert run("batch", "cancel", 1, "--dry-run").stdout == "would cancel 3 jobs of batch 1 (reports)\n"
    assert "say --yes" in run("batch", "cancel", 1, fails=1).stderr
    done = run("batch", "cancel", 1, "--yes")

    assert done.stdout == "cancelled 2 jobs of batch 1 (reports)\nasked 1 job to stop\n"
    assert state_of(shelf, 1) is BatchState.STOPPED
    assert run("batch", "resume", 1).stdout == "batch 1 (reports) goes on, with 2 jobs again\n"


def test_a_batch_is_forgotten_once_nothing_of_it_is_left_to_do(run: Run, shelf: Shelf) -> None:
    begun(shelf, "a.pdf")
    assert "has 1 live job: `pagemill batch cancel 1`" in run("batch", "rm", 1, "--yes", fails=1).stderr
    shelf.publish(shelf.next_job(), "a.pdf", "one")

    assert run("batch", "rm", 1, "--dry-run").stdout == "would forget batch 1 (reports) (done, 1 file)\n"
    assert "say --yes" in run("batch", "rm", 1, fails=1).stderr
    assert run("batch", "rm", 1, "--yes").stdout == "forgot batch 1 (reports); its jobs and documents stay\n"

    assert len(items(run("documents", "--json"))) == 1
    assert "there is no batch 1" in run("batch", "show", 1, fails=66).stderr


@pytest.mark.parametrize("words", ["show x", "stop 7", "resume 7", "retry 7", "cancel 7", "rm 7", "documents", "csv"])
def test_a_batch_that_is_not_there_is_told_of_in_a_sentence(run: Run, shelf: Shelf, words: str) -> None:
    line = {"documents": "documents --batch 7", "csv": "documents --batch 7 --csv"}.get(words, f"batch {words}")
    result = run(*line.split(), fails=2 if words.endswith("x") else 66)

    assert (
        "'x' is not a batch" if words.endswith("x") else "there is no batch 7: `pagemill batch ls`"
    ) in result.stderr
    assert result.stdout == ""


def test_the_documents_of_a_batch_are_listed_searched_counted_exported_and_handed_over(
    run: Run, shelf: Shelf, tmp_path: Path
) -> None:
    shelf.read("other.pdf", "climate", roles=("original", "text"))
    begun(shelf, "a.pdf", "b.pdf")
    shelf.publish(shelf.next_job(), "a.pdf", "climate risk", roles=("original", "text"))
    fail(shelf, "DAMAGED", "it is damaged")
    shelf.store.intake.enqueue(NewJob("download", name="lost.pdf", batch_id=1, source_key="/srv/lost.pdf", owner="ann"))
    fail(shelf, "NOT_FOUND", "it is gone")
    (tmp_path / "terms.txt").write_text("climate\n")

    assert [one["name"] for one in items(run("documents", "--batch", "batch:1", "--json"))] == ["b.pdf", "a.pdf"]
    assert [one["name"] for one in items(run("search", "climate", "--batch", 1, "--json"))] == ["a.pdf"]
    assert items(run("search", "climate", "--batch", 1, "--document", 1, "--json", fails=1)) == []
    assert [one["name"] for one in items(run("keywords", "terms.txt", "--batch", 1, "--json"))] == ["a.pdf", "b.pdf"]
    assert run("export", "--batch", 1, "-o", "out").stdout == "out/a-2.txt\n"
    rows = list(csv.DictReader(io.StringIO(run("documents", "--batch", 1, "--csv").stdout)))
    assert [(row["NAME"], row["PAGES"], row["STATE"], row["ERROR"]) for row in rows] == [
        ("b.pdf", "", "failed", "DAMAGED"), ("a.pdf", "1", "success", ""), ("lost.pdf", "", "failed", "NOT_FOUND"),
    ]  # fmt: skip
    assert (rows[1]["SIZE"], rows[1]["SHA256"], rows[1]["MD5"]) == ("12", "aa", "bb")
    for words in (["search", "climate"], ["keywords", "terms.txt"]):
        assert "there is no batch 7" in run(*words, "--batch", 7, fails=66).stderr


def test_what_a_running_job_asks_for_is_told_of_in_json_as_well(run: Run, shelf: Shelf) -> None:
    begun(shelf, "a.pdf", "b.pdf")
    job = shelf.next_job()

    cancelled = json.loads(run("batch", "cancel", 1, "--yes", "--json").stdout)
    shelf.store.leases.confirm_cancel(job.lease)
    resumed = json.loads(run("batch", "resume", 1, "--json").stdout)

    assert (cancelled["asked"], cancelled["batch"]["state"]) == ([job.id], "stopped")
    assert (resumed["batch"]["state"], sorted(resumed["job_ids"])) == ("active", [1, 2])
