"""Claim jobs for free slots and start them."""

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
from worker_service.jobs.job import Job, Lease
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
    is_deadline_known: bool = False
    prefetch: Prefetch = field(init=False)
    _should_claim: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.request_claim()
        self.prefetch = Prefetch(self.context.slots)

    @property
    def may_find_jobs(self) -> bool:
        return any(self._should_claim[one] for one, size in self.context.slots.sizes.items() if size)

    @property
    def has_room(self) -> bool:
        return any(self._should_claim[one] and self.context.slots.free(one) for one in self.context.slots.sizes)

    def request_claim(self) -> None:
        self._should_claim = dict.fromkeys(self.context.slots.sizes, True)
        self.is_deadline_known = False

    def fill_slots(self, described: Mapping[str, HandlerDescription]) -> bool:
        slots = self.context.slots
        before = len(slots)
        for job_class in slots.sizes:
            free = slots.free(job_class)
            if free and self._should_claim[job_class]:
                for job in self._claim(job_class, free):
                    self._start(job, job_class, described.get(job.job_type))
            if self._should_claim[job_class] and (room := self.prefetch.room(job_class, described)):
                for job in self._claim(job_class, sum(room.values()), only=sorted(room)):
                    self._start(job, job_class, described.get(job.job_type))
        return len(slots) > before

    def _claim(self, job_class: str, most: int, only: Sequence[str] | None = None) -> Sequence[Job]:
        worker_id, heartbeat = self.context.identity.worker_id, self.ownership.heartbeat
        # The claim may then exceed the worker's slots by this number.
        behind = self.context.slots.prefetched(job_class) + (0 if only is None else most)
        try:
            jobs = self.context.store.leases.claim(worker_id, most, job_class, behind=behind, only=only)
        except WorkerUnknown:
            self.ownership.mark_unregistered()
            return ()
        except StoreError as error:
            self.context.note_store_failure(error)
            return ()
        self.context.note_store_success()
        self._should_claim[job_class] = len(jobs) == most
        if len(jobs) < most:
            # Each claim also makes a limited number of due rows ready, so there may be more.
            self.is_deadline_known = False
            if jobs and only is None:
                self.request_claim()
        heartbeat.leases = (*heartbeat.leases, *(Lease(job.id, job.fence, worker_id) for job in jobs))
        return jobs

    def _start(self, job: Job, job_class: str, described: HandlerDescription | None) -> None:
        is_at_most_once = described is not None and described.facts.at_most_once
        shares_child = described is not None and described.reuse > 1
        lease = Lease(job.id, job.fence, self.context.identity.worker_id)
        attempt = Attempt(
            job._replace(payload=None, result=None), lease, job_class, is_at_most_once, shares_child=shares_child
        )
        self.context.slots.add(attempt)
        log = self.context.log.debug if shares_child else self.context.log.info
        log(events.JOB_CLAIMED, job_id=job.id, fence=job.fence, job_type=job.job_type)
        ended = refusal(job, described) or self._launch(job, described)
        if ended is not None:
            self.outcomes.add(attempt, ended)

    def _launch(self, job: Job, described: HandlerDescription | None) -> Ended | None:
        """Return None if the order was sent, otherwise the outcome that releases the job."""
        try:
            order = self._order(job, described)
            # If this process was suspended between the claim and this line, another worker may own the job by now.
            if not self.ownership.is_silent:
                self.pool.launch(order)
                return None
        except StoreError as error:
            self.context.note_store_failure(error)
        except (OSError, ChildError) as error:
            self.context.log.error(events.FORK_SERVER_DIED, reason=str(error))
        return Ended(job.id, job.fence, How.STOPPED)

    def _order(self, job: Job, described: HandlerDescription | None) -> Order:
        slots, attempts = self.context.slots, self.context.store.attempts
        document = None if job.document_id is None else attempts.known_document(job.document_id)
        workspace = self.context.settings.workspace.absolute()
        files = () if job.document_id is None else attempts.inputs(job.document_id)
        password: dict[str, Path] = {}
        if document is not None and described is not None and described.takes_passwords:
            typed = passwords.path_of(workspace, job.platform, job.owner, document.source_key)
            password = {PASSWORD: typed} if typed.is_file() else {}
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

# A slot is given as many jobs in advance as it runs in this time.
MOMENT_SECONDS = 0.02
# Per slot.
PREFETCHED_MOST = 32
_NEWEST_WEIGHT = 0.3


@dataclass(slots=True)
class Prefetch:
    """Claims short jobs ahead: one transaction then claims, and another completes, several jobs per slot."""

    slots: Slots
    _seconds: dict[str, float] = field(default_factory=dict)

    def learn_durations(self, attempts: Iterable[Attempt]) -> None:
        for attempt in attempts:
            if attempt.took_seconds is not None:
                known = self._seconds.get(attempt.job.job_type, attempt.took_seconds)
                self._seconds[attempt.job.job_type] = known + (attempt.took_seconds - known) * _NEWEST_WEIGHT

    def room(self, job_class: str, described: Mapping[str, HandlerDescription]) -> dict[str, int]:
        """Return how many jobs of each type to claim ahead: none on cluster nodes, where they could wait for long."""
        room: dict[str, int] = {}
        if job_class == NODE:
            return room
        for job_type, number in self.slots.by_type(job_class).items():
            most = self._most_per_slot(job_type, described.get(job_type)) * min(number, self.slots.sizes[job_class])
            # Claim many at once, when half of the jobs are done.
            if number <= most // 2:
                room[job_type] = most - number
        return room

    def _most_per_slot(self, job_type: str, described: HandlerDescription | None) -> int:
        if described is None or described.reuse <= 1:
            return 1
        seconds = max(self._seconds.get(job_type, MOMENT_SECONDS), MOMENT_SECONDS / PREFETCHED_MOST)
        return max(1, min(int(MOMENT_SECONDS / seconds), described.reuse))


# ── Rejecting jobs before they start ──────────────────────────────────────────────────────────────────────────────────

# Longer payloads are left to the child's check, because this one holds up the loop.
_CHECKED_CHARACTERS_MAX = 65_536


def refusal(job: Job, found: HandlerDescription | None) -> Ended | None:
    if found is None or found.set_aside is not None:
        message = f"no handler for {job.job_type}" if found is None else found.set_aside or ""
        return Ended(job.id, job.fence, How.PERMANENT, code="HANDLER_SET_ASIDE", message=message)
    schema = found.facts.payload_schema
    if schema is None or len(job.payload or "") > _CHECKED_CHARACTERS_MAX:
        return None
    fault = _check(schema).fault(job.payload)
    if fault is None:
        return None
    return Ended(job.id, job.fence, How.PERMANENT, code="PAYLOAD_INVALID", message=fault)


# Building a check costs a thousand times more than running it.
_check = cache(PayloadCheck)
