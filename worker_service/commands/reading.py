"""How far documents are, while somebody waits: pages, pages a second, and the time left. On stderr."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TextIO

from worker_service.commands import output
from worker_service.documents import Reading, Watch

_DRAW_SECONDS = 0.2
_LINE_SECONDS = 10.0


def watch_reading(stream: TextIO | None, *, monotonic: Callable[[], float]) -> Watch:
    """One line, drawn again, where a person looks; else a line now and then."""
    if stream is None:
        return lambda reading: None
    is_terminal = output.is_terminal(stream)
    every = _DRAW_SECONDS if is_terminal else _LINE_SECONDS
    begun = monotonic()
    told = begun - _DRAW_SECONDS if is_terminal else begun

    def watch(reading: Reading) -> None:
        nonlocal told
        now = monotonic()
        is_over = bool(reading.documents) and reading.ended == reading.documents
        if now - told < every and not (is_over and is_terminal):
            return
        told = now
        line = sentence(reading, now - begun)
        stream.write(f"\r{line}\x1b[K" + ("\n" if is_over else "") if is_terminal else f"{line}\n")
        stream.flush()

    return watch


def sentence(reading: Reading, seconds: float) -> str:
    parts = [f"{reading.ended}/{reading.documents} documents"]
    if reading.pages:
        parts.append(f"{reading.pages_done}/{reading.pages} pages")
    rate = reading.pages_done / seconds if seconds > 0 else 0.0
    if rate:
        parts.append(f"{rate:.1f} pages/s")
        left = (reading.pages - reading.pages_done) / rate
        if left:
            parts.append(f"{output.length(timedelta(seconds=left))} left")
    return " · ".join(parts)
