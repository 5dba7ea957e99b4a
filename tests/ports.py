from __future__ import annotations

import random
import socket
from pathlib import Path


def free_port() -> int:
    """Return a free port outside the range from which the kernel chooses."""
    ephemeral_begin = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(ephemeral_begin // 2, ephemeral_begin)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
