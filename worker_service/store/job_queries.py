from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from worker_service.base.errors import BadInput, JobNotFound
from worker_service.jobs.job import Job, Pause, Status
from worker_service.jobs.selector import FILTER_COLUMNS, Selector
from worker_service.store.database import StorePart

# Only the newest rows, because shell completion must be immediate on a table of millions.
_COMPLETION_QUERIES = {
    column: f"SELECT {column} AS name FROM worker_job_queue ORDER BY id DESC LIMIT 5000"
    for column in ("id", *(column.name for column in FILTER_COLUMNS))
} | {
    "document": "SELECT id AS name FROM document ORDER BY id DESC LIMIT 5000",
    "handler": "SELECT job_type AS name FROM handler",
    "tag": "SELECT tag AS name FROM document_tag",
}

_Term = tuple[str, Sequence[Any]]

_PATH = re.compile(r"\w+(\.\w+|\[\d+\])*")


class JobQueries(StorePart):
    def get(self, job_id: int) -> Job:
        for row in self._db.read("get", job_id=job_id):
            return Job.from_row(row)
        raise JobNotFound(f"there is no job {job_id}", "`pagemill ls` shows those that are there")

    def list(
        self, selector: Selector, *, most: int = 50, before_id: int | None = None, from_id: int | None = None
    ) -> Sequence[Job]:
        """List jobs, newest first. `before_id` is the last id of the previous page."""
        condition, values = _where_between(selector, before_id, from_id)
        sql = f"SELECT {', '.join(Job._fields)} FROM worker_job_queue WHERE {condition} ORDER BY id DESC LIMIT ?"
        return [Job.from_row(row) for row in self._db.read_sql(sql, [*values, most])]

    def count(self, selector: Selector, *, before_id: int | None = None, from_id: int | None = None) -> int:
        condition, values = _where_between(selector, before_id, from_id)
        [(count,)] = self._db.read_sql(f"SELECT count(*) FROM worker_job_queue WHERE {condition}", values)
        return int(count)

    def ids(self, selector: Selector, condition: str = "1") -> Sequence[int]:
        selected, values = where(selector)
        sql = f"SELECT id FROM worker_job_queue WHERE {selected} AND {condition} ORDER BY id"
        return [job_id for (job_id,) in self._db.read_sql(sql, values)]

    def oldest_ended_ids(self, selector: Selector, most: int) -> Sequence[int]:
        selected, values = where(selector)
        sql = f"SELECT id FROM worker_job_queue WHERE {selected} AND completed_at < ? ORDER BY completed_at LIMIT ?"
        before = selector.older_than or "9999"  # later than any time
        return [job_id for (job_id,) in self._db.read_sql(sql, [*values, before, most])]

    def family(self, ids: Sequence[int]) -> Sequence[int]:
        """Return these jobs with all their follow-up jobs."""
        return [job_id for (job_id,) in self._db.read("family", ids=json.dumps(list(ids)))]

    def waits_for(self, job_id: int, *, owner: str | None = None) -> Sequence[tuple[int, str]]:
        """Return (id, status) of each job of `owner` that it waits for; 'gone' is a deleted job, without an owner."""
        return self._db.read("waits_for", job_id=job_id, owner=owner)

    def pauses(self) -> Sequence[Pause]:
        return [Pause(*row) for row in self._db.read("pauses", now=self._db.now())]

    def time_limit(self, job_id: int) -> int | None:
        for (seconds,) in self._db.read("time_limit", job_id=job_id):
            return None if seconds is None else int(seconds)
        return None

    def documents_failing(
        self,
        selector: Selector,
        statuses: Sequence[Status],
        *,
        before_id: int | None = None,
        from_id: int | None = None,
    ) -> Sequence[int]:
        """Return unread documents of matching jobs that have one of these statuses."""
        matching = [status for status in selector.statuses or statuses if status in statuses]
        if not matching:
            return []
        condition, values = _where_between(replace(selector, statuses=matching), before_id, from_id)
        sql = f"SELECT id FROM worker_job_queue WHERE {condition} AND generation IS NOT NULL"
        job_ids = [job_id for (job_id,) in self._db.read_sql(sql, values)]
        return [document_id for (document_id,) in self._db.read("documents_failing", job_ids=json.dumps(job_ids))]

    def failures(
        self, *, owner: str | None, code: str | None, before_id: int | None, most: int, batch_id: int | None = None
    ) -> Sequence[tuple[int, int, str]]:
        """Return (failure id, job id, name of the document or ''), newest first."""
        values = {"owner": owner, "code": code, "before_id": before_id or 2**62, "most": most, "batch_id": batch_id}
        return self._db.read("failures", **values)

    def failing_jobs(
        self, *, owner: str | None, code: str | None = None, ids: Sequence[int] | None = None
    ) -> Sequence[int]:
        chosen = None if ids is None else json.dumps(list(ids))
        return [job_id for (job_id,) in self._db.read("failing_jobs", owner=owner, code=code, ids=chosen)]

    def failed_jobs_of_same_documents(self, ids: Sequence[int]) -> Sequence[int]:
        return [job_id for (job_id,) in self._db.read("failed_jobs_of_same_documents", ids=json.dumps(list(ids)))]

    def count_failures(self, owner: str | None) -> Mapping[str, int]:
        return dict(self._db.read("count_failures", owner=owner))

    def newest_id(self) -> int:
        return int(self._db.read_value("newest_id"))

    def names(self, column: str, prefix: str, *, most: int = 50) -> Sequence[str]:
        if column not in _COMPLETION_QUERIES:
            raise BadInput(f"{column!r} cannot be completed", f"it is one of {', '.join(_COMPLETION_QUERIES)}")
        names = _COMPLETION_QUERIES[column]
        sql = f"SELECT DISTINCT name FROM ({names}) WHERE substr(name, 1, ?) = ? AND name <> '' LIMIT ?"
        return [str(name) for (name,) in self._db.read_sql(sql, [len(prefix), prefix, most])]

    def database_id(self) -> str:
        """Return the creation time of the tables, which copies of a database share."""
        return str(self._db.read_value("database_id"))


_IDS_BY = "SELECT q.id FROM json_each(?) w CROSS JOIN worker_job_queue q ON q.{by} = w.value AND q.{by} IS NOT NULL"


def _where_between(selector: Selector, before_id: int | None, from_id: int | None) -> tuple[str, list[Any]]:
    condition, values = where(selector)
    for term, bound in (("id < ?", before_id), ("id >= ?", from_id)):
        if bound is not None:
            condition, values = f"{condition} AND {term}", [*values, bound]
    return condition, values


def where(selector: Selector) -> tuple[str, list[Any]]:
    terms: list[_Term] = [("1", ()), *_id_terms(selector), *_column_terms(selector), *_other_terms(selector)]
    return " AND ".join(term for term, _ in terms), [value for _, values in terms for value in values]


def _id_terms(selector: Selector) -> Iterator[_Term]:
    queries = {
        "SELECT value FROM json_each(?)": selector.ids,
        _IDS_BY.format(by="batch_id"): selector.batch_ids,
        _IDS_BY.format(by="document_id"): selector.document_ids,
    }
    named = {sql: json.dumps(list(ids)) for sql, ids in queries.items() if ids}
    if named:
        yield f"id IN ({' UNION ALL '.join(named)})", [*named.values()]


def _column_terms(selector: Selector) -> Iterator[_Term]:
    if selector.statuses:
        yield _in_term("status", [str(status) for status in selector.statuses])
    for column in FILTER_COLUMNS:
        wanted = getattr(selector, column.filter_field)
        if column.matches_part and wanted is not None:
            yield f"instr(lower({column.name}), lower(?)) > 0", [wanted]
        elif isinstance(wanted, int | str):
            yield f"{column.name} = ?", [wanted]
        elif wanted:
            yield _in_term(column.name, wanted)


def _in_term(column: str, wanted: Sequence[object]) -> _Term:
    return f"{column} IN ({', '.join('?' * len(wanted))})", wanted


def _other_terms(selector: Selector) -> Iterator[_Term]:
    # The first three let the planner use the partial indexes.
    if selector.accounts:
        yield "account IS NOT NULL", ()
    if selector.error_code is not None:
        yield "error_code IS NOT NULL", ()
    if selector.owners and "" not in selector.owners:
        yield "owner <> ''", ()
    if selector.since is not None:
        yield "ifnull(completed_at, created_at) >= ?", [selector.since]
    if selector.older_than is not None:
        yield "ifnull(completed_at, created_at) < ?", [selector.older_than]
    for path, wanted in selector.match:
        if not _PATH.fullmatch(path):
            raise BadInput(f"{path!r} is not a path into the payload", "write it like file_id or page_range[0]")
        # `->` returns JSON text, in which 1 differs from "1" and from true.
        yield "payload -> ? = json(?)", [f"$.{path}", json.dumps(wanted)]
