"""`pagemill batch`, and `add` and the lists with --batch."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Run, items, start_command, write_files
from tests.cli.stored_documents import Shelf, sha256_of
from worker_service.jobs.batches import BatchState, NewBatch
from worker_service.jobs.documents import DocumentRequest
from worker_service.jobs.job import NewJob, Status
from worker_service.jobs.selector import Selector


def add_batch(shelf: Shelf, *names: str, owner: str = "ann", name: str = "reports") -> int:
    jobs = [NewJob("ingest", platform="local", document=DocumentRequest(f"/srv/{file}", file, "c1")) for file in names]
    return shelf.store.batches.add(NewBatch(owner, name), jobs).batch.id


def state_of(shelf: Shelf, batch_id: int) -> BatchState:
    return shelf.store.batches.get(batch_id).state


def test_the_list_shows_the_progress_of_each_batch(run: Run, shelf: Shelf) -> None:
    assert "there are no batches yet: pagemill add" in run("batch", "ls").stderr
    add_batch(shelf, "a.pdf", "b.pdf", "c.pdf")
    add_batch(shelf, "d.pdf", owner="bob", name="")
    shelf.publish(shelf.next_job(), "a.pdf", "one", "two")
    shelf.fail_next("DAMAGED", "it is damaged")

    lines = run("batch", "ls").stdout.splitlines()

    assert lines[0].split() == "ID STATE OWNER NAME FILES FAILED PAGES PRIORITY STARTED NOTE".split()
    assert [line.split()[:6] for line in lines[1:]] == [
        ["2", "finished", "bob", "-", "1/1", "1"],
        ["1", "active", "ann", "reports", "1/3", "-"],
    ]
    assert [item["batch"]["id"] for item in items(run("batch", "ls", "--owner", "ann", "--json"))] == [1]
    assert items(run("batch", "ls", "--status", "done,stopped", "--json")) == []
    assert "--before 2" in run("batch", "ls", "--limit", 1).stderr
    assert [item["batch"]["id"] for item in items(run("batch", "ls", "--before", 2, "--json"))] == [1]


def test_batch_show_prints_the_request_and_the_next_step(run: Run, shelf: Shelf) -> None:
    add_batch(shelf, "a.pdf")
    shelf.fail_next("DAMAGED", "it is damaged")

    result = run("batch", "show", "batch:1")

    assert result.stdout.startswith("batch 1 (reports): finished, 1 failed · 1 file · 0 pages\n")
    assert "files                1 failed" in result.stdout
    assert re.search(r"^added \(UTC\) +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$", result.stdout, re.MULTILINE)
    assert "pagemill batch retry 1" in result.stderr
    assert json.loads(run("batch", "show", 1, "--json").stdout)["batch"]["note"] is None


def test_a_batch_is_stopped_and_resumed(run: Run, shelf: Shelf) -> None:
    add_batch(shelf, "a.pdf", "b.pdf")

    assert run("batch", "stop", 1).stdout == "stopped batch 1 (reports)\n"
    assert state_of(shelf, 1) is BatchState.STOPPED
    assert "pagemill batch resume 1" in run("batch", "show", 1).stderr
    assert run("batch", "resume", 1).stdout == "batch 1 (reports) continues\n"
    assert state_of(shelf, 1) is BatchState.ACTIVE


def test_resume_says_which_other_batch_of_the_owner_now_waits(run: Run, shelf: Shelf) -> None:
    first, second = add_batch(shelf, "a.pdf"), add_batch(shelf, "b.pdf", name="")
    assert state_of(shelf, first) is BatchState.WAITING
    assert "replaced by batch 2 · 0 of 1 file" in run("batch", "show", first).stdout
    assert "replaced by batch 2" in run("batch", "ls").stdout

    resumed = run("batch", "resume", first)

    assert (
        resumed.stderr == "replaces batch 2: 0 of 1 file · still counting pages; it resumes when the new batch ends\n"
    )
    assert state_of(shelf, second) is BatchState.WAITING


def test_retry_runs_only_failed_jobs_again(run: Run, shelf: Shelf) -> None:
    add_batch(shelf, "a.pdf", "b.pdf")
    shelf.publish(shelf.next_job(), "a.pdf", "one")
    shelf.fail_next("DAMAGED", "it is damaged")
    assert state_of(shelf, 1) is BatchState.FAILED

    assert run("batch", "retry", 1).stdout == "batch 1 (reports) retries 1 job\n"

    assert shelf.store.job_queries.count(Selector(batch_id=1, statuses=(Status.PENDING,))) == 1
    shelf.publish(shelf.next_job(), "b.pdf", "two")
    assert "nothing of it is left to do" in run("batch", "retry", 1, fails=1).stderr


def test_cancel_asks_first_and_the_batch_can_be_resumed(run: Run, shelf: Shelf) -> None:
    add_batch(shelf, "a.pdf", "b.pdf", "c.pdf")
    shelf.next_job()

    assert run("batch", "cancel", 1, "--dry-run").stdout == "would cancel 3 jobs of batch 1 (reports)\n"
    assert "add --yes" in run("batch", "cancel", 1, fails=1).stderr
    result = run("batch", "cancel", 1, "--yes")

    assert result.stdout == "cancelled 2 jobs of batch 1 (reports)\nasked 1 job to stop\n"
    assert state_of(shelf, 1) is BatchState.STOPPED
    assert run("batch", "resume", 1).stdout == "batch 1 (reports) continues, retrying 2 jobs\n"


def test_only_an_ended_batch_can_be_removed(run: Run, shelf: Shelf) -> None:
    add_batch(shelf, "a.pdf")
    assert "has 1 live job: `pagemill batch cancel 1`" in run("batch", "rm", 1, "--yes", fails=1).stderr
    shelf.publish(shelf.next_job(), "a.pdf", "one")

    assert run("batch", "rm", 1, "--dry-run").stdout == "would delete batch 1 (reports) (done, 1 file)\n"
    assert "add --yes" in run("batch", "rm", 1, fails=1).stderr
    assert run("batch", "rm", 1, "--yes").stdout == "deleted batch 1 (reports); its jobs and documents stay\n"

    assert len(items(run("documents", "--json"))) == 1
    assert "there is no batch 1" in run("batch", "show", 1, fails=66).stderr


def test_documents_are_listed_searched_counted_and_exported_by_batch(run: Run, shelf: Shelf, tmp_path: Path) -> None:
    shelf.read("other.pdf", "climate", roles=("original", "text"))
    add_batch(shelf, "a.pdf", "b.pdf")
    shelf.publish(shelf.next_job(), "a.pdf", "climate risk", roles=("original", "text"))
    shelf.fail_next("DAMAGED", "it is damaged")
    shelf.store.intake.enqueue(NewJob("download", name="lost.pdf", batch_id=1, source_key="/srv/lost.pdf", owner="ann"))
    shelf.fail_next("NOT_FOUND", "it is gone")
    (tmp_path / "terms.txt").write_text("climate\n")

    assert [item["name"] for item in items(run("documents", "--batch", "batch:1", "--json"))] == ["b.pdf", "a.pdf"]
    assert [item["name"] for item in items(run("search", "climate", "--batch", 1, "--json"))] == ["a.pdf"]
    assert items(run("search", "climate", "--batch", 1, "--document", 1, "--json", fails=1)) == []
    assert [item["name"] for item in items(run("keywords", "terms.txt", "--batch", 1, "--json"))] == ["a.pdf", "b.pdf"]
    assert run("export", "--batch", 1, "-o", "out").stdout == "out/a-2.txt\n"
    rows = list(csv.DictReader(io.StringIO(run("documents", "--batch", 1, "--csv").stdout)))
    assert [(row["NAME"], row["PAGES"], row["STATE"], row["ERROR"]) for row in rows] == [
        ("b.pdf", "", "failed", "DAMAGED"), ("a.pdf", "1", "success", ""), ("lost.pdf", "", "failed", "NOT_FOUND"),
    ]  # fmt: skip
    assert (rows[1]["SIZE"], rows[1]["SHA256"], rows[1]["MD5"]) == ("12", sha256_of("climate risk"), "bb")
    for words in (["search", "climate"], ["keywords", "terms.txt"]):
        assert "there is no batch 7" in run(*words, "--batch", 7, fails=66).stderr


def test_json_of_cancel_and_resume_has_the_jobs_and_the_state(run: Run, shelf: Shelf) -> None:
    add_batch(shelf, "a.pdf", "b.pdf")
    job = shelf.next_job()

    cancelled = json.loads(run("batch", "cancel", 1, "--yes", "--json").stdout)
    shelf.store.leases.confirm_cancel(job.lease)
    resumed = json.loads(run("batch", "resume", 1, "--json").stdout)

    assert (cancelled["asked"], cancelled["batch"]["state"]) == ([job.id], "stopped")
    assert (resumed["batch"]["state"], sorted(resumed["job_ids"])) == ("active", [1, 2])


# ── batch add, and --batch ──────────────────────────────────────────────────────────────────────────────────────


def sources_of(shelf: Shelf, batch_id: int) -> list[str]:
    jobs = shelf.store.job_queries.list(Selector(batch_id=batch_id))
    return sorted(job.source_key or json.loads(job.payload or "")["folder"] for job in jobs)


def test_sources_of_all_kinds_are_one_batch_and_each_file_is_added_once(run: Run, shelf: Shelf) -> None:
    first, second, third = write_files("in/a.csv", "in/deep/b.csv", "c.csv")
    write_files("in/.hidden.csv", "in/notes.log")
    folder = "https://drive.google.com/drive/folders/1a2B3c4D5e6F7g"
    stdin = f"c.csv\n\n{folder}?usp=sharing\r\nhttps://example.org/d.pdf\n".encode()

    result = run(
        *("add", "in", "in/a.csv", folder, "-", "--owner", "ann", "--name", "reports", "--lang", "deu"),
        *("--then", "webhook", "--on-failure", "webhook"),
        stdin=stdin,
    )

    assert result.stdout == "batch:1\n"
    assert result.stderr == (
        f"skipped: 1 .log, 1 hidden\n  {Path('in/.hidden.csv').absolute()}\n  {Path('in/notes.log').absolute()}\n"
        "batch 1 (reports): pagemill wait batch:1 --progress\n"
    )
    local = [str(path) for path in (third, first, second)]
    assert sources_of(shelf, 1) == sorted([*local, folder, "https://example.org/d.pdf"])
    jobs = shelf.store.job_queries.list(Selector(batch_id=1))
    assert {(job.owner, job.priority, job.concurrency_key) for job in jobs} == {("ann", 3, None)}
    then = [{"job_type": "webhook", "standing": True}, {"job_type": "webhook", "on_end": "failure", "standing": True}]
    for job in jobs:
        payload = json.loads(job.payload or "")
        payload = payload.get("download", payload)
        assert (payload["read"], payload["then"]) == ({"languages": ["deu"]}, then)
    request = json.loads(run("batch", "show", 1, "--json").stdout)["batch"]["asked"]
    assert request["sources"][:3] == ["in", "in/a.csv", folder]
    assert (request["languages"], request["then"]) == (["deu"], then)


def test_only_jobs_that_need_a_credential_get_it(run: Run, shelf: Shelf) -> None:
    write_files("a.csv")
    drive = "https://drive.google.com"
    addresses = (
        f"{drive}/drive/folders/1a2B3c4D5e6F7g",
        f"{drive}/file/d/1a2B3c4D5e6F7h/view",
        "https://example.org/d",
    )

    run("add", "a.csv", *addresses, "--credential", "drive-b")

    sources_and_credentials = [
        (job.source, json.loads(job.payload or "").get("credential"))
        for job in shelf.store.job_queries.list(Selector())
    ]
    assert sources_and_credentials == [
        ("", None),
        ("gdrive:drive-b", "drive-b"),
        ("gdrive:drive-b", "drive-b"),
        ("", None),
    ]


def test_a_retry_without_failed_jobs_changes_nothing(run: Run, shelf: Shelf) -> None:
    add_batch(shelf, "a.pdf")

    assert run("batch", "retry", 1).stderr == "no job of batch 1 (reports) has failed; nothing changed\n"


def test_actions_of_a_batch_run_when_it_ends_and_a_webhook_gets_its_state(run: Run, shelf: Shelf) -> None:
    write_files("a.csv")
    run("add", "a.csv", "--then-batch", 'webhook={"url": "https://example.org"}', "--then-batch", "call_ann")
    event = {"type": "batch.{state}", "data": {"batch": "{batch_id}", "state": "{state}"}}

    assert json.loads(shelf.store.batches.get(1).actions) == [
        {"job_type": "webhook", "payload": {"url": "https://example.org", "event": event}},
        {"job_type": "call_ann"},
    ]
    shelf.store.leases.complete(shelf.next_job(["io"]).lease, None)

    assert [job.job_type for job in shelf.store.job_queries.list(Selector())] == ["call_ann", "webhook", "download"]
    answer = json.loads(shelf.store.job_queries.get(2).payload or "")
    assert answer["event"] == {"type": "batch.done", "data": {"batch": 1, "state": "done"}}


def test_a_dry_run_adds_up_files_folders_and_addresses(shelf: Shelf) -> None:
    first, second = write_files("in/a.csv", "in/b.csv")
    content = hashlib.sha256(first.read_bytes()).hexdigest()
    shelf.read(first.name, "one", key=str(first), content=content, roles=("original", "text"))
    folder = "https://drive.google.com/drive/folders/1a2B3c4D5e6F7g"

    asking = start_command("add", "in", folder, "https://example.org/d.pdf", "--dry-run", "--json")
    shelf.store.leases.complete(shelf.next_job().lease, '{"enqueued": 3, "unchanged": 2, "bytes": 1000}')
    answer = json.loads(asking.communicate(timeout=60)[0])

    size = second.stat().st_size
    assert {name: answer[name] for name in ("files", "bytes", "known", "to_read", "bytes_to_read", "unsized")} == {
        "files": 8, "bytes": 2 * size + 1000, "known": 3, "to_read": 5, "bytes_to_read": size + 1000, "unsized": 1,
    }  # fmt: skip
    assert answer["seconds"] is not None
    assert shelf.store.batches.list() == []


def test_a_dry_run_of_an_address_counts_no_existing_document(run: Run, shelf: Shelf) -> None:
    shelf.read("a.csv", "one", key="/srv/a.csv")

    answer = json.loads(run("batch", "add", "https://example.org/d.pdf", "--dry-run", "--json").stdout)

    assert (answer["files"], answer["known"], answer["unsized"]) == (1, 0, 1)


def test_add_names_the_batch_that_it_replaces(run: Run, shelf: Shelf) -> None:
    write_files("first/a.csv", "second/b.csv")
    run("add", "first", "--owner", "ann")

    second = run("add", "second", "--owner", "ann")

    assert second.stderr.splitlines() == [
        "replaces batch 1 (first): 0 of 1 file · still counting pages; it resumes when the new batch ends",
        "batch 2 (second): pagemill wait batch:2 --progress",
    ]
    assert (state_of(shelf, 1), state_of(shelf, 2)) == (BatchState.WAITING, BatchState.ACTIVE)
    assert run("status").stdout.rstrip().endswith("replaced_batches=1")


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["add", "a.csv", "--batch", "9"], 66, "there is no batch 9"),
        (["add", "a.csv", "--batch", "1", "--owner", "bob"], 2, "belongs to ann: leave --owner out"),
        (["add", "a.csv", "--batch", "2"], 1, "batch 2 (reports) is done, and takes nothing more: begin a new one"),
    ],
)
def test_a_refused_addition_to_a_batch_adds_no_job(
    run: Run, shelf: Shelf, words: list[str], code: int, sentence: str
) -> None:
    write_files("a.csv", "in/b.csv")
    add_batch(shelf, "x.pdf")
    add_batch(shelf)
    before = shelf.store.job_queries.count(Selector())

    assert sentence in run(*words, fails=code).stderr
    assert shelf.store.job_queries.count(Selector()) == before


def test_added_files_are_more_urgent_than_watched_folders(run: Run, shelf: Shelf) -> None:
    write_files("a.csv", "in/b.csv")
    shelf.read("d.pdf", "one", roles=("original", "text"))

    run("add", "a.csv")
    run("reindex", 1, "--force")
    run("add", "in", "--watch", "--owner", "ann")
    run("enqueue", "ocr_pages")
    run("add", "in", "--priority", 1)

    types_and_priorities = [(job.job_type, job.priority) for job in shelf.store.job_queries.list(Selector())]
    assert types_and_priorities[:5] == [
        ("download", 1), ("ocr_pages", 5), ("crawl", 7), ("ingest", 3), ("download", 3),
    ]  # fmt: skip


def test_a_batch_that_waits_for_its_turn_says_so(run: Run, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_OWNER_POLICY", "queue")
    write_files("a.csv", "b.csv")
    run("add", "a.csv", "--owner", "ann")

    result = run("add", "b.csv", "--owner", "ann")

    assert result.stderr == "batch 2 (b.csv) waits for the owner's other batch: pagemill batch ls --owner ann\n"
    assert "batches before it: pagemill batch ls --owner ann --status active" in run("batch", "show", 2).stderr
    why = run("why", 2, fails=3).stdout
    assert "BATCH_WAITING" in why
    assert "pagemill batch ls --owner 'ann'" in why
    run("batch", "stop", 2)
    assert "to resume the batch: pagemill batch resume 2" in run("why", 2, fails=3).stdout
