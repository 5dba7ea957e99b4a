"""Detects in microseconds whether the database has changed, on a connection that never writes."""

from __future__ import annotations

import secrets
from threading import Lock

from starlette.requests import HTTPConnection

from worker_service.services.database import Session, open_session
from worker_service.settings.config import Settings


class DatabaseVersion:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = Lock()
        self._session: Session | None = None
        self._of: tuple[int, int] | None = None
        self._life = ""

    def read(self) -> str:
        with self._lock:
            found = self._settings.database.stat() if self._settings.database.exists() else None
            of = None if found is None else (found.st_dev, found.st_ino)
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
