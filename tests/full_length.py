"""PAGEMILL_FULL=1 runs the long form of shortened tests."""

from __future__ import annotations

import os
from typing import TypeVar

import pytest

IS_FULL = os.environ.get("PAGEMILL_FULL") == "1"

only_in_full = pytest.mark.skipif(not IS_FULL, reason="takes long; PAGEMILL_FULL=1 runs it")

T = TypeVar("T")


def short(brief: T, *, full: T) -> T:
    return full if IS_FULL else brief
