"""Kill a process at each statement with which an action changes the database: a new process and a SIGKILL for each.

Statements that only read are skipped: they lose nothing that the statement before did not lose. Inside a transaction
only the COMMIT is tried, unless PAGEMILL_FULL=1.

`python -m tests.services.kill_points DEED SETTINGS BASE` copies BASE.db for each kill and prints how many there were.
After each kill another process does the action again.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import apsw

import job_handlers.crawl.requests  # noqa: F401  before the children begin
from job_handlers.fetch.sources import sources
from tests.full_length import IS_FULL
from tests.store.kit import TYPES, new_worker
from worker_service.jobs.attempts import Completion
from worker_service.services import batches
from worker_service.services.schedule_ticks import run_tick
from worker_service.services.session import Session, open_session
from worker_service.settings.loading import load_settings


def stop(session: Session) -> None:
    batches.stop_batch(session, 1)


def resume(session: Session) -> None:
    batches.resume_batch(session, 1)


def work(session: Session) -> None:
    """All that there is to do, by a worker who first takes back what one before him has left."""
    leases = session.store.leases
    leases.requeue("w1")
    session.store.workers.register(new_worker("w1", types=TYPES))
    while jobs := [*leases.claim("w1", 9), *leases.claim("w1", 9, "io")]:
        for job in jobs:
            leases.complete_many([Completion(job.lease, publishes=job.generation is not None)])


DEEDS: dict[str, Callable[[Session], object]] = {"tick": run_tick, "stop": stop, "resume": resume, "work": work}


def done_on(database: Path, settings: str, deed: Callable[[Session], object], *, dies_at: int = 0) -> None:
    session = open_session(load_settings(environ={"WORKER_CONFIG": settings, "WORKER_DATABASE": str(database)}))
    store = session.store
    given = count(1)

    def traced(cursor: apsw.Cursor, statement: str, _: object) -> bool:
        if _changes(cursor, statement) and next(given) == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    store.database.writer.exec_trace = traced
    deed(session)
    session.close()


def _changes(cursor: apsw.Cursor, statement: str) -> bool:
    # A COMMIT counts as a statement that reads.
    if statement == "COMMIT":
        return True
    return not cursor.is_readonly and (IS_FULL or not cursor.connection.in_transaction)


def in_a_child(deed: Callable[[], None]) -> bool:
    """Whether it lived."""
    child = os.fork()
    if child == 0:
        deed()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return False
    assert os.WEXITSTATUS(status) == 0, status
    return True


def main(deed: Callable[[Session], object], settings: str, base: Path) -> None:
    sources()
    for number in count(1):
        database = base.with_name(f"{base.stem}-{number}.db")
        shutil.copy(base, database)
        if in_a_child(lambda: done_on(database, settings, deed, dies_at=number)):  # noqa: B023  it is called at once
            print(number - 1)
            return
        assert in_a_child(lambda: done_on(database, settings, deed))  # noqa: B023


if __name__ == "__main__":
    main(DEEDS[sys.argv[1]], sys.argv[2], Path(sys.argv[3]))
