"""Handlers that do nothing, or only report when their first line ran.

`own.Own` installs an entry point that names this module.
"""

from __future__ import annotations

import time
from typing import Any

from worker_service.handlers import Context, Done, Handler

Payload = dict[str, Any]

FRESH, REUSED, TIMED, LONG = "noop", "noop_reused", "noop_timed", "noop_long"
REUSE = 100


def nothing(context: Context[Payload]) -> Done:
    return Done()


def timed(context: Context[Payload]) -> Done:
    """Report the monotonic clock, which all processes of the machine share."""
    return Done({"at": time.monotonic()})


def long(context: Context[Payload]) -> Done:
    time.sleep(600)
    return Done()


handlers = [
    Handler(FRESH, nothing, dict),
    Handler(REUSED, nothing, dict, reuse=REUSE),
    Handler(TIMED, timed, dict),
    Handler(LONG, long, dict),
]
