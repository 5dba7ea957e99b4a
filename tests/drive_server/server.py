"""The server. It applies the fault that is armed for a request to the answer that `answers` gives."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.drive_server.answers import Answer, Answers, PlainFile, error
from tests.drive_server.faults import Fault, Faults, LoggedRequest
from tests.drive_server.model import Store
from tests.drive_server.tokens import Tokens

_BLOCK_BYTES = 1 << 20
_HANG_SECONDS = 20.0
_PAGE = b"<!DOCTYPE html><html><head><title>Sorry</title></head><body>Sorry, you can't do that now.</body></html>"


class DriveServer:
    """`plain` are the files of an ordinary web server, by name."""

    def __init__(self) -> None:
        self.store = Store()
        self.faults = Faults()
        self.tokens = Tokens()
        self.plain: dict[str, PlainFile] = {}
        self.log: list[LoggedRequest] = []
        self.page_size_max = 1000
        self.partial_listings = 0
        """Number of listings that will be incomplete, and say so."""
        self.port = 0
        self.ended = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def requests_for(self, on: str) -> list[LoggedRequest]:
        return [request for request in self.log if request.on == on]

    def arm(self, *faults: Fault) -> None:
        self.faults.arm(*faults)


@contextmanager
def serving(tls: Any = None) -> Iterator[DriveServer]:
    drive = DriveServer()
    handler = type("Handler", (_Handler,), {"drive": drive})
    with _Server(("127.0.0.1", 0), handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        drive.port = server.server_port
        drive.tokens.endpoint = f"{drive.url}/token"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield drive
        finally:
            drive.ended.set()
            server.shutdown()
            server.end_connections()
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True

    def __init__(self, *values: Any) -> None:
        super().__init__(*values)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    def finish_request(self, request: Any, address: Any) -> None:
        with self._lock:
            self._open.add(request)
        try:
            # A client may close its connection at any time.
            with suppress(OSError):
                super().finish_request(request, address)
        finally:
            with self._lock:
                self._open.discard(request)

    def end_connections(self) -> None:
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    drive: DriveServer
    wbufsize = 0

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers.get("Content-Length", "0"))))

    def log_message(self, format: str, *values: Any) -> None:
        pass

    def _serve(self, body: bytes) -> None:
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        path = unquote(parts.path)
        request = LoggedRequest(
            _kind_of_request(path, query),
            path,
            query,
            {name.lower(): value for name, value in self.headers.items()},
            id(self.connection),
        )
        self.drive.log.append(request)
        fault = self.drive.faults.for_request(request)
        if fault is not None:
            fault.action()
        if fault is None or fault.kind == "call":
            self._send(Answers(self.drive, request, body).answer())
            return
        self._answer_with_fault(fault, request, body)

    def _answer_with_fault(self, fault: Fault, request: LoggedRequest, body: bytes) -> None:
        if fault.kind == "status":
            answer = error(fault.status, fault.reason)
            answer.headers.update(fault.headers)
            self._send(answer)
        elif fault.kind == "page":
            self._send(Answer(fault.status, _PAGE, {"Content-Type": "text/html; charset=UTF-8", **fault.headers}))
        elif fault.kind == "hang up":
            self.close_connection = True
        elif fault.kind == "garbage":
            self.wfile.write(b"SSH-2.0-OpenSSH_9.9\r\n\r\n")
            self.close_connection = True
        else:
            answer = Answers(self.drive, request, body, ignores_range=fault.kind == "whole").answer()
            self._send_damaged(fault, answer, request)

    def _send_damaged(self, fault: Fault, answer: Answer, request: LoggedRequest) -> None:
        if fault.kind == "short" and len(answer.body) > 1:
            answer.body = answer.body[: max(len(answer.body) // 2, 1)]
            answer.set_content_range(request.begin, len(answer.body))
        elif fault.kind == "offset":
            answer.set_content_range(request.begin + 1, len(answer.body))
        elif fault.kind == "total":
            answer.total = (answer.total or 0) + 1
            answer.set_content_range(request.begin, len(answer.body))
        elif fault.kind == "swapped":
            answer.body = bytes(byte ^ 0x55 for byte in answer.body[:64]) + answer.body[64:]
        head = self._head(answer)
        if fault.kind == "header drip":
            self._drip(head, fault.gap)
            self.close_connection = True
            return
        self.wfile.write(head)
        if fault.kind in ("stall", "drip", "cut", "reset"):
            self.close_connection = True
            self._write(answer.body[: fault.at])
            if fault.kind == "stall":
                self._wait_for_the_end()
            elif fault.kind == "drip":
                self._drip(answer.body[fault.at :], fault.gap)
            elif fault.kind == "reset":
                # The reset would overtake bytes that have not arrived yet.
                time.sleep(0.02)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                socket.socket.close(self.connection)
            return
        self._write(answer.body)

    def _send(self, answer: Answer) -> None:
        self.wfile.write(self._head(answer))
        if answer.is_chunked:
            for at in range(0, len(answer.body), 65536):
                block = answer.body[at : at + 65536]
                self.wfile.write(b"%x\r\n%s\r\n" % (len(block), block))
            self.wfile.write(b"0\r\n\r\n")
        else:
            self._write(answer.body)
        self.close_connection = self.close_connection or answer.ends_connection

    def _head(self, answer: Answer) -> bytes:
        lines = [f"HTTP/1.1 {answer.status} {answer.status}", f"Date: {self.date_time_string()}"]
        lines += [f"{name}: {value}" for name, value in answer.headers.items()]
        if answer.is_chunked:
            lines.append("Transfer-Encoding: chunked")
        elif not answer.is_without_length:
            lines.append(f"Content-Length: {len(answer.body)}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def _write(self, body: bytes) -> None:
        view = memoryview(body)
        for at in range(0, len(view), _BLOCK_BYTES):
            self.wfile.write(view[at : at + _BLOCK_BYTES])

    def _drip(self, content: bytes, gap: float) -> None:
        until = time.monotonic() + _HANG_SECONDS
        for at in range(len(content)):
            if time.monotonic() > until or self.drive.ended.wait(gap):
                return
            self.wfile.write(content[at : at + 1])

    def _wait_for_the_end(self) -> None:
        self.connection.settimeout(_HANG_SECONDS)
        with suppress(OSError):
            self.connection.recv(1)


def _kind_of_request(path: str, query: dict[str, str]) -> str:
    if path == "/token":
        return "token"
    if path.startswith("/plain/"):
        return "plain"
    if path.endswith("/export"):
        return "export"
    if query.get("alt") == "media":
        return "media"
    if path.endswith("/files"):
        return "list"
    if path.endswith("/changes"):
        return "changes"
    return "metadata"
