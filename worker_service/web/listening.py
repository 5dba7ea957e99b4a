"""The socket, and each connection on it: who may reach it, how long it may dawdle, and how it ends.

uvicorn speaks HTTP. It waits for ever for the first line of a request, and counts whoever waits there among those that
it answers; so here a connection that asks nothing is let go, the oldest first where many come.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from worker_service.config import Settings
from worker_service.config_values import LISTEN, Listen
from worker_service.errors import ConfigError, PagemillError
from worker_service.supervisor import Notifier
from worker_service.web.peers import user_at

ASKING_MOST = 128
"""So many connections may be about to ask; beyond, the one that dawdles longest is let go."""
ASKING_SECONDS = 10.0
"""From the first moment, or the first letter, to the end of a request's headers."""
IDLE_SECONDS = 5
"""Between two requests."""
STUCK_SECONDS = 60.0
"""Who takes nothing of an answer for so long is let go."""
CONNECTIONS_MOST = 600
"""Below the 1,024 files that a program may usually open."""
_GRACE_SECONDS = 3
_WAITING_TO_CONNECT = 512


class CannotListen(PagemillError):
    code = "cannot_listen"
    exit_code = 78


class Line(H11Protocol):
    """One connection. `asking`: all that are about to ask, the oldest first."""

    def __init__(self, *args: Any, asking: dict[Line, None], **named: Any) -> None:
        super().__init__(*args, **named)
        self._asking = asking
        self._timer: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        line = transport.get_extra_info("socket")
        # Looked for where it matters, and once.
        self.app_state = {**self.app_state, "user_at_the_other_end": cache(partial(_user_at, line))}
        self._begin_to_wait()
        if len(self._asking) > ASKING_MOST:
            next(iter(self._asking)).let_go(503, "too many connections ask nothing: ask, or come back")

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._is_asking:
            self._end_waiting()
        elif self._timer is None and not self.transport.is_closing():
            self._begin_to_wait()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # Idle from now on, for as long as uvicorn's own timer lets it; where many come, with the others.
        if self._is_asking and not self.transport.is_closing():
            self._asking[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_waiting()
        if self._stuck is not None:
            self._stuck.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = self.loop.call_later(STUCK_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    @property
    def _is_asking(self) -> bool:
        """Or about to; no request of it is being answered."""
        cycle: RequestResponseCycle | None = self.cycle  # which is None before the first
        return cycle is None or cycle.response_complete

    def let_go(self, status: int, sentence: str) -> None:
        self._end_waiting()
        if not self.transport.is_closing():
            text = f"{sentence}\n".encode()
            head = f"HTTP/1.1 {status} \r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n"
            self.transport.write(f"{head}Connection: close\r\n\r\n".encode() + text)
            self.transport.close()

    def _begin_to_wait(self) -> None:
        self._asking[self] = None
        self._timer = self.loop.call_later(
            ASKING_SECONDS, self.let_go, 408, "the request has not come in whole in time"
        )

    def _end_waiting(self) -> None:
        self._asking.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _user_at(line: socket.socket) -> int | None:
    try:
        return user_at(line)
    except OSError:
        return None


class Server(uvicorn.Server):
    """Says when it can be asked, and ends with a signal in good order, and not by it."""

    def __init__(self, config: uvicorn.Config, told: Callable[[], None]) -> None:
        super().__init__(config)
        self._told = told
        self._notifier = Notifier()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._told()
            self._notifier.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._notifier.stopping()
        cast(Starlette, self.config.app).state.feed.end()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {one: signal.signal(one, self.handle_exit) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)


def server(app: Starlette, told: Callable[[], None] = lambda: None) -> Server:
    # What it refuses is told by us; what it takes for an error in us is logged by `problems`.
    logging.getLogger("uvicorn").addHandler(logging.NullHandler())
    config = uvicorn.Config(
        app,
        http=cast(Any, partial(Line, asking={})),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=CONNECTIONS_MOST,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    return Server(config, told)


# ── Where ───────────────────────────────────────────────────────────────────────────────────────────────────────


def is_reached_from_elsewhere(listen: Listen) -> bool:
    if isinstance(listen, Path):
        return False
    host, _ = listen
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"


def refuse_unguarded(settings: Settings, *, has_tokens: bool) -> None:
    if is_reached_from_elsewhere(settings.web_listen) and not has_tokens:
        raise ConfigError(
            f"{LISTEN.write(settings.web_listen)} can be reached from other machines, and nobody has a token yet: "
            "make one with `pagemill token make NAME`, or let web_listen be 127.0.0.1:8470"
        )


def open_socket(listen: Listen) -> socket.socket:
    where = LISTEN.write(listen)
    try:
        if isinstance(listen, Path):
            return _in_the_file_system(listen)
        found = socket.getaddrinfo(*listen, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        # asyncio sends at once (TCP_NODELAY) only on what is called TCP: else each answer on a connection that is used
        # again waits 40 ms for an acknowledgement.
        line = socket.socket(family, kind, protocol)
        try:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            line.bind(address)
            line.listen(_WAITING_TO_CONNECT)
        except BaseException:
            line.close()
            raise
        return line
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CannotListen(
                f"{where} is taken: another program listens there; set web_listen, or stop it"
            ) from error
        raise CannotListen(f"cannot listen at {where}: {(error.strerror or str(error)).lower()}") from error


def _in_the_file_system(path: Path) -> socket.socket:
    """Who may connect is told by the umask, as with any file of ours."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_left_over(path)
        line.bind(str(path))
        line.listen(_WAITING_TO_CONNECT)
    except BaseException:
        line.close()
        raise
    return line


def _remove_left_over(path: Path) -> None:
    """Of one that was stopped by SIGKILL. Never one that somebody listens at, and never a file."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OSError(errno.EEXIST, "something else is there")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
            try:
                caller.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
