"""The HTTP server (uvicorn): the listening socket, start-up and shutdown."""

from __future__ import annotations

import errno
import logging
import signal
import socket
import stat
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette

from worker_service.base.errors import PagemillError
from worker_service.settings.value_types import LISTEN, Listen
from worker_service.web.connections import AnonymousConnections, Connection

IDLE_SECONDS = 5
_GRACE_SECONDS = 3
STUCK_SECONDS = 60
"""The kernel disconnects a client that reads nothing for this long."""
_BACKLOG = 128
"""Less than `ANONYMOUS_MAX`, so that one burst of connections does not evict itself."""


class CannotListen(PagemillError, code="cannot_listen", exit_code=78): ...


def create_server(app: Starlette) -> uvicorn.Server:
    # `error_responses` reports refused requests and logs unexpected errors.
    logging.getLogger("uvicorn").addHandler(logging.NullHandler())
    config = uvicorn.Config(
        app,
        http=cast(Any, partial(Connection, AnonymousConnections())),
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
    server = uvicorn.Server(config)
    # Event streams end when this is true; uvicorn then waits for them.
    app.state.is_stopping = lambda: server.should_exit
    return server


def run_until_signal(server: uvicorn.Server, listener: socket.socket) -> None:
    # uvicorn restores these handlers when it has stopped, and raises the signal again.
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, server.handle_exit)
    server.run(sockets=[listener])


# ── Listening ───────────────────────────────────────────────────────────────────────────────────────────────────────


def open_socket(listen: Listen) -> socket.socket:
    address = LISTEN.format(listen)
    try:
        with ExitStack() as on_error:
            if isinstance(listen, Path):
                _remove_left_over(listen)
                listener = on_error.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                listener.bind(str(listen))
            else:
                [(family, kind, protocol, _, socket_address), *_] = socket.getaddrinfo(
                    *listen, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
                )
                # Pass the protocol: asyncio sets TCP_NODELAY only on sockets whose protocol is TCP. Without it every
                # response on a reused connection waits 40 ms for an acknowledgement.
                listener = on_error.enter_context(socket.socket(family, kind, protocol))
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(STUCK_SECONDS * 1000))
                listener.bind(socket_address)
            listener.listen(_BACKLOG)
            on_error.pop_all()  # the caller closes it
            return listener
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CannotListen(
                f"{address} is in use by another program", "set web_listen, or stop that program"
            ) from error
        raise CannotListen(f"cannot listen at {address}: {(error.strerror or str(error)).lower()}") from error


def _remove_left_over(path: Path) -> None:
    """Remove the socket file of a killed server, but no socket in use and no other file."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OSError(errno.EEXIST, "something else is there")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            try:
                client.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
