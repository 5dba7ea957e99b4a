"""Images of pages, drawn on demand and cached in the workspace.

Only a sandboxed child process opens untrusted files. A fork server, which this process starts on demand, forks these
children, and exits after a minute without requests.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread
from typing import NamedTuple

from msgspec import Struct, field

from worker_service.base.errors import PagemillError
from worker_service.base.files import move_file
from worker_service.jobs.documents import IndexStatus, KnownDocument, PublishedFile
from worker_service.jobs.library import Document, DocumentSelector
from worker_service.runner.messages import PASSWORD, Begin, Ended, How, Order
from worker_service.runner.pool import ChildError, LocalPool
from worker_service.runner.without_daemon import attempt_events, open_pool
from worker_service.services import passwords
from worker_service.services.session import Session
from worker_service.settings.config import Settings

PAGE_RENDERER = "job_handlers.reading.page_image:page_image"
WIDTHS = (240, 600, 1200, 1800)
WIDTH = 1200

_CACHE_BYTES_MAX = 512 << 20
_FRACTION_LEFT_BY_SWEEP = 0.75
_PAGES_PER_SWEEP = 50
_IDLE_SECONDS = 60.0
_QUEUED_REQUESTS_MAX = 4
_RENDER_SECONDS_MAX = 45.0
_CLOSE_SECONDS_MAX = 2.0


class NoPageImage(PagemillError, code="not_drawn", exit_code=66): ...


class PageLocked(NoPageImage, code="locked"):
    """The file needs a password, and there is none, or the stored one is wrong."""


class RendererBusy(NoPageImage, code="too_many_drawn", exit_code=75): ...


class PlacedWord(Struct, frozen=True):
    x0: float
    y0: float
    x1: float
    y1: float
    text: str
    confidence: float = 100.0


class PageImage(Struct, frozen=True):
    path: Path
    words: Sequence[PlacedWord]
    """Words with boxes in points; empty for a scan."""
    size: tuple[float, float]
    """Width and height in points."""


class _RenderRequest(Struct, frozen=True):
    source: Path
    password_path: Path | None
    settings_json: str
    page: int
    width: int
    target: Path
    rendered: Future[None] = field(default_factory=Future)


class _CachedFile(NamedTuple):
    viewed_at: float
    size: int
    path: Path


def page_image(
    session: Session,
    renderer: PageRenderer,
    document_id: int,
    page: int,
    width: int = WIDTH,
    *,
    wait_seconds: float = _RENDER_SECONDS_MAX,
) -> PageImage:
    """`width` is rounded up to one of `WIDTHS`."""
    document = session.library.document(document_id)
    workspace = session.settings.workspace
    file = _file_to_render(workspace, document, session.library.files(document_id))
    source = workspace / file.path
    if not source.is_file():
        raise NoPageImage(f"{source} is no longer in the workspace", f"pagemill reindex {document.id} restores it")
    rounded_width = min((offered for offered in WIDTHS if offered >= width), default=WIDTHS[-1])
    target = image_directory(workspace, document_id) / f"{file.id}-{page}-{rounded_width}.webp"
    if not _touch_if_cached(target):
        path = passwords.path_of_document(workspace, document)
        password_path = path.absolute() if path.is_file() else None
        request = _RenderRequest(source, password_path, document.settings, page, rounded_width, target)
        renderer.render(request, wait_seconds)
        if renderer.count_page():
            sweep(session)
    return _read_cached(target)


def why_no_image(session: Session, document: Document) -> NoPageImage | None:
    try:
        _file_to_render(session.settings.workspace, document, session.library.files(document.id))
    except NoPageImage as error:
        return error
    return None


def check_password(session: Session, renderer: PageRenderer, document: Document) -> None:
    """Raise `PageLocked` if the stored password does not open the file, `RendererBusy` if it cannot be checked now."""
    # Page 1 is rendered only if its image is not cached.
    delete_images(session.settings.workspace, [document.id])
    try:
        page_image(session, renderer, document.id, 1)
    except (PageLocked, RendererBusy):
        raise
    except NoPageImage:
        return  # the page cannot be rendered for another reason


def image_directory(workspace: Path, document_id: int) -> Path:
    return _cache_directory(workspace) / str(document_id)


def delete_images(workspace: Path, document_ids: Iterable[int]) -> None:
    for document_id in document_ids:
        shutil.rmtree(image_directory(workspace, document_id), ignore_errors=True)


def sweep(session: Session, *, bytes_max: int = _CACHE_BYTES_MAX) -> None:
    """Delete images of removed documents. If the others are too many, delete the least recently viewed ones."""
    cache = _cache_directory(session.settings.workspace)
    if not cache.is_dir():
        return
    if cached_ids := [int(folder.name) for folder in cache.iterdir() if folder.name.isdigit()]:
        documents = session.library.documents(DocumentSelector(ids=cached_ids), most=len(cached_ids))
        delete_images(session.settings.workspace, {*cached_ids} - {document.id for document in documents})
    files: list[_CachedFile] = []
    for path in cache.glob("*/*"):
        with suppress(OSError):  # another process may sweep, too
            status = path.stat()
            files.append(_CachedFile(status.st_mtime, status.st_size, path))
    total_size = sum(file.size for file in files)
    if total_size <= bytes_max:
        return
    for file in sorted(files, key=lambda file: file.viewed_at):
        if total_size <= bytes_max * _FRACTION_LEFT_BY_SWEEP:
            break
        file.path.unlink(missing_ok=True)
        total_size -= file.size


def _cache_directory(workspace: Path) -> Path:
    return workspace / "page-images"


def _file_to_render(workspace: Path, document: Document, files: Sequence[PublishedFile]) -> PublishedFile:
    """Return the file whose pages fit the stored text. Raise unless it has pages and this process has its password.

    An original whose reading failed may be newer than the text, so prefer the searchable PDF then.
    """
    if document.kind == "sheet":
        raise NoPageImage("a spreadsheet has no pages: its rows are shown")
    if not document.has_page_images:
        raise NoPageImage("this document has no pages: its text is shown")
    roles = ("original", "pdf") if document.status is IndexStatus.SUCCESS else ("pdf", "original")
    for role in roles:
        for file in files:
            if file.role == role:
                _require_password(workspace, document)
                return file
    raise NoPageImage(f"document {document.id} was read elsewhere: only its text is stored")


def _require_password(workspace: Path, document: Document) -> None:
    """Raise if the file needs a password that this process does not have: systemd gives credentials by unit."""
    if passwords.is_stored(workspace, document):
        return
    name = _password_credential(document.settings)
    if name is None and document.is_locked:
        raise PageLocked("the PDF is locked, and its password was not kept", "type the password again")
    if name is not None and not Path(os.environ.get("CREDENTIALS_DIRECTORY", "/nowhere"), name).is_file():
        raise NoPageImage(
            f"the file needs the password {name!r}, and `pagemill serve` has no such credential",
            f"add LoadCredential={name}:… to pagemill-web.service, and restart it",
        )


def _password_credential(settings_json: str) -> str | None:
    try:
        name = json.loads(settings_json or "{}").get("password_file")
    except (ValueError, AttributeError):
        return None
    return name if isinstance(name, str) else None


def _touch_if_cached(target: Path) -> bool:
    """Record a view of the image for `sweep`. Return whether it is cached."""
    try:
        os.utime(_words_path(target))
        os.utime(target)
    except OSError:  # a file is absent, or this process may only read the cache
        return target.is_file() and _words_path(target).is_file()
    return True


def _words_path(target: Path) -> Path:
    return target.with_suffix(".json")


def _read_cached(target: Path) -> PageImage:
    try:
        stored = json.loads(_words_path(target).read_bytes())
    except (OSError, ValueError) as error:
        raise NoPageImage("the image has just been deleted", "reload the page") from error
    width, height = stored["size"]
    return PageImage(target, [PlacedWord(*word) for word in stored["words"]], (width, height))


class PageRenderer:
    def __init__(self, settings: Settings, *, idle_seconds: float = _IDLE_SECONDS) -> None:
        self._settings, self._idle_seconds = settings, idle_seconds
        self._requests: queue.Queue[_RenderRequest | None] = queue.Queue(_QUEUED_REQUESTS_MAX)
        self._lock = Lock()
        self._thread: Thread | None = None
        self._pages_rendered = 0

    @property
    def is_running(self) -> bool:
        return self._thread is not None

    def render(self, request: _RenderRequest, wait_seconds: float) -> None:
        with self._lock:
            try:
                self._requests.put_nowait(request)
            except queue.Full:
                raise RendererBusy("too many pages are being rendered", "try again in a moment") from None
            if self._thread is None:
                self._thread = Thread(target=self._serve, name="page-images", daemon=True)
                self._thread.start()
        try:
            request.rendered.result(wait_seconds)
        except TimeoutError:
            raise RendererBusy("rendering takes too long", "try again in a moment") from None

    def count_page(self) -> bool:
        """Return True if the cache is due for a sweep: at the first page, then every 50."""
        self._pages_rendered += 1
        return self._pages_rendered % _PAGES_PER_SWEEP == 1

    def close(self) -> None:
        with self._lock:
            thread = self._thread
        if thread is not None:
            self._refuse_all(ChildError("the server is stopping"))
            with suppress(queue.Full):
                self._requests.put_nowait(None)  # ends the thread
            # Do not wait for a slow page: its renderer exits with this process.
            thread.join(_CLOSE_SECONDS_MAX)

    # ── In the renderer's own thread ──

    def _serve(self) -> None:
        while True:
            try:
                self._serve_until_idle()
            except (ChildError, OSError) as error:
                self._refuse_all(error)
            # Under the lock, so that no request can arrive between the check and the end of the thread.
            with self._lock:
                if self._requests.empty():
                    self._thread = None
                    return

    def _serve_until_idle(self) -> None:
        with tempfile.TemporaryDirectory(prefix="pagemill-", ignore_cleanup_errors=True) as directory:
            begin = Begin(
                Path(directory) / "staging",
                Path(directory) / "keep",
                sandbox=self._settings.sandbox,
                grace_seconds=1.0,
                extra_handlers=[PAGE_RENDERER],
                is_without_installed=True,  # load no handler but the renderer
            )
            # Children read their settings from the environment.
            self._settings.export_handler_settings()
            with open_pool(begin) as (pool, [handler]):
                if reason := handler.set_aside:
                    raise ChildError(reason)
                for number in itertools.count(1):
                    try:
                        request = self._requests.get(timeout=self._idle_seconds)
                    except queue.Empty:
                        return
                    if request is None:
                        return
                    _answer_request(pool, request, number, handler.facts.job_type)

    def _refuse_all(self, error: Exception) -> None:
        with suppress(queue.Empty):
            while True:
                if (request := self._requests.get_nowait()) is not None:
                    request.rendered.set_exception(NoPageImage(f"no page can be rendered: {error}"))


def _answer_request(pool: LocalPool, request: _RenderRequest, number: int, job_type: str) -> None:
    try:
        # An earlier request in the queue may have been for the same page.
        if not _touch_if_cached(request.target):
            _render(pool, request, number, job_type)
    except (PagemillError, OSError) as error:
        refusal = error if isinstance(error, NoPageImage) else NoPageImage(f"the page could not be rendered: {error}")
        request.rendered.set_exception(refusal)
    else:
        request.rendered.set_result(None)


def _render(pool: LocalPool, request: _RenderRequest, number: int, job_type: str, *, is_retry: bool = False) -> None:
    if not pool.is_alive:
        pool.restart()
    payload = json.dumps({"page": request.page, "width": request.width})
    document = KnownDocument(settings=request.settings_json)
    inputs = {"original": request.source.absolute()}
    if request.password_path is not None:
        inputs[PASSWORD] = request.password_path
    order = Order(
        number, fence=1, job_type=job_type, platform="local", payload=payload, inputs=inputs, document=document
    )
    pool.launch(order)
    events = attempt_events(pool, seconds=_RENDER_SECONDS_MAX)
    ended = next(event for event in events if isinstance(event, Ended))
    if ended.code == "FORK_SERVER_DIED" and not is_retry:
        # The fork server may have died before it got this page, so the page may be harmless.
        _render(pool, request, number, job_type, is_retry=True)
        return
    if ended.how is not How.DONE:
        if ended.code in ("PDF_ENCRYPTED", "PASSWORD_WRONG"):
            raise PageLocked(ended.message, ended.remedy)
        message = ended.message.strip().splitlines() or [ended.how.value]
        raise NoPageImage(f"page {request.page} could not be rendered: {message[-1]}")
    request.target.parent.mkdir(parents=True, exist_ok=True)
    # Words first: an image that exists always has its words.
    image, words = ended.files
    move_file(words, _words_path(request.target))
    move_file(image, request.target)
    shutil.rmtree(image.parent, ignore_errors=True)
