"""The SQLite store: eleven parts over one database, and their statements; the promises are in `base.py`.

Statements stand in the .sql file beside their part. ``-- name: claim`` begins a statement, ``-- fragment: lanes`` a
piece that statements share by writing ``{lanes}``: one text for what must be the same, such as the gates that `claim`
obeys and `explain` prints.
"""

from __future__ import annotations

import re
from pathlib import Path

from worker_service.jobs.generations import Patience
from worker_service.store.batches import SqliteBatches
from worker_service.store.database import Database, FileWatch
from worker_service.store.intake import NEW_COLUMNS, ROWS_AT_ONCE, USUAL_COLUMNS, SqliteIntake
from worker_service.store.leases import CLOSING_WIDTH, COMPLETED_AT_ONCE, COMPLETED_WIDTH, SqliteLeases
from worker_service.store.library import SqliteLibrary
from worker_service.store.notices import NOTICE_COLUMNS, SqliteNotices
from worker_service.store.reading import JOB_COLUMNS, SqliteReading
from worker_service.store.requests import SqliteRequests
from worker_service.store.schedules import SqliteSchedules
from worker_service.store.steering import SqliteSteering
from worker_service.store.tokens import TOKEN_COLUMNS, SqliteTokens
from worker_service.store.upkeep import SqliteUpkeep

_HERE = Path(__file__).parent
# A fragment stands before what uses it.
_PARTS = (
    "leases", "intake", "schedules", "steering", "batches", "reading", "library", "upkeep", "notices", "tokens",
    "requests",
)  # fmt: skip
_HEADING = re.compile(r"^-- (name|fragment): (\w+)\n", re.MULTILINE)
_PLACE = re.compile(r"\{(\w+)\}")


class SqliteStore:
    """For one thread; another thread opens a store of its own."""

    def __init__(self, database: Database, patience: Patience) -> None:
        self.database = database
        self._patience = patience
        self.intake = SqliteIntake(database, patience)
        self.leases = SqliteLeases(database, self.intake)
        self.reading = SqliteReading(database)
        self.steering = SqliteSteering(database, self.reading)
        self.batches = SqliteBatches(database, self.intake, self.steering)
        self.schedules = SqliteSchedules(database, self.intake, self.batches)
        self.library = SqliteLibrary(database)
        self.upkeep = SqliteUpkeep(database)
        self.notices = SqliteNotices(database, self.intake)
        self.tokens = SqliteTokens(database)
        self.requests = SqliteRequests(database)

    def watch(self) -> FileWatch:
        pauses = self.database.pauses
        begins_turn = (lambda: None) if pauses is None else pauses.turn
        return FileWatch(self.database.path, self.reading.change_counter, begins_turn=begins_turn)

    def hurried(self) -> SqliteStore:
        return SqliteStore(self.database.hurried(), self._patience)

    def close(self) -> None:
        self.database.close()


def sqlite_statements() -> dict[str, str]:
    new_row = _row_of(len(NEW_COLUMNS))
    # What only Python can know.
    fragments = {
        "new_columns": ", ".join(NEW_COLUMNS),
        "new_row": new_row,
        "new_rows": ", ".join([new_row] * ROWS_AT_ONCE),
        "usual_columns": ", ".join(USUAL_COLUMNS),
        "usual_rows": ", ".join([_row_of(len(USUAL_COLUMNS))] * ROWS_AT_ONCE),
        "job_columns": ", ".join(JOB_COLUMNS),
        "notice_columns": ", ".join(NOTICE_COLUMNS),
        "token_columns": ", ".join(TOKEN_COLUMNS),
    }
    for room in COMPLETED_AT_ONCE:
        fragments[f"closing_rows_{room}"] = ", ".join([_row_of(CLOSING_WIDTH)] * room)
        fragments[f"completed_rows_{room}"] = ", ".join([_row_of(COMPLETED_WIDTH)] * room)
    statements: dict[str, str] = {}
    for part in _PARTS:
        pieces = _HEADING.split((_HERE / f"{part}.sql").read_text("utf-8"))
        for kind, name, text in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
            filled = _PLACE.sub(lambda place: fragments[place[1]], text.split("\n\n\n")[0].strip().removesuffix(";"))
            (fragments if kind == "fragment" else statements)[name] = filled
    return statements


def _row_of(width: int) -> str:
    return f"({', '.join('?' * width)})"
