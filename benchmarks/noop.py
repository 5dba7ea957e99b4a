"""The handlers of the daemon's figures. They do nothing, or only say when their first line ran.

Found in the nursery by the same door as anybody's: `own.Own` installs an entry point that names this module.
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
    """The monotonic clock is one for all processes of the machine."""
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
