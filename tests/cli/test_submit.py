"""`add`, `reindex`, `documents adopt` and `wait document:7`."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from job_handlers.fetch.sources import read_reference
from job_handlers.fetch.sources.local import revision_of
from tests.cli.conftest import COMMAND, Run, Terminal, items, jobs_of_type, payloads_of_type, start_command, write_files
from tests.cli.stored_documents import Shelf
from tests.store.kit import claim, page_range_jobs, save
from worker_service.base.errors import WaitTimedOut
from worker_service.base.path_text import path_of
from worker_service.cli.progress import Display, reading_in_words, watch_reading
from worker_service.cli.waiting import DocumentsProgress, wait_for_documents
from worker_service.jobs.attempts import Completion, Failure
from worker_service.jobs.documents import DocumentFacts, DocumentRequest
from worker_service.jobs.library import DocumentSelector
from worker_service.jobs.selector import Selector
from worker_service.jobs.workers import HandlerFacts, Worker
from worker_service.services.session import Session
from worker_service.settings.loading import load_settings

# ── add ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_added_jobs_get_the_retries_of_their_type_in_the_settings(
    run: Run, shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.toml").write_text("[retries.download]\nmax = 9\n[retries.crawl]\nmax = 7\n")
    monkeypatch.setenv("WORKER_CONFIG", str(tmp_path / "own.toml"))
    write_files("in/a.pdf")

    run("add", "in/a.pdf")
    run("add", "in", "--pattern", "*")

    assert [job.max_retries for job in jobs_of_type(shelf, "download")] == [9]
    assert [job.max_retries for job in jobs_of_type(shelf, "crawl")] == [7]


def test_each_file_becomes_a_job_with_the_given_options(run: Run, shelf: Shelf) -> None:
    first, second, _ = write_files("in/a.pdf", "in/deep/b.TIFF", "in/notes.log")

    run("add", "in", "--owner", "ann", "--lang", "eng+deu", "--quality", "best", "--force-ocr", "--then", "webhook")

    assert [(job.platform, job.owner) for job in jobs_of_type(shelf, "download")] == [("local", "ann")] * 2
    assert [(job.name, job.source_key) for job in jobs_of_type(shelf, "download")] == [
        (path.name, read_reference(str(path))[1].key) for path in (first, second)
    ]
    read = {"languages": ["eng", "deu"], "quality": "best", "force_ocr": True}
    then = [{"job_type": "webhook", "standing": True}]
    assert payloads_of_type(shelf, "download")[0] == {"source": str(first), "read": read, "force": False, "then": then}


def test_an_unchanged_file_is_downloaded_again_only_with_force_or_new_options(run: Run, shelf: Shelf) -> None:
    [report] = write_files("report.pdf")
    # A download of a file that has not changed for a minute records its revision.
    shelf.read(report.name, "words", key=str(report), roles=("original",), revision=revision_of(report.stat()))
    ingest = ("add", "report.pdf", "--json")

    [known] = items(run(*ingest))
    result = run("add", "report.pdf", "--wait")
    forced, other = items(run(*ingest, "--force")), items(run(*ingest, "--lang", "deu"))

    assert (known["job_id"], known["document_id"], known["decision"]) == (None, 1, "unchanged")
    assert result.stdout == "batch 2 (report.pdf): done · 1 file · 1 page\n"
    assert [item[0]["decision"] for item in (forced, other)] == [None, None]
    assert len(jobs_of_type(shelf, "download")) == 2


def test_a_known_file_whose_copy_was_deleted_is_downloaded_again(run: Run, shelf: Shelf) -> None:
    report, kept = write_files("report.pdf", "kept.pdf")
    for path in (report, kept):
        shelf.read(path.name, "words", key=str(path), roles=("original",), revision=revision_of(path.stat()))
    [original] = shelf.store.library.files(1)
    (shelf.workspace / original.path).unlink()

    added_files = items(run("add", "report.pdf", "kept.pdf", "--json"))

    assert [(item["job_id"] is None, item["decision"]) for item in added_files] == [(False, None), (True, "unchanged")]
    assert [(payload["source"], payload["force"]) for payload in payloads_of_type(shelf, "download")] == [
        (str(report), False)
    ]


def test_adding_a_known_file_keeps_the_name_of_its_document(run: Run, shelf: Shelf) -> None:
    [report] = write_files("annual  report")
    # The download removes double spaces and adds the suffix.
    shelf.read("annual report.pdf", "words", key=str(report), roles=("original",), revision=revision_of(report.stat()))

    [known] = items(run("add", "annual  report", "--json"))

    assert known["decision"] == "unchanged"
    [document] = items(run("documents", "--json"))
    assert document["name"] == "annual report.pdf"


def test_waiting_names_the_gate_of_the_first_new_job(run: Run, shelf: Shelf) -> None:
    known, _ = write_files("a.pdf", "b.pdf")
    shelf.read("a.pdf", "words", key=str(known), roles=("original",), revision=revision_of(known.stat()))
    run("pause", "download")

    result = run("add", "a.pdf", "b.pdf", "--wait", "--timeout", "0", fails=124)

    assert "job 2 waits: type download is paused" in result.stderr


def test_a_file_named_by_the_user_may_have_any_format(run: Run, shelf: Shelf) -> None:
    [notes] = write_files("notes.md")
    action = ("--then", 'webhook={"url": "https://example.com"}')

    [item] = items(run("add", "notes.md", "--force", "--force-ocr", "--password-file", "password-a", *action, "--json"))

    assert (item["job_id"], item["decision"]) == (1, None)
    then = [{"job_type": "webhook", "payload": {"url": "https://example.com"}, "standing": True}]
    read = {"force_ocr": True, "password_file": "password-a"}
    assert payloads_of_type(shelf, "download") == [{"source": str(notes), "read": read, "force": True, "then": then}]


def test_a_space_at_the_end_of_a_name_is_kept(run: Run, shelf: Shelf) -> None:
    [path] = write_files("a.pdf ")

    run("add", "a.pdf ")

    assert [path_of(read_reference(payload["source"])[1].key) for payload in payloads_of_type(shelf, "download")] == [
        path
    ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("none.pdf",), "there is no file or directory 'none.pdf': write an address with its https://"),
        (("./none.pdf",), "there is no file"),
        (("sftp://example.org/a",), "a source is a Drive id or URL"),
        (("-",), "the list on stdin is empty"),
        (("a.pdf", "--dry-run", "--wait"), "leave out --wait or --dry-run"),
        (("a.pdf", "--timeout", "1s"), "--timeout works only with --wait"),
        (("a.pdf", "--then-batch", "webhook={"), "is not an action: write TYPE"),
        (("a.pdf", "--priority", "11"), "11"),
        (("empty",), "there is nothing to read below /"),
        ((), "missing argument"),
        (("a.pdf", "--quality", "good"), "'good' is not one of 'fast', 'auto', 'best'"),
        (("a.pdf", "--lang", "english!"), "'english!' is not a language: write eng, or eng+deu"),
        (("a.pdf", "--lang", "+"), "'+' is not a language"),
        (("a.pdf", "--password-file", "/root/pw.txt"), "the name of a credential that begins with password"),
        (("a.pdf", "--then", "webhook={"), "is not an action: write TYPE, or TYPE={"),
        (("a.pdf", "--then", "=1"), "is not an action"),
    ],
)
def test_an_invalid_source_or_option_is_refused_and_adds_no_job(
    run: Run, shelf: Shelf, words: tuple[str, ...], sentence: str
) -> None:
    write_files("a.pdf")
    Path("empty").mkdir()

    assert sentence in run("add", *words, fails=2, stdin="").stderr
    assert items(run("batch", "ls", "--json")) == []
    assert jobs_of_type(shelf, "download") == []


@pytest.mark.parametrize("verb", [("add", "a.pdf"), ("reindex", "--status", "failed", "--yes")])
def test_an_action_that_does_not_fit_its_handler_is_refused_and_adds_no_job(
    run: Run, shelf: Shelf, verb: tuple[str, ...]
) -> None:
    write_files("a.pdf")
    facts = HandlerFacts("webhook", payload_schema='{"type": "object", "required": ["url"]}')
    shelf.store.workers.register(Worker("w1", "here", "boot", 1, "0", 1, 1, [facts]))

    stderr = run(*verb, "--then", 'webhook={"link": "https://example.com"}', fails=65).stderr

    assert 'the payload does not fit webhook: payload: "url" is a required property' in stderr
    assert stderr.endswith("`pagemill handlers show webhook` shows what fits\n")
    assert not shelf.store.job_queries.list(Selector())


CHOICES = {
    "languages": {
        "there": ["deu", "eng"],
        "to_get": {"fra": "apt-get install tesseract-ocr-fra"},
        "called": {"german": "deu"},
    },
    "quality": {"there": ["fast"], "to_get": {"best": "put it into /usr/share/tessdata_best"}},
}


@pytest.mark.parametrize("verb", [("add", "a.pdf"), ("reindex", "1")])
def test_a_missing_language_is_noted_and_an_unknown_one_refused(run: Run, shelf: Shelf, verb: tuple[str, ...]) -> None:
    write_files("a.pdf")
    shelf.read("old.pdf", "text", roles=("text", "original"))
    before = len(shelf.store.job_queries.list(Selector()))
    facts = HandlerFacts("reads", choices=json.dumps(CHOICES))
    shelf.store.workers.register(Worker("w2", "here", "boot", 1, "0", 1, 1, [facts]))

    unknown = run(*verb, "--lang", "eng+german", fails=2).stderr
    assert "'german' is not one of the known languages: did you mean deu? installed: deu, eng" in unknown
    assert len(shelf.store.job_queries.list(Selector())) == before

    absent = run(*verb, "--lang", "fra+deu", "--quality", "best").stderr.splitlines()
    assert absent[:2] == [
        "fra is not installed, so its jobs wait (installed languages: deu, eng): apt-get install tesseract-ocr-fra",
        "best is not installed, so its jobs wait (installed quality: fast): put it into /usr/share/tessdata_best",
    ]
    assert len(shelf.store.job_queries.list(Selector())) == before + 1


@pytest.mark.parametrize("choices", ["7", '{"lang":7}', '{"lang":{"there":[1]}}', "[[]]"])
def test_damaged_choices_of_a_worker_refuse_no_language(run: Run, shelf: Shelf, choices: str) -> None:
    write_files("a.pdf")
    shelf.store.workers.register(Worker("w2", "here", "boot", 1, "0", 1, 1, [HandlerFacts("reads", choices=choices)]))

    run("add", "a.pdf", "--lang", "eng")

    assert len(shelf.store.job_queries.list(Selector())) == 1


def test_a_directory_that_cannot_be_listed_is_refused(shelf: Shelf) -> None:
    [_, hidden] = write_files("in/a.pdf", "in/deep/b.pdf")
    hidden.parent.chmod(0)
    # Root may list every directory, so drop this capability.
    may_not = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []

    result = subprocess.run([*may_not, *COMMAND, "add", "in"], capture_output=True, text=True, timeout=60, check=False)
    hidden.parent.chmod(0o700)

    assert (result.returncode, jobs_of_type(shelf, "download")) == (77, [])
    assert f"{hidden.parent} cannot be used: permission denied" in result.stderr


def test_files_that_a_directory_leaves_out_are_counted_and_listed(run: Run, shelf: Shelf) -> None:
    write_files("in/a.pdf", "in/b.doc", "in/c.doc", "in/README", "in/.hidden.pdf", "in/.git/d.pdf", "in/deep/e.TIFF")
    Path("in/link.pdf").symlink_to("a.pdf")
    Path("in/folder").symlink_to("deep")

    result = run("add", "in")

    assert [Path(payload["source"]).name for payload in payloads_of_type(shelf, "download")] == ["a.pdf", "e.TIFF"]
    assert "skipped: 2 .doc, 2 hidden, 2 symbolic links, 1 other" in result.stderr.splitlines()
    answer = json.loads(run("add", "in", "in/.hidden.pdf", "--json").stdout)
    assert answer["left_out"] == {".doc": 2, "hidden": 2, "symbolic_links": 2, "others": 1}
    named = {Path(item["path"]).name: item["why"] for item in answer["left_out_files"]}
    assert named == {
        "b.doc": ".doc", "c.doc": ".doc", "README": "others", ".hidden.pdf": "hidden", ".git": "hidden",
        "link.pdf": "symbolic_links", "folder": "symbolic_links",
    }  # fmt: skip
    assert all(item["path"] in result.stderr for item in answer["left_out_files"])
    # A hidden file that the user names is added.
    assert len(answer["items"]) == 3
    write_files("other/b.doc")
    nothing = run("add", "other", fails=2).stderr
    assert "there is nothing to read below" in nothing
    assert "(skipped: 1 .doc)" in nothing


def test_a_file_name_that_is_not_utf_8_can_be_added(run: Run, shelf: Shelf) -> None:
    write_files("in/a.pdf", "in/latin\udce9.pdf", "in\udce9/b.pdf")

    run("add", "in", "in\udce9")
    run("add", "in\udce9", "--pattern", "*")
    write_files("in\udce9/b.txt")
    run("documents", "adopt", "in\udce9", "--yes")

    here = Path.cwd()
    sources = [payload["source"] for payload in payloads_of_type(shelf, "download")]
    assert sources == [f"{here}/in/a.pdf", f"file://{here}/in/latin%E9.pdf", f"file://{here}/in%E9/b.pdf"]
    assert [path_of(read_reference(source)[1].key).is_file() for source in sources] == [True] * 3
    assert [read_reference(source)[1].key for source in sources] == [
        job.source_key for job in jobs_of_type(shelf, "download")
    ]
    assert [job.name for job in jobs_of_type(shelf, "download")] == ["a.pdf", "latin\u00e9.pdf", "b.pdf"]
    [crawl] = jobs_of_type(shelf, "crawl")
    assert (crawl.name, path_of(json.loads(crawl.payload or "")["folder"]).is_dir()) == (f"{here}/in\u00e9", True)
    [adopt] = payloads_of_type(shelf, "adopt")
    assert path_of(adopt["text"]).is_file()


def test_waiting_ends_with_1_and_the_reason_of_each_failure(run: Run, shelf: Shelf) -> None:
    first, second, third = write_files("in/a.pdf", "in/b.pdf", "in/c.pdf")
    waiting = start_command("add", "in", "--wait", "--timeout", "60s")

    # One file fails when it is downloaded, one when it is read.
    shelf.fail_next("NOT_WHAT_IT_SAYS", "a.pdf is no pdf")
    for path in (second, third):
        shelf.brought_in(DocumentRequest(str(path), path.name, "c"))
    job = claim(shelf.store, "ingest")
    shelf.store.leases.fail(job.lease, Failure("PDF_BROKEN", "it cannot be opened"), retry_at=None)
    shelf.publish(claim(shelf.store, "ingest"), "b.pdf", "text")

    out, err = waiting.communicate(timeout=60)
    assert (out, waiting.returncode) == ("batch 1 (in): finished, 2 failed · 3 files · 1 page\n", 1)
    assert f"{first}: NOT_WHAT_IT_SAYS: a.pdf is no pdf\n" in err
    assert f"{second}: PDF_BROKEN: it cannot be opened\n" in err


def test_waiting_without_a_daemon_says_so_and_ctrl_c_ends_only_the_waiting(database: Path) -> None:
    write_files("a.pdf")
    asking = start_command("add", "a.pdf", "--wait")
    assert asking.stderr is not None

    assert asking.stderr.readline() == ("no daemon is running, so nothing is read yet; to start one: pagemill run\n")
    asking.send_signal(signal.SIGINT)
    _, err = asking.communicate(timeout=60)
    # Depending on the place, Python ends by the signal itself. A shell reports 130 for both.
    assert asking.returncode in (130, -signal.SIGINT)
    assert "the jobs continue" in err


# ── crawl ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_dry_run_of_a_folder_waits_for_the_crawl(shelf: Shelf) -> None:
    Path("reports").mkdir()
    for result, shown in (
        (
            {"dry_run": True, "would_enqueue": ["a.pdf"], "enqueued": 1, "too_large": 2, "bytes": 2_000_000},
            ("1 file, 2.0 MB: 0 read already and unchanged, 1 to read, 2.0 MB\n", "", 0),
        ),
        (None, ("", "job 2: the credential is refused", 2)),
    ):
        asking = start_command("add", "reports", "--pattern", "*", "--dry-run")
        job = shelf.next_job()
        if result is None:
            shelf.store.leases.fail(job.lease, Failure("X", "the credential is refused"), retry_at=None)
        else:
            shelf.store.leases.complete(job.lease, json.dumps(result))
        out, err = asking.communicate(timeout=60)
        assert (out[: len(shown[0])], asking.returncode) == (shown[0], shown[2])
        assert shown[1] in err


def test_a_failure_action_runs_for_a_file_that_never_became_a_document(run: Run, shelf: Shelf) -> None:
    write_files("a.pdf")
    payload_template = '{"document": "{document_id}", "job": "{job_id}", "batch": "{batch_id}", "code": "{error_code}"}'

    for words in (["add", "a.pdf"], ["batch", "add", "a.pdf"]):
        run(*words, "--then", "call_ann", "--on-failure", f"call_bob={payload_template}")
        shelf.fail_next("NOT_FOUND", "it is gone")

    facts = [
        (payload["job"], payload["batch"], payload["code"], payload["document"])
        for payload in payloads_of_type(shelf, "call_bob")
    ]
    assert facts == [(1, 1, "NOT_FOUND", None), (3, 2, "NOT_FOUND", None)]
    assert jobs_of_type(shelf, "call_ann") == []


# ── dry runs ──


def test_a_dry_run_estimates_the_files_and_the_time(run: Run, shelf: Shelf) -> None:
    first, second, third = write_files("in/a.pdf", "in/b.pdf", "in/c.pdf")
    for number, path in enumerate((first, second, third)):
        path.write_bytes(b"x" * 1000 + bytes([number]))
    lines = run("add", "in", "--dry-run").stdout.splitlines()
    assert lines == [
        "3 files, 3.0 kB: 0 read already and unchanged, 3 to read, 3.0 kB",
        "no estimate of the time: no document has been read yet",
    ]
    assert json.loads(run("add", "in", "--dry-run", "--json").stdout)["seconds"] is None
    assert jobs_of_type(shelf, "download") == []

    for path in (first, second):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        shelf.read(path.name, "one", key=str(path), content=content, roles=("original", "text"))
    second.write_bytes(b"y" * 1001)

    answer = json.loads(run("add", "in", "--dry-run", "--json").stdout)
    assert {name: answer[name] for name in ("files", "bytes", "known", "to_read", "bytes_to_read")} == {
        "files": 3, "bytes": 3003, "known": 1, "to_read": 2, "bytes_to_read": 2002,
    }  # fmt: skip
    pace = answer["pace"]
    assert (pace["documents"], pace["pages"], pace["size"], pace["seconds"] > 0) == (2, 2, 6, True)
    assert answer["seconds"] == round(2002 * pace["seconds"] / 6)
    stdout = run("add", "in", "--dry-run").stdout
    assert "1 read already and unchanged, 2 to read, 2.0 kB\nabout " in stdout
    assert stdout.endswith(" a minute (the speed of the last 2 documents)\n")
    assert json.loads(run("add", "in", "--dry-run", "--force", "--json").stdout)["to_read"] == 3
    assert json.loads(run("add", "in", "--dry-run", "--owner", "ann", "--json").stdout)["known"] == 0
    assert "nothing to wait for" in run("add", "in", "--dry-run", "--wait", fails=2).stderr


# ── reindex ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_reindex_keeps_the_settings_that_are_not_given(run: Run, shelf: Shelf) -> None:
    shelf.read(
        "a.pdf", "one", roles=("original", "text"), settings='{"force_ocr":true,"languages":["eng"]}', owner="ann"
    )

    assert "none: unchanged" in run("reindex", 1).stdout
    [wish] = items(run("reindex", 1, "--lang", "deu", "--json"))
    assert (wish["job_id"], wish["decision"], wish["document_id"]) == (2, "accepted", 1)
    assert "none: already being read" in run("reindex", 1, "--lang", "deu").stdout
    job = jobs_of_type(shelf, "ingest")[1]
    way = json.loads(shelf.store.attempts.known_document(1).settings)
    assert (job.payload, job.owner, way) == (None, "ann", {"force_ocr": True, "languages": ["deu"]})
    assert (job.document_id, job.generation) == (1, 2)


def test_as_usual_forgets_the_settings_of_a_document(run: Run, shelf: Shelf) -> None:
    shelf.read("a.pdf", "one", roles=("original", "text"), settings='{"force_ocr":true,"languages":["deu"]}')

    run("reindex", 1, "--as-usual", "--quality", "best")

    assert json.loads(shelf.store.attempts.known_document(1).settings) == {"quality": "best"}


def test_reindex_notes_documents_that_ocr_options_do_not_change(run: Run, shelf: Shelf) -> None:
    document_id = shelf.with_tables("a.pdf", [["Revenue", "7"]])

    stderr = run("reindex", document_id, "--quality", "best").stderr

    assert "a.pdf: all text comes from the file itself; to recognise its pages anew, add --force-ocr" in stderr


def test_a_stalled_reading_is_taken_over_after_the_patience_of_the_settings(
    run: Run, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.read("a.pdf", "one", roles=("original", "text"))
    run("reindex", 1, "--lang", "deu")
    assert "none: already being read" in run("reindex", 1).stdout

    monkeypatch.setenv("WORKER_QUEUED_PATIENCE", "0s")
    assert "read again: the earlier attempt has stalled" in run("reindex", 1).stdout
    shelf.next_job()
    assert "none: already being read" in run("reindex", 1).stdout

    monkeypatch.setenv("WORKER_INDEXING_PATIENCE", "0s")
    assert "read again: the earlier attempt has stalled" in run("reindex", 1).stdout


def test_a_document_without_its_original_is_downloaded_again(run: Run, shelf: Shelf) -> None:
    shelf.read("a.pdf", "one", roles=("original", "text"), settings="{}")
    [original] = [file for file in shelf.store.library.files(1) if file.role == "original"]
    (shelf.workspace / original.path).unlink()

    assert "  read  " in run("reindex", 1, "--force").stdout
    assert [payload["source"] for payload in payloads_of_type(shelf, "download")] == ["/srv/a.pdf"]


def test_several_documents_are_read_again_only_with_yes(run: Run, shelf: Shelf) -> None:
    for name in ("a.pdf", "b.pdf"):
        shelf.fail(name, "PDF_BROKEN", "it is broken")

    assert "Read 2 documents again?" in run("reindex", "--status", "failed", fails=1).stderr
    assert len(items(run("reindex", "--status", "failed", "--dry-run", "--json"))) == 2
    assert jobs_of_type(shelf, "download") == []
    assert len(run("reindex", "--status", "failed", "--yes").stdout.splitlines()) == 3
    assert len(jobs_of_type(shelf, "download")) == 2


@pytest.mark.parametrize("words", [(), ("--json",), ("--yes",), ("--force", "--json")])
def test_a_reindex_without_a_match_reads_nothing(run: Run, shelf: Shelf, words: tuple[str, ...]) -> None:
    shelf.read("a.pdf", "one")
    before = len(shelf.store.job_queries.list(Selector()))

    run("reindex", "--name", "zzz", *words)

    assert len(shelf.store.job_queries.list(Selector())) == before


def test_a_reindex_of_no_document_or_an_unknown_one_is_refused(run: Run, shelf: Shelf) -> None:
    shelf.read("a.pdf", "one")

    assert "name the documents to read again" in run("reindex", fails=2).stderr
    assert "there is no document 5" in run("reindex", 5, fails=66).stderr
    assert "no document matches" in run("reindex", "--status", "failed", "--yes").stderr
    assert len(jobs_of_type(shelf, "ingest")) == 1


# ── adopt ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_adopt_imports_existing_texts_and_records_the_other_files(run: Run, shelf: Shelf) -> None:
    first, _, third = write_files("read/a.pdf", "read/a.txt", "read/b.pdf")

    assert "1 with text, 1 without" in run("documents", "adopt", "read", "--dry-run").stderr
    assert items(run("documents", "--json")) == []
    assert "Record 2 files" in run("documents", "adopt", "read", fails=1).stderr
    stdout = run("documents", "adopt", "read", "--owner", "ann", "--yes").stdout

    assert "  read  " in stdout
    assert "recorded" in stdout
    by_key = {item["source_key"]: item for item in items(run("documents", "--json"))}
    assert {key: one["status"] for key, one in by_key.items()} == {str(first): "queued", str(third): "not_indexed"}
    assert by_key[str(third)]["content"] == hashlib.sha256(third.read_bytes()).hexdigest()
    assert {item["owner"] for item in by_key.values()} == {"ann"}
    assert payloads_of_type(shelf, "adopt") == [{"text": str(first.with_suffix(".txt"))}]


def test_a_known_document_is_not_adopted_again(run: Run, shelf: Shelf) -> None:
    [path, _] = write_files("read/a.pdf", "read/a.txt")
    shelf.read("a.pdf", "our text", key=str(path), content=hashlib.sha256(path.read_bytes()).hexdigest())

    assert "none: unchanged" in run("documents", "adopt", "read", "--yes").stdout
    assert jobs_of_type(shelf, "adopt") == []
    path.write_text("other content")
    assert "  read  " in run("documents", "adopt", "read", "--yes").stdout


def test_a_directory_with_nothing_to_adopt_is_refused(run: Run, shelf: Shelf) -> None:
    Path("none").mkdir()

    assert "there is nothing to read below" in run("documents", "adopt", "none", "--yes", fails=2).stderr
    assert "'nowhere' does not exist" in run("documents", "adopt", "nowhere", "--yes", fails=2).stderr
    write_files("notes.txt", "one/a.pdf")
    counted = run("documents", "adopt", "one", "--dry-run", "--json").stdout
    assert json.loads(counted) == {"read": 0, "not_read": 1}
    assert "'notes.txt' is a file" in run("documents", "adopt", "notes.txt", "--yes", fails=2).stderr


# ── wait ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_wait_reports_documents_that_were_read_failed_or_are_unknown(run: Run, shelf: Shelf) -> None:
    shelf.fail("a.pdf", "PDF_BROKEN", "it is broken")
    shelf.wish("b.pdf")

    result = run("wait", "document:1", fails=1)
    assert (result.stdout, result.stderr) == ("0 read, 1 failed, 0 pages\n", "a.pdf: PDF_BROKEN: it is broken\n")
    assert (
        "after 0s, 1 of 2 were not read" in run("wait", "document:1", "document:2", "--timeout", "0s", fails=124).stderr
    )
    shelf.read("c.pdf", "words")
    assert run("wait", "document:3").stdout == "1 read, 0 failed, 1 page\n"
    assert "there is no document 9" in run("wait", "document:9", fails=66).stderr
    assert "cannot be awaited together" in run("wait", "document:1", 1, fails=2).stderr
    assert "cannot be awaited together" in run("wait", "document:1", "--status", "failed", fails=2).stderr
    assert "names no job: write its id" in run("wait", "document:x", fails=2).stderr


def test_the_progress_of_documents_has_their_page_rate_since_the_wait_began() -> None:
    screen, now = Terminal(), [0.0]
    watch = watch_reading(Display(screen, monotonic=lambda: now[0]))

    for now[0], done in ((100.0, 4), (100.1, 5), (110.0, 8)):
        watch(DocumentsProgress(1, 0, done, 12, 12 - done))
    watch(DocumentsProgress(1, 1, 12, 12, 0))

    assert re.findall(r"./1 document[^\x1b]*", screen.getvalue()) == [
        "0/1 document · 4/12 pages",
        "0/1 document · 8/12 pages · 0.4 pages/s · 10 s left",
        "1/1 document · 12/12 pages · 0.8 pages/s",
    ]


@pytest.mark.parametrize(
    ("reading", "seconds", "before", "expected"),
    [
        (DocumentsProgress(3, 0, 0, 0, None), 0.0, 0, "0/3 documents"),
        (DocumentsProgress(3, 1, 0, 120, 120), 5.0, 0, "1/3 documents · 0/120 pages"),
        (DocumentsProgress(3, 1, 40, 120, 80), 10.0, 0, "1/3 documents · 40/120 pages · 4.0 pages/s · 20 s left"),
        (DocumentsProgress(3, 1, 40, 120, 80), 10.0, 30, "1/3 documents · 40/120 pages · 1.0 pages/s · 1 min left"),
        # Ten pages of a document failed, so they are not left.
        (DocumentsProgress(3, 1, 40, 120, 70), 10.0, 30, "1/3 documents · 40/120 pages · 1.0 pages/s · 1 min left"),
        (DocumentsProgress(1, 1, 120, 120, 0), 10.0, 0, "1/1 document · 120/120 pages · 12.0 pages/s"),
        # The pages of most documents are not counted yet.
        (DocumentsProgress(32, 13, 40, 41, None), 10.0, 0, "13/32 documents · 40/41 pages · 4.0 pages/s"),
        # A short measurement gives no time left, and "0 s" is not shown.
        (DocumentsProgress(3, 1, 40, 120, 80), 1.0, 0, "1/3 documents · 40/120 pages · 40.0 pages/s"),
        (DocumentsProgress(3, 2, 119, 120, 1), 10.0, 0, "2/3 documents · 119/120 pages · 11.9 pages/s"),
    ],
)
def test_progress_has_the_pages_their_rate_and_the_time_left(
    reading: DocumentsProgress, seconds: float, before: int, expected: str
) -> None:
    assert reading_in_words(reading, seconds, before) == expected


def test_pages_left_are_known_once_every_document_is_counted(shelf: Shelf) -> None:
    def pages_and_pages_left(*names: str) -> tuple[int, int | None]:
        readings: list[DocumentsProgress] = []
        session = Session(shelf.store, load_settings(), "somebody")
        ids = {document.name: document.id for document in shelf.store.library.documents(DocumentSelector())}
        awaited = [shelf.store.library.document(ids[name]) for name in names]
        with pytest.raises(WaitTimedOut):
            wait_for_documents(session, awaited, timeout="0s", watch=readings.append)
        return readings[0].pages, readings[0].pages_left

    first, _ = shelf.wish("a.pdf", content="c1"), shelf.wish("b.pdf", content="c2")
    assert pages_and_pages_left("a.pdf", "b.pdf") == (0, None)

    counted = Completion(first.lease, follow_ups=page_range_jobs((1, 10)), document=DocumentFacts("pdf", 10))
    shelf.store.leases.complete_many([counted])

    assert pages_and_pages_left("a.pdf", "b.pdf") == (10, None)
    assert pages_and_pages_left("a.pdf") == (10, 10)
    save(shelf.store, shelf.next_job().lease, *"four")
    assert pages_and_pages_left("a.pdf") == (10, 6)


@pytest.mark.parametrize(
    "words",
    [
        ("add", "a.pdf", "--then", "webhok"),
        ("add", "a.pdf", "--on-failure", "webhok"),
        ("batch", "add", "a.pdf", "--then-batch", "webhok"),
        ("actions", "add", "invoice", "webhok"),
        ("enqueue", "webhook", "--on-failure", "webhok"),
    ],
)
def test_an_unknown_type_of_a_follow_up_job_is_noted(run: Run, shelf: Shelf, words: tuple[str, ...]) -> None:
    write_files("a.pdf")

    stderr = run(*words).stderr

    assert "the follow-up jobs will wait: no handler is installed for 'webhok': did you mean webhook?" in stderr
