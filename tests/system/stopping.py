"""A daemon that ends itself between two statements: `python -m tests.system.stopping` instead of `worker_service`.

It runs the real daemon, with an eye on the statements of each verb. A point is a verb and the names of two statements
that it runs one after the other, such as `claim BEGIN unready`; the first of each verb is before its BEGIN, the last
one after its COMMIT, before anybody hears the answer. Told by PAGEMILL_POINTS, it writes each point that it comes by
into that file; told by PAGEMILL_STOP, it sends itself SIGKILL when it comes to that point. The production code has no
hook for this.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from worker_service.store import database
from worker_service.store.leases import SqliteLeases
from worker_service.store.sqlite import sqlite_statements

VERBS = {
    "claim": "claim",
    "beat": "beat",
    "report": "report",
    "complete_many": "complete",
    "requeue": "requeue",
    "fail": "fail",
    "release": "release",
    "snooze": "snooze",
    "confirm_cancel": "confirm_cancel",
}
_CALLED, _ANSWERED = "called", "answered"


class _Place(threading.local):
    """Which verb this thread is in, and the last statement that it has run."""

    verb = ""
    name = ""


_place = _Place()


def main() -> int:
    names = {text: name for name, text in sqlite_statements().items()}
    reach = _recorder(os.environ.get("PAGEMILL_POINTS"), os.environ.get("PAGEMILL_STOP"))

    def trace(_: object, sql: str, __: object) -> bool:
        if _place.verb and sql != "ROLLBACK":
            _come_to(names.get(sql, sql.split()[0]), reach)
        return True

    connect = database.connect

    def connect_and_trace(*arguments: Any, **options: Any) -> Any:
        connection = connect(*arguments, **options)
        connection.exec_trace = trace
        return connection

    database.connect = connect_and_trace
    for method, verb in VERBS.items():
        setattr(SqliteLeases, method, _followed(getattr(SqliteLeases, method), verb, reach))

    from worker_service.daemon.start import main as run

    return run()


def _followed(method: Callable[..., Any], verb: str, reach: Callable[[str], None]) -> Callable[..., Any]:
    @wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        _place.verb, _place.name = verb, _CALLED
        try:
            answer = method(*arguments, **options)
            _come_to(_ANSWERED, reach)
            return answer
        finally:
            _place.verb = ""

    return call


def _come_to(name: str, reach: Callable[[str], None]) -> None:
    before, _place.name = _place.name, name
    reach(f"{_place.verb} {before} {name}")


def _recorder(points: str | None, stop: str | None) -> Callable[[str], None]:
    seen: set[str] = set()

    def reach(point: str) -> None:
        if point == stop:
            os.kill(os.getpid(), signal.SIGKILL)
        if points is not None and point not in seen:
            seen.add(point)
            with Path(points).open("a") as file:
                file.write(point + "\n")

    return reach


if __name__ == "__main__":
    sys.exit(main())
