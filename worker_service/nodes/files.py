"""What a node keeps of input files: each by its content, carried once however many attempts read it, bounded.

A name is the SHA-256, with the suffix that the file had. A file grows in pieces, goes on where it was cut off, and is
there only once its digest was right. What nobody has used for longest goes first when all together are too large, or
the disk is nearly full; the head, which goes by what it has brought there, forgets it in the same order, and asks.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from worker_service.children.messages import Garbled

BYTES_MOST = 20 << 30
SPARE_BYTES = 32 << 20
"""Of the disk: attempts write as well."""
NAMES_MOST = 1000
"""That the head remembers of a node."""
_KEY = re.compile(r"([0-9a-f]{64})(\.[a-z0-9]{1,10})?")
_SUFFIX = re.compile(r"\.[a-z0-9]{1,10}")
_PART = ".part"


def key_of(path: Path, sha256: str) -> str:
    suffix = path.suffix.lower()
    return sha256 + (suffix if _SUFFIX.fullmatch(suffix) and suffix != _PART else "")


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Inputs:
    def __init__(self, place: Path, *, bytes_most: int = BYTES_MOST) -> None:
        self._place = place
        self._bytes_most = bytes_most
        self._used: Counter[str] = Counter()
        """By how many attempts: those are not removed."""
        self._hashed: dict[str, tuple[int, Any]] = {}
        """Of those that grow: how far, and the digest of that."""
        self._guard = threading.Lock()
        place.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise Garbled(f"{key[:80]!r} is no name of an input")
        return self._place / key

    def has(self, key: str, size: int) -> int:
        """How many bytes of it are there."""
        if self._is_whole(key, size):
            with self._guard:
                self._make_room(0, keep=key)
            return size
        part = self._part(key)
        there = part.stat().st_size if part.is_file() else 0
        if there >= size:
            part.unlink(missing_ok=True)
            return 0
        if there and self._hashed.get(key, (0,))[0] != there:
            # It was cut off in an earlier life.
            with part.open("rb") as file:
                hashed = hashlib.file_digest(file, "sha256")
            with self._guard:
                self._hashed[key] = there, hashed
        return there

    def put(self, key: str, size: int, at: int, body: bytes) -> int:
        """How many bytes are there now. What turns out to be something else is thrown away: 0."""
        part = self._part(key)
        with self._guard:
            if at == 0:
                is_whole = self._is_whole(key, size)
                self._make_room(0 if is_whole else size, keep=key)
                if is_whole:
                    return size
                self._hashed[key] = 0, hashlib.sha256()
            known, hashed = self._hashed.get(key, (0, None))
            with part.open("r+b" if part.exists() and at else "wb") as file:
                there = file.seek(0, os.SEEK_END)
                if not there == at == known or at + len(body) > size:
                    return there
                file.write(body)
            hashed.update(body)
            self._hashed[key] = at + len(body), hashed
            if at + len(body) < size:
                return at + len(body)
            del self._hashed[key]
            if hashed.hexdigest() != key[:64]:
                part.unlink()
                return 0
            part.chmod(0o400)
            part.rename(self.path(key))
            return size

    def use(self, key: str) -> Path:
        with self._guard:
            self._used[key] += 1
        whole = self.path(key)
        if whole.is_file():
            os.utime(whole)
        return whole

    def leave(self, key: str) -> None:
        with self._guard:
            self._used[key] -= 1

    def _is_whole(self, key: str, size: int) -> bool:
        whole = self.path(key)
        if not whole.is_file() or whole.stat().st_size != size:
            return False
        os.utime(whole)
        return True

    def _part(self, key: str) -> Path:
        return self.path(key).with_name(key + _PART)

    @property
    def is_disk_full(self) -> bool:
        return self._free_bytes() < SPARE_BYTES

    def _free_bytes(self) -> int:
        disk = os.statvfs(self._place)
        return disk.f_bavail * disk.f_frsize

    def _make_room(self, size: int, *, keep: str) -> None:
        files = sorted((one.stat().st_mtime, one.stat().st_size, one) for one in self._place.iterdir())
        total = sum(own for _, own, _ in files) + size
        free = self._free_bytes() - size
        unused = [(own, one) for _, own, one in files if not self._used[one.name]]
        unused = [(own, one) for own, one in unused if one.name not in (keep, keep + _PART)]
        if free + sum(own for own, _ in unused) < SPARE_BYTES:
            # Whatever is thrown away would not be enough.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._place))
        for own, file in unused:
            if total <= self._bytes_most and free >= SPARE_BYTES:
                return
            file.unlink(missing_ok=True)
            total, free = total - own, free + own


class Brought:
    """How many bytes of an input file the head has brought to a node that still keeps them."""

    def __init__(self, *, bytes_most: int = BYTES_MOST) -> None:
        self._bytes_most = bytes_most
        self._bytes: dict[str, int] = {}
        """What was used longest ago comes first."""
        self._total = 0

    def __contains__(self, key: object) -> bool:
        return key in self._bytes

    def __len__(self) -> int:
        return len(self._bytes)

    def bytes(self, key: str) -> int:
        return self._bytes.get(key, 0)

    def add(self, key: str, size: int) -> None:
        """It has so many now."""
        self.forget(key)
        self._bytes[key] = size
        self._total += size
        while len(self) > NAMES_MOST or self._total > self._bytes_most:
            self.forget(next(iter(self._bytes)))

    def forget(self, key: str) -> None:
        self._total -= self._bytes.pop(key, 0)

    def clear(self) -> None:
        self._bytes.clear()
        self._total = 0
