"""A walk below a folder of Drive, and the downloads that it enqueues."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.drive_server import Fault
from tests.drive_server.model import FOLDER
from tests.job_handlers.crawl.kit import PDF, Crawls
from worker_service.handlers import PauseSource, Permanent, Snooze
from worker_service.jobs.selector import Selector


def test_every_file_below_a_folder_is_enqueued_once(crawls: Crawls) -> None:
    store = crawls.server.store
    top = store.folder("top", id="folder-with-'quote\\")
    deep = store.folder("deep", parents=[store.folder("middle", parents=[top.id]).id])
    for parent in (top, deep):
        for number in range(3):
            store.add(f"{parent.name} {number}.pdf", PDF, parents=[parent.id])
    store.add("elsewhere.pdf", PDF)
    store.trash(store.add("trashed.pdf", PDF, parents=[top.id]))
    crawls.server.page_size_max = 2

    ran = crawls.run(top)

    assert crawls.downloads() == [f"{name} {number}.pdf" for name in ("deep", "top") for number in range(3)]
    assert (ran.folders, ran.found, ran.enqueued) == (3, 6, 6)


def test_a_download_has_the_options_and_keys_of_its_file(crawls: Crawls) -> None:
    top = crawls.server.store.folder("top")
    file = crawls.server.store.add("a.pdf", PDF, parents=[top.id], resource_key="0-key")

    crawls.run(top, download={"read": {"languages": ["deu"]}}, credential="drive")

    [job] = crawls.store.job_queries.list(Selector(job_types=("download",)))
    assert (job.platform, job.owner, job.source) == ("gdrive", "alice", "gdrive:drive")
    assert json.loads(job.payload or "") == {
        "source": file.id,
        "name": "a.pdf",
        "credential": "drive",
        "resource_key": "0-key",
        "read": {"languages": ["deu"]},
    }


def test_circles_of_folders_and_files_with_several_parents_are_visited_once(crawls: Crawls) -> None:
    store = crawls.server.store
    top = store.folder("top")
    inner = store.folder("inner", parents=[top.id])
    store.shortcut("back to top", top.id, parents=[inner.id])
    store.shortcut("to myself", inner.id, parents=[inner.id])
    top.parents.append(inner.id)
    both = store.add("both.pdf", PDF, parents=[top.id, inner.id])
    store.shortcut("again", both.id, parents=[inner.id])

    ran = crawls.run(top)

    assert crawls.downloads() == ["both.pdf"]
    assert (ran.folders, ran.found, ran.enqueued) == (2, 1, 1)


def test_shortcuts_are_followed_to_files_and_folders_elsewhere(crawls: Crawls) -> None:
    store = crawls.server.store
    top, far = store.folder("top"), store.folder("far", resource_key="0-far")
    store.add("in far.pdf", PDF, parents=[far.id])
    store.shortcut("to far", far.id, parents=[top.id], target_key="0-far")
    store.shortcut("to a file", store.add("file.pdf", PDF).id, parents=[top.id])
    store.shortcut("to nothing", "there-is-no-such-file", parents=[top.id])

    ran = crawls.run(top)

    assert crawls.downloads() == ["file.pdf", "in far.pdf"]
    assert (ran.dangling, ran.skipped) == (1, 1)
    # A shortcut may also be the folder that is crawled.
    crawls.run(store.shortcut("to far", far.id, target_key="0-far"), owner="bob")
    assert crawls.downloads("bob") == ["in far.pdf"]


def test_the_resource_key_of_a_folder_is_used_for_its_files(crawls: Crawls) -> None:
    store = crawls.server.store
    top = store.folder("top")
    old = store.folder("old", parents=[top.id], resource_key="0-old")
    store.add("a.pdf", PDF, parents=[old.id])

    crawls.run(top)

    listed = [request for request in crawls.server.requests_for("list") if old.id in request.query["q"]]
    assert [request.headers["x-goog-drive-resource-keys"] for request in listed] == [f"{old.id}/0-old"]
    [job] = crawls.store.job_queries.list(Selector(job_types=("download",)))
    assert json.loads(job.payload or "")["resource_key"] == "0-old"


def test_shared_drives_are_crawled_also_through_shortcuts(
    crawls: Crawls,
) -> None:
    store = crawls.server.store
    team, other = store.shared_drive("Team"), store.shared_drive("Other")
    inner = store.folder("inner", parents=[team.id], drive_id=team.drive_id)
    store.add("a.pdf", PDF, parents=[inner.id], drive_id=team.drive_id)
    crawls.run(inner, owner="folder")
    assert crawls.downloads("folder") == ["a.pdf"]
    assert all(request.query["driveId"] == team.drive_id for request in crawls.server.requests_for("changes"))

    far = store.folder("far", parents=[other.id], drive_id=other.drive_id)
    file = store.add("b.pdf", PDF, parents=[far.id], drive_id=other.drive_id)
    store.shortcut("to far", far.id, parents=[team.id], drive_id=team.drive_id)
    crawls.run(team)
    store.write(file, PDF + b"more")
    again = crawls.run(team)

    assert (crawls.downloads(), again.enqueued) == (["a.pdf", "b.pdf", "b.pdf"], 1)


def test_shared_with_me_is_crawled_with_its_folders(crawls: Crawls) -> None:
    store = crawls.server.store
    store.add("mine.pdf", PDF)
    shared = store.folder("shared", is_shared_with_me=True)
    store.add("inside.pdf", PDF, parents=[shared.id])
    store.add("single.pdf", PDF, is_shared_with_me=True)

    crawls.run("shared-with-me")
    store.add("later.pdf", PDF, is_shared_with_me=True)
    crawls.run("shared-with-me")

    assert crawls.downloads() == ["inside.pdf", "later.pdf", "single.pdf"]


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ({}, ["big.pdf", "old.pdf", "page.png", "strange.PDF", "table.csv"]),
        ({"mime": ["application/pdf"]}, ["big.pdf", "old.pdf", "strange.PDF"]),
        ({"mime": ["image/*", "text/plain"]}, ["notes.log", "page.png"]),
        ({"name": "*.Pdf"}, ["big.pdf", "old.pdf", "strange.PDF"]),
        ({"size_max": 100}, ["old.pdf", "page.png", "strange.PDF", "table.csv"]),
        ({"newer_than": "2025-06-01", "mime": ["application/pdf"]}, ["big.pdf", "strange.PDF"]),
        ({"newer_than": "2026-01-01T00:00:00.000Z"}, []),
    ],
    ids=str,
)
def test_only_wanted_files_are_enqueued(crawls: Crawls, wanted: dict[str, Any], names: list[str]) -> None:
    store = crawls.server.store
    top = store.folder("top")
    store.add("big.pdf", PDF * 100, parents=[top.id])
    old = store.add("old.pdf", PDF, parents=[top.id])
    old.modified = old.modified.replace(year=2025)
    store.add("page.png", b"png", mime="image/png", parents=[top.id])
    store.add("table.csv", b"a,b", mime="text/csv", parents=[top.id])
    store.add("strange.PDF", PDF, mime="application/octet-stream", parents=[top.id])
    store.add("notes.log", b"text", mime="text/plain", parents=[top.id])
    store.add("empty.pdf", b"", parents=[top.id])
    store.add("document", mime="application/vnd.google-apps.document", parents=[top.id])
    store.add("forbidden.pdf", PDF, parents=[top.id], can_download=False)

    ran = crawls.run(top, wanted=wanted)

    assert crawls.downloads() == names
    assert (ran.found, ran.skipped) == (9, 9 - len(names))


def test_depth_is_that_of_the_shortest_path(crawls: Crawls) -> None:
    store = crawls.server.store
    top = store.folder("top")
    one = store.folder("one", parents=[top.id])
    two = store.folder("two", parents=[one.id])
    three = store.folder("three", parents=[two.id])
    for folder in (top, one, two, three):
        store.add(f"{folder.name}.pdf", PDF, parents=[folder.id])

    crawls.run(top, wanted={"depth": 0}, owner="zero")
    crawls.run(top, wanted={"depth": 1}, owner="one")
    # Of two paths, the long one exceeds the limit and is visited first.
    store.shortcut("short cut", three.id, parents=[top.id], id="zzz-after-all-others")
    crawls.run(top, wanted={"depth": 2}, owner="two")

    assert crawls.downloads("zero") == ["top.pdf"]
    assert crawls.downloads("one") == ["one.pdf", "top.pdf"]
    assert crawls.downloads("two") == ["one.pdf", "three.pdf", "top.pdf", "two.pdf"]


def test_a_dry_run_reports_what_a_crawl_would_do_and_stores_nothing(crawls: Crawls) -> None:
    store = crawls.server.store
    top = store.folder("top")
    store.add("a.pdf", PDF, parents=[store.folder("inner", parents=[top.id]).id])
    store.add("b.log", b"b", mime="text/plain", parents=[top.id])

    first = crawls.run(top, dry_run=True)
    nothing = (crawls.downloads(), crawls.stored_items("alice"))
    crawls.run(top)
    store.add("c.pdf", PDF, parents=[top.id])
    second = crawls.run(top, dry_run=True)
    whole = crawls.run(top, dry_run=True, reconcile=True)

    assert (first.folders, first.found, first.skipped, first.enqueued) == (2, 2, 1, 1)
    assert (first.result["would_enqueue"], first.result["bytes"]) == (["a.pdf"], len(PDF))
    assert nothing == ([], [])
    assert second.result["would_enqueue"] == whole.result["would_enqueue"] == ["c.pdf"]
    assert (whole.unchanged, whole.enqueued) == (1, 1)
    assert crawls.downloads() == ["a.pdf"]


@pytest.mark.parametrize("what", ["a file", "nothing", "a trashed folder", "another platform's"])
def test_a_crawl_of_anything_but_a_folder_fails(crawls: Crawls, what: str) -> None:
    store = crawls.server.store
    folder = store.folder("top")
    store.trash(folder)
    named = {"a file": store.add("a.pdf", PDF).id, "nothing": "no-such-folder-here", "a trashed folder": folder.id}

    ran = crawls.run(named.get(what, "/no/such/directory"))

    assert isinstance(ran.error, Permanent)
    assert ran.error.code == "FOLDER_NOT_FOUND"


def test_a_folder_that_cannot_be_listed_is_logged_and_listed_by_the_next_run(crawls: Crawls) -> None:
    store = crawls.server.store
    top = store.folder("top")
    inner = store.folder("inner", parents=[top.id])
    store.add("hidden.pdf", PDF, parents=[inner.id])
    store.add("seen.pdf", PDF, parents=[top.id])
    crawls.server.arm(Fault("status", on="list", skip=1, times=3, status=403, reason="insufficientFilePermissions"))

    first = crawls.run(top)
    second = crawls.run(top)

    assert (first.failed, first.folders, first.enqueued) == (1, 1, 1)
    assert any("inner" in line for line in first.lines)
    assert (second.failed, second.enqueued) == (1, 0)
    crawls.server.faults.clear()
    assert crawls.run(top).enqueued == 1
    assert crawls.downloads() == ["hidden.pdf", "seen.pdf"]


def test_files_in_a_folder_that_cannot_be_listed_are_not_gone(crawls: Crawls) -> None:
    store = crawls.server.store
    top = store.folder("top")
    inner = store.folder("inner", parents=[top.id])
    deep = store.folder("deep", parents=[inner.id])
    files = [store.add(f"{folder.name}.pdf", PDF, parents=[folder.id]) for folder in (inner, deep)]
    for file in files:
        crawls.document(file)
    crawls.run(top)
    crawls.server.arm(Fault("status", on="list", skip=1, times=1, status=403, reason="insufficientFilePermissions"))

    ran = crawls.run(top, reconcile=True)

    assert (ran.failed, ran.gone) == (1, 0)
    assert [crawls.is_gone(file) for file in files] == [False, False]
    assert crawls.run(top).enqueued == 0


def test_an_incomplete_listing_is_requested_again(crawls: Crawls) -> None:
    store = crawls.server.store
    top = store.folder("top")
    store.add("a.pdf", PDF, parents=[top.id])
    store.add("b.pdf", PDF, parents=[top.id])
    crawls.server.partial_listings = 2

    assert crawls.run(top).enqueued == 2

    crawls.server.partial_listings = 3
    partial = crawls.run(top, reconcile=True)
    after = crawls.run(top)

    assert (partial.partial, partial.gone) == (1, 0)
    assert (after.folders, after.gone, after.enqueued) == (1, 0, 0)


def test_an_expired_page_restarts_its_folder(crawls: Crawls) -> None:
    store = crawls.server.store
    top = store.folder("top")
    for number in range(5):
        store.add(f"{number}.pdf", PDF, parents=[top.id])
    crawls.server.page_size_max = 2
    crawls.server.arm(Fault("status", on="list", skip=1, status=400, reason="invalid"))

    ran = crawls.run(top)

    assert crawls.downloads() == [f"{number}.pdf" for number in range(5)]
    assert (ran.found, ran.enqueued) == (5, 5)
    assert sum("pageToken" not in request.query for request in crawls.server.requests_for("list")) == 2


@pytest.mark.parametrize(
    ("reason", "times", "end"),
    [("userRateLimitExceeded", 6, PauseSource), ("dailyLimitExceeded", 1, Snooze), ("authError", 1, PauseSource)],
)
def test_the_crawl_continues_after_a_quota_or_a_refused_credential(
    crawls: Crawls, reason: str, times: int, end: type[Exception]
) -> None:
    store = crawls.server.store
    top = store.folder("top")
    store.add("a.pdf", PDF, parents=[store.folder("inner", parents=[top.id]).id])
    crawls.server.arm(Fault("status", on="list", skip=1, times=times, status=403, reason=reason))

    first = crawls.run(top)
    second = crawls.resume(first.job_id)

    assert isinstance(first.error, end)
    assert (second.folders, second.enqueued) == (2, 1)


def test_a_folder_costs_one_call_per_thousand_items(crawls: Crawls) -> None:
    store = crawls.server.store
    top = store.folder("top")
    folders = [store.folder(f"{number}", parents=[top.id]) for number in range(10)]
    for number in range(1300):
        store.add(f"{number}.pdf", PDF, parents=[folders[0].id if number < 1100 else folders[number % 10].id])
    assert {folder.mime for folder in folders} == {FOLDER}

    ran = crawls.run(top)
    first = crawls.calls()
    idle = crawls.run(top)

    assert ran.enqueued == 1300
    assert first <= 3 + 11 + 2
    assert crawls.calls() == 1
    assert (idle.found, idle.enqueued) == (0, 0)
