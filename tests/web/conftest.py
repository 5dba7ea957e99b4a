from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn

from tests.cli.stored_documents import Shelf
from tests.store.kit import lay_out, work_as
from worker_service.jobs.tokens import Power
from worker_service.services import tokens
from worker_service.services.session import Session, open_session
from worker_service.settings.config import Settings
from worker_service.settings.loading import load_settings
from worker_service.settings.value_types import Listen
from worker_service.web import app, http_server

_numbers = count(1)


@pytest.fixture(autouse=True)
def _no_authorities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client would read the certificates of all authorities, for more than the rest of its request costs."""
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    made = load_settings({"database": str(tmp_path / "pagemill.db")}, environ={"WORKER_LOG_FORMAT": "json"})
    lay_out(made.database)
    return made


@pytest.fixture
def shelf(session: Session) -> Shelf:
    work_as(session.store)
    return Shelf(session.store, session.settings.workspace)


@pytest.fixture
def session(settings: Settings) -> Iterator[Session]:
    opened = open_session(settings, actor="test")
    yield opened
    opened.close()


@pytest.fixture
def site(settings: Settings) -> Iterator[httpx.Client]:
    """A client with a token for everything. Its server stops while the next test runs."""
    server, _, address = _start(settings, ("127.0.0.1", 0))
    with httpx.Client(base_url=address, headers=bearer(settings)) as client:
        yield client
    server.should_exit = True


@contextmanager
def site_of(settings: Settings) -> Iterator[httpx.Client]:
    with served(settings) as address, httpx.Client(base_url=address, headers=bearer(settings)) as client:
        yield client


def bearer(settings: Settings, name: str = "admin", owner: str | None = None) -> dict[str, str]:
    with closing(open_session(settings, actor="test")) as session:
        word = tokens.create_token(session, f"{name}-{next(_numbers)}", [Power.ADMIN], owner=owner).text
    return {"Authorization": f"Bearer {word}"}


def sign_in(site: httpx.Client, settings: Settings, name: str = "admin") -> None:
    with closing(open_session(settings, actor="test")) as session:
        word = tokens.create_link(session, name).text
    assert site.post("/session", data={"token": word}).status_code == 303


@contextmanager
def served(settings: Settings, listen: Listen = ("127.0.0.1", 0)) -> Iterator[str]:
    server, thread, address = _start(settings, listen)
    try:
        yield address
    finally:
        server.should_exit = True
        thread.join()


def _start(settings: Settings, listen: Listen) -> tuple[uvicorn.Server, threading.Thread, str]:
    listener = http_server.open_socket(listen)
    is_tcp = listener.family == socket.AF_INET
    address = "http://{}:{}".format(*listener.getsockname()) if is_tcp else str(listen)
    server = http_server.create_server(app.app(settings))

    def run() -> None:
        with listener:
            server.run(sockets=[listener])

    # The socket listens already, so a client need not wait for the server.
    thread = threading.Thread(target=run)
    thread.start()
    return server, thread, address


def with_url(settings: Settings, url: str) -> Settings:
    return load_settings(
        {"database": str(settings.database)}, environ={"WORKER_WEB_URLS": url, "WORKER_LOG_FORMAT": "json"}
    )


@contextmanager
def connected(address: str, *, takes: int | None = None) -> Iterator[socket.socket]:
    """`takes`: so much of an answer is kept for us until we read it."""
    parts = urlsplit(address)
    with socket.socket() as line:
        if takes is not None:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, takes)
        line.settimeout(20)
        line.connect((parts.hostname, parts.port))
        yield line
