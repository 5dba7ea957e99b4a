"""Kill a process at each statement with which an action changes the database: a new process and a SIGKILL for each.

Statements that only read are skipped: a kill there loses nothing that a kill at the statement before does not lose.
Inside a transaction only the COMMIT is tried, unless PAGEMILL_FULL=1.

`python -m tests.services.kill_points ACTION SETTINGS BASE` copies BASE.db for each kill, lets another process repeat
the action on the copy, and prints the number of kills.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
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

ROOT = Path(__file__).resolve().parents[2]


def stop(session: Session) -> None:
    batches.stop_batch(session, 1)


def resume(session: Session) -> None:
    batches.resume_batch(session, 1)


def work(session: Session) -> None:
    """Complete all jobs, also those that a killed worker was running."""
    leases = session.store.leases
    leases.requeue("w1")
    session.store.workers.register(new_worker("w1", types=TYPES))
    while jobs := [*leases.claim("w1", 9), *leases.claim("w1", 9, "io")]:
        for job in jobs:
            leases.complete_many([Completion(job.lease, publishes=job.generation is not None)])


ACTIONS: dict[str, Callable[[Session], object]] = {"tick": run_tick, "stop": stop, "resume": resume, "work": work}


def act_on(database: Path, settings: str, action: Callable[[Session], object], *, dies_at: int = 0) -> None:
    session = open_session(load_settings(environ={"WORKER_CONFIG": settings, "WORKER_DATABASE": str(database)}))
    store = session.store
    statement_numbers = count(1)

    def traced(cursor: apsw.Cursor, statement: str, _: object) -> bool:
        if _changes(cursor, statement) and next(statement_numbers) == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    store.database.writer.exec_trace = traced
    action(session)
    session.close()


def _changes(cursor: apsw.Cursor, statement: str) -> bool:
    # SQLite calls a COMMIT a statement that only reads.
    if statement == "COMMIT":
        return True
    return not cursor.is_readonly and (IS_FULL or not cursor.connection.in_transaction)


def survives_in_child(run: Callable[[], None]) -> bool:
    child = os.fork()
    if child == 0:
        run()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return False
    assert os.WEXITSTATUS(status) == 0, status
    return True


def count_kills(action: str, base: Path) -> int:
    """Run this module in a process of its own, with the settings in `own.toml` beside `base`."""
    command = [sys.executable, "-m", "tests.services.kill_points", action, str(base.with_name("own.toml")), str(base)]
    return int(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main(action: Callable[[Session], object], settings: str, base: Path) -> None:
    sources()
    for number in count(1):
        database = base.with_name(f"{base.stem}-{number}.db")
        shutil.copy(base, database)
        if survives_in_child(lambda: act_on(database, settings, action, dies_at=number)):  # noqa: B023  called at once
            print(number - 1)
            return
        assert survives_in_child(lambda: act_on(database, settings, action))  # noqa: B023


if __name__ == "__main__":
    main(ACTIONS[sys.argv[1]], sys.argv[2], Path(sys.argv[3]))
