"""Numbers, lengths of time and sizes in words."""

from __future__ import annotations

from datetime import timedelta


def counted(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def format_length(time: timedelta) -> str:
    seconds = max(0, int(time.total_seconds()))
    # A unit begins at two, to lose little by rounding, but minutes at one.
    for unit, unit_seconds in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * unit_seconds or (unit == "min" and seconds >= unit_seconds):
            return f"{seconds // unit_seconds} {unit}"
    return f"{seconds} s"


def format_size(number: int) -> str:
    for unit, unit_bytes in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= unit_bytes:
            return f"{number / unit_bytes:.1f} {unit}"
    return f"{number} B"
