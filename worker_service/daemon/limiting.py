"""How many jobs may run at once: from the settings into the table where every claim reads it, at a daemon's start.

The table is one for all daemons, so the one that starts last decides. Where its settings differ from what another that
lives has written, it says so; `pagemill doctor` says it of the settings that it is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from worker_service import events
from worker_service.config import Settings
from worker_service.store.base import Store

if TYPE_CHECKING:
    from worker_service.events import Log

Limits = Mapping[str, Mapping[str, int]]


def tell_limits(store: Store, settings: Settings, log: Log) -> None:
    """Write them; a warning first, where that changes what another daemon goes by."""
    wanted, written = limits(settings), store.limits()
    others = [worker.id for worker in store.workers()]
    if others and (changes := list(differences(written, wanted))):
        log.warning(events.LIMITS_REPLACED, changes=changes, workers=others)
    for kind, most in wanted.items():
        store.set_limits(kind, dict(most))


def limits(settings: Settings) -> Limits:
    """What the settings allow to run at once, by kind. A limit of its own goes before a command's `max_running`."""
    most_of = {name: table.get("max_running") for name, table in settings.commands.items()}
    of_commands = {name: most for name, most in most_of.items() if isinstance(most, int)}
    return {
        "type": {**of_commands, **settings.limits.get("type", {})},
        "class": dict(settings.limits.get("class", {})),
        "owner": dict(settings.limits.get("owner", {})),
        "payload": {"bytes": settings.payload_bytes_max},
    }


def differences(written: Limits, wanted: Limits) -> Iterator[str]:
    """``type ocr_pages: 2 in the database, 4 in these settings``"""
    for kind in sorted(written.keys() | wanted.keys()):
        there, here = written.get(kind, {}), wanted.get(kind, {})
        for name in sorted(there.keys() | here.keys()):
            if there.get(name) != here.get(name):
                was, now = _most(there.get(name)), _most(here.get(name))
                yield f"{kind} {name}: {was} in the database, {now} in these settings"


def _most(number: int | None) -> str:
    return "no limit" if number is None else str(number)
