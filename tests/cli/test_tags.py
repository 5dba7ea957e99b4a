"""`tag`, `actions`, and the option --tag."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from tests.cli.conftest import Run, items
from tests.cli.stored_documents import Shelf
from worker_service.jobs.selector import Selector


def test_documents_are_tagged_found_and_untagged(run: Run, shelf: Shelf) -> None:
    shelf.read("a.pdf", "one", owner="alice")
    shelf.read("b.pdf", "two")

    run("tag", "add", "Invoice, paid", 1, 2)
    run("tag", "rm", "paid", "--owner", "alice")

    assert items(run("tag", "--json")) == [{"tag": "invoice", "documents": 2}, {"tag": "paid", "documents": 1}]
    assert items(run("tag", "--owner", "alice", "--json")) == [{"tag": "invoice", "documents": 1}]
    assert [item["name"] for item in items(run("documents", "--tag", "paid", "--json"))] == ["b.pdf"]
    assert json.loads(run("show", "document:2", "--json").stdout)["tags"] == ["invoice", "paid"]
    assert "name the documents" in run("tag", "add", "x", fails=2).stderr
    assert "is not a tag" in run("tag", "add", "!", 1, fails=2).stderr


def test_a_tag_given_at_submission_travels_with_the_job(run: Run, shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(b"%PDF-1.4")

    run("add", tmp_path / "a.pdf", "--tag", "Invoice")
    run("batch", "add", tmp_path, "--tag", "invoice,2026")
    run("crawl", tmp_path, "--tag", "invoice")

    payloads = [json.loads(job.payload or "") for job in shelf.store.job_queries.list(Selector())]
    tags = [(item.get("download") or item).get("tags") for item in payloads]
    assert tags == [["invoice"], ["invoice", "2026"], ["invoice"]]
    assert "is not a tag" in run("add", tmp_path / "a.pdf", "--tag", "!", fails=2).stderr


def test_actions_of_tags_are_added_listed_and_removed(run: Run) -> None:
    run("init")
    run("actions", "add", "invoice", 'call={"who": "{owner}"}', "--owner", "alice")
    run("actions", "add", "invoice", "call", "--on-failure")

    assert [(item["owner"], item["on_end"]) for item in items(run("actions", "--json"))] == [
        ("", "failure"),
        ("alice", "success"),
    ]
    assert "already" in run("actions", "add", "invoice", "call", "--on-failure").stderr
    run("actions", "rm", "invoice", "call", "--on-failure")
    assert "no such action" in run("actions", "rm", "invoice", "call", fails=1).stderr
    assert run("then", "ls").stdout == run("actions").stdout


def test_documents_are_listed_by_kind_date_and_order_and_written_to_a_workbook(
    run: Run, shelf: Shelf, tmp_path: Path
) -> None:
    shelf.read("b.pdf", "one")
    shelf.read("a.xlsx", "two", kind="sheet")
    run("tag", "add", "invoice", 1)

    assert [item["name"] for item in items(run("documents", "--sort", "name", "--json"))] == ["a.xlsx", "b.pdf"]
    assert [item["name"] for item in items(run("documents", "--sort", "-name", "--json"))] == ["b.pdf", "a.xlsx"]
    assert [item["id"] for item in items(run("documents", "--kind", "sheet", "--since", "1d", "--json"))] == [2]
    assert items(run("documents", "--until", "1d", "--json")) == []
    assert "there is no order" in run("documents", "--sort", "size", fails=2).stderr
    run("documents", "--xlsx", tmp_path / "list.xlsx")
    with zipfile.ZipFile(tmp_path / "list.xlsx") as book:
        sheet = book.read("xl/worksheets/sheet1.xml").decode()
    assert "TAGS" in sheet
    assert "invoice" in sheet
