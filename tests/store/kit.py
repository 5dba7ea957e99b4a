"""Clock, databases, workers, jobs, documents and the `sqlite3` program, for all tests that use a store.

SQL by hand is run by the distribution's `sqlite3` program, because two SQLite libraries in one process would drop each
other's locks.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from worker_service.base.clock import Clock, as_text
from worker_service.jobs.attempts import Completion, Failure
from worker_service.jobs.documents import DeferredAction, DocumentRequest, PageResult
from worker_service.jobs.history import Changed
from worker_service.jobs.job import Enqueued, Job, Lease, NewJob, Status
from worker_service.jobs.selector import Selector
from worker_service.jobs.workers import HandlerFacts, Worker
from worker_service.store.connection import connect_to_read
from worker_service.store.opening import initialise, open_store
from worker_service.store.store import Store

START = datetime(2026, 11, 18, 10, 0, tzinfo=UTC)
FAR_FUTURE = datetime(2099, 1, 1, tzinfo=UTC)
BROKEN = Failure("BROKEN", "it broke")
ORPHAN_AFTER_SECONDS = 300
CPU_TYPES = ("ocr_pages", "assemble", "scrape_account")
IO_TYPES = ("download",)
EVERY_JOB = Selector()
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


class MovableClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> datetime:
        self.now += timedelta(seconds=seconds)
        return self.now

    def after(self, seconds: float) -> datetime:
        return self.now + timedelta(seconds=seconds)

    @property
    def text(self) -> str:
        return as_text(self.now)


def open_at(path: Path, clock: Clock) -> Store:
    return open_store(path, orphan_after_seconds=ORPHAN_AFTER_SECONDS, clock=clock)


def lay_out(path: Path) -> None:
    """Write a new database as a copy of one that is made once in each run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_new_database())


@cache
def _new_database() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder, "new.db")
        initialise(path)
        return path.read_bytes()


class RefusedByHand(Exception):
    """The `sqlite3` program ended with an error; the message is what it printed."""


class ByHand:
    """Runs the real `sqlite3` program on the database file, as a user does."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, sql: str) -> list[dict[str, object]]:
        """Run it and return the rows of its SELECT."""
        if sql.startswith("SELECT ") and " v_" not in sql and self.path.exists():
            return self._read(sql)
        out = self.run("-json", "-bail", sql)
        rows: list[dict[str, object]] = json.loads(out) if out.strip() else []
        return rows

    def _read(self, sql: str) -> list[dict[str, object]]:
        """Read a table without the program, which takes a fifth of the time."""
        connection = connect_to_read(self.path)
        try:
            cursor = connection.execute(sql)
            names: list[str] = []
            rows = []
            for row in cursor:
                names = names or [name for name, _ in cursor.get_description()]
                rows.append(dict(zip(names, row, strict=True)))
            return rows
        finally:
            connection.close()

    def run(self, *arguments: str) -> str:
        *options, sql = arguments
        done = subprocess.run(
            ["sqlite3", "-cmd", ".timeout 5000", *options, str(self.path), sql],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        if done.returncode or done.stderr:
            raise RefusedByHand(done.stderr.strip())
        return done.stdout

    def try_each(self, statements: Sequence[str]) -> str:
        """Run statements one after the other, also after a refused one. Return what the program printed of refusals."""
        program = ["sqlite3", "-cmd", ".timeout 5000", str(self.path)]
        script = "\n".join(f"{statement};" for statement in statements)
        return subprocess.run(program, input=script, capture_output=True, text=True, timeout=30, check=False).stderr

    def refusals(self, statements: Sequence[str]) -> list[str]:
        """Run statements of one line, all of which must be refused. Return the refusals in their order."""
        printed = self.try_each(statements)
        refusals = re.findall(r"near line (\d+): (.*)", printed)
        assert [int(line) for line, _ in refusals] == [*range(1, len(statements) + 1)], printed
        return [sentence for _, sentence in refusals]

    def dump(self) -> bytes:
        """Return the whole database: equal before and after means that nothing was written."""
        connection = connect_to_read(self.path)
        try:
            return connection.serialize("main")
        finally:
            connection.close()

    def value(self, sql: str) -> object:
        (row,) = self(sql)
        (value,) = row.values()
        return value


Enqueue = Callable[..., int]
AddWorker = Callable[..., str]


def new_worker(
    worker_id: str = "w1",
    *,
    types: Sequence[str] | None = None,
    cpu: int = 8,
    io: int = 8,
    missing: str | None = None,
    missing_remedy: str = "",
    at_most_once: bool = False,
) -> Worker:
    return Worker(
        id=worker_id,
        host="here",
        boot_id="boot",
        pid=4242,
        version="0",
        cpu_slots=cpu,
        io_slots=io,
        handlers=[
            HandlerFacts(job_type, "io" if job_type in IO_TYPES else "cpu", missing, missing_remedy, at_most_once)
            for job_type in (types if types is not None else CPU_TYPES + IO_TYPES)
        ],
    )


def claim_one(store: Store, worker_id: str = "w1", job_class: str = "cpu") -> Job:
    (job,) = store.leases.claim(worker_id, 1, job_class)
    return job


def claimed_ids(store: Store, worker_id: str = "w1", most: int = 100, job_class: str = "cpu") -> list[int]:
    return [job.id for job in store.leases.claim(worker_id, most, job_class)]


def gate_codes(store: Store, job_id: int) -> list[str]:
    return [gate.code for gate in store.gates.explain(job_id)]


def jobs_with_ids(*job_ids: int) -> Selector:
    return Selector(ids=job_ids)


def all_jobs(store: Store) -> dict[int, Job]:
    return {job.id: job for job in store.job_queries.list(EVERY_JOB, most=100_000)}


def status_of(store: Store, job_id: int) -> Status:
    return store.job_queries.get(job_id).status


def change(store: Store, verb: str, selector: Selector, *, priority: int = 9) -> Changed:
    """Run a verb of `job_control` by its name."""
    if verb == "priority":
        return store.job_control.priority(selector, priority, actor="ann")
    changed: Changed = getattr(store.job_control, verb)(selector, actor="ann")
    return changed


def undo(store: Store, action_id: int | None) -> Changed:
    assert action_id is not None, "nothing was changed"
    return store.job_control.undo(action_id, actor="bob")


def settle(store: Store) -> None:
    """Settle ended jobs by a claim that takes nothing."""
    store.job_control.pause("all")
    assert store.leases.claim("w1", 5) == []
    store.job_control.unpause("all")


def end_job(store: Store, lease: Lease, how: Status) -> None:
    """End a running job with this status."""
    if how is Status.COMPLETED:
        store.leases.complete(lease)
    elif how is Status.FAILED:
        store.leases.fail(lease, BROKEN, retry_at=None)
    else:
        store.job_control.cancel(jobs_with_ids(lease.job_id), actor="test")
        store.leases.confirm_cancel(lease)


def findings_after(store: Store, statements: str) -> list[str]:
    """Return the findings of the audit after rows were changed without the guards."""
    guards = "DROP TRIGGER job_guard; DROP TRIGGER job_moved; DROP INDEX job_key_running;"
    program = ["sqlite3", str(store.database.path), f"PRAGMA ignore_check_constraints = 1; {guards} {statements}"]
    subprocess.run(program, check=True)
    return [str(broken) for broken in store.integrity.audit()]


def requeue(store: Store, lease: Lease) -> None:
    """Requeue the jobs of a worker as after its death, and register it again."""
    store.leases.requeue(lease.worker_id)
    store.workers.register(new_worker(lease.worker_id))


# Each way in which an attempt can end.
ENDINGS: dict[str, Callable[[Store, Lease], object]] = {
    "complete": lambda store, lease: end_job(store, lease, Status.COMPLETED),
    "fail": lambda store, lease: end_job(store, lease, Status.FAILED),
    "cancel": lambda store, lease: end_job(store, lease, Status.CANCELLED),
    "retry": lambda store, lease: store.leases.fail(lease, Failure("X", "x"), retry_at=FAR_FUTURE),
    "snooze": lambda store, lease: store.leases.snooze(lease, FAR_FUTURE),
    "release": lambda store, lease: store.leases.release(lease),
    "requeue": requeue,
}


# ── Documents ──

TYPES = ("download", "ingest", "ocr_pages", "assemble", "action")


def work_as(store: Store, worker_id: str = "w1", types: Sequence[str] = TYPES) -> None:
    store.workers.register(new_worker(worker_id, types=types, cpu=1000, io=1000))


def reading_job(
    key: str = "report.pdf",
    *,
    owner: str = "",
    content: str = "c1",
    settings: str = "{}",
    is_forced: bool = False,
    is_standing: bool = False,
    actions: Sequence[DeferredAction] = (),
    revision: str = "",
    tags: Sequence[str] = (),
) -> NewJob:
    name = f"{key} of {owner or 'nobody'}"
    request = DocumentRequest(key, name, content, settings, is_forced, is_standing, actions, revision, tags)
    return NewJob("ingest", platform="gdrive", owner=owner, document=request)


def request_document(store: Store, key: str = "report.pdf", **fields: Any) -> Enqueued:
    return store.intake.enqueue(reading_job(key, **fields))


def claim(store: Store, job_type: str | None = None) -> Job:
    """Claim the only job that can run now."""
    jobs = store.leases.claim("w1", 1) or store.leases.claim("w1", 1, "io")
    [job] = jobs
    assert job_type in (None, job.job_type)
    return job


def start_reading(store: Store, key: str = "report.pdf", **fields: Any) -> Job:
    """Request a document and claim its job."""
    request_document(store, key, **fields)
    return claim(store, "ingest")


def pages_of(*texts: str, first: int = 1, mark: str = "") -> list[PageResult]:
    return [PageResult(number, f"{mark}{number}:{text}", text, "ocr", 90.0) for number, text in enumerate(texts, first)]


def save(store: Store, lease: Lease, *texts: str, first: int = 1) -> list[Lease]:
    return store.attempts.save_pages([(lease, page) for page in pages_of(*texts, first=first)])


def page_range_jobs(*parts: tuple[int, int]) -> list[NewJob]:
    """Return the follow-up jobs of an ingest."""
    jobs = [NewJob("ocr_pages", payload=json.dumps({"pages": list(part)})) for part in parts]
    return [*jobs, NewJob("assemble", after_earlier=True)]


def publish(store: Store, key: str = "report.pdf", *texts: str, **fields: Any) -> int:
    """Read a document in one go, by its ingest alone; return its id."""
    requested = request_document(store, key, **fields)
    job = claim(store, "ingest")
    assert save(store, job.lease, *texts) == []
    assert store.leases.complete_many([Completion(job.lease, publishes=True)]) == []
    assert requested.document_id is not None
    return requested.document_id


def document_row(by_hand: ByHand, document_id: int = 1) -> dict[str, object]:
    [row] = by_hand(f"SELECT * FROM document WHERE id = {document_id}")
    return row


def document_state(by_hand: ByHand, document_id: int = 1) -> tuple[object, object, object, object]:
    row = document_row(by_hand, document_id)
    return row["index_status"], row["index_generation"], row["current_generation"], row["error_code"]
