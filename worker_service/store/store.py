"""The store: its parts over one database, and their SQL statements.

Every write after a claim carries the lease (P2). Once the fence has been raised or the row has ended, nothing is
written, and the method raises `LeaseLost` or returns the lost leases. Each public method is one transaction. Callers
decide, for example when to retry; the store enforces the rules.

The statements of a part are in the .sql file beside it. ``-- name: claim`` starts a statement. ``-- fragment: lanes``
starts a piece that statements include with ``{lanes}``, so that `claim` and `explain` cannot differ in their gates.
"""

from __future__ import annotations

import re
from pathlib import Path

from worker_service.jobs.generations import TakeoverTimeouts
from worker_service.store.attempts import Attempts
from worker_service.store.batches import Batches
from worker_service.store.change_watch import FileWatch
from worker_service.store.claim_order import Scheduler
from worker_service.store.completions import Completions
from worker_service.store.database import Database, row_of
from worker_service.store.idempotency import IdempotencyKeys
from worker_service.store.intake import NEW_COLUMNS, USUAL_COLUMNS, Intake
from worker_service.store.integrity import Integrity
from worker_service.store.job_control import Steering
from worker_service.store.leases import Leases
from worker_service.store.library import Library
from worker_service.store.notices import NOTICE_COLUMNS, Notices
from worker_service.store.reading import JOB_COLUMNS, Reading
from worker_service.store.schedules import Schedules
from worker_service.store.tokens import TOKEN_COLUMNS, Tokens
from worker_service.store.upkeep import Upkeep
from worker_service.store.workers import Workers

_HERE = Path(__file__).parent
# A fragment must come before the statements that use it.
_PARTS = (
    "workers", "intake", "leases", "completions", "attempts", "schedules", "job_control", "batches", "reading",
    "library", "upkeep", "integrity", "notices", "tokens", "idempotency",
)  # fmt: skip
_HEADING = re.compile(r"^-- (name|fragment): (\w+)\n", re.MULTILINE)
_PLACE = re.compile(r"\{(\w+)\}")


class Store:
    """For one thread; each thread opens its own."""

    def __init__(self, database: Database, patience: TakeoverTimeouts) -> None:
        self.database = database
        self._patience = patience
        self.intake = Intake(database, patience)
        scheduler = Scheduler(database)
        completions = Completions(database, self.intake)
        self.workers = Workers(database, scheduler)
        self.leases = Leases(database, scheduler, completions)
        self.attempts = Attempts(database, completions)
        self.reading = Reading(database)
        self.steering = Steering(database, self.reading)
        self.batches = Batches(database, self.intake, self.steering)
        self.schedules = Schedules(database, self.intake, self.batches)
        self.library = Library(database)
        self.upkeep = Upkeep(database)
        self.integrity = Integrity(database)
        self.notices = Notices(database, self.intake)
        self.tokens = Tokens(database)
        self.idempotency_keys = IdempotencyKeys(database)

    def watch(self) -> FileWatch:
        pauses = self.database.writing.pauses
        begins_turn = (lambda: None) if pauses is None else pauses.turn
        return FileWatch(self.database.path, self.database.change_counter, begins_turn=begins_turn)

    def relaxed_durability(self) -> Store:
        return Store(self.database.relaxed_durability(), self._patience)

    def close(self) -> None:
        self.database.close()


def sqlite_statements() -> dict[str, str]:
    # Fragments made from Python constants.
    fragments = {
        "new_columns": ", ".join(NEW_COLUMNS),
        "new_row": row_of(len(NEW_COLUMNS)),
        "usual_columns": ", ".join(USUAL_COLUMNS),
        "usual_row": row_of(len(USUAL_COLUMNS)),
        "job_columns": ", ".join(JOB_COLUMNS),
        "job_columns_as_bytes": ", ".join(f"CAST({name} AS BLOB)" for name in JOB_COLUMNS),
        "notice_columns": ", ".join(NOTICE_COLUMNS),
        "token_columns": ", ".join(TOKEN_COLUMNS),
        "closing_row": row_of(10),
        "completed_row": row_of(4),
    }
    statements: dict[str, str] = {}
    for part in _PARTS:
        pieces = _HEADING.split((_HERE / f"{part}.sql").read_text("utf-8"))
        for kind, name, text in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
            filled = _PLACE.sub(lambda place: fragments[place[1]], text.split("\n\n\n")[0].strip().removesuffix(";"))
            (fragments if kind == "fragment" else statements)[name] = filled
    return statements
