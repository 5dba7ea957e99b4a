"""Reasons why a job waits, fails or makes no progress, and advice."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from msgspec import Struct

from worker_service.base.clock import as_text, from_text
from worker_service.jobs.job import Gate, Job, Status
from worker_service.jobs.progress import pace_of
from worker_service.jobs.selector import Selector
from worker_service.services.enqueue import installed_types
from worker_service.services.overview import Overview
from worker_service.services.session import Session
from worker_service.settings.config import Settings

_LIVE_JOBS_EXAMINED_MAX = 100

_TEMPORARY_GATES = set(
    "NOT_YET WAITS_FOR OWNER_BUSY KEY_BUSY TYPE_FULL SLOTS_FULL AHEAD_IN_QUEUE BATCH_WAITING".split()
)
"""Gates that open without a user's action."""

_START_NOW = "to start it now: pagemill run-now {id}"
NEXT_STEP_BY_GATE = {
    "WORKER_DOWN": "to start a daemon: {start}",
    "PAUSED": "to lift the pause: pagemill unpause {job_type}, or --owner NAME, or --all; `pagemill` shows the pauses",
    "BATCH_STOPPED": "to resume the batch: pagemill batch resume {batch_id}",
    "BATCH_WAITING": "the batch starts after the ones before it; to start it now: pagemill batch resume {batch_id}; "
    "to list them: pagemill batch ls --owner '{owner}'",
    "DRAINING": "wait until the worker is back, or start another one",
    "NOT_YET": _START_NOW,
    "BACKOFF": "to see what failed: pagemill show {id}; " + _START_NOW,
    "WAITS_FOR": "to see what it waits for: pagemill show {id}, then pagemill why on those",
    "OWNER_BUSY": "to see what runs: pagemill ls --status running --owner '{owner}'",
    "KEY_BUSY": "to see what runs: pagemill ls --status running",
    "TYPE_FULL": "to see what runs: pagemill ls --status running --type {job_type}",
    "SLOTS_FULL": "to see what runs: pagemill ls --status running",
    "NO_NODE": "to see the nodes: pagemill cluster",
    "CAPABILITY_MISSING": "install what is missing, then restart the worker; a job with a time to start again needs no "
    "restart",
    "UNKNOWN_TYPE": "install a handler for {job_type}, then restart the daemon: {restart} (it looks for handlers "
    "when it starts); or, if the name is wrong: pagemill delete {id}",
    "DISK_LOW": "free some space: pagemill stats shows what each owner keeps, pagemill documents rm removes documents",
    "SOURCE_RESTING": "wait: the source asked for a pause, and then all its jobs continue",
    "AHEAD_IN_QUEUE": "to move it ahead: pagemill priority 1 {id}",
}


class GateAdvice(Gate, frozen=True):
    next: str = ""


class Why(Struct, frozen=True):
    job: Job
    gates: Sequence[GateAdvice]
    worker_state: str
    helps: str
    silent_seconds: float | None = None
    """Time since the last progress, log line, or start."""
    limit_seconds: int | None = None


def why(session: Session, job_id: int) -> Why:
    job, overview = session.job_queries.get(job_id), Overview(session)
    gates = session.gates.explain(job_id, dead_workers=overview.dead_worker_ids)
    advised_gates = [
        GateAdvice(gate.code, gate.detail, gate.remedy, gate.count, _next_step_for_gate(gate, job, session.settings))
        for gate in gates
    ]
    if job.status is not Status.RUNNING:
        return Why(job, advised_gates, "", _next_step_for_job(job))
    worker_state = next((worker.state for worker in overview.workers if worker.id == job.worker_id), "")
    # `pace_of` returns a silence only if it is long for this job; `silent_seconds` of the result is always set.
    is_silent_too_long = pace_of(job, session.clock()).silent_seconds is not None
    helps = f"to stop it at once: pagemill cancel {job.id} --now" if is_silent_too_long else ""
    limit_seconds = session.job_queries.time_limit(job_id)
    return Why(job, advised_gates, worker_state, helps, _seconds_since_message(session, job), limit_seconds)


def _seconds_since_message(session: Session, job: Job) -> float | None:
    attempts = session.history.attempts(job.id)
    last_message_at = next((attempt.heard_at for attempt in attempts if attempt.fence == job.fence), None)
    silent_since = last_message_at or job.started_at
    return None if silent_since is None else max(0.0, (session.clock() - from_text(silent_since)).total_seconds())


def stops_at(session: Session, job: Job) -> str | None:
    limit = session.job_queries.time_limit(job.id)
    if job.started_at is None or limit is None:
        return None
    return as_text(from_text(job.started_at) + timedelta(seconds=limit))


def newest_job_with_a_problem(session: Session) -> int | None:
    overview = Overview(session)
    failed = session.job_queries.list(Selector(statuses=(Status.FAILED,)), most=1)
    live = session.job_queries.list(Selector(statuses=(Status.PENDING, Status.RUNNING)), most=_LIVE_JOBS_EXAMINED_MAX)
    newest_first = sorted([*failed, *live], key=lambda job: -job.id)
    return next((job.id for job in newest_first if _has_problem(session, job, overview)), None)


def _has_problem(session: Session, job: Job, overview: Overview) -> bool:
    if job.status is Status.FAILED:
        return True
    if job.status is not Status.PENDING:
        return job.worker_id in {worker.id for worker in overview.lost_workers}
    gate_codes = {gate.code for gate in session.gates.explain(job.id, dead_workers=overview.dead_worker_ids)}
    if gate_codes - _TEMPORARY_GATES:
        return True
    if "NOT_YET" not in gate_codes:
        return False
    # A start time is set by a user, or by a handler that cannot continue now, which is a problem.
    attempts = session.history.attempts(job.id)
    return bool(attempts) and attempts[-1].outcome == "snoozed"


def _next_step_for_job(job: Job) -> str:
    retry = f"pagemill retry {job.id}"
    if job.status is Status.CANCELLED:
        return f"to run it again: {retry}"
    if job.status is not Status.FAILED:
        return ""
    if job.retry_count >= job.max_retries > 0:
        return f"it was tried {job.retry_count + 1} times; to run it again: {retry}"
    # The error was permanent: a retry without a change would fail in the same way.
    again = f"pagemill reindex {job.document_id}" if job.document_id is not None else retry
    if job.error_remedy:
        return f"{job.error_remedy}; then: {again}"
    return f"it would fail again in the same way; when the cause is fixed: {again}"


def _next_step_for_gate(gate: Gate, job: Job, settings: Settings) -> str:
    # The handler may have been installed after the daemon started.
    if gate.code == "UNKNOWN_TYPE" and job.job_type in installed_types(settings):
        return (
            "its handler is installed, but no running daemon has loaded it. Restart the daemon: "
            f"{settings.restart_command} (a daemon looks for handlers when it starts, and takes the types of "
            "WORKER_TYPES)"
        )
    if gate.remedy:
        return f"{gate.remedy}; then restart the worker, unless the line above says when the job starts again"
    step = NEXT_STEP_BY_GATE.get(gate.code, "pagemill show {id}")
    return step.format(
        id=job.id,
        job_type=job.job_type,
        owner=job.owner,
        batch_id=job.batch_id,
        start=settings.start_command,
        restart=settings.restart_command,
    )
