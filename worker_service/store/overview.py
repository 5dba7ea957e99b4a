from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

from worker_service.jobs.counts import Counts, ErrorCount, HourOfWork, LiveCounts, PlatformCount, TypeCounts
from worker_service.jobs.job import SourceRest, Status
from worker_service.jobs.workers import HandlerFacts, NodeRow, NodeWork, WorkerState
from worker_service.store.database import Row, StorePart


class OverviewQueries(StorePart):
    def nodes(self) -> Sequence[NodeRow]:
        return [
            NodeRow(name, worker_id, state, slots, version, reason, bool(is_draining))
            for name, worker_id, state, slots, version, reason, is_draining in self._db.read("nodes")
        ]

    def work_on_nodes(self) -> Sequence[NodeWork]:
        return [NodeWork(*row) for row in self._db.read("work_on_nodes")]

    def workers(self) -> Sequence[WorkerState]:
        return [_worker_from(row) for row in self._db.read("workers")]

    def absent_workers(self) -> Sequence[WorkerState]:
        return [_worker_from(row) for row in self._db.read("absent_workers")]

    def limits(self) -> Mapping[str, Mapping[str, int]]:
        """Return the maximum number of running jobs, by kind and name."""
        limits: dict[str, dict[str, int]] = {}
        for kind, name, most in self._db.read("limits"):
            limits.setdefault(kind, {})[name] = most
        return limits

    def missing_handlers(self) -> Sequence[HandlerFacts]:
        rows = self._db.read("missing_handlers", stale_before=self._db.stale_before())
        return [HandlerFacts(*row) for row in rows]

    def payload_schemas(self, job_type: str) -> Sequence[str | None]:
        rows = self._db.read("payload_schemas", job_type=job_type, stale_before=self._db.stale_before())
        return [schema for (schema,) in rows]

    def handler_choices(self) -> Sequence[str]:
        return [choices for (choices,) in self._db.read("choices", stale_before=self._db.stale_before())]

    def counts(self) -> Counts:
        return Counts(self.count_by_status(), self._db.read_value("oldest_ready"))

    def count_by_status(self) -> Mapping[Status, int]:
        [(total, pending, running, failed, cancelled)] = self._db.read("count_by_status")
        return {
            Status.PENDING: pending,
            Status.RUNNING: running,
            Status.COMPLETED: total - pending - running - failed - cancelled,
            Status.FAILED: failed,
            Status.CANCELLED: cancelled,
        }

    def counts_by_type(self) -> Sequence[TypeCounts]:
        return [TypeCounts(*row) for row in self._db.read("counts_by_type")]

    def live_by_type(self) -> Sequence[LiveCounts]:
        return [LiveCounts(*row) for row in self._db.read("live_by_type")]

    def pending_by_platform(self, owner: str | None = None) -> Sequence[PlatformCount]:
        return [PlatformCount(*row) for row in self._db.read("pending_by_platform", owner=owner)]

    def jobs_without_handler(self) -> Sequence[ErrorCount]:
        return [ErrorCount(*row) for row in self._db.read("jobs_without_handler")]

    def errors(
        self, *, since: str, to_retry: Collection[str] | None = None, owner: str | None = None
    ) -> Sequence[ErrorCount]:
        """Count failed jobs by code and type, most frequent first.

        With `to_retry`, count only jobs with these codes that a retry accepts and whose work is not done.
        """
        codes = None if to_retry is None else json.dumps(list(to_retry))
        return [ErrorCount(*row) for row in self._db.read("errors", since=since, codes=codes, owner=owner)]

    def documents_in_line(self, owner: str | None, *, most: int) -> Sequence[int]:
        return [document_id for (document_id,) in self._db.read("documents_in_line", owner=owner, most=most)]

    def ready_by_type(self, owner: str | None, *, most: int) -> Mapping[str, int]:
        return dict(self._db.read("ready_by_type", owner=owner, most=most))

    def source_rests(self) -> Sequence[SourceRest]:
        return [SourceRest(*row) for row in self._db.read("rests", now=self._db.now())]

    def hours_of_work(self, since: str) -> Sequence[HourOfWork]:
        return [HourOfWork(*row) for row in self._db.read("hours_of_work", since=since[:13])]  # its hour


def _worker_from(row: Row) -> WorkerState:
    worker_id, host, boot_id, pid, version, cpu_slots, io_slots, is_draining, is_disk_low, *rest = row
    slots = (cpu_slots, io_slots)
    return WorkerState(worker_id, host, boot_id, pid, version, *slots, bool(is_draining), bool(is_disk_low), *rest)
