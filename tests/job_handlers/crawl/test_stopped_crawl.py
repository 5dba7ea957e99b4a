"""A crawl that is killed after any checkpoint and resumed loses no file and enqueues none twice."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.drive_server import Item
from tests.job_handlers.crawl.kit import PDF, CrawlEnd, Crawls
from worker_service.handlers import Stopped
from worker_service.jobs.job import Status
from worker_service.jobs.selector import Selector

REFERENCE = "never-killed"


def test_a_first_crawl_may_be_killed_after_any_checkpoint(crawls: Crawls) -> None:
    top = _sample_tree(crawls)

    reference = crawls.run(top, owner=REFERENCE)
    end_by_owner = {
        owner: crawls.run(top, owner=owner, stop_after=stop_after)
        for owner, stop_after in _owner_per_checkpoint(reference)
    }

    _assert_same(crawls, reference, end_by_owner)
    assert reference.enqueued == 13


def test_a_later_crawl_may_be_killed_after_any_checkpoint(crawls: Crawls) -> None:
    top = _sample_tree(crawls)
    # More than enough: the number of checkpoints of a later run is known only afterwards.
    owners = [REFERENCE, *(f"stopped-{number}" for number in range(1, 24))]
    for owner in owners:
        crawls.run(top, owner=owner)
    _change_tree(crawls, top)

    reference = crawls.run(top, owner=REFERENCE)
    end_by_owner = {
        owner: crawls.run(top, owner=owner, stop_after=stop_after)
        for owner, stop_after in _owner_per_checkpoint(reference)
    }

    assert 10 < len(end_by_owner) < len(owners)
    _assert_same(crawls, reference, end_by_owner)
    assert (reference.enqueued, reference.gone) == (3, 2)


def test_the_run_after_an_unfinished_full_walk_walks_again(crawls: Crawls) -> None:
    top = _sample_tree(crawls)
    file = crawls.server.store.items["file-deep-0"]
    owners = [f"stopped-{number}" for number in range(1, 15, 4)]
    for owner in owners:
        crawls.run(top, owner=owner)
        crawls.document(file, owner)
    # The list of changes does not show this.
    file.readers.clear()

    for stop_after, owner in enumerate(owners, 1):
        crawls.kill(crawls.enqueue(top, owner=owner, reconcile=True), stop_after=4 * stop_after - 3)
        crawls.run(top, owner=owner)

    assert {crawls.is_gone(file, owner) for owner in owners} == {True}


def test_a_page_saved_in_parts_may_be_killed_between_them(crawls: Crawls) -> None:
    store = crawls.server.store
    top = store.folder("top", id="folder-top")
    store.shortcut("to itself", top.id, id="aaa-met-first", parents=[top.id])
    inner = store.folder("inner", id="folder-inner", parents=[top.id])
    deep = store.add("deep.pdf", PDF, id="file-deep", parents=[inner.id])
    for number in range(140):
        store.add(f"{number:03}{'long' * 900}.pdf", PDF, id=f"file-{number:03}", parents=[top.id])
    owners = [REFERENCE, *(f"stopped-{number}" for number in range(1, 5))]

    first = {owner: crawls.run(top, owner=owner, stop_after=stop_after) for stop_after, owner in enumerate(owners)}
    assert first[REFERENCE].enqueued == 141
    for owner in owners:
        crawls.document(deep, owner)
        assert crawls.downloads(owner) == crawls.downloads(REFERENCE), owner
    store.remove(inner)
    for number in range(140):
        store.write(store.items[f"file-{number:03}"], PDF + b"more")
    later = {owner: crawls.run(top, owner=owner, stop_after=stop_after) for stop_after, owner in enumerate(owners)}

    assert later[REFERENCE].enqueued == 140
    assert {crawls.is_gone(deep, owner) for owner in owners} == {True}
    assert {tuple(crawls.downloads(owner)) for owner in owners} == {tuple(crawls.downloads(REFERENCE))}
    assert min(end.checkpoints for end in (first[REFERENCE], later[REFERENCE])) >= len(owners) - 1


def test_the_crawl_after_an_unfinished_one_misses_nothing(crawls: Crawls) -> None:
    top = _sample_tree(crawls)
    reference = crawls.run(top, owner=REFERENCE)
    names = crawls.downloads(REFERENCE)

    for owner, stop_after in _owner_per_checkpoint(reference)[::2]:
        crawls.kill(crawls.enqueue(top, owner=owner), stop_after=stop_after)
        # In a folder that may have been listed already.
        late = crawls.server.store.add(f"late {stop_after}.pdf", PDF, parents=["folder-inner"])
        names = sorted([*names, late.name])
        crawls.run(top, owner=owner)

        assert crawls.downloads(owner) == names


def test_a_killed_crawl_that_another_has_overtaken_starts_again(crawls: Crawls) -> None:
    top = _sample_tree(crawls)
    checkpoints = crawls.run(top, owner=REFERENCE).checkpoints
    for stop_after in range(1, checkpoints, 5):
        owner = f"overtaken-{stop_after}"
        old = crawls.enqueue(top, owner=owner)
        crawls.kill(old, stop_after=stop_after)
        crawls.run(top, owner=owner)
        crawls.run(top, owner=owner, reconcile=True)

        late = crawls.resume(old)

        assert late.gone == 0
        assert crawls.downloads(owner) == crawls.downloads(REFERENCE)
        assert not any(row["gone"] for row in crawls.stored_items(owner))
        assert crawls.run(top, owner=owner).found == 0
        assert crawls.run(top, owner=owner, reconcile=True).unchanged == 13


def test_a_stop_takes_effect_after_a_page_and_costs_no_retry(crawls: Crawls) -> None:
    top = _sample_tree(crawls)
    job_id = crawls.enqueue(top)

    for _ in range(3):
        with pytest.raises(Stopped):
            crawls.resume(job_id, is_stopping_at_once=True)
    crawls.resume(job_id)

    assert crawls.downloads() == sorted(set(crawls.downloads()))
    assert len(crawls.downloads()) == 13
    assert crawls.store.job_queries.get(job_id).retry_count == 0


@pytest.mark.parametrize("stop_after", [2, 6, 11])
def test_a_failed_crawl_that_is_retried_continues(crawls: Crawls, stop_after: int) -> None:
    top = _sample_tree(crawls)
    reference = crawls.run(top, owner=REFERENCE)
    job_id = crawls.enqueue(top)
    crawls.kill(job_id, stop_after=stop_after, fails=True)
    assert crawls.store.job_queries.get(job_id).status is Status.FAILED

    crawls.store.job_control.retry(Selector(ids=(job_id,)), actor="a person")
    ran = crawls.resume(job_id)

    assert crawls.downloads() == crawls.downloads(REFERENCE)
    assert ran.counts == reference.counts


def _sample_tree(crawls: Crawls) -> Item:
    """Add folders, files and shortcuts of all kinds."""
    store = crawls.server.store
    crawls.server.page_size_max = 3
    top = store.folder("top", id="folder-0-top")
    inner, other = (store.folder(name, id=f"folder-{name}", parents=[top.id]) for name in ("inner", "other"))
    deep = store.folder("deep", id="folder-deep", parents=[inner.id])
    for folder, number in ((top, 4), (inner, 3), (deep, 5)):
        for index in range(number):
            store.add(f"{folder.name} {index}.pdf", PDF, id=f"file-{folder.name}-{index}", parents=[folder.id])
    far = store.folder("far", id="folder-far")
    store.add("far.pdf", PDF, id="file-far-0", parents=[far.id])
    store.shortcut("to far", far.id, parents=[other.id])
    store.shortcut("to top", top.id, parents=[deep.id])
    store.shortcut("to nothing", "there-is-no-such-file", parents=[other.id])
    store.add("notes.log", b"text", mime="text/plain", parents=[other.id])
    return top


def _change_tree(crawls: Crawls, top: Item) -> None:
    store = crawls.server.store
    store.write(store.items["file-inner-0"], PDF + b"more")
    store.remove(store.items["file-top-0"])
    new = store.folder("new", id="folder-new", parents=[top.id])
    store.add("new.pdf", PDF, parents=[new.id])
    old = store.folder("old", id="folder-old")
    store.add("old.pdf", PDF, parents=[old.id])
    store.edit(old, lambda item: setattr(item, "parents", ["folder-other"]))
    store.remove(next(item for item in store.items.values() if item.name == "to far"))


def _owner_per_checkpoint(reference: CrawlEnd) -> list[tuple[str, int]]:
    """Return an owner for each checkpoint after which a crawl is killed."""
    return [(f"stopped-{number}", number) for number in range(1, reference.checkpoints + 1)]


def _assert_same(crawls: Crawls, reference: CrawlEnd, end_by_owner: Mapping[str, CrawlEnd]) -> None:
    expected = (crawls.keys(REFERENCE), crawls.stored_items(REFERENCE), reference.counts)
    assert max(expected[0].values()) == 1
    for owner, end in end_by_owner.items():
        assert (crawls.keys(owner), crawls.stored_items(owner), end.counts) == expected, owner
