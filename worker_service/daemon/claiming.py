"""Claim jobs for free slots and start them.

Short jobs are claimed ahead of free slots. A job that cannot run here ends before it starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from worker_service.base import events
from worker_service.base.errors import StoreError, WorkerUnknown
from worker_service.daemon.attempts import Attempt, DaemonContext, Slots
from worker_service.daemon.heartbeat import Ownership
from worker_service.daemon.outcomes import OutcomeWriter
from worker_service.jobs.job import Job
from worker_service.jobs.payloads import PayloadCheck
from worker_service.jobs.workers import NODE
from worker_service.runner.messages import PASSWORD, Ended, HandlerDescription, How, Order
from worker_service.runner.pool import ChildError, LocalPool
from worker_service.services import passwords

if TYPE_CHECKING:
    from worker_service.cluster.pool import ClusterPool


@dataclass(slots=True)
class Claiming:
    context: DaemonContext
    pool: LocalPool | ClusterPool
    outcomes: OutcomeWriter
    ownership: Ownership
    # False: a claim may have changed `Loop._deadline_at`.
    is_deadline_known: bool = False
    prefetch: Prefetch = field(init=False)
    # False after a claim that found fewer jobs than it asked for.
    _may_find_jobs_by_class: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.request_claim()
        self.prefetch = Prefetch(self.context.slots)

    @property
    def may_find_jobs(self) -> bool:
        sizes = self.context.slots.sizes
        return any(self._may_find_jobs_by_class[job_class] for job_class, size in sizes.items() if size)

    @property
    def has_room(self) -> bool:
        slots = self.context.slots
        return any(self._may_find_jobs_by_class[job_class] and slots.free(job_class) for job_class in slots.sizes)

    def request_claim(self) -> None:
        self._may_find_jobs_by_class = dict.fromkeys(self.context.slots.sizes, True)
        self.is_deadline_known = False

    def fill_slots(self, handlers_by_type: Mapping[str, HandlerDescription]) -> bool:
        slots = self.context.slots
        attempts_before = len(slots)
        for job_class in slots.sizes:
            free = slots.free(job_class)
            if free and self._may_find_jobs_by_class[job_class]:
                for job in self._claim(job_class, free):
                    self._start(job, job_class, handlers_by_type.get(job.job_type))
            has_more = self._may_find_jobs_by_class[job_class]
            room_by_type = self.prefetch.room_by_type(job_class, handlers_by_type) if has_more else {}
            if room_by_type:
                for job in self._claim(job_class, sum(room_by_type.values()), only=sorted(room_by_type)):
                    self._start(job, job_class, handlers_by_type.get(job.job_type))
        return len(slots) > attempts_before

    def _claim(self, job_class: str, most: int, only: Sequence[str] | None = None) -> Sequence[Job]:
        worker_id, heartbeat = self.context.identity.worker_id, self.ownership.heartbeat
        # The worker may exceed its slots by this number of attempts. Only a claim ahead of free slots names types.
        prefetched = self.context.slots.prefetched(job_class) + (0 if only is None else most)
        try:
            jobs = self.context.store.leases.claim(worker_id, most, job_class, prefetched=prefetched, only=only)
        except WorkerUnknown:
            self.ownership.mark_unregistered()
            return ()
        except StoreError as error:
            self.context.note_store_failure(error)
            return ()
        self.context.note_store_success()
        self._may_find_jobs_by_class[job_class] = len(jobs) == most
        if len(jobs) < most:
            # Each claim also makes a limited number of due rows ready, so there may be more.
            self.is_deadline_known = False
            if jobs and only is None:
                self.request_claim()
        heartbeat.leases = (*heartbeat.leases, *(job.lease for job in jobs))
        return jobs

    def _start(self, job: Job, job_class: str, handler: HandlerDescription | None) -> None:
        is_at_most_once = handler is not None and handler.facts.at_most_once
        shares_child = handler is not None and handler.reuse > 1
        # There may be thousands of attempts, so keep no payloads.
        small_job = job._replace(payload=None, result=None)
        attempt = Attempt(small_job, job.lease, job_class, is_at_most_once, shares_child=shares_child)
        self.context.slots.add(attempt)
        log = self.context.log.debug if shares_child else self.context.log.info
        log(events.JOB_CLAIMED, job_id=job.id, fence=job.fence, job_type=job.job_type)
        ended = refusal(job, handler) or self._launch(job, handler)
        if ended is not None:
            self.outcomes.add(attempt, ended)

    def _launch(self, job: Job, handler: HandlerDescription | None) -> Ended | None:
        """Return None if the order was sent, otherwise the outcome that releases the job."""
        try:
            order = self._order(job, handler)
            # If this process was suspended between the claim and this line, another worker may own the job by now.
            if not self.ownership.is_silent:
                self.pool.launch(order)
                return None
        except StoreError as error:
            self.context.note_store_failure(error)
        except (OSError, ChildError) as error:
            self.context.log.error(events.FORK_SERVER_DIED, reason=str(error))
        return Ended(job.id, job.fence, How.STOPPED)

    def _order(self, job: Job, handler: HandlerDescription | None) -> Order:
        slots, attempts = self.context.slots, self.context.store.attempts
        document = None if job.document_id is None else attempts.known_document(job.document_id)
        workspace = self.context.settings.workspace.absolute()
        files = () if job.document_id is None else attempts.inputs(job.document_id)
        password: dict[str, Path] = {}
        if document is not None and handler is not None and handler.takes_passwords:
            password_file = passwords.path_of(workspace, job.platform, job.owner, document.source_key)
            password = {PASSWORD: password_file} if password_file.is_file() else {}
        # A cluster node cannot ask the daemon for known pages. On a first attempt, `ingest` has already left them out.
        needs_digests = NODE in slots.sizes and job.fence > 1 and job.document_id is not None
        return Order(
            job.id,
            job.fence,
            job.job_type,
            job.platform,
            job.account,
            job.payload,
            job.timeout_seconds,
            # A first attempt has no state.
            state=attempts.checkpoint_of(job.id) if job.fence > 1 else None,
            document_id=job.document_id,
            generation=job.generation,
            inputs={file.role: workspace / file.path for file in files} | password,
            contents={file.role: file.sha256 for file in files if file.sha256},
            owner=job.owner,
            document=document,
            parent_id=job.parent_id,
            node_slots=slots.sizes.get(NODE, 0),
            known_digests=attempts.known_digests(job.id) if needs_digests else (),
        )


# ── Claiming ahead of free slots ──────────────────────────────────────────────────────────────────────────────────────

# Prefetch as many jobs for a slot as it runs in this time, but at most `PREFETCHED_MOST`.
MOMENT_SECONDS = 0.02
PREFETCHED_MOST = 32
# Weight of the newest duration in the moving average of a job type.
_NEWEST_WEIGHT = 0.3


@dataclass(slots=True)
class Prefetch:
    """Claims short jobs ahead: one transaction then claims, and another completes, several jobs per slot."""

    slots: Slots
    _average_seconds_by_type: dict[str, float] = field(default_factory=dict)

    def learn_durations(self, attempts: Iterable[Attempt]) -> None:
        for attempt in attempts:
            if attempt.took_seconds is not None:
                job_type = attempt.job.job_type
                average = self._average_seconds_by_type.get(job_type, attempt.took_seconds)
                self._average_seconds_by_type[job_type] = average + (attempt.took_seconds - average) * _NEWEST_WEIGHT

    def room_by_type(self, job_class: str, handlers_by_type: Mapping[str, HandlerDescription]) -> dict[str, int]:
        room: dict[str, int] = {}
        if job_class == NODE:
            # The fork servers of nodes queue no orders.
            return room
        for job_type, running in self.slots.count_by_type(job_class).items():
            used_slots = min(running, self.slots.sizes[job_class])
            most = used_slots * self._most_per_slot(job_type, handlers_by_type.get(job_type))
            # Wait until half of the jobs are done, so that each claim takes many.
            if running <= most // 2:
                room[job_type] = most - running
        return room

    def _most_per_slot(self, job_type: str, handler: HandlerDescription | None) -> int:
        if handler is None or handler.reuse <= 1:
            return 1
        average_seconds = self._average_seconds_by_type.get(job_type, MOMENT_SECONDS)
        seconds = max(average_seconds, MOMENT_SECONDS / PREFETCHED_MOST)
        return max(1, min(int(MOMENT_SECONDS / seconds), handler.reuse))


# ── Rejecting jobs before they start ──────────────────────────────────────────────────────────────────────────────────

# Longer payloads are checked only in the child, because the loop waits during this check.
_CHECKED_CHARACTERS_MAX = 65_536


def refusal(job: Job, handler: HandlerDescription | None) -> Ended | None:
    if handler is None or handler.set_aside is not None:
        message = f"no handler for {job.job_type}" if handler is None else handler.set_aside or ""
        return Ended(job.id, job.fence, How.PERMANENT, code="HANDLER_SET_ASIDE", message=message)
    schema = handler.facts.payload_schema
    if schema is None or len(job.payload or "") > _CHECKED_CHARACTERS_MAX:
        return None
    fault = _payload_check(schema).fault(job.payload)
    if fault is None:
        return None
    return Ended(job.id, job.fence, How.PERMANENT, code="PAYLOAD_INVALID", message=fault)


# Building a check costs a thousand times more than running it.
_payload_check = cache(PayloadCheck)
