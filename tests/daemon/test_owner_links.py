"""Links in `by-owner/`: made after commits, in small steps, and again where they are missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.daemon.conftest import ManualClock, context_in
from tests.store.kit import ByHand, reading_job, work_as
from worker_service.daemon.chores import SCAN_SECONDS, LinkDocuments, link_due_documents
from worker_service.jobs.attempts import Checkpoint, Completion
from worker_service.jobs.documents import CrawlItem, CrawlPage, NewFile
from worker_service.jobs.job import NewJob
from worker_service.store.store import Store


@pytest.fixture
def chore(store: Store, tmp_path: Path, log: Any, monotonic: ManualClock) -> LinkDocuments:
    work_as(store)
    (tmp_path / "workspace").mkdir()
    return LinkDocuments(context_in(tmp_path, store, log, monotonic=monotonic))


def publish_text(store: Store, key: str, crawled: CrawlItem | None = None) -> None:
    store.intake.enqueue(reading_job(key, owner="alice"))
    [job] = store.leases.claim("w1", 1)
    if crawled is not None:
        store.attempts.checkpoint(job.lease, Checkpoint("{}", crawl=CrawlPage("c", [crawled])))
    file = NewFile("text.txt", f"objects/{job.id}-1/text.txt", "text")
    store.leases.complete_many([Completion(job.lease, files=[file], publishes=True)])


def links(tmp_path: Path) -> list[str]:
    top = tmp_path / "workspace/by-owner"
    return sorted(str(path.relative_to(top)) for path in top.rglob("*") if path.is_symlink())


def run_until_idle(chore: LinkDocuments) -> int:
    """Run the chore until nothing is due. Return the number of runs."""
    runs = 1
    while chore.run() < 1:
        runs += 1
    return runs


def test_a_published_document_is_linked_after_the_commit(chore: LinkDocuments, store: Store, tmp_path: Path) -> None:
    run_until_idle(chore)
    publish_text(store, "a.pdf")

    assert links(tmp_path) == []
    run_until_idle(chore)

    assert links(tmp_path) == ["alice/a.pdf of alice.txt"]
    assert run_until_idle(chore) == 1


def test_a_deleted_link_is_made_again_within_an_hour(
    chore: LinkDocuments, store: Store, tmp_path: Path, monotonic: ManualClock
) -> None:
    publish_text(store, "a.pdf")
    run_until_idle(chore)
    [name] = links(tmp_path)
    (tmp_path / "workspace/by-owner" / name).unlink()

    run_until_idle(chore)
    assert links(tmp_path) == []
    monotonic.now += SCAN_SECONDS
    run_until_idle(chore)

    assert links(tmp_path) == [name]


def test_a_starting_daemon_links_all_documents_in_small_steps(
    chore: LinkDocuments, store: Store, database: Path, tmp_path: Path
) -> None:
    for number in range(120):
        publish_text(store, f"{number}.pdf")
    ByHand(database)("DELETE FROM link_due")

    assert run_until_idle(chore) > 3
    assert len(links(tmp_path)) == 120


def test_a_renamed_folder_moves_the_links_of_its_documents(chore: LinkDocuments, store: Store, tmp_path: Path) -> None:
    publish_text(store, "a.pdf", CrawlItem("folder", "", "Reports", "folder"))
    publish_text(store, "b.pdf", CrawlItem("a.pdf", "folder", "a.pdf", "file", "r1"))
    run_until_idle(chore)
    assert links(tmp_path) == ["alice/Reports/a.pdf of alice.txt", "alice/b.pdf of alice.txt"]

    publish_text(store, "c.pdf", CrawlItem("folder", "", "Berichte", "folder"))
    run_until_idle(chore)

    assert "alice/Berichte/a.pdf of alice.txt" in links(tmp_path)
    assert not (tmp_path / "workspace/by-owner/alice/Reports").exists()


def test_a_link_that_cannot_be_made_is_logged_and_delays_no_other(
    chore: LinkDocuments, store: Store, tmp_path: Path, log: Any
) -> None:
    in_the_way = tmp_path / "workspace/by-owner/alice/a.pdf of alice.txt"
    in_the_way.mkdir(parents=True)
    publish_text(store, "a.pdf")
    publish_text(store, "b.pdf")

    run_until_idle(chore)

    assert links(tmp_path) == ["alice/b.pdf of alice.txt"]
    assert set(log.events) == {"documents.unnamed"}


def test_due_links_are_made_when_the_daemon_ends(chore: LinkDocuments, store: Store, tmp_path: Path) -> None:
    run_until_idle(chore)
    publish_text(store, "a.pdf")
    store.intake.enqueue(NewJob("ocr_pages"))

    link_due_documents(chore.context)

    assert links(tmp_path) == ["alice/a.pdf of alice.txt"]
