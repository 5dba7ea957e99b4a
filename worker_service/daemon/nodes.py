"""Keep slots, the `node` table and users' requests to drain nodes in step with the Ray cluster.

The slots of all nodes together are the slots of the job class `node`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from worker_service.base import events
from worker_service.base.errors import StoreError, WorkerUnknown
from worker_service.cluster.pool import ClusterPool, RayPool, cluster_begin, cluster_types
from worker_service.daemon.attempts import DaemonContext
from worker_service.jobs.workers import NODE, NodeState
from worker_service.runner.messages import Begin, HandlerDescription, NodesSeen
from worker_service.runner.pool import LocalPool
from worker_service.settings.cluster import LOCAL, Cluster

_UPDATE_SECONDS = 1.0
# `pagemill run --drain` waits this long for a first node, or for a first machine that Ray's autoscaler has to start.
_FIRST_NODE_SECONDS = 60.0
_FIRST_MACHINE_SECONDS = 900.0


@dataclass(slots=True)
class Nodes:
    context: DaemonContext
    pool: ClusterPool
    types: Collection[str]
    # The setting: most attempts that may wait for new machines.
    autoscale: int
    next_update_at: float = 0.0
    # What the rows of `node` say.
    _nodes_written: NodesSeen | None = None
    # Nodes that the Ray driver was asked to drain.
    _draining: tuple[str, ...] = ()
    _started_at: float = 0.0

    def __post_init__(self) -> None:
        self._started_at = self.context.monotonic()

    def with_node_class(self, handlers_by_type: Mapping[str, HandlerDescription]) -> dict[str, HandlerDescription]:
        return {
            job_type: _with_node_class(handler) if job_type in self.types else handler
            for job_type, handler in handlers_by_type.items()
        }

    def update(self) -> bool:
        """Return True if there are more slots than before."""
        now, nodes_seen = self.context.monotonic(), self.pool.ray.nodes_seen
        if nodes_seen is self._nodes_written and now < self.next_update_at:
            return False
        self.next_update_at = now + _UPDATE_SECONDS
        slots_before = self.context.slots.sizes[NODE]
        node_slots = sum(node.slots for node in nodes_seen.nodes) if nodes_seen is not None else 0
        waiting_slots = self._waiting_slots(node_slots) if self.pool.ray.is_connected else 0
        self.context.slots.sizes[NODE] = self.pool.local_slots + node_slots + waiting_slots
        if nodes_seen is not self._nodes_written or self.context.slots.sizes[NODE] != slots_before:
            self._write_rows(nodes_seen, waiting_slots)
        self._pass_on_drains()
        return self.context.slots.sizes[NODE] > slots_before

    def _waiting_slots(self, node_slots: int) -> int:
        # Waiting attempts make Ray's autoscaler start machines. Claim no more of them than there are slots (but two at
        # the start): later jobs of higher priority cannot overtake a claimed one.
        return min(max(0, self.autoscale - node_slots), max(node_slots, 2))

    @property
    def may_get_first_slots(self) -> bool:
        seconds = _FIRST_MACHINE_SECONDS if self.autoscale else _FIRST_NODE_SECONDS
        nodes = () if self._nodes_written is None else self._nodes_written.nodes
        has_slots = self.pool.local_slots or any(node.slots for node in nodes)
        return not has_slots and self.context.monotonic() < self._started_at + seconds

    def _write_rows(self, nodes_seen: NodesSeen | None, waiting_slots: int) -> None:
        rows = [] if nodes_seen is None else [*nodes_seen.nodes]
        if self.pool.local_slots:
            rows.insert(0, NodeState(LOCAL, "up", self.pool.local_slots))
        if waiting_slots:
            reason = "attempts wait here for new machines"
            rows.append(NodeState("autoscaler", "starting", waiting_slots, reason=reason))
        try:
            self.context.relaxed_store.workers.set_nodes(self.context.identity.worker_id, rows)
            self._nodes_written = nodes_seen
        except WorkerUnknown:
            # The loop registers the worker again before it claims.
            pass
        except StoreError as error:
            self.context.note_store_failure(error)

    def _pass_on_drains(self) -> None:
        with suppress(StoreError):
            draining = tuple(row.name for row in self.context.store.overview.nodes() if row.is_draining)
            if draining != self._draining and self.pool.ray.is_alive:
                self._draining = draining
                self.pool.ray.drain(draining)
        if not self.pool.ray.is_alive:
            # A restarted driver has no drain requests yet.
            self._draining = ()


def _with_node_class(handler: HandlerDescription) -> HandlerDescription:
    # Programs that this machine lacks may exist on the nodes.
    facts = msgspec.structs.replace(handler.facts, job_class=NODE, missing=None, missing_remedy="")
    return msgspec.structs.replace(handler, facts=facts)


def open_nodes(
    context: DaemonContext,
    cluster: Cluster,
    local: LocalPool,
    begin: Begin,
    handlers_by_type: Mapping[str, HandlerDescription],
    staging: Path,
) -> Nodes | None:
    settings, types = context.settings, cluster_types(handlers_by_type, cluster)
    if unknown := sorted({*cluster.types} - {*types}):
        reason = "no handler of these types declares runs_on_cluster"
        context.log.warning(events.CLUSTER_TYPE_UNKNOWN, types=unknown, reason=reason)
    if not types:
        return None
    local_slots = settings.concurrency if cluster.local_slots is None else cluster.local_slots
    if any(handlers_by_type[job_type].facts.missing for job_type in types):
        local_slots = 0
    objects = (settings.workspace / "objects").absolute()
    declarations = ((job_type, handlers_by_type[job_type].declared) for job_type in types)
    environment = {job_type: declared.environment for job_type, declared in declarations if declared is not None}
    begin = msgspec.structs.replace(
        begin,
        staging_root=staging,
        cluster=cluster_begin(cluster, handlers_by_type, types, objects),
        commands={},
        slots={},
    )

    def log_death(reason: str) -> None:
        context.log.error(events.RAY_DRIVER_DIED, reason=reason)

    context.slots.sizes[NODE] = local_slots
    pool = ClusterPool(local, RayPool(begin, environment), types, local_slots, log_death)
    return Nodes(context, pool, types, cluster.autoscale)
