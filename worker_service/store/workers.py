from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import asdict, replace

from worker_service.base.clock import as_text
from worker_service.base.errors import Refused, WorkerUnknown
from worker_service.jobs.workers import NodeState, Worker
from worker_service.store.database import StorePart
from worker_service.store.settling import settle


class Workers(StorePart):
    def register(self, worker: Worker) -> None:
        self._store.scheduler.forget_lanes()
        with self._db.transaction():
            self._db.write("register", **asdict(replace(worker, handlers=())), now=self._db.now())
            self._db.write("forget_handlers", worker_id=worker.id)
            for handler in worker.handlers:
                self._db.write("register_handler", worker_id=worker.id, **asdict(handler))

    def deregister(self, worker_id: str) -> None:
        with self._db.transaction():
            if not self._db.write("deregister", worker_id=worker_id):
                raise Refused(f"worker {worker_id} still holds leases, or is not registered", "release them first")
            self._db.write("forget_handlers", worker_id=worker_id)
            self._db.write("mark_nodes_of_worker_down", worker_id=worker_id)

    def set_worker_state(self, worker_id: str, *, draining: bool, disk_low: bool) -> None:
        with self._db.transaction():
            if not self._db.write("set_worker_state", worker_id=worker_id, draining=draining, disk_low=disk_low):
                raise WorkerUnknown(f"worker {worker_id} has no row", "register it first")

    def set_slots(self, worker_id: str, slots: int) -> bool:
        """Change the number of slots for reading until the daemon's next start."""
        with self._db.transaction():
            return bool(self._db.write("set_slots", worker_id=worker_id, slots=slots))

    def forget_nodes_of_dead_workers(self) -> None:
        with self._db.transaction():
            self._db.write("forget_nodes_of_dead_workers")

    def set_nodes(self, worker_id: str, nodes: Sequence[NodeState]) -> None:
        # A node that is missing is removed, or marked as down while it drains. The slots of class `node` of this worker
        # become the sum of theirs. Only one worker at a time has a cluster.
        self._store.scheduler.forget_lanes()
        with self._db.transaction():
            slots = sum(node.slots for node in nodes)
            if not self._db.write("set_node_slots", worker_id=worker_id, slots=slots):
                raise WorkerUnknown(f"worker {worker_id} has no row", "register it first")
            names = json.dumps([node.name for node in nodes])
            self._db.write("forget_nodes", names=names)
            self._db.write("mark_absent_nodes_down", worker_id=worker_id, names=names)
            for node in nodes:
                self._db.write("save_node", worker_id=worker_id, **asdict(node))

    def set_limits(self, kind: str, maximum_by_name: dict[str, int]) -> None:
        """Kinds: type, class, owner, payload."""
        with self._db.transaction():
            self._db.write("forget_limits", kind=kind)
            for name, number in maximum_by_name.items():
                self._db.write("set_limit", kind=kind, name=name, most=number)

    def unknown_types(self) -> Sequence[str]:
        return [job_type for (job_type,) in self._db.read("unknown_types", stale_before=self._db.stale_before())]

    def fail_unknown(self, job_type: str, *, since: datetime, most: int = 1000) -> Sequence[int]:
        values = {"now": self._db.now(), "since": as_text(since), "stale_before": self._db.stale_before(), "most": most}
        with self._db.transaction():
            failed = [job_id for (job_id,) in self._db.write("fail_unknown", job_type=job_type, **values)]
            settle(self._db)
        return failed
