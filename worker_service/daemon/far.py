"""What the daemon does about its nodes: its slots follow them, their rows tell of them, and people's wishes reach them.

One daemon of a database has the nodes at a time, the one that holds the lock of them; another one that could have them
waits until it is gone. So the nodes know one head by one name, and whoever takes them over ends what the one before it
has left there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path

import msgspec

from worker_service import events
from worker_service.children.messages import Begin, Described, NodesSeen, Wishes
from worker_service.children.nursery import Nursery
from worker_service.cluster import Cluster
from worker_service.daemon.attempts import Tools
from worker_service.errors import StoreError, WorkerUnknown
from worker_service.jobs.model import NODE, NodeState
from worker_service.jobs.values import dataclass
from worker_service.liveness import LifeLock, lock_path
from worker_service.nodes.routes import Children, FarNursery, gateway_begin, of_nodes, outbound

_TELL_SECONDS, _BUSY_SECONDS = 10.0, 2.0
_LOOK_SECONDS = 1.0
_LOCK = "nodes"
_DIED = "its gateway has ended, and is started again"
_COMING_SECONDS = 60.0
"""So long after its start a daemon that works the queue off waits for a first node."""
_MACHINE_SECONDS = 900.0
"""So long it waits for a first machine that was asked for."""


@dataclass(slots=True)
class Far:
    tools: Tools
    children: Children
    types: Collection[str]
    autoscale: int = 0
    """For so many attempts at once, at most, machines are asked for."""
    has_taken_over: bool = False
    """The nodes, just now: whoever had them is gone, and has left jobs. Whoever has heard of it takes it back.
    Said again with the first of them: whoever was still going at first is gone by then."""
    _awaits_first: bool = False
    _lock: LifeLock | None = None
    _told: tuple[NodeState, ...] | None = None
    _seen: NodesSeen | None = None
    """What of the nodes was gone by last."""
    _tell_at: float = 0.0
    _look_at: float = 0.0
    _wished: Wishes = field(default_factory=Wishes)
    _began_at: float = 0.0
    _asked_at: float | None = None
    """Since when there is no node, and machines are asked for."""

    def __post_init__(self) -> None:
        self.children.may_begin = self._has_lock
        self._began_at = self.tools.monotonic()

    @property
    def look_at(self) -> float:
        return self._look_at

    def described(self, described: Mapping[str, Described]) -> dict[str, Described]:
        return of_nodes(described, self.types)

    def follow(self) -> bool:
        """Asked in each turn. Whether there is more room than before."""
        now = self.tools.monotonic()
        seen = self.children.far.seen
        is_there = seen is not None and self.children.far.is_alive
        if is_there and seen is self._seen and now < min(self._look_at, self._tell_at):
            return False
        if seen is not None and is_there:
            nodes: Sequence[NodeState] = seen.nodes
        else:
            # Of those that the gateway had nobody knows more until another one has looked.
            nodes = [replace(one, state="down", slots=0, running=0, reason=_DIED) for one in self._told or ()]
        nodes = _with_held(nodes, self.children.far.held)
        before = self.tools.slots.sizes.get(NODE, 0)
        self.tools.slots.sizes[NODE] = sum(node.slots for node in nodes)
        if self._awaits_first and self.tools.slots.sizes[NODE]:
            self._awaits_first, self.has_taken_over = False, True
        if self._lock is None or self.tools.must_wait_for_store:
            return False
        if now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            self._pass_on_wishes()
        told = {*map(_shape, self._told or ())}
        changed = [node.name for node in nodes if _shape(node) not in told]
        is_due = self._told is None or now >= self._tell_at
        if is_due:
            is_busy = any(node.running for node in nodes)
            self._tell_at = now + (_BUSY_SECONDS if is_busy else _TELL_SECONDS)
        if is_due or changed or len(told) != len(nodes):
            self._told = tuple(nodes)
            self._write(self._told, only=None if is_due else changed)
        self._seen = None if self.children.far.held or self._told is None else seen
        return self.tools.slots.sizes[NODE] > before

    @property
    def may_still_come(self) -> bool:
        """No node is there yet, and the first ones are only beginning."""
        until = self._began_at + _COMING_SECONDS if self._asked_at is None else self._asked_at + _MACHINE_SECONDS
        return not self.tools.slots.sizes[NODE] and self.tools.monotonic() < until

    def has_begun_anew(self, node: str) -> bool:
        """Whether it is ours now: nothing of anybody before us is left there."""
        return self.children.far.is_alive and self.children.far.has_begun_anew([node])

    def _write(self, nodes: tuple[NodeState, ...], *, only: Collection[str] | None) -> None:
        try:
            self.tools.quick_store.leases.set_nodes(self.tools.identity.worker_id, nodes, only=only)
        except WorkerUnknown:
            # Whoever claims next hears of it.
            self._told = None
        except StoreError as error:
            self._told = None
            self.tools.store_failed(error)

    def _pass_on_wishes(self) -> None:
        with suppress(StoreError):
            rows = self.tools.store.reading.nodes()
            wished = Wishes(
                tuple(row.name for row in rows if row.wish == "drain"),
                tuple(row.name for row in rows if row.wish == "remove"),
                self._attempts(),
            )
            if wished != self._wished and self.children.far.is_alive:
                self._wished = wished
                self.children.far.wish(wished)

    def _attempts(self) -> int:
        """How many could be on nodes at once, if there were room."""
        if not self.autoscale:
            return 0
        could = self.tools.store.reading.could_begin(self.tools.identity.worker_id, NODE, most=self.autoscale)
        attempts = min(self.tools.slots.taken(NODE) + could, self.autoscale)
        if not attempts or self.tools.slots.sizes[NODE]:
            self._asked_at = None
        elif self._asked_at is None:
            self._asked_at = self.tools.monotonic()
        return attempts

    def _has_lock(self) -> bool:
        if self._lock is None:
            try:
                self._lock = LifeLock(lock_path(self.tools.settings.database, _LOCK))
            except BlockingIOError:
                return False
            self.has_taken_over = self._awaits_first = True
        # The next gateway begins without, and is told before it has a node.
        self._wished, self._look_at = Wishes(), 0.0
        return True


def _with_held(nodes: Sequence[NodeState], held: Counter[str | None]) -> Sequence[NodeState]:
    """What may live on there counts beside what they can take: it keeps nobody else's place."""
    kept = [held[node.name] for node in nodes]
    if kept:
        # Of those that nobody knows any more.
        kept[0] += sum(held.values()) - sum(kept)
    return [
        replace(node, slots=node.slots + own, running=node.running + own) for node, own in zip(nodes, kept, strict=True)
    ]


def _shape(node: NodeState) -> tuple[object, ...]:
    return node.name, node.state, node.slots, node.version, node.reason


def far_of(
    tools: Tools, cluster: Cluster, near: Nursery, begin: Begin, described: Mapping[str, Described], staging: Path
) -> Far | None:
    """`begin` is that of the nursery beside it. None: nothing that this daemon takes may run on nodes, which are
    left to another one."""
    settings, types = tools.settings, outbound(described, cluster)
    if not types:
        return None
    if unknown := sorted({*cluster.types} - {*types}):
        tools.log.warning(events.CLUSTER_TYPE_UNKNOWN, types=unknown, reason="no handler of them can be used here")
    gateway = gateway_begin(
        cluster,
        described,
        types,
        database_id=tools.store.reading.database_id(),
        local_slots=settings.concurrency,
        objects=(settings.workspace / "objects").absolute(),
    )
    declared = {job_type: described[job_type].declared for job_type in types}
    environment = {job_type: one.environment for job_type, one in declared.items() if one is not None}
    if cluster.engine == "ray":
        gateway = msgspec.structs.replace(gateway, names=(settings.workspace / "nodes" / "names.json").absolute())
    begin = msgspec.structs.replace(begin, staging_root=staging, gateway=gateway, commands={}, slots={})

    def tell(reason: str) -> None:
        tools.log.error(events.GATEWAY_DIED, reason=reason)

    tools.slots.sizes[NODE] = 0
    return Far(tools, Children(near, FarNursery(begin, environment), types, tell), types, cluster.autoscale)
