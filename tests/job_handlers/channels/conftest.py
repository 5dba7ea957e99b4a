"""A real web server, and notifications sent in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from job_handlers.channels import notify
from worker_service.handlers import Done, HandlerError, Message


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


class Context:
    """A handler's context in this process."""

    idempotency_key = "7"

    def __init__(self, message: Message) -> None:
        self.payload = message

    def log(self, line: str) -> None:
        pass


def notify_here(message: dict[str, Any]) -> Done | HandlerError:
    context: Any = Context(Message(**message))
    try:
        return notify.run(context)
    except HandlerError as error:
        return error


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
