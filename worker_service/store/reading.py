"""Queries over jobs, workers, events and counts, on a connection that never waits for a writer.

`explain` finds out why a pending job has not started (P12) with the same SQL fragments as a claim, then by a rehearsal
of the next claim.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from worker_service.base.errors import BadInput, JobNotFound, StoreBusy, StoreReadOnly
from worker_service.jobs.attempts import AttemptRow
from worker_service.jobs.counts import Counts, ErrorCount, LiveCounts, PlatformCount, TypeCounts, WorkDone
from worker_service.jobs.history import Action, Event, JobMove, LogLine
from worker_service.jobs.job import WATCHING, Gate, Job, Pause, Status
from worker_service.jobs.selector import CHOSEN_BY, Selector
from worker_service.jobs.workers import HandlerFacts, NodeRow, NodeWork, WorkerState
from worker_service.store.claim_order import claim_values, make_ready
from worker_service.store.database import Database, Row

JOB_COLUMNS = Job._fields

# Only the newest rows, because shell completion must be immediate on a table of millions.
_COMPLETION_QUERIES = {
    column: f"SELECT {column} AS name FROM worker_job_queue ORDER BY id DESC LIMIT 5000"
    for column in ("id", *(column.name for column in CHOSEN_BY))
} | {
    "document": "SELECT id AS name FROM document ORDER BY id DESC LIMIT 5000",
    "handler": "SELECT job_type AS name FROM handler",
}

AHEAD_MOST = 1000

_LASTING_GATES = (
    "WORKER_DOWN", "PAUSED", "DRAINING", "NO_NODE", "CAPABILITY_MISSING", "UNKNOWN_TYPE", "DISK_LOW", "SOURCE_RESTING",
)  # fmt: skip
"""Gates that remain until a user acts or a source's rest ends."""

_UNKNOWN_TYPE = "UNKNOWN_TYPE"

_RunQuery = Callable[..., list[Row]]

_Term = tuple[str, Sequence[Any]]
"""Term of a WHERE clause and its values."""

_PATH = re.compile(r"\w+(\.\w+|\[\d+\])*")


class Reading:
    def __init__(self, database: Database) -> None:
        self._db = database

    def get(self, job_id: int) -> Job:
        rows = self._db.read("get", job_id=job_id)
        if not rows:
            raise JobNotFound(f"there is no job {job_id}", "`pagemill ls` shows those that are there")
        return Job.from_row(rows[0])

    def list(
        self, selector: Selector, *, most: int = 50, before_id: int | None = None, from_id: int | None = None
    ) -> Sequence[Job]:
        """Return jobs, newest first. `before_id` is the last id of the previous page."""
        condition, values = _where_between(selector, before_id, from_id)
        columns = ", ".join(JOB_COLUMNS)
        sql = f"SELECT {columns} FROM worker_job_queue WHERE {condition} ORDER BY id DESC LIMIT ?"
        return [Job.from_row(row) for row in self._db.read_sql(sql, [*values, most])]

    def count(self, selector: Selector, *, before_id: int | None = None, from_id: int | None = None) -> int:
        condition, values = _where_between(selector, before_id, from_id)
        [(count,)] = self._db.read_sql(f"SELECT count(*) FROM worker_job_queue WHERE {condition}", values)
        return int(count)

    def ids(self, selector: Selector, condition: str = "1") -> Sequence[int]:
        selected, values = where(selector)
        sql = f"SELECT id FROM worker_job_queue WHERE {selected} AND {condition} ORDER BY id"
        return [row[0] for row in self._db.read_sql(sql, values)]

    def oldest_ended_ids(self, selector: Selector, most: int) -> Sequence[int]:
        selected, values = where(selector)
        sql = f"SELECT id FROM worker_job_queue WHERE {selected} AND completed_at < ? ORDER BY completed_at LIMIT ?"
        return [row[0] for row in self._db.read_sql(sql, [*values, selector.older_than or "9999", most])]

    def family(self, ids: Sequence[int]) -> Sequence[int]:
        """Add the ancestors and descendants of these jobs."""
        return [job_id for (job_id,) in self._db.read("family", ids=json.dumps(list(ids)))]

    def watching(self, ids: Sequence[int]) -> Sequence[int]:
        """Return the jobs that wait for their next look at a source. They never end."""
        return [job_id for (job_id,) in self._db.read("watching", ids=json.dumps(list(ids)), code=WATCHING)]

    def attempts(self, job_id: int) -> Sequence[AttemptRow]:
        return [AttemptRow(*row) for row in self._db.read("attempts", job_id=job_id)]

    def events(self, job_id: int) -> Sequence[Event]:
        return [Event(*row) for row in self._db.read("events", job_id=job_id)]

    def newest_events(self, *, most: int) -> Sequence[Event]:
        return [Event(*row) for row in self._db.read("newest_events", most=most)]

    def logs(self, job_id: int, *, after_id: int = 0, most: int = 1000) -> Sequence[LogLine]:
        return [LogLine(*row) for row in self._db.read("logs", job_id=job_id, after_id=after_id, most=most)]

    def waits_for(self, job_id: int) -> Sequence[tuple[int, str]]:
        """Return (id, status) of its dependencies. The status of a deleted job is 'gone'."""
        return [(needs_id, status) for needs_id, status in self._db.read("waits_for", job_id=job_id)]

    def pauses(self) -> Sequence[Pause]:
        return [Pause(*row) for row in self._db.read("pauses", now=self._db.now())]

    def nodes(self) -> Sequence[NodeRow]:
        return [NodeRow(*(*row[:6], bool(row[6]))) for row in self._db.read("nodes")]

    def on_nodes(self) -> Sequence[NodeWork]:
        return [NodeWork(*row) for row in self._db.read("on_nodes")]

    def actions(self, *, most: int = 20) -> Sequence[Action]:
        return [Action(*row) for row in self._db.read("actions", most=most)]

    def workers(self) -> Sequence[WorkerState]:
        return [_worker_from(row) for row in self._db.read("workers")]

    def absent_workers(self) -> Sequence[WorkerState]:
        return [_worker_from(row) for row in self._db.read("absent_workers")]

    def limits(self) -> Mapping[str, Mapping[str, int]]:
        """Return kind → name → maximum number of running jobs."""
        limits: dict[str, dict[str, int]] = {}
        for kind, name, most in self._db.read("limits"):
            limits.setdefault(kind, {})[name] = most
        return limits

    def handlers_lacking(self) -> Sequence[HandlerFacts]:
        rows = self._db.read("handlers_lacking", stale_before=self._db.stale_before())
        return [HandlerFacts(*row) for row in rows]

    def time_limit(self, job_id: int) -> int | None:
        for (seconds,) in self._db.read("time_limit", job_id=job_id):
            return None if seconds is None else int(seconds)
        return None

    def payload_schemas(self, job_type: str) -> Sequence[str | None]:
        rows = self._db.read("payload_schemas", job_type=job_type, stale_before=self._db.stale_before())
        return [schema for (schema,) in rows]

    def choices(self) -> Sequence[str]:
        return [choices for (choices,) in self._db.read("choices", stale_before=self._db.stale_before())]

    def counts(self) -> Counts:
        [(total, pending, running, failed, cancelled, oldest)] = self._db.read("counts")
        by_status = {
            Status.PENDING: pending,
            Status.RUNNING: running,
            Status.COMPLETED: total - pending - running - failed - cancelled,
            Status.FAILED: failed,
            Status.CANCELLED: cancelled,
        }
        return Counts(by_status, oldest)

    def counts_by_type(self) -> Sequence[TypeCounts]:
        return [TypeCounts(*row) for row in self._db.read("counts_by_type")]

    def live_by_type(self) -> Sequence[LiveCounts]:
        return [LiveCounts(*row) for row in self._db.read("live_by_type")]

    def newest_event(self) -> tuple[int, int]:
        """Return (event id, job id), or (0, 0). Event ids may be reused after a prune."""
        for event_id, job_id in self._db.read("newest_event"):
            return event_id, job_id
        return 0, 0

    def job_of_event(self, event_id: int) -> int | None:
        for (job_id,) in self._db.read("job_of_event", id=event_id):
            return int(job_id)
        return None

    def events_after(
        self, event_id: int, upto: int, *, owner: str | None = None, most: int = 1000
    ) -> Sequence[JobMove]:
        values = {"after_id": event_id, "upto": upto, "owner": owner, "most": most}
        return [JobMove(*row) for row in self._db.read("events_after", **values)]

    def pending_by_platform(self, owner: str | None = None) -> Sequence[PlatformCount]:
        return [PlatformCount(*row) for row in self._db.read("pending_by_platform", owner=owner)]

    def documents_failing(
        self,
        selector: Selector,
        statuses: Sequence[Status],
        *,
        before_id: int | None = None,
        from_id: int | None = None,
    ) -> Sequence[int]:
        matching = [status for status in selector.statuses or statuses if status in statuses]
        if not matching:
            return []
        condition, values = _where_between(replace(selector, statuses=matching), before_id, from_id)
        sql = f"SELECT id FROM worker_job_queue WHERE {condition} AND generation IS NOT NULL"
        job_ids = [row[0] for row in self._db.read_sql(sql, values)]
        return [row[0] for row in self._db.read("documents_failing", job_ids=json.dumps(job_ids))]

    def jobs_lacking(self) -> Sequence[ErrorCount]:
        return [ErrorCount(*row) for row in self._db.read("jobs_lacking")]

    def errors(
        self, *, since: str, to_retry: Collection[str] | None = None, is_open: bool = False, owner: str | None = None
    ) -> Sequence[ErrorCount]:
        """Count failed jobs by code and type, most frequent first.

        `is_open` leaves out jobs whose work a newer job has done. `to_retry` selects jobs with these codes that a retry
        would accept.
        """
        codes = None if to_retry is None else json.dumps(list(to_retry))
        asked = {"since": since, "codes": codes, "is_open": is_open or to_retry is not None, "owner": owner}
        return [ErrorCount(*row) for row in self._db.read("errors", **asked)]

    def failures(
        self, *, owner: str | None, code: str | None, before_id: int | None, most: int
    ) -> Sequence[tuple[int, int, str]]:
        """Return (failure id, job id, name of the document or '') of failures that need attention, newest first."""
        values = {"owner": owner, "code": code, "before_id": before_id or 2**62, "most": most}
        return [(failure_id, job_id, name) for failure_id, job_id, name in self._db.read("failures", **values)]

    def failing_jobs(
        self, *, owner: str | None, code: str | None = None, ids: Sequence[int] | None = None
    ) -> Sequence[int]:
        chosen = None if ids is None else json.dumps(list(ids))
        return [job_id for (job_id,) in self._db.read("failing_jobs", owner=owner, code=code, ids=chosen)]

    def failed_beside(self, ids: Sequence[int]) -> Sequence[int]:
        """Return these failed jobs, and the other failed jobs of their documents."""
        return [job_id for (job_id,) in self._db.read("failed_beside", ids=json.dumps(list(ids)))]

    def count_failures(self, owner: str | None) -> Mapping[str, int]:
        """Return the number of failures that need attention by error code, most frequent first."""
        return dict(self._db.read("count_failures", owner=owner))

    def newest_id(self) -> int:
        [(newest,)] = self._db.read("newest_id")
        return int(newest)

    def ended_between(self, since: str, until: str, *, sample: int = 200) -> WorkDone:
        """Summarise the jobs that ended in [since, until), with waiting times of a sample."""
        [(ended, failed)] = self._db.read("ended_between", since=since, until=until)
        every = max(1, ended // sample)
        waits = [wait for (wait,) in self._db.read("waits_between", since=since, until=until, every=every)]
        [(first,)], [(after,)] = (self._db.read("first_result_since", at=at) for at in (since, until))
        return WorkDone(ended, failed, after - first, sorted(waits))

    def names(self, column: str, prefix: str, *, most: int = 50) -> Sequence[str]:
        if column not in _COMPLETION_QUERIES:
            raise BadInput(f"{column!r} cannot be completed", f"it is one of {', '.join(_COMPLETION_QUERIES)}")
        values = _COMPLETION_QUERIES[column]
        sql = f"SELECT DISTINCT name FROM ({values}) WHERE substr(name, 1, ?) = ? AND name <> '' LIMIT ?"
        return [str(row[0]) for row in self._db.read_sql(sql, [len(prefix), prefix, most])]

    def database_id(self) -> str:
        """Return the creation time of the tables, which copies share."""
        [(made_at,)] = self._db.read("database_id")
        return str(made_at)

    # ── Why a job has not started ──

    def explain(self, job_id: int, *, dead: Collection[str] = ()) -> Sequence[Gate]:
        """Return the gates of a pending job; for a job that has none, the jobs ahead of it.

        Everything is read in one snapshot, since the job may be claimed meanwhile. If a claim would first free waiting
        jobs, this is rehearsed, unless the database is read-only or busy. `dead` names workers that the caller knows to
        be dead.
        """
        with self._db.snapshot():
            job = self.get(job_id)
            if job.status != Status.PENDING:
                return []
            gates = self._gates(job_id, dead, self._db.read)
            if gates or self._db.read("unready", now=self._db.now()) != [(1,)]:
                return gates or self._gate_ahead(job_id, dead, self._db.read)
            without_rehearsal = [] if job.held else self._gate_ahead(job_id, dead, self._db.read)
        with suppress(StoreReadOnly, StoreBusy), self._db.rehearsal():
            make_ready(self._db, self._db.now())
            is_pending = [row[:1] for row in self._db.write("look", job_id=job_id)] == [(Status.PENDING,)]
            if not is_pending:
                return []
            return self._gates(job_id, dead, self._db.write) or self._gate_ahead(job_id, dead, self._db.write)
        return without_rehearsal

    def standstill(self, *, dead: Collection[str] = ()) -> Sequence[Gate]:
        """Return why nothing can start now, or nothing if some lane is open."""
        with self._db.snapshot():
            workers = [worker.id for worker in self.workers()]
            now = self._db.now()
            rows = self._db.read("standing", now=now, stale_before=self._db.stale_before(), behind=0)
            put_off = self._db.read("put_off_by_a_rest", now=now, watching=WATCHING)
        standing: dict[Row, dict[str | None, list[Row]]] = {}
        for *lane, rank, code, detail, remedy, worker_id in rows:
            gates = standing.setdefault(tuple(lane), _gates_by_worker(workers, dead))
            if code == _UNKNOWN_TYPE or (code in _LASTING_GATES and worker_id not in dead):
                gates.setdefault(worker_id, []).append((rank, code, detail, remedy))
        found = [_gates_of_nearest(gates, dead) for gates in standing.values()]
        if not all(found):
            return []
        ready = [Gate(*gate) for rows in found for _, *gate in rows]
        return list(dict.fromkeys([*ready, *(Gate(code, detail) for code, detail in put_off)]))

    def _gates(self, job_id: int, dead: Collection[str], run: _RunQuery) -> Sequence[Gate]:
        gates = _gates_by_worker([worker_id for worker_id, _ in run("workers_for", job_id=job_id)], dead)
        rows = run("explain", job_id=job_id, now=self._db.now(), stale_before=self._db.stale_before(), behind=0)
        for rank, code, detail, remedy, worker_id in rows:
            if worker_id not in dead or code == _UNKNOWN_TYPE:
                gates.setdefault(worker_id, []).append((rank, code, detail, remedy))
        return [Gate(*gate) for _, *gate in _gates_of_nearest(gates, dead)]

    def _gate_ahead(self, job_id: int, dead: Collection[str], run: _RunQuery) -> Sequence[Gate]:
        """Return nothing if a worker would claim the job next."""
        workers = [row for row in run("workers_for", job_id=job_id) if row[1] is not None and row[0] not in dead]
        if any((job_id,) in run("next_turn", **claim_values(self._db, *worker)) for worker in workers):
            return []
        [(before,)] = run("ahead", job_id=job_id, most=AHEAD_MOST)
        # Zero by priority and age: another owner has the next turn.
        count = max(1, before)
        words = "1 job is" if count == 1 else f"{count}{'+' if count >= AHEAD_MOST else ''} jobs are"
        return [Gate("AHEAD_IN_QUEUE", f"{words} ahead of it", count=count)]


def _worker_from(row: Row) -> WorkerState:
    return WorkerState(*(*row[:7], bool(row[7]), bool(row[8]), *row[9:]))


# ── Selectors ──

_IDS_BY = "SELECT q.id FROM json_each(?) w CROSS JOIN worker_job_queue q ON q.{0} = w.value AND q.{0} IS NOT NULL"


def _where_between(selector: Selector, before_id: int | None, from_id: int | None) -> tuple[str, list[Any]]:
    condition, values = where(selector)
    for term, bound in (("id < ?", before_id), ("id >= ?", from_id)):
        if bound is not None:
            condition, values = f"{condition} AND {term}", [*values, bound]
    return condition, values


def where(selector: Selector) -> tuple[str, list[Any]]:
    terms: list[_Term] = [
        ("1", ()),
        *_id_terms(selector),
        *_column_terms(selector),
        *_index_terms(selector),
        *_time_terms(selector),
    ]
    terms += [_match_term(path, wanted) for path, wanted in selector.match]
    return " AND ".join(term for term, _ in terms), [value for _, values in terms for value in values]


def _id_terms(selector: Selector) -> Iterator[_Term]:
    named = [
        (ids, sql)
        for ids, sql in (
            (selector.ids, "SELECT value FROM json_each(?)"),
            (selector.batch_ids, _IDS_BY.format("batch_id")),
            (selector.document_ids, _IDS_BY.format("document_id")),
        )
        if ids
    ]
    if named:
        queries = " UNION ALL ".join(sql for _, sql in named)
        yield f"id IN ({queries})", [json.dumps(list(ids)) for ids, _ in named]


def _column_terms(selector: Selector) -> Iterator[_Term]:
    if selector.statuses:
        yield _any_term("status", [str(status) for status in selector.statuses])
    for column in CHOSEN_BY:
        wanted = getattr(selector, column.chosen_by)
        if column.is_part and wanted is not None:
            yield f"instr(lower({column.name}), lower(?)) > 0", [wanted]
        elif isinstance(wanted, int | str):
            yield f"{column.name} = ?", [wanted]
        elif wanted:
            yield _any_term(column.name, wanted)


def _any_term(column: str, wanted: Sequence[object]) -> _Term:
    return f"{column} IN ({', '.join('?' * len(wanted))})", wanted


def _index_terms(selector: Selector) -> Iterator[_Term]:
    """Yield terms that let the planner use the partial indexes."""
    if selector.accounts:
        yield "account IS NOT NULL", ()
    if selector.error_code is not None:
        yield "error_code IS NOT NULL", ()
    if selector.owners and "" not in selector.owners:
        yield "owner <> ''", ()


def _time_terms(selector: Selector) -> Iterator[_Term]:
    if selector.since is not None:
        yield "ifnull(completed_at, created_at) >= ?", [selector.since]
    if selector.older_than is not None:
        yield "ifnull(completed_at, created_at) < ?", [selector.older_than]


def _match_term(path: str, wanted: object) -> _Term:
    if not _PATH.fullmatch(path):
        raise BadInput(f"{path!r} is not a path into the payload", "write it like file_id or page_range[0]")
    # `->` returns JSON text, in which 1 differs from "1" and from true.
    return "payload -> ? = json(?)", [f"$.{path}", json.dumps(wanted)]


# ── Gates ──


def _gates_by_worker(workers: Sequence[str], dead: Collection[str]) -> dict[str | None, list[Row]]:
    # The key None is for the gates of the job and its lane.
    down = {
        worker_id: [(1, "WORKER_DOWN", f"worker {worker_id} is dead")] for worker_id in workers if worker_id in dead
    }
    return {None: [], **{worker_id: down.get(worker_id, []) for worker_id in workers}}


def _gates_of_nearest(gates: dict[str | None, list[Row]], dead: Collection[str]) -> list[Row]:
    """Return the gates of the job, its lane, and the worker nearest to running it."""
    of_workers = {worker_id: found for worker_id, found in gates.items() if worker_id is not None}
    name = min(of_workers, key=lambda worker_id: _distance(of_workers[worker_id]), default="")
    nearest = of_workers.get(name, [(1, "WORKER_DOWN", "no worker has registered")])
    # The other gates of a dead worker do not matter.
    nearest = nearest[:1] if name in dead else nearest
    return sorted([*gates.get(None, []), *nearest], key=lambda gate: int(gate[0]))


def _distance(gates: list[Row]) -> tuple[bool, int, int]:
    """Sort key: a worker without a gate, then the one whose first gate comes latest, then one without a handler."""
    is_unknown = any(code == _UNKNOWN_TYPE for _, code, *_ in gates)
    return (is_unknown, -gates[0][0], len(gates)) if gates else (False, -100, 0)
