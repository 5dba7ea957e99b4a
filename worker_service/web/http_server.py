"""The server: the listening socket, start-up and shutdown."""

from __future__ import annotations

import errno
import logging
import signal
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette

from worker_service.base.errors import PagemillError
from worker_service.base.sd_notify import Notifier
from worker_service.settings.value_types import LISTEN, Listen
from worker_service.web.connections import Connection, Connections

IDLE_SECONDS = 5
"""Time a kept-alive connection may be idle between two requests."""
_GRACE_SECONDS = 3
_BACKLOG = 128
"""asyncio accepts this many at a time: fewer than `ANONYMOUS_MAX`, so that one burst does not evict itself."""


class CannotListen(PagemillError):
    code = "cannot_listen"
    exit_code = 78


class Server(uvicorn.Server):
    """uvicorn server that reports readiness to systemd and returns after a signal instead of re-raising it."""

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
    # `error_responses` reports refused requests and logs unexpected errors.
    logging.getLogger("uvicorn").addHandler(logging.NullHandler())
    config = uvicorn.Config(
        app,
        http=cast(Any, partial(Connection, Connections())),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    return Server(config, told)


# ── Listening ───────────────────────────────────────────────────────────────────────────────────────────────────────


def open_socket(listen: Listen) -> socket.socket:
    where = LISTEN.write(listen)
    try:
        if isinstance(listen, Path):
            return _in_the_file_system(listen)
        found = socket.getaddrinfo(*listen, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        # asyncio sets TCP_NODELAY only on sockets whose protocol is TCP. Without it every response on a reused
        # connection waits 40 ms for an acknowledgement.
        line = socket.socket(family, kind, protocol)
        try:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            line.bind(address)
            line.listen(_BACKLOG)
        except BaseException:
            line.close()
            raise
        return line
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CannotListen(
                f"{where} is in use by another program", "set web_listen, or stop that program"
            ) from error
        raise CannotListen(f"cannot listen at {where}: {(error.strerror or str(error)).lower()}") from error


def _in_the_file_system(path: Path) -> socket.socket:
    """Listen on a Unix socket. The umask decides who may connect."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_left_over(path)
        line.bind(str(path))
        line.listen(_BACKLOG)
    except BaseException:
        line.close()
        raise
    return line


def _remove_left_over(path: Path) -> None:
    """Remove the socket file of a killed server, but no socket in use and no other file."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OSError(errno.EEXIST, "something else is there")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
            try:
                caller.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
