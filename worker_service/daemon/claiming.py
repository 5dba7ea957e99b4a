"""Claim what may start: as many jobs as there are free slots, and some ahead of them where children are kept.

Asked once in each turn, when the worker may claim at all. A claim that brought less than there was room for is not
repeated before something has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from worker_service.children.messages import Described
from worker_service.daemon.ahead import Ahead
from worker_service.daemon.breath import Breath
from worker_service.daemon.heartbeat import Heartbeat
from worker_service.daemon.owning import Ownership
from worker_service.daemon.slots import Attempt, Slots
from worker_service.daemon.starting import Starter
from worker_service.daemon.trouble import Trouble
from worker_service.errors import StoreError, WorkerUnknown
from worker_service.jobs.model import Job
from worker_service.store.base import Store

CLASSES = ("cpu", "io")


class Claiming:
    def __init__(
        self,
        store: Store,
        slots: Slots,
        starter: Starter,
        *,
        worker_id: str,
        heartbeat: Heartbeat,
        ownership: Ownership,
        trouble: Trouble,
        breath: Breath,
    ) -> None:
        self._store = store
        self._slots = slots
        self._starter = starter
        self._worker_id = worker_id
        self._heartbeat = heartbeat
        self._ownership = ownership
        self._trouble = trouble
        self._breath = breath
        self._ahead = Ahead(slots)
        self._should_claim = dict.fromkeys(CLASSES, True)
        self.is_deadline_known = False
        """Since it was last looked up, nothing of ours has moved it."""

    @property
    def is_worthwhile(self) -> bool:
        """There may be something that could run."""
        return any(self._should_claim[one] for one in CLASSES if self._slots.sizes[one])

    @property
    def has_room(self) -> bool:
        return any(self._should_claim[one] and self._slots.free(one) for one in CLASSES)

    def again(self) -> None:
        """Something has changed: there may be more to start, or something due."""
        self._should_claim = dict.fromkeys(CLASSES, True)
        self.is_deadline_known = False

    def ended(self, attempts: Iterable[Attempt]) -> None:
        self._ahead.ended(attempts)

    def fill(self, described: Mapping[str, Described]) -> bool:
        """Whether anything was started."""
        before = len(self._slots)
        for job_class in CLASSES:
            free = self._slots.free(job_class)
            if free and self._should_claim[job_class]:
                for job in self._claim(job_class, free):
                    self._starter.start(job, job_class, described.get(job.job_type))
            if self._should_claim[job_class]:
                self._claim_ahead(job_class, described)
        return len(self._slots) > before

    def _claim_ahead(self, job_class: str, described: Mapping[str, Described]) -> None:
        room = self._ahead.room(job_class, described)
        if room:
            for job in self._claim(job_class, sum(room.values()), only=sorted(room)):
                self._starter.start(job, job_class, described.get(job.job_type))

    def _claim(self, job_class: str, most: int, only: Sequence[str] | None = None) -> Sequence[Job]:
        behind = self._slots.beyond(job_class) + (0 if only is None else most)
        try:
            with self._breath:
                jobs = self._store.claim(self._worker_id, most, job_class, behind=behind, only=only)
        except WorkerUnknown:
            self._ownership.disown()
            return ()
        except StoreError as error:
            self._trouble.met(error)
            return ()
        self._trouble.ended()
        self._should_claim[job_class] = len(jobs) == most
        if len(jobs) < most:
            # It freed what was due, at most so many rows at once; there may be more.
            self.is_deadline_known = False
            if jobs and only is None:
                self.again()
        self._heartbeat.leases = (*self._heartbeat.leases, *(job.lease for job in jobs))
        return jobs
