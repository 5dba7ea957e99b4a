"""Real processes that want, read and publish one document at the same time."""

from __future__ import annotations

import queue
from pathlib import Path

from tests.store.kit import EVERY_JOB, ByHand, Kind
from tests.store.papers import pages_of, wish, work_as
from tests.store.test_races import Say, _race, wall_store  # noqa: F401  a fixture
from worker_service.jobs.documents import Decision, NewFile
from worker_service.jobs.model import Completion, Status
from worker_service.store.base import Store

ROUNDS = 25


def _wish_for(store: Store, say: Say, content: str) -> None:
    for number in range(ROUNDS):
        asked = store.intake.enqueue(wish(content=f"{content}{number}" if content else "c1"))
        say((str(asked.decision), asked.job_id))


def _read(store: Store, say: Say, worker_id: str) -> None:
    """Take what can be had, save pages, publish; until nothing is left."""
    work_as(store, worker_id)
    while jobs := store.leases.claim(worker_id, 1):
        job = jobs[0]
        mark = f"g{job.generation} "
        if not store.leases.save_pages([(job.lease, page) for page in pages_of(mark, mark, mark=mark)]):
            files = [NewFile("a.txt", f"objects/{job.id}-{job.fence}/a.txt", "text")]
            if not store.leases.complete_many([Completion(job.lease, files=files, publishes=True)]):
                say(("published", job.generation))
                continue
        store.leases.confirm_cancel(job.lease)
        say(("stale", job.generation))


def test_p11_of_many_who_want_the_same_one_is_accepted(wall_store: Store, kind: Kind, path: Path) -> None:  # noqa: F811
    said = _race(kind, path, *[(_wish_for, "")] * 4)

    assert [decision for decision, _ in said].count(str(Decision.ACCEPTED)) == 1
    assert len({job_id for _, job_id in said}) == 1
    assert wall_store.reading.count(EVERY_JOB) == 1


def test_p11_readers_and_newer_wishes_leave_the_newest_generation_published_once(
    wall_store: Store,  # noqa: F811
    kind: Kind,
    path: Path,
) -> None:
    wall_store.intake.enqueue(wish())

    said = _race(kind, path, (_wish_for, "a"), (_wish_for, "b"), (_read, "w1"), (_read, "w2"))
    work_as(wall_store, "w3")
    left: queue.SimpleQueue[tuple[str, object]] = queue.SimpleQueue()
    _read(wall_store, left.put, "w3")

    newest = 2 * ROUNDS + 1
    while not left.empty():
        said.append(left.get())
    published = [generation for word, generation in said if word == "published"]
    assert published.count(newest) == 1
    assert len(published) == len(set(published))
    assert {page.text for page in wall_store.library.page_texts(1)} == {f"g{newest} "}
    assert all(
        job.status in (Status.COMPLETED, Status.CANCELLED) for job in wall_store.reading.list(EVERY_JOB, most=999)
    )
    assert ByHand(path).one("SELECT current_generation FROM document") == newest
    assert wall_store.upkeep.audit() == []
