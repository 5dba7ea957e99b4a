"""Pages as images: what strangers made is opened in a child, drawn once, and kept up to a bound."""

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
def drawer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageRenderer]:
    with closing(drawer_of(tmp_path_factory.mktemp("home"))) as drawer:
        yield drawer


def drawer_of(home: Path) -> PageRenderer:
    return PageRenderer(load_settings(environ={"HOME": str(home)}, directory=home))


class BusyRenderer(PageRenderer):
    def render(self, *_: object) -> None:
        raise RendererBusy("too many pages are being rendered", "try again in a moment")


def published(session: Session, make: Callable[[Path], object], pages: int = 1, settings: str = "") -> int:
    workspace = session.settings.workspace
    texts = ["text"] * pages
    document_id = Shelf(session.store, workspace).read("a.pdf", *texts, roles=("original",), settings=settings)
    [file] = session.store.library.files(document_id)
    make(workspace / file.path)
    return document_id


def test_a_page_is_drawn_as_wide_as_asked_with_the_places_of_its_own_words(
    session: Session, drawer: PageRenderer
) -> None:
    text = prose(3)
    document_id = published(session, lambda path: digital(path, [prose(1), text]), 2)

    drawn = page_image(session, drawer, document_id, 2, 1000)

    with Image.open(drawn.path) as image:
        assert (image.format, image.size) == ("WEBP", (1200, 1699))
    assert [one.text for one in drawn.words] == text.split()
    assert drawn.size == (595.0, 842.0)
    assert all(0 <= one.x0 < one.x1 <= 595 and 0 <= one.y0 < one.y1 <= 842 for one in drawn.words)


def test_what_lies_turned_has_its_words_where_they_are_seen(session: Session, drawer: PageRenderer) -> None:
    document_id = published(session, lambda path: digital(path, [prose(1)], rotation=90))

    drawn = page_image(session, drawer, document_id, 1)

    assert drawn.size == (842.0, 595.0)
    assert drawn.words[0].x0 > 700
    assert drawn.words[0].x1 - drawn.words[0].x0 < drawn.words[0].y1 - drawn.words[0].y0


def test_a_page_is_drawn_once_whoever_looks_at_the_same_time(session: Session, drawer: PageRenderer) -> None:
    document_id = published(session, lambda path: scan(path, [picture("climate risk", dpi=72)]))
    first = page_image(session, drawer, document_id, 1)
    before = first.path.stat().st_ino

    with ThreadPoolExecutor(4) as threads:
        sessions = [open_session(session.settings) for _ in range(4)]
        again = list(threads.map(lambda one: page_image(one, drawer, document_id, 1), sessions))
    for one in sessions:
        one.close()

    assert {one.path.stat().st_ino for one in again} == {before}
    assert first.words == []


def test_without_its_password_a_page_has_a_sentence_instead_of_an_image(
    session: Session, drawer: PageRenderer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document_id = published(
        session,
        lambda path: digital(path, ["secret"], encryption=5, user_pw="x", owner_pw="y"),
        settings='{"password_file": "password-a"}',
    )

    with pytest.raises(NoPageImage, match=r"has no such credential: add LoadCredential=password-a"):
        page_image(session, drawer, document_id, 1)

    (tmp_path / "password-a").write_text("x\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    with closing(drawer_of(tmp_path)) as knowing:
        assert page_image(session, knowing, document_id, 1).path.is_file()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: path.write_bytes(b"%PDF-1.7\nnothing"), "page 1 could not be rendered"),
        (lambda path: digital(path, ["secret"], encryption=5, user_pw="x", owner_pw="y"), "locked with a password"),
        (lambda path: path.unlink(), "is no longer in the workspace: pagemill reindex 1"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_words_and_the_next_page_is_drawn(
    session: Session, drawer: PageRenderer, make: Callable[[Path], object], why: str
) -> None:
    document_id = published(session, make)

    with pytest.raises(NoPageImage, match=why):
        page_image(session, drawer, document_id, 1)

    workspace = session.settings.workspace
    another = Shelf(session.store, workspace).read("b.pdf", "text", roles=("original",))
    digital(workspace / session.store.library.files(another)[0].path, ["fine"])
    assert page_image(session, drawer, another, 1).path.is_file()


def test_a_password_is_not_taken_for_right_while_the_renderer_is_busy(session: Session, tmp_path: Path) -> None:
    document_id = published(session, lambda path: digital(path, [prose(1)]))
    renderer = BusyRenderer(load_settings(environ={"HOME": str(tmp_path)}, directory=tmp_path))

    document = session.library.document(document_id)

    with pytest.raises(RendererBusy):
        unlock_document(session, renderer, document, "sesame", is_kept=True)

    assert passwords.find(session.settings.workspace, document) is None


def test_a_page_that_the_file_does_not_have_is_refused(session: Session, drawer: PageRenderer) -> None:
    document_id = published(session, lambda path: digital(path, ["one"]))

    with pytest.raises(NoPageImage, match="it has 1 page, and none is page 7"):
        page_image(session, drawer, document_id, 7)


def test_a_spreadsheet_and_what_was_read_elsewhere_have_no_images(session: Session, drawer: PageRenderer) -> None:
    shelf = Shelf(session.store, session.settings.workspace)
    sheet, elsewhere = shelf.read("a.xlsx", "1 2", kind="sheet"), shelf.read("b.pdf", "words")

    with pytest.raises(NoPageImage, match="its rows are shown"):
        page_image(session, drawer, sheet, 1)
    with pytest.raises(NoPageImage, match="only its text is stored"):
        page_image(session, drawer, elsewhere, 1)


def test_nothing_of_a_removed_document_is_left(session: Session, drawer: PageRenderer) -> None:
    document_id = published(session, lambda path: digital(path, ["one"]))
    drawn = page_image(session, drawer, document_id, 1)

    remove_documents(session, selected_documents(session, read_document_selector(now=wall_clock(), ids=[document_id])))

    assert not drawn.path.exists()
    assert not image_directory(session.settings.workspace, document_id).exists()


def test_what_nobody_has_looked_at_for_longest_goes_first(session: Session, drawer: PageRenderer) -> None:
    document_id = published(session, lambda path: digital(path, [prose(1), prose(2)]), 2)
    one, two = (page_image(session, drawer, document_id, number).path for number in (1, 2))
    for path in (two, two.with_suffix(".json")):
        os.utime(path, (1, 1))

    sweep(session, bytes_max=one.stat().st_size + two.stat().st_size)

    assert one.exists()
    assert not two.exists()


def own_processes() -> set[int]:
    """Begun by whichever thread."""
    return {int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def test_a_page_is_drawn_although_the_fork_server_has_been_killed(session: Session, tmp_path: Path) -> None:
    document_id = published(session, lambda path: digital(path, [prose(1), prose(2)]), 2)
    # Others, of tests before this one, may be there still.
    others = own_processes()
    with closing(drawer_of(tmp_path)) as drawer:
        page_image(session, drawer, document_id, 1)
        [fork_server] = own_processes() - others

        os.kill(fork_server, signal.SIGKILL)

        assert page_image(session, drawer, document_id, 2).path.is_file()
        assert fork_server not in own_processes()


def test_nobody_who_looks_leaves_nothing_running(session: Session) -> None:
    document_id = published(session, lambda path: digital(path, ["one"]))
    drawer = PageRenderer(session.settings, idle_seconds=0.01)

    page_image(session, drawer, document_id, 1, 1200)
    deadline = time.monotonic() + 30
    while drawer.is_running and time.monotonic() < deadline:
        time.sleep(0.01)

    assert not drawer.is_running
    assert page_image(session, drawer, document_id, 1, 600).path.is_file()
    drawer.close()
