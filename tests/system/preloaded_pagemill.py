"""A server that runs `pagemill` commands in forks of itself, a tenth of a second cheaper each.

It writes a program named `pagemill` into a directory, which hands its words, environment and streams to the server.
"""

from __future__ import annotations

import marshal
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import click

from worker_service.cli import main, pagemill

ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = """\
#!{python} -IS
import _socket, marshal, posix, sys
line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
line.connect({address!r})
streams = b"".join(descriptor.to_bytes(4, sys.byteorder) for descriptor in range(3))
line.sendmsg([b"."], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
line.sendall(marshal.dumps((sys.argv[1:], posix.getcwdb(), posix.environ)))
line.shutdown(_socket.SHUT_WR)
code = line.recv(1)
posix._exit(code[0] if code else 70)
"""


@contextmanager
def typed(directory: Path) -> Iterator[None]:
    directory.mkdir()
    with subprocess.Popen([sys.executable, "-m", __name__, directory], cwd=ROOT, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield
        finally:
            server.kill()


def serve(directory: Path) -> None:
    address = str(directory / "typed.socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(50)
        program = directory / "pagemill"
        program.write_text(_PROGRAM.format(python=sys.executable, address=address))
        program.chmod(0o755)
        print("ready", flush=True)
        while True:
            line = listener.accept()[0]
            with line:
                _, streams, _, _ = socket.recv_fds(line, 1, 3)
                words, place, environment = marshal.loads(_all_of(line))
                if words:
                    pagemill.get_command(click.Context(pagemill), words[0])
                if os.fork() == 0:
                    listener.close()
                    _run(line, streams, words, place, environment)
            for stream in streams:
                os.close(stream)
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def _all_of(line: socket.socket) -> bytes:
    parts = []
    while part := line.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def _run(line: socket.socket, streams: list[int], words: list[str], place: bytes, environment: Any) -> NoReturn:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(place)
    os.environ.clear()
    os.environb.update(environment)
    sys.argv[1:] = words
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(one, mode, closefd=False) for one, mode in enumerate("rww"))
    code: object = 70
    try:
        main()
    except SystemExit as end:
        code = end.code
    with suppress(BrokenPipeError):
        sys.stdout.flush()
    sys.stderr.flush()
    line.sendall(bytes([code if isinstance(code, int) else int(code is not None)]))
    os._exit(0)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
