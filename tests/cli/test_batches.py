"""`batch`, and the documents of one: what people type for what was submitted together."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Run, items
from tests.cli.stored_documents import Shelf, sha256_of
from tests.cli.test_wait import begin
from worker_service.jobs.attempts import Failure
from worker_service.jobs.batches import BatchState, NewBatch
from worker_service.jobs.documents import DocumentRequest
from worker_service.jobs.job import NewJob, Status
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
    assert "there are no batches yet: pagemill add" in run("batch", "ls").stderr
    begun(shelf, "a.pdf", "b.pdf", "c.pdf")
    begun(shelf, "d.pdf", owner="bob", name="")
    shelf.publish(shelf.next_job(), "a.pdf", "one", "two")
    fail(shelf, "DAMAGED", "it is damaged")

    lines = run("batch", "ls").stdout.splitlines()

    assert lines[0].split() == "ID STATE OWNER NAME FILES FAILED PAGES PRIORITY STARTED NOTE".split()
    assert [line.split()[:6] for line in lines[1:]] == [
        ["2", "finished", "bob", "-", "1/1", "1"],
        ["1", "active", "ann", "reports", "1/3", "-"],
    ]
    assert [one["batch"]["id"] for one in items(run("batch", "ls", "--owner", "ann", "--json"))] == [1]
    assert items(run("batch", "ls", "--status", "done,stopped", "--json")) == []
    assert "--before 2" in run("batch", "ls", "--limit", 1).stderr
    assert [one["batch"]["id"] for one in items(run("batch", "ls", "--before", 2, "--json"))] == [1]


def test_batch_show_prints_the_request_and_the_next_step(run: Run, shelf: Shelf) -> None:
    begun(shelf, "a.pdf")
    fail(shelf, "DAMAGED", "it is damaged")

    shown = run("batch", "show", "batch:1")

    assert shown.stdout.startswith("batch 1 (reports): finished, 1 failed · 1 file · 0 pages\n")
    assert "files                1 failed" in shown.stdout
    assert re.search(r"^added \(UTC\) +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$", shown.stdout, re.MULTILINE)
    assert "pagemill batch retry 1" in shown.stderr
    assert json.loads(run("batch", "show", 1, "--json").stdout)["batch"]["note"] is None


def test_a_batch_is_stopped_and_gone_on_with(run: Run, shelf: Shelf) -> None:
    begun(shelf, "a.pdf", "b.pdf")

    assert run("batch", "stop", 1).stdout == "stopped batch 1 (reports)\n"
    assert state_of(shelf, 1) is BatchState.STOPPED
    assert "pagemill batch resume 1" in run("batch", "show", 1).stderr
    assert run("batch", "resume", 1).stdout == "batch 1 (reports) continues\n"
    assert state_of(shelf, 1) is BatchState.ACTIVE


def test_resume_says_which_other_batch_of_the_owner_now_waits(run: Run, shelf: Shelf) -> None:
    first, second = begun(shelf, "a.pdf"), begun(shelf, "b.pdf", name="")
    assert state_of(shelf, first) is BatchState.WAITING
    assert "replaced by batch 2 · 0 of 1 file" in run("batch", "show", first).stdout
    assert "replaced by batch 2" in run("batch", "ls").stdout

    resumed = run("batch", "resume", first)

    assert (
        resumed.stderr == "replaces batch 2: 0 of 1 file · still counting pages; it resumes when the new batch ends\n"
    )
    assert state_of(shelf, second) is BatchState.WAITING


def test_retry_tries_again_what_failed_and_nothing_else(run: Run, shelf: Shelf) -> None:
    begun(shelf, "a.pdf", "b.pdf")
    shelf.publish(shelf.next_job(), "a.pdf", "one")
    fail(shelf, "DAMAGED", "it is damaged")
    assert state_of(shelf, 1) is BatchState.FAILED

    assert run("batch", "retry", 1).stdout == "batch 1 (reports) retries 1 job\n"

    assert shelf.store.job_queries.count(Selector(batch_id=1, statuses=(Status.PENDING,))) == 1
    assert "nothing of it is left to do" in _done(run, shelf)


def _done(run: Run, shelf: Shelf) -> str:
    shelf.publish(shelf.next_job(), "b.pdf", "two")
    return run("batch", "retry", 1, fails=1).stderr


def test_cancel_asks_first_and_leaves_a_batch_that_can_be_gone_on_with(run: Run, shelf: Shelf) -> None:
    begun(shelf, "a.pdf", "b.pdf", "c.pdf")
    shelf.next_job()

    assert run("batch", "cancel", 1, "--dry-run").stdout == "would cancel 3 jobs of batch 1 (reports)\n"
    assert "add --yes" in run("batch", "cancel", 1, fails=1).stderr
    done = run("batch", "cancel", 1, "--yes")

    assert done.stdout == "cancelled 2 jobs of batch 1 (reports)\nasked 1 job to stop\n"
    assert state_of(shelf, 1) is BatchState.STOPPED
    assert run("batch", "resume", 1).stdout == "batch 1 (reports) continues, retrying 2 jobs\n"


def test_only_an_ended_batch_can_be_removed(run: Run, shelf: Shelf) -> None:
    begun(shelf, "a.pdf")
    assert "has 1 live job: `pagemill batch cancel 1`" in run("batch", "rm", 1, "--yes", fails=1).stderr
    shelf.publish(shelf.next_job(), "a.pdf", "one")

    assert run("batch", "rm", 1, "--dry-run").stdout == "would delete batch 1 (reports) (done, 1 file)\n"
    assert "add --yes" in run("batch", "rm", 1, fails=1).stderr
    assert run("batch", "rm", 1, "--yes").stdout == "deleted batch 1 (reports); its jobs and documents stay\n"

    assert len(items(run("documents", "--json"))) == 1
    assert "there is no batch 1" in run("batch", "show", 1, fails=66).stderr


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
    assert (rows[1]["SIZE"], rows[1]["SHA256"], rows[1]["MD5"]) == ("12", sha256_of("climate risk"), "bb")
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


# ── batch add, and --batch ──────────────────────────────────────────────────────────────────────────────────────


def papers(*names: str) -> list[Path]:
    made = [Path(name).absolute() for name in names]
    for path in made:
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(f"a,b\n{path.name},1\n")
    return made


def sources_of(shelf: Shelf, batch_id: int) -> list[str]:
    found = shelf.store.job_queries.list(Selector(batch_id=batch_id))
    return sorted(job.source_key or json.loads(job.payload or "")["folder"] for job in found)


def test_sources_of_all_kinds_are_one_batch_and_what_two_of_them_name_comes_in_once(run: Run, shelf: Shelf) -> None:
    first, second, third = papers("in/a.csv", "in/deep/b.csv", "c.csv")
    papers("in/.hidden.csv", "in/notes.log")
    folder = "https://drive.google.com/drive/folders/1a2B3c4D5e6F7g"
    stdin = f"c.csv\n\n{folder}?usp=sharing\r\nhttps://example.org/d.pdf\n".encode()

    added = run(
        *("add", "in", "in/a.csv", folder, "-", "--owner", "ann", "--name", "reports", "--lang", "deu"),
        *("--then", "webhook", "--on-failure", "webhook"),
        stdin=stdin,
    )

    assert added.stdout == "batch:1\n"
    assert added.stderr == (
        f"skipped: 1 .log, 1 hidden\n  {Path('in/.hidden.csv').absolute()}\n  {Path('in/notes.log').absolute()}\n"
        "batch 1 (reports): pagemill wait batch:1 --progress\n"
    )
    local = [str(path) for path in (third, first, second)]
    assert sources_of(shelf, 1) == sorted([*local, folder, "https://example.org/d.pdf"])
    jobs = shelf.store.job_queries.list(Selector(batch_id=1))
    assert {(job.owner, job.priority, job.concurrency_key) for job in jobs} == {("ann", 3, None)}
    then = [{"job_type": "webhook", "standing": True}, {"job_type": "webhook", "on_end": "failure", "standing": True}]
    for job in jobs:
        asked = json.loads(job.payload or "")
        asked = asked.get("download", asked)
        assert (asked["read"], asked["then"]) == ({"languages": ["deu"]}, then)
    shown = json.loads(run("batch", "show", 1, "--json").stdout)["batch"]["asked"]
    assert shown["sources"][:3] == ["in", "in/a.csv", folder]
    assert (shown["languages"], shown["then"]) == (["deu"], then)


def test_only_jobs_that_need_a_credential_get_it(run: Run, shelf: Shelf) -> None:
    papers("a.csv")
    drive = "https://drive.google.com"
    addresses = (
        f"{drive}/drive/folders/1a2B3c4D5e6F7g",
        f"{drive}/file/d/1a2B3c4D5e6F7h/view",
        "https://example.org/d",
    )

    run("add", "a.csv", *addresses, "--credential", "drive-b")

    found = [
        (job.source, json.loads(job.payload or "").get("credential"))
        for job in shelf.store.job_queries.list(Selector())
    ]
    assert found == [("", None), ("gdrive:drive-b", "drive-b"), ("gdrive:drive-b", "drive-b"), ("", None)]


def test_a_retry_without_failed_jobs_changes_nothing(run: Run, shelf: Shelf) -> None:
    begun(shelf, "a.pdf")

    assert run("batch", "retry", 1).stderr == "no job of batch 1 (reports) has failed; nothing changed\n"


def test_what_follows_a_batch_is_kept_with_it_and_a_webhook_says_how_it_ended(run: Run, shelf: Shelf) -> None:
    papers("a.csv")
    run("add", "a.csv", "--then-batch", 'webhook={"url": "https://example.org"}', "--then-batch", "call_ann")
    event = {"type": "batch.{state}", "data": {"batch": "{batch_id}", "state": "{state}"}}

    assert json.loads(shelf.store.batches.get(1).actions) == [
        {"job_type": "webhook", "payload": {"url": "https://example.org", "event": event}},
        {"job_type": "call_ann"},
    ]
    shelf.store.leases.complete(shelf.next_job(["io"]).lease, None)

    assert [job.job_type for job in shelf.store.job_queries.list(Selector())] == ["call_ann", "webhook", "download"]
    told = json.loads(shelf.store.job_queries.get(2).payload or "")
    assert told["event"] == {"type": "batch.done", "data": {"batch": 1, "state": "done"}}


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["add", "nowhere.pdf"], 2, "there is no file or directory 'nowhere.pdf': write an address with its https://"),
        (["add", "./nowhere.pdf"], 2, "there is no file"),
        (["add", "sftp://example.org/a"], 2, "a source is a Drive id or URL"),
        (["add", "-"], 2, "the list on stdin is empty"),
        (["add", "a.csv", "--dry-run", "--wait"], 2, "leave out --wait or --dry-run"),
        (["add", "a.csv", "--timeout", "1s"], 2, "--timeout works only with --wait"),
        (["add", "a.csv", "--then-batch", "webhook={"], 2, "is not an action: write TYPE"),
        (["add", "a.csv", "--priority", "11"], 2, "11"),
        (["add"], 2, "missing argument"),
    ],
)
def test_a_batch_that_cannot_be_begun_is_refused_in_a_sentence(
    run: Run, shelf: Shelf, words: list[str], code: int, sentence: str
) -> None:
    papers("a.csv")

    assert sentence in run(*words, fails=code, stdin="").stderr
    assert items(run("batch", "ls", "--json")) == []
    assert shelf.store.job_queries.count(Selector()) == 0


def test_a_dry_run_says_how_much_there_is_of_files_folders_and_addresses_together(shelf: Shelf) -> None:
    first, second = papers("in/a.csv", "in/b.csv")
    content = hashlib.sha256(first.read_bytes()).hexdigest()
    shelf.read(first.name, "one", key=str(first), content=content, roles=("original", "text"))
    folder = "https://drive.google.com/drive/folders/1a2B3c4D5e6F7g"

    asking = begin("add", "in", folder, "https://example.org/d.pdf", "--dry-run", "--json")
    shelf.store.leases.complete(shelf.next_job().lease, '{"enqueued": 3, "unchanged": 2, "bytes": 1000}')
    found = json.loads(asking.communicate(timeout=60)[0])

    size = second.stat().st_size
    assert {name: found[name] for name in ("files", "bytes", "known", "to_read", "bytes_to_read", "unsized")} == {
        "files": 8, "bytes": 2 * size + 1000, "known": 3, "to_read": 5, "bytes_to_read": size + 1000, "unsized": 1,
    }  # fmt: skip
    assert found["seconds"] is not None
    assert shelf.store.batches.list() == []


def test_a_dry_run_of_an_address_counts_no_document_that_is_there(run: Run, shelf: Shelf) -> None:
    shelf.read("a.csv", "one", key="/srv/a.csv")

    found = json.loads(run("batch", "add", "https://example.org/d.pdf", "--dry-run", "--json").stdout)

    assert (found["files"], found["known"], found["unsized"]) == (1, 0, 1)


def test_an_ingest_says_which_batch_it_replaces_before_it_does(run: Run, shelf: Shelf) -> None:
    papers("first/a.csv", "second/b.csv")
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
def test_what_cannot_be_added_to_a_batch_is_refused_and_nothing_is_added(
    run: Run, shelf: Shelf, words: list[str], code: int, sentence: str
) -> None:
    papers("a.csv", "in/b.csv")
    begun(shelf, "x.pdf")
    begun(shelf)
    before = shelf.store.job_queries.count(Selector())

    assert sentence in run(*words, fails=code).stderr
    assert shelf.store.job_queries.count(Selector()) == before


def test_added_files_are_more_urgent_than_watched_folders(run: Run, shelf: Shelf) -> None:
    papers("a.csv", "in/b.csv")
    shelf.read("d.pdf", "one", roles=("original", "text"))

    run("add", "a.csv")
    run("reindex", 1, "--force")
    run("add", "in", "--watch", "--owner", "ann")
    run("enqueue", "ocr_pages")
    run("add", "in", "--priority", 1)

    found = [(job.job_type, job.priority) for job in shelf.store.job_queries.list(Selector())]
    assert found[:5] == [
        ("download", 1), ("ocr_pages", 5), ("crawl", 7), ("ingest", 3), ("download", 3),
    ]  # fmt: skip


def test_a_batch_that_waits_for_its_turn_says_so(run: Run, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_OWNER_POLICY", "queue")
    papers("a.csv", "b.csv")
    run("add", "a.csv", "--owner", "ann")

    told = run("add", "b.csv", "--owner", "ann")

    assert told.stderr == "batch 2 (b.csv) waits for the owner's other batch: pagemill batch ls --owner ann\n"
    assert "batches before it: pagemill batch ls --owner ann --status active" in run("batch", "show", 2).stderr
    why = run("why", 2, fails=3).stdout
    assert "BATCH_WAITING" in why
    assert "pagemill batch ls --owner 'ann'" in why
    run("batch", "stop", 2)
    assert "to resume the batch: pagemill batch resume 2" in run("why", 2, fails=3).stdout
