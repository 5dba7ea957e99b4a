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
from worker_service.jobs.tokens import TokenScope
from worker_service.services import tokens
from worker_service.services.session import Session, open_session
from worker_service.settings.config import Settings
from worker_service.settings.loading import load_settings
from worker_service.settings.value_types import Listen
from worker_service.web import app, http_server

PAGE = {"Accept": "text/html"}
_numbers = count(1)


@pytest.fixture(autouse=True)
def _no_authorities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client would read the certificates of all authorities, for more than the rest of its request costs."""
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    new_settings = settings_for(tmp_path / "pagemill.db")
    lay_out(new_settings.database)
    return new_settings


def settings_for(database: Path, **flags: str) -> Settings:
    return load_settings({"database": str(database), **flags}, environ={"WORKER_LOG_FORMAT": "json"})


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
        return bearing(tokens.create_token(session, f"{name}-{next(_numbers)}", [TokenScope.ADMIN], owner=owner).text)


def bearing(token_text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token_text}"}


def by_unix_socket(path: Path) -> httpx.Client:
    return httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost")


def sign_in(site: httpx.Client, settings: Settings, name: str = "admin") -> None:
    with closing(open_session(settings, actor="test")) as session:
        link_text = tokens.create_link(session, name).text
    assert site.post("/session", data={"token": link_text}).status_code == 303


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


@contextmanager
def connected(address: str, *, receive_buffer_bytes: int | None = None) -> Iterator[socket.socket]:
    """Open a connection. `receive_buffer_bytes`: bytes that the kernel buffers until the test reads them."""
    parts = urlsplit(address)
    with socket.socket() as line:
        if receive_buffer_bytes is not None:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        line.settimeout(20)
        line.connect((parts.hostname, parts.port))
        yield line
