"""Page images for viewing documents: rendered on demand and cached for a while.

Only a sandboxed child process opens untrusted files. A fork server runs a handler, one page at a time, and exits after
a minute without requests. The images are cached in the workspace by document, file, page and width, up to a size limit.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread

from msgspec import Struct, field

from worker_service.base.errors import PagemillError
from worker_service.base.files import move_file
from worker_service.jobs.documents import IndexStatus, KnownDocument, PublishedFile
from worker_service.jobs.library import Document, DocumentSelector
from worker_service.runner.messages import Begin, Ended, How, Order
from worker_service.runner.pool import ChildError, LocalPool, attempt_events, open_pool
from worker_service.services.database import Session
from worker_service.settings.config import Settings

PAGE_RENDERER = "job_handlers.reading.page_image:page_image"
"""The handler that renders a page."""
WIDTHS = (600, 1200, 1800)
"""Pixels."""

_BYTES_MOST = 512 << 20
_KEPT = 0.75
"""Fraction of the limit that a sweep leaves."""
_WRITTEN_MOST = 50
"""Number of rendered pages between two checks of the cache size."""
_IDLE_SECONDS = 60.0
_WAITING_MOST = 4
"""Longest queue: the web server has few threads, which also serve other requests."""
_WAIT_SECONDS = 45.0
_CLOSE_SECONDS = 2.0


class NotDrawn(PagemillError):
    """The page has no image."""

    code = "not_drawn"
    exit_code = 66


class DrawsOthers(NotDrawn):
    """The renderer is busy; try again later."""

    code = "too_many_drawn"
    exit_code = 75


class PlacedWord(Struct, frozen=True):
    x0: float
    y0: float
    x1: float
    y1: float
    text: str


class PageImage(Struct, frozen=True):
    path: Path
    """A WebP file."""
    words: Sequence[PlacedWord]
    """Words of the page's text layer in points; empty for a scan."""
    size: tuple[float, float]
    """Page size in points."""


class _Wish(Struct, frozen=True):
    source: Path
    settings: str
    page: int
    width: int
    target: Path
    answer: Future[None] = field(default_factory=Future)


def page_image(
    session: Session,
    drawer: Drawer,
    document_id: int,
    page: int,
    width: int = WIDTHS[1],
    *,
    wait_seconds: float = _WAIT_SECONDS,
) -> PageImage:
    """Return the image of a page, rendering it if it is not cached. `width` is rounded to one of `WIDTHS`."""
    document = session.store.library.document(document_id)
    file = _to_draw(document, session.store.library.files(document_id))
    source = session.settings.workspace / file.path
    if not source.is_file():
        raise NotDrawn(f"{source} is not in the workspace any more", f"pagemill reindex {document.id} brings it back")
    known = min((one for one in WIDTHS if one >= width), default=WIDTHS[-1])
    target = place_of(session.settings.workspace, document_id) / f"{file.id}-{page}-{known}.webp"
    if not _is_there(target):
        drawer.draw(_Wish(source, document.settings, page, known, target), wait_seconds)
        if drawer.is_to_be_swept():
            sweep(session)
    return _drawn(target)


def why_none(document: Document, files: Sequence[PublishedFile]) -> str:
    """Return why the document's pages cannot be shown as images; empty if they can."""
    try:
        _to_draw(document, files)
    except NotDrawn as error:
        return str(error)
    return ""


def place_of(workspace: Path, document_id: int) -> Path:
    return _place(workspace) / str(document_id)


def forget(workspace: Path, document_ids: Sequence[int]) -> None:
    """Delete the images of removed documents."""
    for document_id in document_ids:
        shutil.rmtree(place_of(workspace, document_id), ignore_errors=True)


def sweep(session: Session, *, bytes_most: int = _BYTES_MOST) -> None:
    """Delete the images of removed documents, and the least recently viewed ones if the cache is over its limit."""
    place = _place(session.settings.workspace)
    ids = [int(folder.name) for folder in place.iterdir() if folder.name.isdigit()] if place.is_dir() else []
    there = {one.id for one in session.store.library.documents(DocumentSelector(ids=ids), most=len(ids))} if ids else ()
    forget(session.settings.workspace, [one for one in ids if one not in there])
    found: list[tuple[float, int, Path]] = []
    for path in place.glob("*/*"):
        with suppress(OSError):
            seen = path.stat()
            found.append((seen.st_mtime, seen.st_size, path))
    size = sum(one[1] for one in found)
    left = size if size <= bytes_most else bytes_most * _KEPT
    for _, freed, path in sorted(found):
        if size <= left:
            break
        path.unlink(missing_ok=True)
        size -= freed


def _place(workspace: Path) -> Path:
    return workspace / "page-images"


def _to_draw(document: Document, files: Sequence[PublishedFile]) -> PublishedFile:
    """Return the original, or the PDF made when it was read if the original is newer than the current text."""
    if document.kind == "sheet":
        raise NotDrawn("a spreadsheet has no pages to be drawn: its rows are shown")
    if not document.has_pages_to_see:
        raise NotDrawn("it has no pages of its own: its text is shown")
    roles = ("original", "pdf") if document.status is IndexStatus.SUCCESS else ("pdf", "original")
    for role in roles:
        for file in files:
            if file.role == role:
                _refuse_locked(document)
                return file
    raise NotDrawn(f"document {document.id} has no file in the workspace: what was read elsewhere has its text alone")


def _refuse_locked(document: Document) -> None:
    """Raise `NotDrawn` if the file needs a password that this process has not: credentials are per service."""
    name = _password_credential(document.settings)
    if name is not None and not Path(os.environ.get("CREDENTIALS_DIRECTORY", "/nowhere"), name).is_file():
        raise NotDrawn(
            f"its file opens with the password {name!r}, and `pagemill serve` has no such credential",
            f"give it to pagemill-web.service as well (LoadCredential={name}:…), and restart it",
        )


def _password_credential(settings: str) -> str | None:
    """Return the name of the credential that opens a document with these reading settings; None if it needs none."""
    try:
        name = json.loads(settings or "{}").get("password_file")
    except (ValueError, AttributeError):
        return None
    return name if isinstance(name, str) else None


def _is_there(target: Path) -> bool:
    try:
        # Record the view: a sweep deletes the least recently viewed images first.
        os.utime(_words_of(target))
        os.utime(target)
    except OSError:
        return target.is_file() and _words_of(target).is_file()
    return True


def _words_of(target: Path) -> Path:
    return target.with_suffix(".json")


def _drawn(target: Path) -> PageImage:
    try:
        told = json.loads(_words_of(target).read_bytes())
    except (OSError, ValueError) as error:
        raise NotDrawn("its image has just been swept", "ask again") from error
    width, height = told["size"]
    return PageImage(target, [PlacedWord(*one) for one in told["words"]], (width, height))


class Drawer:
    """Renders one page at a time for all threads of a process."""

    def __init__(self, settings: Settings, *, idle_seconds: float = _IDLE_SECONDS) -> None:
        self._settings, self._idle_seconds = settings, idle_seconds
        self._wishes: queue.Queue[_Wish | None] = queue.Queue(_WAITING_MOST)
        self._lock = Lock()
        self._thread: Thread | None = None
        self._count = 0

    @property
    def is_at_work(self) -> bool:
        return self._thread is not None

    def draw(self, wish: _Wish, wait_seconds: float) -> None:
        """Queue the request and wait until the image exists."""
        with self._lock:
            try:
                self._wishes.put_nowait(wish)
            except queue.Full:
                raise DrawsOthers("too many pages are being drawn", "ask again in a moment") from None
            if self._thread is None:
                self._thread = Thread(target=self._serve, name="page-images", daemon=True)
                self._thread.start()
        try:
            wish.answer.result(wait_seconds)
        except TimeoutError:
            raise DrawsOthers("it takes too long to draw it", "ask again in a moment") from None

    def is_to_be_swept(self) -> bool:
        """Return True for the first page and then for every 50th."""
        self._count += 1
        return self._count % _WRITTEN_MOST == 1

    def close(self) -> None:
        with self._lock:
            thread = self._thread
        if thread is not None:
            self._refuse_all(ChildError("it stops"))
            with suppress(queue.Full):
                self._wishes.put_nowait(None)
            # Do not wait for a slow page: its renderer exits with this process.
            thread.join(_CLOSE_SECONDS)

    # --- in its own thread ---

    def _serve(self) -> None:
        wish: _Wish | None = None
        while True:
            try:
                wish = self._serve_while_alive(wish)
            except (ChildError, OSError) as error:
                self._refuse_all(error)
                wish = None
            with self._lock:
                if wish is None and self._wishes.empty():
                    self._thread = None
                    return

    def _serve_while_alive(self, wish: _Wish | None) -> _Wish | None:
        """Serve requests until the queue is idle. Return the unfinished request if the fork server died."""
        with tempfile.TemporaryDirectory(prefix="pagemill-", ignore_cleanup_errors=True) as place:
            begin = Begin(
                Path(place) / "staging",
                Path(place) / "keep",
                sandbox=self._settings.sandbox,
                grace_seconds=1.0,
                extra_handlers=[PAGE_RENDERER],
                is_without_installed=True,
            )
            self._settings.hand_to_handlers()
            with open_pool(begin) as (fork_server, described):
                if not described or described[0].set_aside:
                    raise ChildError(described[0].set_aside or "" if described else "nothing here draws pages")
                number = 0
                while fork_server.is_alive:
                    if wish is None:
                        try:
                            wish = self._wishes.get(timeout=self._idle_seconds)
                        except queue.Empty:
                            return None
                        if wish is None:
                            return None
                    number += 1
                    _answer(fork_server, wish, number, described[0].facts.job_type)
                    # The fork server's death may not be the page's fault, so the next fork server tries it again.
                    wish = None if wish.answer.done() else wish
                return wish

    def _refuse_all(self, error: Exception) -> None:
        while True:
            try:
                wish = self._wishes.get_nowait()
            except queue.Empty:
                return
            if wish is not None:
                wish.answer.set_exception(NotDrawn(f"no page can be drawn here: {error}"))


class _Died(Exception):
    """The fork server died while it was rendering."""


def _answer(fork_server: LocalPool, wish: _Wish, number: int, job_type: str) -> None:
    try:
        # Another request may have rendered it meanwhile.
        if not (wish.target.is_file() and _words_of(wish.target).is_file()):
            _draw(fork_server, wish, number, job_type)
    except _Died as error:
        if number == 1:
            # The first request of a new fork server: do not restart it forever.
            wish.answer.set_exception(NotDrawn(f"it could not be drawn: {error}"))
    except (PagemillError, OSError) as error:
        refusal = error if isinstance(error, NotDrawn) else NotDrawn(f"it could not be drawn: {error}")
        wish.answer.set_exception(refusal)
    else:
        wish.answer.set_result(None)


def _draw(fork_server: LocalPool, wish: _Wish, number: int, job_type: str) -> None:
    payload = json.dumps({"page": wish.page, "width": wish.width})
    document = KnownDocument(settings=wish.settings)
    inputs = {"original": wish.source.absolute()}
    fork_server.launch(Order(number, 1, job_type, "local", None, payload, None, inputs=inputs, document=document))
    ended = next(one for one in attempt_events(fork_server, seconds=_WAIT_SECONDS) if isinstance(one, Ended))
    if ended.code == "FORK_SERVER_DIED":
        raise _Died(ended.message)
    if ended.how is not How.DONE:
        said = ended.message.strip().splitlines() or [ended.how.value]
        raise NotDrawn(f"page {wish.page} could not be drawn: {said[-1]}")
    wish.target.parent.mkdir(parents=True, exist_ok=True)
    # Words first: an image that exists always has its words.
    for path, target in zip(reversed(ended.files), (_words_of(wish.target), wish.target), strict=True):
        move_file(path, target)
    shutil.rmtree(ended.files[0].parent, ignore_errors=True)
