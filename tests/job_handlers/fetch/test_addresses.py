"""Connections to servers that mean harm."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from job_handlers.fetch.sources.addresses import connection_to, read_url

INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
FINAL = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def answered(listening: socket.socket, interim: int | None) -> http.client.HTTPResponse:
    """`interim`: how many interim answers come before the final one; None: they never end."""

    def serve() -> None:
        one, _ = listening.accept()
        with one, suppress(OSError):
            one.recv(1 << 16)
            while interim is None:
                one.sendall(INTERIM * 100)
            one.sendall(INTERIM * interim + FINAL)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    port = listening.getsockname()[1]
    target = read_url(f"http://127.0.0.1:{port}/")
    places = [(socket.AF_INET, ("127.0.0.1", port))]
    connection = connection_to(target, places, connect_seconds=30, answer_seconds=30)
    try:
        connection.request("GET", "/")
        return connection.getresponse()
    finally:
        connection.close()
        thread.join()


def test_some_interim_answers_are_read_over(listening: socket.socket) -> None:
    assert answered(listening, 3).status == 200


def test_a_server_that_never_stops_sending_interim_answers_is_left(listening: socket.socket) -> None:
    with pytest.raises(http.client.HTTPException, match="interim"):
        answered(listening, None)
