"""Numbers, lengths of time and sizes in words."""

from __future__ import annotations

from datetime import timedelta


def counted(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def length(time: timedelta) -> str:
    whole = max(0, int(time.total_seconds()))
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if whole >= 2 * size or (unit == "min" and whole >= size):
            return f"{whole // size} {unit}"
    return f"{whole} s"


def size(number: int) -> str:
    for unit, bytes_each in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= bytes_each:
            return f"{number / bytes_each:.1f} {unit}"
    return f"{number} B"
