"""Later runs of a crawl: changed, moved and deleted files and folders."""

from __future__ import annotations

import pytest

from tests.drive_server import Fault, Item
from tests.job_handlers.crawl.kit import PDF, Crawls
from worker_service.handlers import Permanent, Snooze
from worker_service.jobs.job import Status


@pytest.fixture
def top(crawls: Crawls) -> Item:
    return crawls.server.store.folder("top")


def test_a_later_run_enqueues_only_what_is_new_or_has_changed(crawls: Crawls, top: Item) -> None:
    store = crawls.server.store
    same, other = (store.add(name, PDF, parents=[top.id]) for name in ("same.pdf", "other.pdf"))
    crawls.run(top)
    crawls.finish_downloads()
    store.write(other, PDF + b"more")
    store.add("new.pdf", PDF, parents=[top.id])
    store.add("elsewhere.pdf", PDF)
    store.edit(same, lambda item: setattr(item, "name", "renamed.pdf"))
    # `edit` gives a new revision, but in Drive a new name alone is none.
    same.revision -= 1
    crawls.calls()

    ran = crawls.run(top)

    assert crawls.downloads(status=Status.PENDING) == ["new.pdf", "other.pdf"]
    assert (ran.enqueued, crawls.calls()) == (2, 1)
    assert crawls.run(top).enqueued == 0


def test_changes_during_the_walk_are_not_missed(crawls: Crawls, top: Item) -> None:
    store = crawls.server.store
    first = store.folder("first", parents=[top.id], id="folder-1-first")
    second = store.folder("second", parents=[top.id], id="folder-2-second")
    moved = store.add("moved.pdf", PDF, parents=[second.id])
    inside = store.folder("inside", parents=[second.id])
    store.add("deep.pdf", PDF, parents=[inside.id])

    def move() -> None:
        """Move from a folder that is not listed yet into one that is."""
        for item in (moved, inside):
            store.edit(item, lambda edited: setattr(edited, "parents", [first.id]))
        store.add("late.pdf", PDF, parents=[first.id])

    crawls.server.arm(Fault("call", on="list", skip=2, action=move))

    crawls.run(top)

    assert crawls.downloads() == ["deep.pdf", "late.pdf", "moved.pdf"]


def test_a_folder_deleted_during_the_walk_causes_a_second_walk(crawls: Crawls, top: Item) -> None:
    store = crawls.server.store
    files = [store.add(f"{number}.pdf", PDF, parents=[top.id]) for number in range(5)]
    deleted = store.folder("going", parents=[top.id])
    file = store.add("gone.pdf", PDF, parents=[deleted.id])
    for item in (*files, file):
        crawls.document(item)
    crawls.server.page_size_max = 2
    crawls.server.arm(Fault("call", on="list", skip=3, action=lambda: store.trash(deleted)))

    ran = crawls.run(top)

    assert (ran.enqueued, ran.gone) == (6, 1)
    assert [crawls.is_gone(item) for item in (*files, file)] == [False] * 5 + [True]


def test_new_folders_and_those_in_them_are_walked(crawls: Crawls, top: Item) -> None:
    store = crawls.server.store
    crawls.run(top)
    outside = store.folder("came from outside")
    store.add("inside it.pdf", PDF, parents=[outside.id])
    crawls.run(top)
    store.edit(outside, lambda item: setattr(item, "parents", [top.id]))
    new = store.folder("new", parents=[top.id])
    newer = store.folder("newer", parents=[new.id])
    store.add("newest.pdf", PDF, parents=[newer.id])

    ran = crawls.run(top)

    assert crawls.downloads() == ["inside it.pdf", "newest.pdf"]
    assert (ran.found, ran.enqueued) == (2, 2)


def test_files_moved_into_new_folders_are_neither_new_nor_gone(crawls: Crawls, top: Item) -> None:
    store = crawls.server.store
    file = store.add("a.pdf", PDF, parents=[top.id])
    old = store.folder("old", parents=[top.id])
    inside = store.add("b.pdf", PDF, parents=[old.id])
    for item in (file, inside):
        crawls.document(item)
    crawls.run(top)

    archive = store.folder("archive", parents=[top.id])
    year = store.folder("2026", parents=[archive.id])
    for item in (file, old):
        store.edit(item, lambda edited: setattr(edited, "parents", [year.id]))
        item.revision -= 1
    ran = crawls.run(top)

    assert (ran.enqueued, ran.gone, crawls.downloads(status=Status.CANCELLED)) == (0, 0, [])
    assert not crawls.is_gone(file)
    store.remove(archive)
    assert crawls.run(top).gone == 2
    assert crawls.is_gone(inside)


@pytest.mark.parametrize("how", ["removed", "trashed", "moved away", "no longer shared"])
def test_a_deleted_file_is_marked_and_its_pending_download_cancelled(crawls: Crawls, top: Item, how: str) -> None:
    store = crawls.server.store
    gone = store.add("gone.pdf", PDF, parents=[top.id])
    kept = store.add("kept.pdf", PDF, parents=[top.id])
    crawls.document(gone)
    crawls.document(kept)
    crawls.run(top)

    _make_unavailable(crawls, gone, how)
    ran = crawls.run(top)

    assert (crawls.is_gone(gone), crawls.is_gone(kept)) == (True, False)
    assert crawls.downloads(status=Status.CANCELLED) == ["gone.pdf"]
    assert crawls.downloads(status=Status.PENDING) == ["kept.pdf"]
    assert ran.gone == 1
    [row] = crawls.by_hand("SELECT error_code FROM worker_job_queue WHERE status = 'cancelled'")
    assert row == {"error_code": "SOURCE_GONE"}
    if how == "trashed":
        store.edit(gone, lambda item: setattr(item, "is_trashed", False))
        crawls.run(top)
        assert not crawls.is_gone(gone)
        assert crawls.downloads(status=Status.PENDING) == ["gone.pdf", "kept.pdf"]


@pytest.mark.parametrize("how", ["trashed", "moved away"])
def test_everything_below_a_deleted_folder_is_gone_in_the_same_run(crawls: Crawls, top: Item, how: str) -> None:
    store = crawls.server.store
    folder = store.folder("folder", parents=[top.id])
    inner = store.folder("inner", parents=[folder.id])
    direct, deep = (store.add("a.pdf", PDF, parents=[parent.id]) for parent in (folder, inner))
    kept = store.add("kept.pdf", PDF, parents=[top.id])
    crawls.document(deep)
    crawls.document(kept)
    crawls.run(top)

    _make_unavailable(crawls, folder, how)
    # A change in a deleted folder is not fetched.
    store.write(direct, PDF + b"more")
    ran = crawls.run(top)

    assert (crawls.is_gone(deep), crawls.is_gone(kept)) == (True, False)
    assert (ran.gone, crawls.downloads(status=Status.PENDING)) == (2, ["kept.pdf"])
    crawls.calls()
    # Drive still lists changes below it.
    store.add("later.pdf", PDF, parents=[inner.id])
    assert crawls.run(top).enqueued == 0
    assert crawls.calls() == 1


def test_a_folder_that_comes_back_is_listed_again(crawls: Crawls, top: Item) -> None:
    store = crawls.server.store
    folder = store.folder("folder", parents=[top.id])
    inner = store.folder("inner", parents=[folder.id])
    store.add("before.pdf", PDF, parents=[inner.id])
    crawls.run(top)
    crawls.finish_downloads()
    store.edit(folder, lambda item: setattr(item, "parents", ["away"]))
    crawls.run(top)
    store.add("meanwhile.pdf", PDF, parents=[inner.id])
    crawls.run(top)

    store.edit(folder, lambda item: setattr(item, "parents", [top.id]))
    crawls.run(top)

    assert "meanwhile.pdf" in crawls.downloads(status=Status.PENDING)


def test_a_file_moved_between_crawled_folders_is_not_gone(crawls: Crawls, top: Item) -> None:
    store = crawls.server.store
    other = store.folder("other")
    file = store.add("a.pdf", PDF, parents=[top.id])
    crawls.document(file)
    crawls.run(top)
    crawls.run(other)
    crawls.finish_downloads()

    store.edit(file, lambda item: setattr(item, "parents", [other.id]))
    crawls.run(other)
    crawls.run(top)

    assert crawls.downloads(status=Status.PENDING) == ["a.pdf"]
    assert not crawls.is_gone(file)
    store.remove(file)
    crawls.run(other)
    assert crawls.is_gone(file)


def test_targets_of_a_shortcut_are_crawled_until_it_is_deleted(crawls: Crawls, top: Item) -> None:
    store = crawls.server.store
    file, far = store.add("file.pdf", PDF), store.folder("far")
    links = [store.shortcut(item.name, item.id, parents=[top.id]) for item in (file, far)]
    crawls.run(top)

    store.write(file, PDF + b"1")
    store.edit(far, lambda item: setattr(item, "name", "very far"))
    store.add("in far.pdf", PDF, parents=[far.id])
    assert crawls.run(top).enqueued == 2
    for link in links:
        store.remove(link)
    assert crawls.run(top).gone == 2
    store.write(file, PDF + b"2")
    store.add("in far too.pdf", PDF, parents=[far.id])

    assert crawls.run(top).enqueued == 0


@pytest.mark.parametrize("is_first", [False, True], ids=["shortcut last", "shortcut first"])
def test_a_file_with_a_shortcut_is_gone_when_both_are_deleted(crawls: Crawls, top: Item, is_first: bool) -> None:
    store = crawls.server.store
    links = [store.shortcut("to a", "file-of-both", parents=[top.id])] if is_first else []
    file = store.add("a.pdf", PDF, id="file-of-both", parents=[top.id])
    [link] = links or [store.shortcut("to a", "file-of-both", parents=[top.id])]
    crawls.document(file)
    crawls.run(top)

    store.edit(file, lambda item: setattr(item, "parents", ["away"]))
    crawls.run(top)
    assert not crawls.is_gone(file)

    store.remove(link)
    crawls.run(top)
    assert crawls.is_gone(file)


def test_the_target_of_a_dangling_shortcut_is_enqueued_once_it_is_shared(crawls: Crawls, top: Item) -> None:
    store = crawls.server.store
    hidden, folder = store.add("hidden.pdf", PDF, readers=set()), store.folder("hidden", readers=set())
    store.add("in it.pdf", PDF, parents=[folder.id])
    for item in (hidden, folder):
        store.shortcut(f"to {item.name}", item.id, parents=[top.id])
    assert crawls.run(top).dangling == 2

    for item in (hidden, folder):
        store.edit(item, lambda edited: edited.readers.add("robot@project.iam.gserviceaccount.com"))
    crawls.run(top)

    assert crawls.downloads() == ["hidden.pdf", "in it.pdf"]


def test_a_file_deleted_without_notice_is_found_by_reconcile(crawls: Crawls, top: Item) -> None:
    store = crawls.server.store
    file = store.add("a.pdf", PDF, parents=[top.id])
    store.add("b.pdf", PDF, parents=[top.id])
    crawls.document(file)
    crawls.run(top)
    file.readers.clear()

    quiet = crawls.run(top)
    ran = crawls.run(top, reconcile=True)

    assert quiet.gone == 0
    assert (ran.gone, ran.unchanged, ran.enqueued) == (1, 1, 0)
    assert crawls.is_gone(file)


def test_changes_in_folders_that_are_too_deep_are_ignored(crawls: Crawls, top: Item) -> None:
    store = crawls.server.store
    one = store.folder("one", parents=[top.id])
    two = store.folder("two", parents=[one.id])
    crawls.run(top, wanted={"depth": 1})
    store.add("too deep.pdf", PDF, parents=[two.id])
    store.add("fine.pdf", PDF, parents=[one.id])

    crawls.run(top, wanted={"depth": 1})
    assert crawls.downloads() == ["fine.pdf"]

    store.edit(two, lambda item: setattr(item, "parents", [top.id]))
    crawls.run(top, wanted={"depth": 1})
    assert crawls.downloads() == ["fine.pdf", "too deep.pdf"]

    store.edit(two, lambda item: setattr(item, "parents", [one.id]))
    assert crawls.run(top, wanted={"depth": 1}).gone == 1


def test_an_expired_token_causes_a_walk(crawls: Crawls, top: Item) -> None:
    store = crawls.server.store
    store.add("a.pdf", PDF, parents=[top.id])
    crawls.run(top)
    store.add("b.pdf", PDF, parents=[top.id])
    crawls.server.arm(Fault("status", on="changes", status=400, reason="invalid"))

    ran = crawls.run(top)
    crawls.calls()

    assert (ran.enqueued, ran.unchanged) == (1, 1)
    assert crawls.run(top).found == 0
    assert crawls.calls() == 1


def test_changes_of_many_pages_are_read(crawls: Crawls, top: Item) -> None:
    crawls.run(top)
    for number in range(9):
        crawls.server.store.add(f"{number}.pdf", PDF, parents=[top.id])
    crawls.server.page_size_max = 2

    assert crawls.run(top).enqueued == 9


def test_a_deleted_root_fails_the_crawl_and_marks_nothing_gone(crawls: Crawls, top: Item) -> None:
    store = crawls.server.store
    file = store.add("a.pdf", PDF, parents=[top.id])
    crawls.document(file)
    crawls.run(top)
    store.trash(top)

    ended = crawls.run(top)
    store.edit(top, lambda item: setattr(item, "is_trashed", False))
    store.add("b.pdf", PDF, parents=[top.id])
    crawls.run(top)

    assert isinstance(ended.error, Permanent)
    assert not crawls.is_gone(file)
    assert crawls.downloads() == ["a.pdf", "b.pdf"]


def test_a_crawl_that_fails_after_progress_costs_no_retry(crawls: Crawls, top: Item) -> None:
    crawls.server.store.add("a.pdf", PDF, parents=[top.id])
    crawls.server.arm(Fault("status", on="list", times=6, status=503))

    first = crawls.run(top)
    second = crawls.resume(first.job_id)

    assert isinstance(first.error, Snooze)
    assert second.enqueued == 1


def _make_unavailable(crawls: Crawls, item: Item, how: str) -> None:
    store = crawls.server.store
    if how == "removed":
        store.remove(item)
    elif how == "trashed":
        store.trash(item)
    elif how == "moved away":
        store.edit(item, lambda edited: setattr(edited, "parents", ["away"]))
    else:
        store.edit(item, lambda edited: edited.readers.clear())


def test_other_reading_settings_enqueue_another_download(crawls: Crawls, top: Item) -> None:
    report = crawls.server.store.add("report.pdf", PDF, parents=[top.id])
    crawls.run(top, download={"read": {}})
    crawls.run(top, download={"read": {"languages": ["deu"]}})
    assert crawls.downloads(status=Status.PENDING) == ["report.pdf", "report.pdf"]

    crawls.server.store.trash(report)
    crawls.run(top, download={"read": {}})

    assert crawls.downloads(status=Status.PENDING) == []
