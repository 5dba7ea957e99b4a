"""Whether a job that was just claimed can be begun here. One that cannot ends at once, without a child.

Asked for each claimed job, of what the nursery has described; no handler is imported.
"""

from __future__ import annotations

from worker_service.children.messages import Described, Ended, How
from worker_service.jobs.model import Job
from worker_service.jobs.payloads import PayloadCheck

_LOOKED_AT_MOST = 65_536
"""Characters. To look at more would hold up the loop; the child decides."""


class Admitting:
    """Keeps the check of each handler: to make one costs a thousand times more than to ask it."""

    def __init__(self) -> None:
        self._checks: dict[str | None, PayloadCheck] = {}

    def refusal(self, job: Job, found: Described | None) -> Ended | None:
        """How its attempt ends before it has begun; None: it can be begun."""
        if found is None:
            return _ended(job, "HANDLER_SET_ASIDE", f"no handler for {job.job_type}")
        if found.set_aside is not None:
            return _ended(job, "HANDLER_SET_ASIDE", found.set_aside)
        if len(job.payload or "") > _LOOKED_AT_MOST:
            return None
        fault = self._check(found.facts.payload_schema).fault(job.payload)
        return None if fault is None else _ended(job, "PAYLOAD_INVALID", fault)

    def _check(self, schema: str | None) -> PayloadCheck:
        if schema not in self._checks:
            self._checks[schema] = PayloadCheck(schema)
        return self._checks[schema]


def _ended(job: Job, code: str, message: str) -> Ended:
    return Ended(job.id, job.fence, How.PERMANENT, code=code, message=message)
