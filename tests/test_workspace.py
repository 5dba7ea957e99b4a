from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.stored_documents import Shelf
from tests.store.kit import TYPES, ByHand, lay_out, work_as
from worker_service.base.errors import ConfigError
from worker_service.jobs.attempts import Checkpoint, Completion
from worker_service.jobs.documents import CrawlItem, CrawlPage, DocumentFacts, DocumentRequest, NewFile, PublishedFile
from worker_service.jobs.job import NewJob
from worker_service.jobs.workspace_names import LinkFacts, Links, links_of
from worker_service.store.opening import initialise, open_store
from worker_service.workspace import bind_to_database, update_due_links, update_links


@pytest.fixture
def database(tmp_path: Path) -> Path:
    lay_out(tmp_path / "pagemill.db")
    return tmp_path / "pagemill.db"


@pytest.fixture
def by_hand(database: Path) -> ByHand:
    return ByHand(database)


@pytest.fixture
def shelf(database: Path, tmp_path: Path) -> Iterator[Shelf]:
    store = open_store(database)
    work_as(store, types=(*TYPES, "crawl"))
    (tmp_path / "workspace").mkdir()
    yield Shelf(store, tmp_path / "workspace")
    store.close()


def add_read_document(
    shelf: Shelf, key: str, name: str = "", owner: str = "alice", *, roles: str = "original text pdf"
) -> int:
    """Store a document as a download and a reading would."""
    name = name or key.rpartition("/")[2]
    request = DocumentRequest(key, name, f"content of {key}")
    shelf.store.intake.enqueue(NewJob("ingest", platform="gdrive", owner=owner, document=request))
    job = shelf.next_job()
    files = []
    for role in roles.split():
        path = f"objects/{job.id}-{job.fence}/{role}"
        (shelf.workspace / path).parent.mkdir(parents=True, exist_ok=True)
        (shelf.workspace / path).write_text(f"{role} of {name}")
        files.append(NewFile(name if role == "original" else role, path, role, 1, f"{job.id}{role}"))
    shelf.store.leases.complete_many(
        [Completion(job.lease, files=files, document=DocumentFacts("pdf", 1), publishes=True)]
    )
    return job.document_id or 0


def crawl(shelf: Shelf, *items: CrawlItem, owner: str = "alice") -> None:
    shelf.store.intake.enqueue(NewJob("crawl", platform="gdrive", owner=owner))
    job = shelf.next_job()
    shelf.store.attempts.checkpoint(job.lease, Checkpoint("{}", crawl=CrawlPage(f"drive:{owner}", list(items))))
    shelf.store.leases.complete_many([Completion(job.lease)])


def links_and_contents(shelf: Shelf) -> dict[str, str]:
    """Return the links below by-owner with the contents of their targets."""
    assert update_due_links(shelf.store, shelf.workspace) == []
    top = shelf.workspace / "by-owner"
    found = [Path(folder, name) for folder, _, names in os.walk(top) for name in names]
    return {str(path.relative_to(top)): path.read_text() for path in sorted(found)}


def test_links_are_named_by_owner_folder_and_name(shelf: Shelf) -> None:
    add_read_document(shelf, "/srv/reports/2025/Annual report 2025.pdf")
    add_read_document(shelf, "https://ann:secret@example.com/reports%202024/q1.pdf", owner="bob", roles="original text")
    add_read_document(shelf, "file:///srv/caf%E9/menu.pdf", owner="carl", roles="original")
    add_read_document(shelf, "1a2b", "Water.pdf", owner="", roles="text")

    assert links_and_contents(shelf) == {
        "alice/srv/reports/2025/Annual report 2025.pdf": "original of Annual report 2025.pdf",
        "alice/srv/reports/2025/Annual report 2025.txt": "text of Annual report 2025.pdf",
        "alice/srv/reports/2025/Annual report 2025.ocr.pdf": "pdf of Annual report 2025.pdf",
        "bob/example.com/reports 2024/q1.pdf": "original of q1.pdf",
        "bob/example.com/reports 2024/q1.txt": "text of q1.pdf",
        "carl/srv/café/menu.pdf": "original of menu.pdf",
        "unowned/Water.txt": "text of Water.pdf",
    }


def test_links_are_relative_so_that_the_workspace_can_be_moved(shelf: Shelf, tmp_path: Path) -> None:
    add_read_document(shelf, "/srv/a.pdf", roles="original")
    links_and_contents(shelf)

    leads_to = (shelf.workspace / "by-owner/alice/srv/a.pdf").readlink()
    assert str(leads_to) == "../../../objects/1-1/original"
    moved = shelf.workspace.rename(tmp_path / "elsewhere")
    assert (moved / "by-owner/alice/srv/a.pdf").read_text() == "original of a.pdf"


def test_links_of_a_crawled_file_follow_its_folders(shelf: Shelf) -> None:
    folders = [CrawlItem("r", "", "Reports", "folder"), CrawlItem("f", "r", "2025", "folder")]
    crawl(shelf, *folders, CrawlItem("1a2b", "f", "a.pdf", "file", "r1"))
    document_id = add_read_document(shelf, "1a2b", "a.pdf", roles="original")
    assert links_and_contents(shelf) == {"alice/Reports/2025/a.pdf": "original of a.pdf"}

    crawl(shelf, CrawlItem("f", "r", "2026", "folder"))

    assert shelf.store.links.links_due() == [0]
    update_links(shelf.store, shelf.workspace, [document_id])
    assert links_and_contents(shelf) == {"alice/Reports/2026/a.pdf": "original of a.pdf"}
    assert not (shelf.workspace / "by-owner/alice/Reports/2025").exists()


def test_a_cycle_of_folders_ends(shelf: Shelf) -> None:
    crawl(shelf, CrawlItem("f", "g", "F", "folder"), CrawlItem("g", "f", "G", "folder"), CrawlItem("1", "f", "a.pdf"))
    add_read_document(shelf, "1", "a.pdf", roles="original")

    assert list(links_and_contents(shelf).values()) == ["original of a.pdf"]


def test_links_follow_a_renamed_document(shelf: Shelf) -> None:
    add_read_document(shelf, "k", "a.pdf", roles="original text")
    assert list(links_and_contents(shelf)) == ["alice/a.pdf", "alice/a.txt"]

    # Renamed at its source, and nothing else has changed; only the capitals; and read again, from other files.
    for name in ("b.pdf", "B.pdf"):
        request = DocumentRequest("k", name, "content of k")
        shelf.store.intake.enqueue(NewJob("ingest", platform="gdrive", owner="alice", document=request))
        assert list(links_and_contents(shelf)) == [f"alice/{name[0]}.pdf", f"alice/{name[0]}.txt"]
    request = DocumentRequest("k", "B.pdf", "content of k", is_forced=True)
    shelf.store.intake.enqueue(NewJob("ingest", platform="gdrive", owner="alice", document=request))
    job = shelf.next_job()
    shelf.publish(job, "new", "new text")

    assert links_and_contents(shelf) == {"alice/B.pdf": "original of a.pdf", "alice/B.txt": "new text"}


def test_a_download_has_a_link_before_it_is_read(shelf: Shelf) -> None:
    shelf.store.intake.enqueue(NewJob("download", platform="gdrive", owner="alice"))
    job = shelf.next_job()
    path = f"objects/{job.id}-{job.fence}/a.pdf"
    (shelf.workspace / path).parent.mkdir(parents=True)
    (shelf.workspace / path).write_text("downloaded")
    request = NewJob("ingest", platform="gdrive", document=DocumentRequest("k", "a.pdf", "c1"))
    original = NewFile("a.pdf", path, "original", 1, "c1")
    shelf.store.leases.complete_many([Completion(job.lease, files=[original], follow_ups=[request])])

    assert links_and_contents(shelf) == {"alice/a.pdf": "downloaded"}


def test_links_and_empty_folders_of_a_removed_document_are_removed(shelf: Shelf) -> None:
    gone = add_read_document(shelf, "/srv/deep/down/a.pdf")
    add_read_document(shelf, "/srv/b.pdf", roles="original")
    links_and_contents(shelf)

    shelf.store.removal.remove_documents([gone], actor="ann")

    assert list(links_and_contents(shelf)) == ["alice/srv/b.pdf"]
    assert not (shelf.workspace / "by-owner/alice/srv/deep").exists()
    assert shelf.store.links.links_of(gone) == []


def test_removed_links_are_restored_and_foreign_files_kept(shelf: Shelf) -> None:
    mine = add_read_document(shelf, "/srv/mine.pdf", roles="original text")
    other = add_read_document(shelf, "/srv/other.pdf", roles="original")
    whole = links_and_contents(shelf)
    folder = shelf.workspace / "by-owner/alice/srv"
    (folder / "mine.txt").unlink()
    (folder / "mine.pdf").unlink()
    (folder / "mine.pdf").write_text("a person's own")
    (folder / "other.pdf").unlink()
    (folder / "other.pdf").symlink_to("/etc/passwd")

    [error] = update_links(shelf.store, shelf.workspace, [mine, other])

    assert "mine.pdf is not a link of ours" in error
    assert links_and_contents(shelf) == {**whole, "alice/srv/mine.pdf": "a person's own"}
    shelf.store.removal.remove_documents([mine, other], actor="ann")
    assert links_and_contents(shelf) == {"alice/srv/mine.pdf": "a person's own"}


def test_no_link_is_followed_to_make_a_link(shelf: Shelf, tmp_path: Path) -> None:
    document_id = add_read_document(shelf, "/srv/a.pdf", roles="original")
    (tmp_path / "elsewhere").mkdir()
    (shelf.workspace / "by-owner/alice").mkdir(parents=True)
    (shelf.workspace / "by-owner/alice/srv").symlink_to(tmp_path / "elsewhere")

    [error] = update_links(shelf.store, shelf.workspace, [document_id])

    assert "is no folder" in error
    assert list((tmp_path / "elsewhere").iterdir()) == []


class Interrupted(Exception):
    pass


class Steps:
    """Raises `Interrupted` before one more call than `left`."""

    def __init__(self, left: int) -> None:
        self.left = left

    def before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def do(*arguments: Any, **words: Any) -> Any:
            if self.left == 0:
                raise Interrupted
            self.left -= 1
            return call(*arguments, **words)

        return do


def test_an_interrupted_update_is_completed_by_the_next(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, str]] = [(os, "mkdir"), (os, "symlink"), (os, "unlink"), (os, "rmdir")]
    calls += [(shelf.store.links, "save_links"), (shelf.store.links, "mark_links_made")]
    document_id = add_read_document(shelf, "/in/a.pdf", "0.pdf", roles="original text")

    for number in range(100):
        steps = Steps(number)
        request = DocumentRequest("/in/a.pdf", f"{number}.pdf", "content of /in/a.pdf")
        shelf.store.intake.enqueue(NewJob("ingest", platform="gdrive", owner="alice", document=request))
        with monkeypatch.context() as cut:
            for place, name in calls:
                cut.setattr(place, name, steps.before(getattr(place, name)))
            with suppress(Interrupted):
                update_links(shelf.store, shelf.workspace, [document_id])
        assert list(links_and_contents(shelf)) == [f"alice/in/{number}.pdf", f"alice/in/{number}.txt"]
        assert len(shelf.store.links.links_of(document_id)) == 2
        if steps.left:
            break
    assert number > 5


# --- hostile names ---


def test_equal_names_get_the_number_of_their_document(shelf: Shelf) -> None:
    for key in ("1", "2", "3"):
        add_read_document(shelf, key, "a.pdf" if key != "3" else "A.PDF", roles="original text")
    add_read_document(shelf, "4", "a.ocr.pdf", roles="original")
    add_read_document(shelf, "5", "a (2).pdf", roles="original")

    assert list(links_and_contents(shelf)) == [
        "alice/A (3).PDF", "alice/A (3).txt", "alice/a (2) (5).pdf", "alice/a (2).pdf", "alice/a (2).txt",
        "alice/a.ocr.pdf", "alice/a.pdf", "alice/a.txt",
    ]  # fmt: skip


def test_a_file_and_a_folder_of_one_name_both_get_links(shelf: Shelf) -> None:
    add_read_document(shelf, "/srv/x.pdf", roles="original")
    add_read_document(shelf, "/srv/x.pdf/inner.pdf", roles="original")
    add_read_document(shelf, "/srv/y.pdf/inner.pdf", roles="original")
    last = add_read_document(shelf, "/srv/y.pdf", roles="original")

    assert list(links_and_contents(shelf)) == [
        "alice/srv/x.pdf", "alice/srv/x.pdf_/inner.pdf", f"alice/srv/y ({last}).pdf", "alice/srv/y.pdf/inner.pdf",
    ]  # fmt: skip


HOSTILE = (
    "", ".", "..", "../../etc/passwd", "/etc/passwd", "-rf", ".hidden", "a\0b", "new\nline", "\x1b[2J", "con",
    "x" * 300, "ü" * 300, "\u202egnp.exe", "a/b\\c", " ", "...", "by-owner", "A", "a", "\ufffd", "a.pdf/../b",
)  # fmt: skip


def test_hostile_names_become_safe_and_unique(shelf: Shelf) -> None:
    ids = []
    for number, name in enumerate(HOSTILE):
        crawl(shelf, CrawlItem(f"d{number}", "", name, "folder"), CrawlItem(f"k{number}", f"d{number}", name, "file"))
        crawl(shelf, CrawlItem(f"k{number}", "", name, "file"), owner=name)
        ids.append(add_read_document(shelf, f"k{number}", name, roles="original text"))
        ids.append(add_read_document(shelf, f"k{number}", name, owner=name or "x", roles="original"))

    found = links_and_contents(shelf)

    assert len(found) == 3 * len(HOSTILE)
    assert len({unicodedata.normalize("NFC", name.casefold()) for name in found}) == len(found)
    for name in found:
        assert ".." not in name.split("/")
        assert all(unicodedata.category(character)[0] != "C" for character in name)
        assert all(0 < len(part.encode()) <= 255 and part[0] not in ". " for part in name.split("/"))
    shelf.store.removal.remove_documents(ids, actor="ann")
    assert links_and_contents(shelf) == {}


@settings(max_examples=60, deadline=None)
@given(st.text(), st.text(), st.text(), st.lists(st.text(), max_size=40))
def test_any_names_give_safe_links_below_the_owner(owner: str, name: str, key: str, folders: list[str]) -> None:
    files = [
        PublishedFile(1, 1, role, file_name, f"objects/1-1/{role}", 1, "", "")
        for role, file_name in (("original", name), ("text", "t"), ("pdf", "p"))
    ]

    links = links_of(LinkFacts(7, owner, name, key, folders, files))

    assert links.folders[0] == "by-owner"
    assert len("/".join(links.folders).encode()) < 2000
    names = [f"{stem}{ending}" for stem in links.stems() for ending, _ in links.targets]
    assert len(set(names)) == len(names)
    for part in (*links.folders, *names):
        assert part not in ("", ".", "..")
        assert not set(part) & set("/\0")
        assert len(part.encode()) <= 255


def test_no_two_owners_share_a_folder() -> None:
    owners = ["", "unowned", "a/b", "a_b", "a:b", " a_b", "alice", "alice "]

    folders = {links_of(LinkFacts(1, owner, "a.pdf", "k", (), ())).folders[1] for owner in owners}

    assert len(folders) == len(owners)


def test_a_document_without_files_has_no_links() -> None:
    assert links_of(LinkFacts(1, "alice", "a.pdf", "k", (), ())) == Links(1, ("by-owner", "alice"), "a")


def identity(path: Path) -> str:
    initialise(path)
    store = open_store(path)
    try:
        return store.job_queries.database_id()
    finally:
        store.close()


def test_a_database_may_use_its_workspace_again(tmp_path: Path) -> None:
    ours = identity(tmp_path / "a.db")

    bind_to_database(tmp_path / "workspace", ours)
    bind_to_database(tmp_path / "workspace", ours)

    assert identity(tmp_path / "a.db") == ours


def test_another_database_may_not_use_the_workspace(tmp_path: Path) -> None:
    bind_to_database(tmp_path / "workspace", identity(tmp_path / "a.db"))

    with pytest.raises(ConfigError, match=r"belongs to another database.*WORKER_WORKSPACE"):
        bind_to_database(tmp_path / "workspace", identity(tmp_path / "b.db"))
