"""Limits the number and duration of client connections.

A connection is admitted during an authenticated request and anonymous otherwise; too many anonymous ones evict the
oldest of the busiest address.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from starlette.requests import HTTPConnection
from uvicorn.protocols.http.h11_impl import H11Protocol

ANONYMOUS_MAX = 400
"""Together with `access.OPEN_REQUESTS_MAX` less than the usual limit of 1,024 open files."""
REQUEST_SECONDS = 10.0
"""Time to send a request's headers."""


class AnonymousConnections:
    def __init__(self) -> None:
        # The keys of each inner dict are the connections of an address, oldest first.
        self._by_address: dict[str, dict[Connection, None]] = {}
        self._count = 0

    def add(self, connection: Connection) -> None:
        self._by_address.setdefault(connection.address, {})[connection] = None
        self._count += 1
        if self._count > ANONYMOUS_MAX:
            busiest = max(self._by_address.values(), key=len)
            oldest = next(iter(busiest))
            self.discard(oldest)
            oldest.abort()

    def discard(self, connection: Connection) -> None:
        same_address = self._by_address.get(connection.address, {})
        if connection in same_address:
            del same_address[connection]
            self._count -= 1
            if not same_address:
                del self._by_address[connection.address]


class Connection(asyncio.Protocol):
    """Wraps uvicorn's protocol, which limits neither connections nor the time to send headers."""

    def __init__(self, anonymous: AnonymousConnections, *, app_state: dict[str, Any], **options: Any) -> None:
        # uvicorn hands `app_state` to the application as the state of each request.
        self._http = H11Protocol(app_state={**app_state, "connection": self}, **options)
        self._anonymous = anonymous
        self._loop = asyncio.get_running_loop()
        self._deadline: asyncio.TimerHandle | None = None
        self._open_requests = self._admissions = 0
        self._is_lost = False
        self.address = ""
        self.user_id: int | None = None
        """The user at the other end of a Unix socket; None over TCP."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        client = transport.get_extra_info("socket")
        if client.family == socket.AF_UNIX:
            self.user_id = _peer_user_id(client)
        else:
            self.address = transport.get_extra_info("peername")[0]
        self._http.connection_made(self._transport)
        self._start_deadline()
        self._anonymous.add(self)

    def data_received(self, data: bytes) -> None:
        self._http.data_received(data)

    def eof_received(self) -> None:
        self._http.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._anonymous.discard(self)
        self._stop_deadline()
        self._http.connection_lost(exc)

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Suspend the deadline. Pipelined requests may overlap, so count them."""
        self._open_requests += 1
        self._stop_deadline()
        try:
            yield
        finally:
            self._open_requests -= 1
            if not self._open_requests and not self._is_lost:
                self._start_deadline()

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Exempt the connection from eviction."""
        self._admissions += 1
        self._anonymous.discard(self)
        try:
            yield
        finally:
            self._admissions -= 1
            if not self._admissions and not self._is_lost:
                self._anonymous.add(self)

    def abort(self) -> None:
        self._transport.abort()

    def _time_out(self) -> None:
        if self._transport.is_closing() or self._transport.get_write_buffer_size():
            # The client reads nothing, which would hold up an orderly close for ever.
            self.abort()
        else:
            self._transport.write(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            self._transport.close()

    def _start_deadline(self) -> None:
        self._stop_deadline()
        self._deadline = self._loop.call_later(REQUEST_SECONDS, self._time_out)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def connection_of(request: HTTPConnection) -> Connection:
    return cast(Connection, request.scope["state"]["connection"])


def _peer_user_id(client: socket.socket) -> int:
    credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
    _process_id, user_id, _group_id = struct.unpack("iII", credentials)
    return int(user_id)
