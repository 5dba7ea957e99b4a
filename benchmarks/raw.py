"""The peer of the queue: SQLite with the proposal's plain table.

The same columns, journal and `synchronous` as pagemill, one partial index, no triggers, no audit, plain apsw, one
UPDATE to claim and one to complete.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import apsw

SCHEMA = """
CREATE TABLE worker_job_queue (
    id                INTEGER PRIMARY KEY AUTOINCREMENT,
    job_type          TEXT NOT NULL,
    platform          TEXT NOT NULL,
    account           TEXT,
    priority          INTEGER NOT NULL DEFAULT 5,
    status            TEXT NOT NULL DEFAULT 'pending',
    payload           TEXT,
    error_message     TEXT,
    retry_count       INTEGER NOT NULL DEFAULT 0,
    max_retries       INTEGER NOT NULL DEFAULT 3,
    created_at        TEXT NOT NULL DEFAULT (datetime('now')),
    started_at        TEXT,
    completed_at      TEXT,
    worker_id         TEXT,
    progress_percent  INTEGER NOT NULL DEFAULT 0,
    progress_message  TEXT
);
CREATE INDEX ready ON worker_job_queue (priority, created_at) WHERE status = 'pending';
"""

ENQUEUE = "INSERT INTO worker_job_queue (job_type, platform, account, payload) VALUES (?, ?, ?, ?)"
CLAIM = """
UPDATE worker_job_queue SET status = 'running', started_at = datetime('now'), worker_id = ?
 WHERE id IN (SELECT id FROM worker_job_queue WHERE status = 'pending' ORDER BY priority, created_at LIMIT ?)
RETURNING id, job_type, platform, account, payload
"""
COMPLETE_ONE = "UPDATE worker_job_queue SET status = 'completed', completed_at = datetime('now') WHERE id = ?"
COMPLETE_MANY = """
UPDATE worker_job_queue SET status = 'completed', completed_at = datetime('now')
 WHERE id IN (SELECT value FROM json_each(?))
"""
RELEASE = "UPDATE worker_job_queue SET status = 'pending', started_at = NULL, worker_id = NULL WHERE id = ?"
FREE = "UPDATE worker_job_queue SET status = 'pending' WHERE id BETWEEN ? AND ? AND status = 'held'"
FILL = """
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
INSERT INTO worker_job_queue (job_type, platform, account, status, payload,
                              created_at, started_at, completed_at, worker_id)
SELECT 'scrape_account', 'instagram', 'user123', ?2, '{"scrape_type":"full"}',
       datetime(1790000000 + i / 1000, 'unixepoch'),
       iif(?2 = 'completed', datetime(1790000000 + i / 1000, 'unixepoch'), NULL),
       iif(?2 = 'completed', datetime(1790000000 + i / 1000, 'unixepoch'), NULL),
       iif(?2 = 'completed', 'bench', NULL)
  FROM n
"""

NewRow = tuple[str, str, str, str]


class Raw:
    """A queue in four statements."""

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path))
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        if not self._connection.execute("SELECT 1 FROM sqlite_schema").fetchall():
            self._connection.execute(SCHEMA)

    def fill(self, count: int, status: str = "pending") -> None:
        self._connection.execute(FILL, (count, status))

    def enqueue(self, row: NewRow) -> int:
        self._connection.execute(ENQUEUE, row)
        return self._connection.last_insert_rowid()

    def enqueue_many(self, rows: Sequence[NewRow]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(ENQUEUE, rows)
        self._connection.execute("COMMIT")

    def claim(self, most: int = 1) -> list[int]:
        return [cast(int, row[0]) for row in self._connection.execute(CLAIM, ("bench", most)).fetchall()]

    def complete(self, job_ids: Sequence[int]) -> None:
        if len(job_ids) == 1:
            self._connection.execute(COMPLETE_ONE, (job_ids[0],))
        else:
            self._connection.execute(COMPLETE_MANY, (json.dumps(job_ids),))

    def release(self, job_id: int) -> None:
        self._connection.execute(RELEASE, (job_id,))

    def free(self, first_id: int, last_id: int) -> None:
        self._connection.execute(FREE, (first_id, last_id))

    def close(self) -> None:
        self._connection.close()
