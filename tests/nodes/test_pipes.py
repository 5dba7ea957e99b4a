"""Who starts the commands of nodes: it keeps nothing open that somebody else waits to be closed."""

from __future__ import annotations

import select
import socket

from tests.system.conftest import is_running
from worker_service.nodes.pipes import Starter

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
