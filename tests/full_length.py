"""How long the tests are. `PAGEMILL_FULL=1` gives those their full length that the suite has in a short form."""

from __future__ import annotations

import os
from typing import TypeVar

IS_FULL = os.environ.get("PAGEMILL_FULL") == "1"

T = TypeVar("T")


def short(brief: T, *, full: T) -> T:
    return full if IS_FULL else brief
