"""The reading half of the SQLite store. On a connection of its own, so that it never waits for a writer."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from worker_service.clock import as_text, from_text
from worker_service.errors import BadInput, JobNotFound
from worker_service.jobs.model import (
    WATCHING,
    Action,
    Attempt,
    Counts,
    Course,
    ErrorCount,
    Event,
    HandlerFacts,
    Held,
    Job,
    Lease,
    LogLine,
    Pause,
    PlatformCount,
    Status,
    TypeCounts,
    WorkerState,
)
from worker_service.jobs.selector import Selector
from worker_service.store.sqlite_connection import Connections, Row, spoken_errors
from worker_service.store.sqlite_selecting import where

JOB_COLUMNS = Job._fields
_STATUS = JOB_COLUMNS.index("status")
_STATUSES = {str(status): status for status in Status}
# The newest only: a completion must answer at once on a table of millions.
_NAMED = {
    column: f"SELECT {column} AS name FROM worker_job_queue ORDER BY id DESC LIMIT 5000"
    for column in ("id", "job_type", "owner", "platform", "account", "error_code")
} | {
    "document": "SELECT id AS name FROM document ORDER BY id DESC LIMIT 5000",
    "handler": "SELECT job_type AS name FROM handler",
}


def job_from(row: Row) -> Job:
    return Job._make((*row[:_STATUS], _STATUSES[row[_STATUS]], *row[_STATUS + 1 :]))


def _worker_from(row: Row) -> WorkerState:
    return WorkerState(*(*row[:7], bool(row[7]), bool(row[8]), *row[9:]))


class Reading(Connections):
    def get(self, job_id: int) -> Job:
        rows = self._read("get", job_id=job_id)
        if not rows:
            raise JobNotFound(f"there is no job {job_id}: `pagemill ls` shows those that are there")
        return job_from(rows[0])

    def list(self, selector: Selector, *, most: int = 50, before_id: int | None = None) -> Sequence[Job]:
        condition, values = where(selector)
        if before_id is not None:
            condition, values = f"{condition} AND id < ?", [*values, before_id]
        columns = ", ".join(JOB_COLUMNS)
        sql = f"SELECT {columns} FROM worker_job_queue WHERE {condition} ORDER BY id DESC LIMIT ?"
        return [job_from(row) for row in self._read_sql(sql, [*values, most])]

    def count(self, selector: Selector) -> int:
        condition, values = where(selector)
        [(count,)] = self._read_sql(f"SELECT count(*) FROM worker_job_queue WHERE {condition}", values)
        return int(count)

    def ids(self, selector: Selector, condition: str = "1") -> Sequence[int]:
        selected, values = where(selector)
        sql = f"SELECT id FROM worker_job_queue WHERE {selected} AND {condition} ORDER BY id"
        return [row[0] for row in self._read_sql(sql, values)]

    def oldest_ended_ids(self, selector: Selector, most: int) -> Sequence[int]:
        selected, values = where(selector)
        sql = f"SELECT id FROM worker_job_queue WHERE {selected} AND completed_at < ? ORDER BY completed_at LIMIT ?"
        return [row[0] for row in self._read_sql(sql, [*values, selector.older_than or "9999", most])]

    def family(self, ids: Sequence[int]) -> Sequence[int]:
        return [job_id for (job_id,) in self._read("family", ids=json.dumps(list(ids)))]

    def watching(self, ids: Sequence[int]) -> Sequence[int]:
        return [job_id for (job_id,) in self._read("watching", ids=json.dumps(list(ids)), code=WATCHING)]

    def course(self, job_id: int) -> Course | None:
        rows = self._read("course", job_id=job_id)
        return Course(*rows[0]) if rows else None

    def attempts(self, job_id: int) -> Sequence[Attempt]:
        return [Attempt(*row) for row in self._read("attempts", job_id=job_id)]

    def events(self, job_id: int) -> Sequence[Event]:
        return [Event(*row) for row in self._read("events", job_id=job_id)]

    def logs(self, job_id: int, *, after_id: int = 0, most: int = 1000) -> Sequence[LogLine]:
        return [LogLine(*row) for row in self._read("logs", job_id=job_id, after_id=after_id, most=most)]

    def waits_for(self, job_id: int) -> Sequence[tuple[int, str]]:
        return [(needs_id, status) for needs_id, status in self._read("waits_for", job_id=job_id)]

    def pauses(self) -> Sequence[Pause]:
        return [Pause(*row) for row in self._read("pauses", now=self._now())]

    def actions(self, *, most: int = 20) -> Sequence[Action]:
        return [Action(*row) for row in self._read("actions", most=most)]

    def workers(self) -> Sequence[WorkerState]:
        return [_worker_from(row) for row in self._read("workers")]

    def absent_workers(self) -> Sequence[WorkerState]:
        return [_worker_from(row) for row in self._read("absent_workers")]

    def limits(self) -> Mapping[str, Mapping[str, int]]:
        limits: dict[str, dict[str, int]] = {}
        for kind, name, most in self._read("limits"):
            limits.setdefault(kind, {})[name] = most
        return limits

    def handlers_lacking(self) -> Sequence[HandlerFacts]:
        rows = self._read("handlers_lacking", stale_before=self._stale_before())
        return [HandlerFacts(*row) for row in rows]

    def payload_schemas(self, job_type: str) -> Sequence[str | None]:
        rows = self._read("payload_schemas", job_type=job_type, stale_before=self._stale_before())
        return [schema for (schema,) in rows]

    def choices(self) -> Sequence[str]:
        return [choices for (choices,) in self._read("choices", stale_before=self._stale_before())]

    def leases_of(self, worker_id: str) -> Sequence[Held]:
        return [
            Held(Lease(job_id, fence, worker_id), bool(is_cancelled), bool(is_hurried))
            for job_id, fence, is_cancelled, is_hurried in self._read("leases_of", worker_id=worker_id)
        ]

    def counts(self) -> Counts:
        [(total, pending, running, failed, cancelled)] = self._read("counts")
        oldest = self._read("oldest_pending")
        by_status = {
            Status.PENDING: pending,
            Status.RUNNING: running,
            Status.COMPLETED: total - pending - running - failed - cancelled,
            Status.FAILED: failed,
            Status.CANCELLED: cancelled,
        }
        return Counts(by_status, oldest[0][0] if oldest else None)

    def counts_by_type(self) -> Sequence[TypeCounts]:
        return [TypeCounts(*row) for row in self._read("counts_by_type")]

    def pending_by_platform(self) -> Sequence[PlatformCount]:
        return [PlatformCount(*row) for row in self._read("pending_by_platform")]

    def documents_failing(self, selector: Selector, statuses: Sequence[Status]) -> Sequence[int]:
        meant = [status for status in selector.statuses or statuses if status in statuses]
        job_ids = self.ids(replace(selector, statuses=meant), "generation IS NOT NULL") if meant else []
        return [row[0] for row in self._read("documents_failing", job_ids=json.dumps(job_ids))]

    def jobs_lacking(self) -> Sequence[ErrorCount]:
        return [ErrorCount(*row) for row in self._read("jobs_lacking")]

    def errors(self, *, since: str, to_retry: Collection[str] | None = None) -> Sequence[ErrorCount]:
        codes = None if to_retry is None else json.dumps(list(to_retry))
        return [ErrorCount(*row) for row in self._read("errors", since=since, codes=codes)]

    def names(self, column: str, prefix: str, *, most: int = 50) -> Sequence[str]:
        if column not in _NAMED:
            raise BadInput(f"{column!r} cannot be completed: it is one of {', '.join(_NAMED)}")
        sql = f"SELECT DISTINCT name FROM ({_NAMED[column]}) WHERE substr(name, 1, ?) = ? AND name <> '' LIMIT ?"
        return [str(row[0]) for row in self._read_sql(sql, [len(prefix), prefix, most])]

    def next_deadline(self) -> datetime | None:
        [(at,)] = self._read("next_deadline", now=self._now())
        return from_text(at) if at else None

    def comes_due(self, worker_id: str, until: datetime) -> bool:
        return self._read("comes_due", worker_id=worker_id, until=as_text(until)) == [(1,)]

    def database_id(self) -> str:
        [(made_at,)] = self._read("database_id")
        return str(made_at)

    def change_counter(self) -> int:
        # Of the connection that writes, where there is one: its own commits do not count.
        with spoken_errors(self._path):
            [(counter,)] = (self._writing or self._reader).execute("PRAGMA data_version").fetchall()
        return int(str(counter))
