"""Start the attempt of a job that was claimed just now: all that its child is to know, or the end of it at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from worker_service import events
from worker_service.children.messages import ChildError, Described, Ended, How, Order
from worker_service.daemon.admitting import Admitting
from worker_service.daemon.landing import Landing
from worker_service.daemon.slots import Attempt, Slots
from worker_service.daemon.trouble import Trouble
from worker_service.errors import StoreError
from worker_service.jobs.model import Job
from worker_service.store.base import Store

if TYPE_CHECKING:
    from worker_service.events import Log


class Launches(Protocol):
    def launch(self, order: Order) -> None: ...


class Starter:
    def __init__(
        self,
        nursery: Launches,
        store: Store,
        slots: Slots,
        landing: Landing,
        *,
        trouble: Trouble,
        workspace: Path,
        log: Log,
    ) -> None:
        self._nursery = nursery
        self._store = store
        self._slots = slots
        self._landing = landing
        self._trouble = trouble
        self._workspace = workspace
        self._log = log
        self._admitting = Admitting()

    def start(self, job: Job, job_class: str, described: Described | None) -> None:
        is_at_most_once = described is not None and described.facts.at_most_once
        is_small = described is not None and described.reuse > 1
        attempt = Attempt(job._replace(payload=None, result=None), job_class, is_at_most_once, is_small=is_small)
        self._slots.take(attempt)
        say = self._log.debug if is_small else self._log.info
        say(events.JOB_CLAIMED, job_id=job.id, fence=job.fence, job_type=job.job_type)
        refusal = self._admitting.refusal(job, described)
        if refusal is not None:
            self._landing.add(attempt, refusal)
            return
        # Where nothing was begun, nothing is to blame on the job.
        try:
            self._nursery.launch(self._order(job))
        except StoreError as error:
            self._trouble.met(error)
            self._landing.add(attempt, Ended(job.id, job.fence, How.STOPPED))
        except (OSError, ChildError) as error:
            self._log.error(events.NURSERY_DIED, reason=str(error))
            self._landing.add(attempt, Ended(job.id, job.fence, How.STOPPED))

    def _order(self, job: Job) -> Order:
        files = () if job.document_id is None else self._store.inputs(job.document_id)
        return Order(
            job.id,
            job.fence,
            job.job_type,
            job.platform,
            job.account,
            job.payload,
            job.timeout_seconds,
            # A first attempt finds no state.
            state=self._store.checkpoint_of(job.id) if job.fence > 1 else None,
            document_id=job.document_id,
            generation=job.generation,
            inputs={file.role: self._workspace.absolute() / file.path for file in files},
            owner=job.owner,
            document=None if job.document_id is None else self._store.known_document(job.document_id),
        )
