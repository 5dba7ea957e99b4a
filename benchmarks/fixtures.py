"""Large databases, made in seconds without triggers.

Only benchmarks may do this. The rows are those that the store would have written, including attempts and events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import apsw

from worker_service.jobs.workers import HandlerFacts, Worker
from worker_service.store.opening import initialise, open_store
from worker_service.store.store import Store

WORKER = "bench"
SLOTS = 100_000

_ROWS = """
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count),
     row (i, at) AS (SELECT i, strftime('%Y-%m-%d %H:%M:%f', :begin + i * :every_seconds, 'unixepoch') FROM n)
INSERT INTO worker_job_queue (job_type, platform, account, priority, status, held, fence, owner, source, run_at,
       created_at, started_at, heartbeat_at, completed_at, worker_id, progress_percent, concurrency_key, error_code,
       error_message, payload)
SELECT :job_type || CASE WHEN :types > 1 THEN i % :types ELSE '' END, 'instagram', 'user123',
       :priority, :status, :held, :has_ended,
       :owner || CASE WHEN :owners > 1 THEN i / :types % :owners ELSE '' END, :source, :run_at,
       at, iif(:has_ended, at, NULL), iif(:has_ended, at, NULL), iif(:has_ended, at, NULL),
       iif(:has_ended, 'bench', NULL), :has_ended * 100, :concurrency_key,
       iif(:status = 'failed', 'CODE_' || i % 4, NULL),
       iif(:status = 'failed', 'it has failed', NULL), '{"scrape_type":"full"}'
  FROM row
"""
_ATTEMPTS = """
INSERT INTO worker_job_attempt (job_id, fence, worker_id, started_at, ended_at, outcome)
SELECT id, fence, worker_id, started_at, completed_at, status FROM worker_job_queue
 WHERE id > :after AND completed_at IS NOT NULL
"""
_EVENTS = """
INSERT INTO worker_job_event (job_id, fence, from_status, to_status, at)
SELECT id, fence, column1, column2, completed_at
  FROM worker_job_queue, (VALUES ('pending', 'running'), ('running', :status))
 WHERE id > :after AND completed_at IS NOT NULL
"""


@dataclass(frozen=True, slots=True)
class Group:
    """Many equal jobs. With `types` or `owners` the names are numbered."""

    count: int
    job_type: str = "ready"
    status: str = "pending"
    priority: int = 5
    held: int = 0
    owner: str = ""
    source: str = ""
    run_at: str | None = None
    concurrency_key: str | None = None
    types: int = 1
    owners: int = 1
    begin: float = 1_790_000_000
    """When the first job was added, in seconds since 1970."""
    every_seconds: float = 0.001


def opened(path: Path, *, job_types: Sequence[str] = ("ready", "blocked")) -> Store:
    """Open a store, created if it is absent, with a worker that can run any number of jobs of these types."""
    if not path.exists():
        initialise(path)
    # A worker of a benchmark never beats again, however long the run.
    store = open_store(path, orphan_after_seconds=86_400)
    handlers = [HandlerFacts(job_type, "cpu") for job_type in job_types]
    store.workers.register(Worker(WORKER, "here", "boot", 1, "0", cpu_slots=SLOTS, io_slots=SLOTS, handlers=handlers))
    return store


def fill(path: Path, *groups: Group) -> None:
    """Add the jobs. No other process may have the file open."""
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA cache_size = -200000")
    connection.execute("PRAGMA ignore_check_constraints = ON")
    kinds = ["trigger", "index"] if sum(group.count for group in groups) > 50_000 else ["trigger"]
    dropped = _drop(connection, kinds)
    for group in groups:
        _insert(connection, group)
    for statement in dropped:
        connection.execute(statement)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()


def _drop(connection: apsw.Connection, kinds: Sequence[str]) -> list[str]:
    """Drop them and return the statements that create them again, in order."""
    statements = []
    for kind in kinds:
        made = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = ? AND sql IS NOT NULL", (kind,))
        for name, statement in made.fetchall():
            connection.execute(f'DROP {kind} "{name}"')
            statements.append(str(statement))
    return statements


def _insert(connection: apsw.Connection, group: Group) -> None:
    before = connection.execute("SELECT ifnull(max(id), 0) FROM worker_job_queue").fetchall()[0][0]
    values = {name: getattr(group, name) for name in Group.__dataclass_fields__}
    has_ended = group.status in ("completed", "failed", "cancelled")
    connection.execute(_ROWS, {**values, "has_ended": int(has_ended)})
    if has_ended:
        connection.execute(_ATTEMPTS, {"after": before})
        connection.execute(_EVENTS, {"after": before, "status": group.status})


def fill_batches(path: Path, count: int) -> None:
    """Add batches of a hundred owners. Every tenth is stopped and has a waiting job; the others are done."""
    connection = apsw.Connection(str(path))
    numbers = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count)"
    with connection:
        connection.execute(
            f"""{numbers} INSERT INTO batch (owner, name, state, ended_at)
                SELECT 'owner' || (i % 100), 'reports', iif(i % 10, 'done', 'stopped'),
                       iif(i % 10, '2026-11-18 10:00:00.000', NULL) FROM n""",
            {"count": count},
        )
        connection.execute(
            """INSERT INTO worker_job_queue (job_type, platform, owner, batch_id)
               SELECT 'blocked', 'instagram', owner, id FROM batch WHERE state = 'stopped'"""
        )
    connection.close()


def fill_documents(path: Path, count: int) -> None:
    """Add successfully read documents of one page and five files each, of a hundred owners, with one or two tags."""
    numbers = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count)"
    at = "'2026-11-18 10:00:00.000'"
    connection = apsw.Connection(str(path))
    with connection:
        connection.execute(
            f"""{numbers} INSERT INTO document (owner, platform, source_key, name, content, kind, pages, index_status,
                       index_generation, current_generation, settings, created_at, updated_at)
                SELECT 'owner' || (i % 100), 'local', '/srv/reports/' || i || '.pdf', 'report ' || i || '.pdf',
                       printf('%064d', i), 'pdf', 1, 'success', 1, 1, '{{}}', {at}, {at} FROM n""",
            {"count": count},
        )
        connection.execute(
            f"""{numbers} INSERT INTO page_result (digest, text, method, created_at)
                SELECT 'd' || i, 'quarterly report ' || i || ' of the ' || (i % 977)
                       || ' mills tells of risk ' || (i % 31)
                       || ', water ' || (i % 113) || ' and wind ' || (i % 1009), 'layer', {at} FROM n""",
            {"count": count},
        )
        connection.execute(
            """INSERT INTO page (document_id, generation, number, result_id)
               SELECT d.id, 1, 1, r.id FROM document d
                 JOIN page_result r ON r.digest = 'd' || substr(d.name, 8, length(d.name) - 11)"""
        )
        connection.execute("INSERT INTO page_text (page_text) VALUES ('rebuild')")
        connection.execute("INSERT INTO document_tag SELECT id, 'tag' || (id % 50), owner FROM document")
        connection.execute("INSERT INTO document_tag SELECT id, 'half', owner FROM document WHERE id % 2")
        connection.execute(
            """INSERT INTO file (job_id, fence, document_id, role, name, path, size, sha256, owner, created_at)
               SELECT d.id, 1, d.id, column1, 'report.' || column1, 'objects/' || d.id || '-1/' || column1, 100000,
                      d.content || column1, d.owner, d.created_at
                 FROM document d, (VALUES ('original'), ('text'), ('pdf'), ('pages'), ('thumbnail'))"""
        )
    connection.close()
