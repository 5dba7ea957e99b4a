"""Who is at the other end of a connection from this machine, as the kernel knows it; and whether they may write the
database anyway.

An address of this machine tells nothing of who asks: every user has it, and so has a proxy, for the whole world.
"""

from __future__ import annotations

import os
import pwd
import socket
import stat
import struct
import sys
from collections.abc import Collection
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path


def user_at(line: socket.socket) -> int | None:
    """The user of the program at the other end; None: it is not on this machine, or nobody can tell."""
    if line.family == socket.AF_UNIX:
        _, uid, _ = struct.unpack("iII", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return int(uid)
    theirs, ours = line.getpeername(), line.getsockname()
    if not (ip_address(theirs[0]).is_loopback and ip_address(ours[0]).is_loopback):
        return None
    table = "tcp6" if line.family == socket.AF_INET6 else "tcp"
    # Their end of it, among all of this machine's.
    wanted = [_as_listed(line.family, *end[:2]) for end in (theirs, ours)]
    with suppress(OSError), Path(f"/proc/self/net/{table}").open() as rows:
        for row in rows:
            cells = row.split()
            if cells[1:3] == wanted:
                return int(cells[7])
    return None


def _as_listed(family: int, address: str, port: int) -> str:
    packed = socket.inet_pton(family, address)
    words = (packed[start : start + 4] for start in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words) + f":{port:04X}"


def may_write(database: Path, uid: int) -> bool:
    """By the file's mode, and that of every directory above it."""
    if uid in (0, os.geteuid()):
        return True
    try:
        person = pwd.getpwuid(uid)
        groups = os.getgrouplist(person.pw_name, person.pw_gid)
        path = database.resolve(strict=True)
        above = (_has(folder, uid, groups, stat.S_IXOTH) for folder in path.parents)
        return _has(path, uid, groups, stat.S_IWOTH) and all(above)
    except (KeyError, OSError):
        return False


def _has(path: Path, uid: int, groups: Collection[int], right: int) -> bool:
    """`right`: as others have it."""
    found = path.stat()
    shift = 6 if found.st_uid == uid else 3 if found.st_gid in groups else 0
    return bool(found.st_mode & right << shift)


def name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
