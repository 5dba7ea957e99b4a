from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest

from tests.kit.system import locked, wait_until
from tests.web.conftest import bearer, connected, served, site_of
from worker_service.jobs.job import NewJob
from worker_service.services.session import Session
from worker_service.settings.config import Settings
from worker_service.web import access, app, connections, http_server, incoming_files, middleware

HEADERS = b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def headers(settings: Settings) -> bytes:
    return HEADERS + b"Authorization: " + bearer(settings)["Authorization"].encode() + b"\r\n"


def receive_all(line: socket.socket) -> bytes:
    received = b""
    try:
        while chunk := line.recv(65536):
            received += chunk
    except ConnectionResetError:
        pass
    return received


@pytest.fixture
def lines() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "ANONYMOUS_MAX", 20)
    monkeypatch.setattr(access, "OPEN_REQUESTS_PER_VISITOR_MAX", 8)
    monkeypatch.setattr(http_server, "_BACKLOG", 10)


@pytest.mark.usefixtures("low_limits")
def test_idle_connections_are_evicted_when_there_are_too_many(
    settings: Settings, lines: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 60.0)  # so that they are evicted for their number
    with served(settings) as address:
        slow = [lines.enter_context(connected(address)) for _ in range(60)]
        for line in slow:
            line.sendall(b"GET /api/jobs HTTP/1.1\r\nHost: ")

        # Long before any of them times out.
        assert httpx.get(f"{address}/healthz", timeout=30).status_code == 200

        for line in slow[: 60 - connections.ANONYMOUS_MAX]:
            assert receive_all(line) == b""


DRIBBLED = b"POST /session HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nt"
UNREAD = b"GET /static/pagemill.css HTTP/1.1\r\nHost: localhost\r\n\r\n" * 30


@pytest.mark.usefixtures("low_limits")
@pytest.mark.parametrize("sent", [DRIBBLED, UNREAD], ids=["slow sign-ins", "answers that are not read"])
def test_many_anonymous_connections_do_not_lock_out_a_token(settings: Settings, lines: ExitStack, sent: bytes) -> None:
    with served(settings) as address:
        token = bearer(settings)
        for number in range(60):
            lines.enter_context(connected(address, receive_buffer_bytes=4096)).sendall(sent)
            if number % 10 == 0:
                assert httpx.get(f"{address}/api/jobs", headers=token, timeout=20).status_code == 200

        for _ in range(5):
            assert httpx.get(f"{address}/api/jobs", headers=token, timeout=20).status_code == 200


@pytest.mark.usefixtures("low_limits")
def test_slow_uploads_of_one_visitor_do_not_lock_out_others(settings: Settings, lines: ExitStack) -> None:
    mine, theirs = bearer(settings), bearer(settings, "alice", owner="alice")["Authorization"].encode()
    upload = b"POST /api/uploads HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
    with served(settings) as address:
        for _ in range(access.OPEN_REQUESTS_PER_VISITOR_MAX + 10):
            line = lines.enter_context(connected(address))
            line.sendall(upload + b"Authorization: " + theirs + b"\r\nContent-Length: 1000\r\n\r\n-")

        refused = {"Authorization": theirs.decode()}
        wait_until(lambda: httpx.get(f"{address}/api/jobs", headers=refused).status_code == 429, "all have arrived")
        answer = httpx.get(f"{address}/api/jobs", headers=refused)
        assert answer.json()["code"] == "too_many_requests"
        assert httpx.get(f"{address}/api/jobs", headers=mine).status_code == 200


def test_a_slow_sign_in_times_out(settings: Settings, lines: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "SIGN_IN_SECONDS", 0.3)
    monkeypatch.setattr(middleware, "LEFT_OVER_SECONDS", 0.1)
    with served(settings) as address:
        line = lines.enter_context(connected(address))
        line.sendall(DRIBBLED)

        assert receive_all(line).startswith(b"HTTP/1.1 408 ")


def test_a_request_that_does_not_end_times_out(
    settings: Settings, lines: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.3)
    with served(settings) as address:
        silent, halfway, again = (lines.enter_context(connected(address)) for _ in range(3))
        halfway.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        again.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while not again.recv(65536).endswith(b"ok\n"):
            pass
        again.sendall(b"GET /healthz HTT")

        assert receive_all(silent).startswith(b"HTTP/1.1 408 ")
        assert receive_all(halfway).startswith(b"HTTP/1.1 408 ")
        assert receive_all(again).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("limit", ["BODY_PAUSE_SECONDS", "BODY_SECONDS"])
def test_a_body_that_does_not_arrive_times_out(
    settings: Settings, lines: ExitStack, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(middleware, limit, 0.3)
    monkeypatch.setattr(middleware, "LEFT_OVER_SECONDS", 0.1)
    with served(settings) as address:
        line = lines.enter_context(connected(address))
        line.sendall(headers(settings) + b"Content-Length: 100\r\n\r\n{")

        answer = receive_all(line)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"code":"body_too_slow"' in answer


def test_a_request_without_a_token_is_refused_before_its_body(
    settings: Settings, lines: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(middleware, "LEFT_OVER_SECONDS", 0.1)
    with served(settings) as address:
        line = lines.enter_context(connected(address))
        line.sendall(HEADERS + b"Authorization: Bearer guess\r\nContent-Length: 10000000000\r\n\r\n")

        assert receive_all(line).startswith(b"HTTP/1.1 401 ")


def test_a_client_that_does_not_read_its_response_is_disconnected(
    settings: Settings, lines: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "STUCK_SECONDS", 0.3)
    with served(settings) as address:
        line = lines.enter_context(connected(address, receive_buffer_bytes=4096))
        request = b"GET /static/pagemill.css HTTP/1.1\r\nHost: localhost\r\n\r\n"
        # A reset or a broken pipe.
        with pytest.raises(ConnectionError):
            send_without_end(line, request)

        assert httpx.get(f"{address}/healthz").status_code == 200


def test_too_many_open_requests_are_refused_with_retry_after(
    settings: Settings, lines: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "OPEN_REQUESTS_MAX", 20)
    with served(settings) as address:
        for _ in range(20):
            line = lines.enter_context(connected(address))
            line.sendall(headers(settings) + b"Content-Length: 100\r\n\r\n{")

        token = bearer(settings)
        wait_until(
            lambda: httpx.get(f"{address}/api/jobs", headers=token).status_code == 503, "all of them are being answered"
        )
        answer = httpx.get(f"{address}/api/jobs", headers=token)
        assert answer.json()["code"] == "too_many_requests"
        assert answer.headers["retry-after"] == "1"
        assert httpx.get(f"{address}/healthz").status_code == 200


def send_without_end(line: socket.socket, request: bytes) -> None:
    while True:
        line.sendall(request)


@pytest.mark.parametrize("path", ["/api/jobs/{}/cancel", "/api/uploads"])
def test_pages_are_served_while_the_write_lock_is_held(settings: Settings, session: Session, path: str) -> None:
    numbers = range(1, 2 * app.THREADS + 1)
    for _ in numbers:
        session.store.intake.enqueue(NewJob("ocr_pages"))
    with site_of(settings) as site, ThreadPoolExecutor(len(numbers)) as others, ExitStack() as held:
        held.enter_context(locked(settings.database))
        files = [{"file": ("a.csv", f"{number}\n".encode())} if "uploads" in path else None for number in numbers]
        waiting = [
            others.submit(site.post, path.format(number), files=file, timeout=60)
            for number, file in zip(numbers, files, strict=True)
        ]
        if "uploads" in path:
            directory = incoming_files.incoming_directory(settings.workspace)
            wait_until(lambda: len(list(directory.rglob("*"))) >= len(waiting), "all have arrived")
        for _ in range(20):
            assert site.get("/api/jobs", timeout=5).status_code == 200
        assert not any(response.done() for response in waiting)

        held.close()
        assert {response.result().status_code for response in waiting} <= {200, 201}
