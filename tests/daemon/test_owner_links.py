"""When names for people are made: after commits, a little at a time, and again where they are missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.daemon.conftest import Watch, context_in
from tests.store.kit import ByHand, reading_job, work_as
from worker_service.daemon.chores import SCAN_SECONDS, NameDocuments, link_last_documents
from worker_service.jobs.attempts import Checkpoint, Completion
from worker_service.jobs.documents import CrawlItem, CrawlPage, NewFile
from worker_service.jobs.job import NewJob
from worker_service.store.store import Store


@pytest.fixture
def chore(store: Store, tmp_path: Path, log: Any, watch: Watch) -> NameDocuments:
    work_as(store)
    (tmp_path / "workspace").mkdir()
    return NameDocuments(context_in(tmp_path, store, log, monotonic=watch))


def read(store: Store, key: str, crawled: CrawlItem | None = None) -> None:
    """Its text is published, and with it what a crawl has seen."""
    store.intake.enqueue(reading_job(key, owner="alice"))
    [job] = store.leases.claim("w1", 1)
    if crawled is not None:
        store.attempts.checkpoint(job.lease, Checkpoint("{}", crawl=CrawlPage("c", [crawled])))
    file = NewFile("text.txt", f"objects/{job.id}-1/text.txt", "text")
    store.leases.complete_many([Completion(job.lease, files=[file], publishes=True)])


def names(tmp_path: Path) -> list[str]:
    top = tmp_path / "workspace/by-owner"
    return sorted(str(path.relative_to(top)) for path in top.rglob("*") if path.is_symlink())


def run(chore: NameDocuments) -> int:
    """Until it has nothing to do; how often that took."""
    runs = 1
    while chore.run() < 1:
        runs += 1
    return runs


def test_what_was_published_has_its_name_soon_after_the_commit(
    chore: NameDocuments, store: Store, tmp_path: Path
) -> None:
    run(chore)
    read(store, "a.pdf")

    assert names(tmp_path) == []
    run(chore)

    assert names(tmp_path) == ["alice/a.pdf of alice.txt"]
    assert run(chore) == 1


def test_a_name_that_somebody_removed_is_remade_within_the_hour(
    chore: NameDocuments, store: Store, tmp_path: Path, watch: Watch
) -> None:
    read(store, "a.pdf")
    run(chore)
    [name] = names(tmp_path)
    (tmp_path / "workspace/by-owner" / name).unlink()

    run(chore)
    assert names(tmp_path) == []
    watch.now += SCAN_SECONDS
    run(chore)

    assert names(tmp_path) == [name]


def test_a_daemon_that_starts_names_what_it_finds_a_little_at_a_time(
    chore: NameDocuments, store: Store, database: Path, tmp_path: Path
) -> None:
    for number in range(120):
        read(store, f"{number}.pdf")
    ByHand(database)("DELETE FROM link_due")

    assert run(chore) > 3
    assert len(names(tmp_path)) == 120


def test_when_a_folder_is_renamed_all_are_looked_at(chore: NameDocuments, store: Store, tmp_path: Path) -> None:
    read(store, "a.pdf", CrawlItem("folder", "", "Reports", "folder"))
    read(store, "b.pdf", CrawlItem("a.pdf", "folder", "a.pdf", "file", "r1"))
    run(chore)
    assert names(tmp_path) == ["alice/Reports/a.pdf of alice.txt", "alice/b.pdf of alice.txt"]

    read(store, "c.pdf", CrawlItem("folder", "", "Berichte", "folder"))
    run(chore)

    assert "alice/Berichte/a.pdf of alice.txt" in names(tmp_path)
    assert not (tmp_path / "workspace/by-owner/alice/Reports").exists()


def test_one_that_cannot_be_named_holds_up_no_other_and_is_told(
    chore: NameDocuments, store: Store, tmp_path: Path, log: Any
) -> None:
    in_the_way = tmp_path / "workspace/by-owner/alice/a.pdf of alice.txt"
    in_the_way.mkdir(parents=True)
    read(store, "a.pdf")
    read(store, "b.pdf")

    run(chore)

    assert names(tmp_path) == ["alice/b.pdf of alice.txt"]
    assert set(log.heard) == {"documents.unnamed"}


def test_the_end_of_the_daemon_leaves_nothing_unnamed(chore: NameDocuments, store: Store, tmp_path: Path) -> None:
    run(chore)
    read(store, "a.pdf")
    store.intake.enqueue(NewJob("ocr_pages"))

    link_last_documents(chore.context)

    assert names(tmp_path) == ["alice/a.pdf of alice.txt"]
