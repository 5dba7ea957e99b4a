"""A port to listen at, for what has to be told one."""

from __future__ import annotations

import random
import socket
from pathlib import Path


def free_port() -> int:
    """Return a port that the kernel gives to nobody else who asks for any."""
    given_out_from = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(given_out_from // 2, given_out_from)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
