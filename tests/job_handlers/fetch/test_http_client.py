"""The HTTP client with hostile servers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from job_handlers.fetch.error_rules import FetchError, Timeouts
from job_handlers.fetch.http_client import HttpClient
from tests.drive_server import DriveServer
from tests.drive_server.answers import PlainFile

INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
FINAL = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def status_of(listening: socket.socket, interim_answers: int | None) -> int:
    """Return the status of an answer that comes after interim ones; None: after endless ones."""

    def serve() -> None:
        connection, _ = listening.accept()
        with connection, suppress(OSError):
            connection.recv(1 << 16)
            while interim_answers is None:
                connection.sendall(INTERIM * 100)
            connection.sendall(INTERIM * interim_answers + FINAL)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    client = HttpClient("the server", Timeouts(), lambda: False)
    try:
        with client.request("GET", f"http://127.0.0.1:{listening.getsockname()[1]}/", {}) as answer:
            return answer.status
    finally:
        client.close()
        thread.join()


def test_a_few_interim_answers_are_skipped(listening: socket.socket) -> None:
    assert status_of(listening, 3) == 200


def test_endless_interim_answers_are_an_error(listening: socket.socket) -> None:
    with pytest.raises(FetchError, match="not HTTP"):
        status_of(listening, None)


def test_a_redirect_to_another_host_carries_no_token(server: DriveServer) -> None:
    server.plain["a"] = PlainFile(b"", redirect=f"http://localhost:{server.port}/plain/b")
    server.plain["b"] = PlainFile(b"%PDF-1.7")
    client = HttpClient("the server", Timeouts(), lambda: False)

    with client.request("GET", f"{server.url}/plain/a", {"authorization": "Bearer SECRET"}, redirects=1) as answer:
        assert answer.read(100) == b"%PDF-1.7"
    client.close()

    assert ["authorization" in asked.headers for asked in server.log] == [True, False]
