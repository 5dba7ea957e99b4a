"""A wire between two network namespaces that can be long, lossy or cut, a packet at a time. Needs root.

`wire.py PID DEVICE PID DEVICE` makes a device in the namespace of each process and carries frames between them. A line
of its input says how bad it is from then on: the delay of a frame in seconds, the part of those that are lost on the
way to the second one, and on the way back.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import select
import struct
import sys
import time
from collections import deque

_TUNSETIFF, _TAP, _NO_HEADER = 0x400454CA, 0x0002, 0x1000
_NEW_NETWORK = 0x40000000
_FRAME_BYTES = 1 << 16


def device(pid: str, name: str) -> int:
    with open(f"/proc/{pid}/ns/net") as network:  # noqa: PTH123
        if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), _NEW_NETWORK):
            sys.exit(f"setns: {os.strerror(ctypes.get_errno())}")
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP | _NO_HEADER))
    return tap


def main() -> None:
    here, there = device(*sys.argv[1:3]), device(*sys.argv[3:5])
    others, chance = {here: there, there: here}, random.Random(sys.argv[2])
    delay, loss = 0.0, {here: 0.0, there: 0.0}
    waiting: deque[tuple[float, int, bytes]] = deque()
    print("ready", flush=True)
    while True:
        left = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        readable, _, _ = select.select([0, here, there], [], [], left)
        if 0 in readable:
            said = os.read(0, 4096).decode().split()
            if not said:
                return
            delay, loss[here], loss[there] = map(float, said[-3:])
        for one in readable:
            if one and (frame := os.read(one, _FRAME_BYTES)) and chance.random() >= loss[one]:
                waiting.append((time.monotonic() + delay, others[one], frame))
        # In order, as on any wire: a delay that becomes shorter waits for those before.
        while waiting and waiting[0][0] <= time.monotonic():
            _, to, frame = waiting.popleft()
            # Nobody has switched it on, or it is full: as with any packet, it is lost.
            with contextlib.suppress(OSError):
                os.write(to, frame)


if __name__ == "__main__":
    main()
