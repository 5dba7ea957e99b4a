"""A pool of database sessions, each used by one thread at a time, and the version of the database."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, RLock
from typing import cast

from msgspec.structs import replace
from starlette.requests import HTTPConnection

from worker_service.base.errors import PagemillError, RuleBroken, StoreError
from worker_service.services.session import Session, open_session
from worker_service.settings.config import Settings
from worker_service.web.access import SAFE_METHODS, TokenScope, visitor_of

FileId = tuple[int, int]
"""Device and inode: a database file that is replaced gets another one."""


class SessionPool:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._idle: list[tuple[FileId, Session]] = []
        self._lock = Lock()

    @contextmanager
    def borrow(self, actor: str) -> Iterator[Session]:
        file_id, session = self._idle_or_new_session()
        is_sound = False
        try:
            yield replace(session, actor=actor)
            is_sound = True
        except (PagemillError, GeneratorExit) as error:
            # A refused request and a client that stopped reading leave the connection sound. An error of the database
            # does not, unless a row broke a rule: then the transaction was rolled back in order.
            is_sound = isinstance(error, RuleBroken) or not isinstance(error, StoreError)
            raise
        finally:
            if is_sound:
                with self._lock:
                    self._idle.append((file_id, session))
            else:
                # Its transaction may be in any state.
                session.close()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for _, session in idle:
            session.close()

    def _idle_or_new_session(self) -> tuple[FileId, Session]:
        file_id = _file_id(self.settings)
        while True:
            with self._lock:
                if not self._idle:
                    break
                session_file_id, session = self._idle.pop()
            if session_file_id == file_id:
                return file_id, session
            session.close()  # belongs to a database file that was replaced
        return file_id, open_session(self.settings, actor="web")


def _file_id(settings: Settings) -> FileId:
    try:
        status = settings.database.stat()
    except OSError:
        return 0, 0  # opening the database reports the error
    return status.st_dev, status.st_ino


@contextmanager
def session_of(request: HTTPConnection) -> Iterator[Session]:
    """Open a session for the visitor. Call it only in a thread."""
    sessions, visitor = cast(SessionPool, request.app.state.sessions), visitor_of(request)
    if request.scope["method"] not in SAFE_METHODS:
        # Pages do not check it, so check it again behind `AuthenticationMiddleware`.
        visitor.require(TokenScope.OPERATE)
    with sessions.borrow(visitor.name) as session:
        yield session


# ── Changes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class DatabaseVersion:
    """A text that changes with each commit, read in microseconds on a connection that never writes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = RLock()  # `read` calls `close`
        self._session: Session | None = None
        self._file_id: FileId = (0, 0)
        self._prefix = ""

    def read(self) -> str:
        with self._lock:
            file_id = _file_id(self._settings)
            if self._session is None or file_id != self._file_id:
                self.close()
                self._session = open_session(self._settings, actor="web")
                self._file_id = file_id
                # The counter of a new connection starts again.
                self._prefix = secrets.token_hex(4)
            return f"{self._prefix}{self._session.change_counter()}"

    def close(self) -> None:
        with self._lock:
            if self._session is not None:
                self._session.close()
            self._session = None
