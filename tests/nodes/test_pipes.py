"""Nodes behind a command: who starts it, and what is told of one that does not answer."""

from __future__ import annotations

import fcntl
import os
import resource
import select
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.system.conftest import is_running, wait_until
from worker_service.nodes import pipes
from worker_service.nodes.engine import Lost
from worker_service.nodes.pipes import HEADER, Line, Starter

WAIT_SECONDS = 20.0


def test_a_gateway_that_died_is_missed_at_once_although_its_commands_do_not_end() -> None:
    daemon, gateway = socket.socketpair()
    starter = Starter({"n1": ["cat"]})
    line = starter.start("n1")

    # All that a gateway has is closed when it is killed.
    gateway.close()
    heard = select.select([daemon], [], [], WAIT_SECONDS)[0]
    is_there = is_running(starter.pid)
    line.close()
    starter.close()
    daemon.close()

    assert heard == [daemon]
    assert is_there, "it waits for its commands, and nobody waits for it"


WAITS = "read _"


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (WAITS, "its command was started 0 s ago, and has not said a word"),
        (
            f"echo 'Authenticated to box2 ([10.0.0.2]:22) using publickey.' >&2; {WAITS}",
            "ssh reached it 0 s ago, but `pagemill node` has not said a word. Does ~/.bashrc there print something, or"
            " wait?",
        ),
        (
            f"echo 'Authenticated to box2.' >&2; echo 'Password: ' >&2; {WAITS}",
            "or wait? It complains: Password:",
        ),
        (
            f"echo 'Welcome to box2, and have a nice day'; {WAITS}",
            "it talks nonsense: 'Welcome to box2, and have a nice day'. Does ~/.bashrc there print something, or wait?",
        ),
        (
            "echo 'ssh: connect to host box2 port 22: No route to host' >&2; exit 255",
            "the line is closed: ssh: connect to host box2 port 22: No route to host",
        ),
    ],
)
def test_what_holds_a_node_back_is_said_in_words(script: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes, "_FIRST_WORD_SECONDS", 0.5)
    starter = Starter({"n1": ["sh", "-c", script]})
    line = starter.start("n1")

    with pytest.raises(Lost) as told:
        line.call(b"", timeout=2.0)

    line.close()
    starter.close()
    assert sentence in str(told.value)


def test_a_node_that_nobody_calls_any_more_leaves_although_its_line_is_not_closed(tmp_path: Path) -> None:
    alone = (
        f"from worker_service.nodes import pipes; pipes._ALONE_SECONDS = 0.5; pipes.serve(Path({str(tmp_path)!r}), 1)"
    )
    node = [sys.executable, "-c", f"from pathlib import Path; {alone}"]

    with subprocess.Popen(node, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.wait(30) == 0


def test_a_command_that_was_started_too_late_is_not_taken_for_the_next_one() -> None:
    starter = Starter({name: ["sh", "-c", f"echo This is what {name} says; cat >/dev/null"] for name in ("n1", "n2")})
    # Nobody waits for this one any more.
    starter._near.send(b"0 n1")

    line = starter.start("n2")
    with pytest.raises(Lost) as told:
        line.call(b"", timeout=WAIT_SECONDS)

    line.close()
    starter.close()
    assert "This is what n2" in str(told.value)


def test_who_waits_for_a_line_that_is_closed_meanwhile_writes_to_nobody_elses() -> None:
    (heard, said), hears, side, others = os.pipe(), os.pipe(), os.pipe(), os.pipe()
    line = Line(said, hears[0], side[0])
    lost = list[Lost]()

    def call() -> None:
        with pytest.raises(Lost) as told:
            line.call(b"for n1 alone", timeout=WAIT_SECONDS)
        lost.append(told.value)

    caller = threading.Thread(target=call)
    with line._saying:
        caller.start()
        wait_until(lambda: line._waiting, "it waits for its turn")
        line.close()
        os.dup2(others[1], said)
    caller.join()

    os.set_blocking(others[0], False)
    with pytest.raises(BlockingIOError):
        os.read(others[0], 100)
    assert len(lost) == 1
    for one in (*others, heard, said, hears[1], side[1]):
        os.close(one)


def test_a_node_is_spoken_to_by_descriptors_of_any_number() -> None:
    """Hundreds of nodes take more than `select` knows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    heard, said = os.pipe(), os.pipe()
    side = os.pipe()
    high = [fcntl.fcntl(one, fcntl.F_DUPFD, 1100) for one in (heard[1], said[0], side[0])]
    for one in (heard[1], said[0], side[0]):
        os.close(one)
    line = Line(*high)
    body = bytes(2 * pipes._PIPE_BYTES)

    def be_a_node() -> None:
        with os.fdopen(heard[0], "rb") as hears, os.fdopen(said[1], "wb") as says:
            number, called = pipes.read(hears)
            says.write(HEADER.pack(2, number) + (b"ok" if called == body else b"no"))

    node = threading.Thread(target=be_a_node)
    node.start()
    answer = line.call(body, timeout=WAIT_SECONDS)
    node.join()
    line.close()
    os.close(side[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert (min(high) >= 1024, answer) == (True, b"ok")
