from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.kit.system import wait_until
from tests.ports import free_port
from tests.web.conftest import by_unix_socket, connected
from worker_service.base.errors import ConfigError
from worker_service.services import server_address, tokens
from worker_service.services.session import Session
from worker_service.settings.config import Settings
from worker_service.settings.value_types import LISTEN
from worker_service.web.http_server import CannotListen, open_socket
from worker_service.web.signing import load_signing_key

PAGEMILL = [sys.executable, "-m", "worker_service.cli"]


def environment(settings: Settings) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("WORKER_")}
    return inherited | {"WORKER_DATABASE": str(settings.database), "WORKER_LOG_FORMAT": "json"}


def refused(settings: Settings, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [*PAGEMILL, "serve", *arguments],
        env=environment(settings),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr.splitlines()[-1]


@contextmanager
def serving(settings: Settings, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    started = subprocess.Popen(
        [*PAGEMILL, "serve", *arguments],
        env=environment(settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    try:
        yield started, started.stdout.readline().strip()
    finally:
        started.kill()
        started.communicate()


# ── Listening ────────────────────────────────────────────────────────────────────────────────────────────


def test_serve_prints_its_address_when_ready_and_stops_at_a_signal(settings: Settings) -> None:
    with serving(settings, "--listen", f"127.0.0.1:{free_port()}") as (running, address):
        with connected(address) as line:
            line.sendall(b"POST /session HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nt")
            # The server has begun to read the request by the time it answers another.
            assert httpx.get(f"{address}/readyz").status_code == 200

        running.send_signal(signal.SIGTERM)

        _, log = running.communicate(timeout=30)
        assert running.returncode == 0
        # The disconnected client is not logged.
        assert [json.loads(line)["event"] for line in log.splitlines()] == ["web.started", "web.stopped"]


def test_a_link_leads_to_the_address_of_the_running_server(settings: Settings) -> None:
    listen = f"127.0.0.1:{free_port()}"

    def link() -> tuple[str, str]:
        command = [*PAGEMILL, "token", "link", "ann"]
        done = subprocess.run(
            command, env=environment(settings), capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout.partition("/session?link=")[0], done.stderr

    with serving(settings, "--listen", listen):
        assert link() == (f"http://{listen}", "")

    # The server was killed, so its address file is still there.
    assert link() == ("http://127.0.0.1:8470", "the server is not running: pagemill serve\n")


def test_an_address_file_of_another_user_is_neither_overwritten_nor_used(settings: Settings, tmp_path: Path) -> None:
    precious, address_file = tmp_path / "precious", settings.database.with_name("pagemill.db.web-address")
    precious.write_text("of somebody")
    address_file.symlink_to(precious)
    with server_address.published_address(settings):
        assert (precious.read_text(), server_address.address(settings)) == ("of somebody", None)

    address_file.unlink()
    address_file.write_text("javascript:alert(1)")
    with address_file.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert server_address.address(settings) is None


def test_an_address_in_use_or_invalid_is_refused(settings: Settings, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        code, message = refused(settings, "--listen", f"127.0.0.1:{other.getsockname()[1]}")
    assert (code, "is in use by another program" in message) == (78, True)

    (tmp_path / "file").touch()
    with pytest.raises(CannotListen, match="something else is there"):
        open_socket(tmp_path / "file")
    assert (tmp_path / "file").exists()

    for listen in ("127.0.0.1", "8470", ":8470", "127.0.0.1:99999", ""):
        with pytest.raises(ConfigError):
            LISTEN.read(listen, "web_listen")


def test_serve_without_a_database_says_how_to_make_one(settings: Settings) -> None:
    settings.database.unlink()

    code, message = refused(settings)

    assert (code, "pagemill init" in message) == (69, True)


def test_a_unix_socket_is_private_and_removed_at_the_end(settings: Settings, tmp_path: Path) -> None:
    path = tmp_path / "web.sock"

    def status_code() -> int:
        with by_unix_socket(path) as client:
            return client.get("/api/jobs").status_code

    with serving(settings, "--listen", str(path)) as (running, _):
        wait_until(path.exists, "it listens")
        assert status_code() == 200
        assert path.stat().st_mode & 0o022 == 0

        with pytest.raises(CannotListen, match="is in use by another program"):
            open_socket(path)

        running.kill()
        running.wait()
    # The left-over socket file is replaced.
    assert path.exists()
    with serving(settings, "--listen", str(path)) as (running, _):
        assert status_code() == 200
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=30) == 0
    assert not path.exists()


# ── Output ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_link_is_printed_on_a_terminal_only(settings: Settings) -> None:
    listen = f"127.0.0.1:{free_port()}"
    terminal, program_side = pty.openpty()
    running = subprocess.Popen(
        [*PAGEMILL, "serve", "--listen", listen],
        env=environment(settings),
        stdout=program_side,
        stderr=subprocess.DEVNULL,
    )
    try:
        line = read_line(terminal)
        link = re.fullmatch(r"(http://\S+/session\?link=pm_\d+_\S{43})", line)
        assert link is not None
        with httpx.Client(base_url=link[1].partition("/session")[0]) as browser:
            assert browser.post("/session", data={"token": link[1]}).status_code == 303
            assert browser.get("/api/jobs").status_code == 200
    finally:
        running.kill()
        running.wait()
        os.close(terminal)
        os.close(program_side)


def read_line(terminal: int) -> str:
    received = b""
    while not received.endswith(b"\n"):
        ready, _, _ = select.select([terminal], [], [], 30)
        assert ready
        received += os.read(terminal, 1)
    return received.decode().strip()


def test_no_secret_is_in_the_log(settings: Settings, session: Session) -> None:
    token, link = tokens.create_token(session, "grafana").text, tokens.create_link(session).text
    with serving(settings, "--listen", f"127.0.0.1:{free_port()}") as (running, address):
        httpx.get(f"{address}/api/jobs", headers={"Authorization": f"Bearer {token}"})
        httpx.get(f"{address}/api/jobs?token={token}", headers={"Authorization": f"Bearer {token}x"})
        httpx.get(f"{address}/session?link={link}")
        cookies = httpx.post(f"{address}/session", data={"token": link}).cookies
        httpx.post(f"{address}/session", data={"token": link})
        httpx.post(f"{address}/session", data={"token": f"{token}y"})
        with suppress(httpx.HTTPError):
            httpx.get(f"{address}/{'a' * 60_000}?{token}")
        running.send_signal(signal.SIGTERM)
        _, log = running.communicate(timeout=30)

    assert "visitor.refused" in log
    secrets = [token, link, *(value for _, value in cookies.items())]
    assert not any(word.split("_", 2)[2][:20] in log for word in secrets)


# ── The signing key ────────────────────────────────────────────────────────────────────────────────


def test_the_signing_key_is_readable_only_by_its_user(settings: Settings) -> None:
    signature = load_signing_key(settings.database).sign("session", "a")

    [path] = settings.database.parent.glob("*.web-key.*")
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_signing_key(settings.database).verify("session", "a", signature)
    assert not load_signing_key(settings.database).verify("form", "a", signature)

    path.chmod(0o640)
    with pytest.raises(ConfigError, match="is damaged or readable by other users"):
        load_signing_key(settings.database)


@pytest.mark.parametrize("broken", [b"", b"short", b"x" * 100])
def test_a_damaged_signing_key_is_refused(settings: Settings, broken: bytes) -> None:
    load_signing_key(settings.database)
    [path] = settings.database.parent.glob("*.web-key.*")
    path.write_bytes(broken)

    with pytest.raises(ConfigError, match="remove it"):
        load_signing_key(settings.database)


def test_a_symbolic_link_is_refused_as_signing_key(settings: Settings, tmp_path: Path) -> None:
    load_signing_key(settings.database)
    [path] = settings.database.parent.glob("*.web-key.*")
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(ConfigError, match="cannot read"):
        load_signing_key(settings.database)
