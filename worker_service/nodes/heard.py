"""When each node was heard last: a note that outlives its gateway, so that patience with a node never begins anew.

The gateway writes it before the node can know that it was heard, and it is from then on that a node counts how long it
may go on. So whoever comes after the gateway knows by when all of it has ended there. By the clock of this boot.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_PREFIX = "heard-"
"""A name of its own, whatever a node is called."""
_MOMENT = struct.Struct("=d")


class Note:
    def __init__(self, place: Path, node: str) -> None:
        self._path = place / f"{_PREFIX}{node}"
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, moment: float) -> None:
        os.pwrite(self._file, _MOMENT.pack(moment), 0)

    def close(self) -> None:
        os.close(self._file)

    def forget(self) -> None:
        """Nothing of ours is there any more, and nobody need wait for it."""
        self._path.unlink(missing_ok=True)


def notes_in(place: Path) -> Mapping[str, float]:
    """By node. One that is not among them was never heard."""
    found: dict[str, float] = {}
    for path in place.glob(f"{_PREFIX}*"):
        # Somebody else may have cleared it away, or it was made and not written yet.
        with suppress(FileNotFoundError, struct.error):
            [found[path.name.removeprefix(_PREFIX)]] = _MOMENT.unpack(path.read_bytes())
    return found
