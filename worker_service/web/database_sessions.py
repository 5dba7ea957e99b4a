"""Database sessions, each used by one thread at a time; whether the database has changed."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import cast

from msgspec.structs import replace
from starlette.requests import HTTPConnection

from worker_service.base.errors import PagemillError, RuleBroken, StoreError
from worker_service.services.database import Session, open_session
from worker_service.settings.config import Settings
from worker_service.web.access import visitor_of


class SessionPool:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._idle: list[tuple[tuple[int, int], Session]] = []
        self._lock = Lock()

    @contextmanager
    def borrow(self, actor: str) -> Iterator[Session]:
        file, session = self._take_idle()
        is_sound = False
        try:
            yield replace(session, actor=actor)
            is_sound = True
        except (PagemillError, GeneratorExit) as error:
            # The connection is still good after a refused request and after a client that stopped reading a list.
            is_sound = not isinstance(error, StoreError) or isinstance(error, RuleBroken)
            raise
        finally:
            if is_sound:
                with self._lock:
                    self._idle.append((file, session))
            else:
                # Its transaction may be in any state.
                session.close()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for _, session in idle:
            session.close()

    def _take_idle(self) -> tuple[tuple[int, int], Session]:
        file = _file_id(self.settings)
        while True:
            with self._lock:
                if not self._idle:
                    break
                its_file, session = self._idle.pop()
            if its_file == file:
                return file, session
            session.close()  # belongs to a database file that was replaced
        return file, open_session(self.settings, actor="web")


def _file_id(settings: Settings) -> tuple[int, int]:
    try:
        found = settings.database.stat()
    except OSError:
        return 0, 0  # opening the database reports the error
    return found.st_dev, found.st_ino


@contextmanager
def session_of(request: HTTPConnection) -> Iterator[Session]:
    """Open a session for the visitor. Blocks, so call it only in a thread."""
    sessions = cast(SessionPool, request.app.state.sessions)
    with sessions.borrow(visitor_of(request).name) as session:
        yield session


# ── Changes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class DatabaseVersion:
    """Tells in microseconds whether the database has changed, on a connection that never writes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = Lock()
        self._session: Session | None = None
        self._of = (0, 0)
        self._life = ""

    def read(self) -> str:
        with self._lock:
            of = _file_id(self._settings)
            if self._session is None or of != self._of:
                self._close()
                self._session = open_session(self._settings, actor="web")
                self._of, self._life = of, secrets.token_hex(4)
            return f"{self._life}{self._session.change_counter()}"

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None


def version_of(request: HTTPConnection) -> str:
    database_version: DatabaseVersion = request.app.state.database_version
    return database_version.read()
