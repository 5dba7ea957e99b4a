"""Images of pages are rendered once, in a child process, and cached up to a limit."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from PIL import Image

from tests.cli.stored_documents import Shelf
from tests.job_handlers.reading.documents import digital, picture, prose, scan
from tests.store.kit import lay_out, work_as
from worker_service.base.clock import wall_clock
from worker_service.services import passwords
from worker_service.services.document_removal import remove_documents
from worker_service.services.documents import selected_documents
from worker_service.services.page_images import (
    NoPageImage,
    PageRenderer,
    RendererBusy,
    image_directory,
    page_image,
    sweep,
)
from worker_service.services.parse import read_document_selector
from worker_service.services.session import Session, open_session
from worker_service.settings.loading import load_settings
from worker_service.web.resources.read_requests import unlock_document


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    settings = load_settings(environ={"HOME": str(tmp_path)}, directory=tmp_path)
    lay_out(settings.database)
    opened = open_session(settings, actor="ann")
    work_as(opened.store)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageRenderer]:
    with closing(renderer_of(tmp_path_factory.mktemp("home"))) as renderer:
        yield renderer


def renderer_of(home: Path) -> PageRenderer:
    return PageRenderer(load_settings(environ={"HOME": str(home)}, directory=home))


class BusyRenderer(PageRenderer):
    def render(self, *_: object) -> None:
        raise RendererBusy("too many pages are being rendered", "try again in a moment")


def publish_document(session: Session, make: Callable[[Path], object], pages: int = 1, settings: str = "") -> int:
    workspace = session.settings.workspace
    texts = ["text"] * pages
    document_id = Shelf(session.store, workspace).read("a.pdf", *texts, roles=("original",), settings=settings)
    [file] = session.library.files(document_id)
    make(workspace / file.path)
    return document_id


def test_a_page_is_rendered_in_the_next_width_with_the_boxes_of_its_words(
    session: Session, renderer: PageRenderer
) -> None:
    text = prose(3)
    document_id = publish_document(session, lambda path: digital(path, [prose(1), text]), 2)

    image = page_image(session, renderer, document_id, 2, 1000)

    with Image.open(image.path) as file:
        assert (file.format, file.size) == ("WEBP", (1200, 1699))
    assert [word.text for word in image.words] == text.split()
    assert image.size == (595.0, 842.0)
    assert all(0 <= word.x0 < word.x1 <= 595 and 0 <= word.y0 < word.y1 <= 842 for word in image.words)


def test_words_of_a_rotated_page_have_the_boxes_that_are_seen(session: Session, renderer: PageRenderer) -> None:
    document_id = publish_document(session, lambda path: digital(path, [prose(1)], rotation=90))

    image = page_image(session, renderer, document_id, 1)

    assert image.size == (842.0, 595.0)
    assert image.words[0].x0 > 700
    assert image.words[0].x1 - image.words[0].x0 < image.words[0].y1 - image.words[0].y0


def test_a_cached_page_is_not_rendered_again_for_concurrent_requests(session: Session, renderer: PageRenderer) -> None:
    document_id = publish_document(session, lambda path: scan(path, [picture("climate risk", dpi=72)]))
    first = page_image(session, renderer, document_id, 1)
    inode = first.path.stat().st_ino

    with ThreadPoolExecutor(4) as threads:
        sessions = [open_session(session.settings) for _ in range(4)]
        images = list(threads.map(lambda session: page_image(session, renderer, document_id, 1), sessions))
    for opened in sessions:
        opened.close()

    assert {image.path.stat().st_ino for image in images} == {inode}
    assert first.words == []


def test_a_page_of_a_locked_file_is_rendered_only_with_the_credential(
    session: Session, renderer: PageRenderer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document_id = publish_document(
        session,
        lambda path: digital(path, ["secret"], encryption=5, user_pw="x", owner_pw="y"),
        settings='{"password_file": "password-a"}',
    )

    with pytest.raises(NoPageImage, match=r"has no such credential: add LoadCredential=password-a"):
        page_image(session, renderer, document_id, 1)

    (tmp_path / "password-a").write_text("x\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    with closing(renderer_of(tmp_path)) as renderer_with_credential:
        assert page_image(session, renderer_with_credential, document_id, 1).path.is_file()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.write_bytes(b"%PDF-1.7\nnothing"), "page 1 could not be rendered"),
        (lambda path: digital(path, ["secret"], encryption=5, user_pw="x", owner_pw="y"), "locked with a password"),
        (lambda path: path.unlink(), "is no longer in the workspace: pagemill reindex 1"),
    ],
)
def test_a_page_that_cannot_be_rendered_is_refused_and_the_next_one_is_rendered(
    session: Session, renderer: PageRenderer, make: Callable[[Path], object], reason: str
) -> None:
    document_id = publish_document(session, make)

    with pytest.raises(NoPageImage, match=reason):
        page_image(session, renderer, document_id, 1)

    workspace = session.settings.workspace
    other_id = Shelf(session.store, workspace).read("b.pdf", "text", roles=("original",))
    digital(workspace / session.library.files(other_id)[0].path, ["fine"])
    assert page_image(session, renderer, other_id, 1).path.is_file()


def test_a_password_is_not_accepted_while_the_renderer_is_busy(session: Session, tmp_path: Path) -> None:
    document_id = publish_document(session, lambda path: digital(path, [prose(1)]))
    renderer = BusyRenderer(load_settings(environ={"HOME": str(tmp_path)}, directory=tmp_path))

    document = session.library.document(document_id)

    with pytest.raises(RendererBusy):
        unlock_document(session, renderer, document, "sesame", is_kept=True)

    assert passwords.find(session.settings.workspace, document) is None


def test_a_page_number_beyond_the_last_is_refused(session: Session, renderer: PageRenderer) -> None:
    document_id = publish_document(session, lambda path: digital(path, ["one"]))

    with pytest.raises(NoPageImage, match="it has 1 page, and none is page 7"):
        page_image(session, renderer, document_id, 7)


def test_spreadsheets_and_documents_without_files_have_no_images(session: Session, renderer: PageRenderer) -> None:
    shelf = Shelf(session.store, session.settings.workspace)
    sheet, elsewhere = shelf.read("a.xlsx", "1 2", kind="sheet"), shelf.read("b.pdf", "words")

    with pytest.raises(NoPageImage, match="its rows are shown"):
        page_image(session, renderer, sheet, 1)
    with pytest.raises(NoPageImage, match="only its text is stored"):
        page_image(session, renderer, elsewhere, 1)


def test_removing_a_document_deletes_its_images(session: Session, renderer: PageRenderer) -> None:
    document_id = publish_document(session, lambda path: digital(path, ["one"]))
    image = page_image(session, renderer, document_id, 1)

    remove_documents(session, selected_documents(session, read_document_selector(now=wall_clock(), ids=[document_id])))

    assert not image.path.exists()
    assert not image_directory(session.settings.workspace, document_id).exists()


def test_a_sweep_deletes_the_least_recently_viewed_image_first(session: Session, renderer: PageRenderer) -> None:
    document_id = publish_document(session, lambda path: digital(path, [prose(1), prose(2)]), 2)
    recent, old = (page_image(session, renderer, document_id, number).path for number in (1, 2))
    for path in (old, old.with_suffix(".json")):
        os.utime(path, (1, 1))

    sweep(session, bytes_max=recent.stat().st_size + old.stat().st_size)

    assert recent.exists()
    assert not old.exists()


def child_processes() -> set[int]:
    """Return the children of all threads."""
    return {int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def test_a_page_is_rendered_after_the_fork_server_was_killed(session: Session, tmp_path: Path) -> None:
    document_id = publish_document(session, lambda path: digital(path, [prose(1), prose(2)]), 2)
    # Children of earlier tests may still run.
    earlier_children = child_processes()
    with closing(renderer_of(tmp_path)) as renderer:
        page_image(session, renderer, document_id, 1)
        [fork_server] = child_processes() - earlier_children

        os.kill(fork_server, signal.SIGKILL)

        assert page_image(session, renderer, document_id, 2).path.is_file()
        assert fork_server not in child_processes()


def test_an_idle_renderer_stops_and_starts_again(session: Session) -> None:
    document_id = publish_document(session, lambda path: digital(path, ["one"]))
    renderer = PageRenderer(session.settings, idle_seconds=0.01)

    page_image(session, renderer, document_id, 1, 1200)
    deadline = time.monotonic() + 30
    while renderer.is_running and time.monotonic() < deadline:
        time.sleep(0.01)

    assert not renderer.is_running
    assert page_image(session, renderer, document_id, 1, 600).path.is_file()
    renderer.close()
