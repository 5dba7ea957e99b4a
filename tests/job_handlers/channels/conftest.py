"""A real server that remembers what it was sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest


@dataclass
class Server:
    """Answers with `status` and `headers`, and remembers what it was sent."""

    port: int = 0
    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    heard: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks?token=hush"


@pytest.fixture
def server() -> Iterator[Server]:
    told = Server()

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            told.heard.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(told.status)
            for name, value in told.headers.items():
                self.send_header(name, value)
            if told.status != 204:
                self.send_header("Content-Length", str(len(told.body)))
            self.end_headers()
            self.wfile.write(told.body)

        def log_message(self, format: str, *values: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as real:
        told.port = real.server_port
        thread = threading.Thread(target=real.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield told
        real.shutdown()
        thread.join()
