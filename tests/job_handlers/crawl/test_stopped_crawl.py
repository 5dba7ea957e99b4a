"""A crawl that is stopped at any of its words, and goes on: nothing is lost, nothing comes twice."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.drive_server import Item
from tests.job_handlers.crawl.kit import PDF, Crawls, Ran
from worker_service.handlers import Stopped
from worker_service.jobs.job import Status
from worker_service.jobs.selector import Selector

REFERENCE = "nobody-stops-it"


def test_a_first_crawl_may_be_stopped_after_any_word(crawls: Crawls) -> None:
    top = _world(crawls)

    reference = crawls.run(top, owner=REFERENCE)
    ran = {owner: crawls.run(top, owner=owner, stop_at=stop_at) for owner, stop_at in _each(reference)}

    _assert_same(crawls, reference, ran)
    assert reference.enqueued == 13


def test_a_later_crawl_may_be_stopped_after_any_word(crawls: Crawls) -> None:
    top = _world(crawls)
    # As many as it may take, and some: how often a later run speaks is known only afterwards.
    owners = [REFERENCE, *(f"stopped-{number}" for number in range(1, 24))]
    for owner in owners:
        crawls.run(top, owner=owner)
    _change(crawls, top)

    reference = crawls.run(top, owner=REFERENCE)
    ran = {owner: crawls.run(top, owner=owner, stop_at=stop_at) for owner, stop_at in _each(reference)}

    assert 10 < len(ran) < len(owners)
    _assert_same(crawls, reference, ran)
    assert (reference.enqueued, reference.gone) == (3, 2)


def test_a_full_walk_that_never_ends_is_made_good_by_the_next_run(crawls: Crawls) -> None:
    top = _world(crawls)
    file = crawls.server.store.items["file-deep-0"]
    owners = [f"stopped-{number}" for number in range(1, 15, 4)]
    for owner in owners:
        crawls.run(top, owner=owner)
        crawls.document(file, owner)
    # Without a word in the feed.
    file.readers.clear()

    for stop_at, owner in enumerate(owners, 1):
        crawls.stopped(crawls.begin(top, owner=owner, reconcile=True), stop_at=4 * stop_at - 3)
        crawls.run(top, owner=owner)

    assert {crawls.is_gone(file, owner) for owner in owners} == {True}


def test_a_page_that_lands_in_parts_may_be_stopped_between_them(crawls: Crawls) -> None:
    store = crawls.server.store
    top = store.folder("top", id="folder-top")
    store.shortcut("to itself", top.id, id="aaa-met-first", parents=[top.id])
    inner = store.folder("inner", id="folder-inner", parents=[top.id])
    deep = store.add("deep.pdf", PDF, id="file-deep", parents=[inner.id])
    for number in range(140):
        store.add(f"{number:03}{'long' * 900}.pdf", PDF, id=f"file-{number:03}", parents=[top.id])
    owners = [REFERENCE, *(f"stopped-{number}" for number in range(1, 5))]

    first = {owner: crawls.run(top, owner=owner, stop_at=stop_at) for stop_at, owner in enumerate(owners)}
    assert first[REFERENCE].enqueued == 141
    for owner in owners:
        crawls.document(deep, owner)
        assert crawls.downloads(owner) == crawls.downloads(REFERENCE), owner
    store.remove(inner)
    for number in range(140):
        store.write(store.items[f"file-{number:03}"], PDF + b"more")
    later = {owner: crawls.run(top, owner=owner, stop_at=stop_at) for stop_at, owner in enumerate(owners)}

    assert later[REFERENCE].enqueued == 140
    assert {crawls.is_gone(deep, owner) for owner in owners} == {True}
    assert {tuple(crawls.downloads(owner)) for owner in owners} == {tuple(crawls.downloads(REFERENCE))}
    assert min(one.words for one in (first[REFERENCE], later[REFERENCE])) >= len(owners) - 1


def test_a_crawl_that_never_ends_is_made_good_by_the_next(crawls: Crawls) -> None:
    top = _world(crawls)
    reference = crawls.run(top, owner=REFERENCE)
    names = crawls.downloads(REFERENCE)

    for owner, stop_at in _each(reference)[::2]:
        crawls.stopped(crawls.begin(top, owner=owner), stop_at=stop_at)
        # In a folder that may have been listed already.
        late = crawls.server.store.add(f"late {stop_at}.pdf", PDF, parents=["folder-inner"])
        names = sorted([*names, late.name])
        crawls.run(top, owner=owner)

        assert crawls.downloads(owner) == names


def test_a_stopped_crawl_that_another_has_overtaken_begins_anew(crawls: Crawls) -> None:
    top = _world(crawls)
    words = crawls.run(top, owner=REFERENCE).words
    for stop_at in range(1, words, 5):
        owner = f"overtaken-{stop_at}"
        old = crawls.begin(top, owner=owner)
        crawls.stopped(old, stop_at=stop_at)
        crawls.run(top, owner=owner)
        crawls.run(top, owner=owner, reconcile=True)

        late = crawls.go_on(old)

        assert late.gone == 0
        assert crawls.downloads(owner) == crawls.downloads(REFERENCE)
        assert not any(row["gone"] for row in crawls.remembered(owner))
        assert crawls.run(top, owner=owner).found == 0
        assert crawls.run(top, owner=owner, reconcile=True).unchanged == 13


def test_a_crawl_that_is_asked_to_stop_does_so_at_a_page_and_costs_nothing(crawls: Crawls) -> None:
    top = _world(crawls)
    job_id = crawls.begin(top)

    for _ in range(3):
        with pytest.raises(Stopped):
            crawls.go_on(job_id, is_asked_to_stop=True)
    crawls.go_on(job_id)

    assert crawls.downloads() == sorted(set(crawls.downloads()))
    assert len(crawls.downloads()) == 13
    assert crawls.store.job_queries.get(job_id).retry_count == 0


@pytest.mark.parametrize("stop_at", [2, 6, 11])
def test_a_failed_crawl_that_is_retried_goes_on(crawls: Crawls, stop_at: int) -> None:
    top = _world(crawls)
    reference = crawls.run(top, owner=REFERENCE)
    job_id = crawls.begin(top)
    crawls.stopped(job_id, stop_at=stop_at, fails=True)
    assert crawls.store.job_queries.get(job_id).status is Status.FAILED

    crawls.store.job_control.retry(Selector(ids=(job_id,)), actor="a person")
    ran = crawls.go_on(job_id)

    assert crawls.downloads() == crawls.downloads(REFERENCE)
    assert ran.counts == reference.counts


def _world(crawls: Crawls) -> Item:
    """A little of everything."""
    store = crawls.server.store
    crawls.server.page_size_max = 3
    top = store.folder("top", id="folder-0-top")
    inner, other = (store.folder(name, id=f"folder-{name}", parents=[top.id]) for name in ("inner", "other"))
    deep = store.folder("deep", id="folder-deep", parents=[inner.id])
    for folder, number in ((top, 4), (inner, 3), (deep, 5)):
        for one in range(number):
            store.add(f"{folder.name} {one}.pdf", PDF, id=f"file-{folder.name}-{one}", parents=[folder.id])
    far = store.folder("far", id="folder-far")
    store.add("far.pdf", PDF, id="file-far-0", parents=[far.id])
    store.shortcut("to far", far.id, parents=[other.id])
    store.shortcut("to top", top.id, parents=[deep.id])
    store.shortcut("to nothing", "there-is-no-such-file", parents=[other.id])
    store.add("notes.log", b"text", mime="text/plain", parents=[other.id])
    return top


def _change(crawls: Crawls, top: Item) -> None:
    store = crawls.server.store
    store.write(store.items["file-inner-0"], PDF + b"more")
    store.remove(store.items["file-top-0"])
    new = store.folder("new", id="folder-new", parents=[top.id])
    store.add("new.pdf", PDF, parents=[new.id])
    old = store.folder("old", id="folder-old")
    store.add("old.pdf", PDF, parents=[old.id])
    store.edit(old, lambda item: setattr(item, "parents", ["folder-other"]))
    store.remove(next(item for item in store.items.values() if item.name == "to far"))


def _each(reference: Ran) -> list[tuple[str, int]]:
    """An owner for each word after which a crawl may be stopped."""
    return [(f"stopped-{number}", number) for number in range(1, reference.words + 1)]


def _assert_same(crawls: Crawls, reference: Ran, ran: Mapping[str, Ran]) -> None:
    wanted = (crawls.keys(REFERENCE), crawls.remembered(REFERENCE), reference.counts)
    assert max(wanted[0].values()) == 1
    for owner, one in ran.items():
        found = (crawls.keys(owner), crawls.remembered(owner), one.counts)
        assert found == wanted, owner
