"""`pagemill add`, its former names, and `pagemill help`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Run, items, jobs_of_type, payloads_of_type, write_files
from tests.cli.stored_documents import Shelf
from worker_service.cli import COMMON_VERBS


def test_added_sources_are_a_batch_named_after_the_first_one(run: Run, shelf: Shelf) -> None:
    write_files("in/a.pdf", "b.pdf")

    assert run("add", "b.pdf").stdout == "batch:1\n"
    assert run("add", "in", "b.pdf", "--force").stdout == "batch:2\n"
    assert run("add", "https://example.org/c.pdf", "--name", "from the web").stdout == "batch:3\n"

    names = [item["batch"]["name"] for item in items(run("batch", "ls", "--json"))]
    assert names == ["from the web", "in and 1 more", "b.pdf"]
    assert [payload["force"] for payload in payloads_of_type(shelf, "download")[1:3]] == [True, True]


def test_options_that_choose_files_apply_to_directories_and_folders_of_drive(run: Run, shelf: Shelf) -> None:
    write_files("in/a.pdf", "b.pdf")
    folder = "https://drive.google.com/drive/folders/1a2B3c4d5E"

    run("add", "in", "b.pdf", folder, "--pattern", "*report*", "--since", "2026-01-31", "--depth", 0)

    wanted = {"name": "*report*", "newer_than": "2026-01-31", "depth": 0}
    assert [(payload["folder"], payload["wanted"]) for payload in payloads_of_type(shelf, "crawl")] == [
        (str(Path("in").absolute()), wanted),
        (folder, wanted),
    ]
    assert [job.name for job in jobs_of_type(shelf, "download")] == ["b.pdf"]
    run("add", "in", "--since", "3d")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", payloads_of_type(shelf, "crawl")[-1]["wanted"]["newer_than"]
    )
    assert "'may' is not a date: write 3d (ago)" in run("add", "in", "--since", "may", fails=2).stderr


def test_files_can_be_added_to_an_unfinished_batch(run: Run, shelf: Shelf) -> None:
    write_files("a.pdf", "b.pdf")
    run("add", "a.pdf", "--owner", "ann")

    assert run("add", "b.pdf", "--batch", "batch:1").stdout == "batch:1\n"

    assert [job.batch_id for job in jobs_of_type(shelf, "download")] == [1, 1]
    assert "are for a new batch" in run("add", "b.pdf", "--batch", 1, "--name", "x", fails=2).stderr


def test_a_mail_that_cannot_be_sent_later_is_reported_at_once(
    run: Run, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files("a.pdf")
    words = ("add", "a.pdf", "--force", "--notify", "ann@example.com")

    stderr = run(*words).stderr
    assert "to mailto:ann@example.com: no mail server is set: set mail_server = " in stderr
    monkeypatch.setenv("WORKER_MAIL_SERVER", "smtp.example.com")
    assert "no mail server" not in run(*words).stderr


def test_a_watched_folder_gets_a_schedule_and_no_batch(run: Run, shelf: Shelf) -> None:
    Path("scans").mkdir()

    watched = run("add", "scans", "--watch", "--owner", "ann", "--lang", "deu", "--pattern", "*.pdf")
    result = run("add", "./scans", "--watch", "--every", "1h", "--owner", "ann")

    assert (watched.stdout, result.stdout) == ("scans\n", "scans\n")
    assert "every 5 minutes; to stop: pagemill schedules rm scans" in watched.stderr
    [stored] = shelf.store.schedules.stored()
    folder = str(Path("scans").absolute())
    assert json.loads(stored.definition) == {"cron": "0 * * * *", "crawl": {"folder": folder}}
    crawl_payload = payloads_of_type(shelf, "crawl")[0]
    assert (crawl_payload["folder"], crawl_payload["wanted"], crawl_payload["download"]) == (
        folder, {"name": "*.pdf"}, {"read": {"languages": ["deu"]}},
    )  # fmt: skip
    Path("in\udce9").mkdir()
    assert "every 5 minutes" in run("add", "in\udce9", "--watch", "--owner", "ann").stderr
    assert f"file://{Path.cwd()}/in%E9" in [crawl["folder"] for crawl in payloads_of_type(shelf, "crawl")]
    for words in (("--watch", "--name", "x"), ("--watch", "--wait")):
        assert "a watched folder is no batch" in run("add", "scans", *words, fails=2).stderr
    assert items(run("batch", "ls", "--json")) == []


@pytest.mark.usefixtures("database")
def test_the_help_starts_with_documents_and_has_at_most_30_verbs(run: Run) -> None:
    verbs = [verb for group in COMMON_VERBS.values() for verb in group]
    assert verbs[:4] == ["add", "search", "documents", "status"]
    assert len(verbs) <= 30

    first_page, whole_help = run("--help").stdout, run("help").stdout

    assert "run-now" not in first_page
    assert all(f"  {verb} " in whole_help for verb in ("add", "run-now", "batch rm", "reindex"))
    assert not re.search(r"^ +(ingest|crawl) ", first_page + whole_help, re.MULTILINE)
    assert run("help", "batch", "stop").stdout == run("batch", "stop", "--help").stdout
    assert "there is no command 'batch nonsense'" in run("help", "batch", "nonsense", fails=2).stderr


def test_former_verbs_work_and_are_not_listed(run: Run, shelf: Shelf) -> None:
    write_files("a.pdf")

    assert run("batch", "add", "a.pdf").stdout == "batch:1\n"
    assert run("ingest", "a.pdf", "--batch", "mine", "--force").stdout == "batch:2\n"
    assert [item["batch"]["name"] for item in items(run("batch", "ls", "--json"))] == ["mine", "a.pdf"]
    assert run("ingest", "a.pdf", "--batch", 2, "--force").stdout == "batch:2\n"
    assert run("ingest", "a.pdf", "--batch=yours", "--force").stdout == "batch:3\n"
    assert run("ingest", "a.pdf", "--batch=batch:3", "--force").stdout == "batch:3\n"
    assert "add" not in json.loads(run("help", "batch", "--json").stdout)["help"].partition("Commands:")[2]
    Path("ls").mkdir()
    run("crawl", "ls", "--name=*r*", "--newer-than", "2026-01-31")
    assert payloads_of_type(shelf, "crawl")[0]["wanted"] == {"name": "*r*", "newer_than": "2026-01-31"}
    assert "every hour; to stop: pagemill schedules rm ls" in run("crawl", "ls", "--watch", "1h").stderr
