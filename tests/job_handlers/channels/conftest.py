"""A real web server, and handlers that run in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from job_handlers.channels import notify
from worker_service.handlers import Done, Handler, HandlerError, Message, Permanent


@dataclass
class Server:
    """Answers with `status`, `headers` and `body`, and records the requests: path, headers, body."""

    port: int = 0
    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks?token=hush"


@dataclass
class FakeContext:
    payload: Any
    document_id: int | None = None
    owner: str = "ann"
    document: None = None
    parent_id: None = None
    idempotency_key: str = "7"

    def log(self, line: str) -> None:
        pass

    def cancelled(self) -> bool:
        return False


def run_here(handler: Handler[Any], payload: Any, document_id: int | None = None) -> Done | HandlerError:
    """Run the handler in this process."""
    context: Any = FakeContext(payload, document_id)
    try:
        return handler.run(context) or Done()
    except HandlerError as error:
        return error


def notify_here(message: dict[str, Any]) -> Done | HandlerError:
    return run_here(notify.notify, Message(**message))


def code_of(ended: Done | HandlerError, kind: type[HandlerError] = Permanent) -> str:
    assert isinstance(ended, kind), ended
    return ended.code


@pytest.fixture
def server() -> Iterator[Server]:
    recorder = Server()

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            recorder.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(recorder.status)
            for name, value in recorder.headers.items():
                self.send_header(name, value)
            if recorder.status != 204:
                self.send_header("Content-Length", str(len(recorder.body)))
            self.end_headers()
            self.wfile.write(recorder.body)

        def log_message(self, format: str, *values: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as real:
        recorder.port = real.server_port
        thread = threading.Thread(target=real.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield recorder
        real.shutdown()
        thread.join()
