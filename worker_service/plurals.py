"""Numbers of things in a sentence: ``1 job``, ``1,200 jobs``."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
