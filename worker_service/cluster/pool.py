"""The daemon's pool if a cluster is configured (`ClusterPool`): the local fork server, and the Ray driver (`RayPool`).

Passwords and credentials are never sent to nodes: an attempt that needs one runs here.
"""

from __future__ import annotations

import math
import os
import select
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from worker_service.jobs.documents import QuestionAnswer
from worker_service.runner.messages import (
    PASSWORD,
    Asked,
    Assigned,
    AttemptEvent,
    Begin,
    ClusterBegin,
    Drain,
    Ended,
    HandlerDescription,
    How,
    Key,
    NodesSeen,
    Order,
)
from worker_service.runner.pool import ChildError, ForkServerConnection, LocalPool
from worker_service.settings.cluster import LOCAL, Cluster

_RESTART_SECONDS_MIN, _RESTART_SECONDS_MAX = 0.25, 30.0
_CHECK_SECONDS = 0.25
# The interval between two starts of the driver grows by this factor until a driver has found a node.
_RESTART_FACTOR = 1.5
_NEEDS_A_CREDENTIAL = ("CREDENTIAL_ABSENT", "SECRET_ABSENT")


def cluster_types(handlers_by_type: Mapping[str, HandlerDescription], cluster: Cluster) -> list[str]:
    return sorted(
        job_type
        for job_type, handler in handlers_by_type.items()
        if handler.runs_on_cluster
        and handler.set_aside is None
        # Files of this machine's handlers directory are not installed on nodes.
        and not handler.spec.endswith(".py")
        and (not cluster.types or job_type in cluster.types)
    )


def cluster_begin(
    cluster: Cluster, handlers_by_type: Mapping[str, HandlerDescription], types: Sequence[str], objects: Path
) -> ClusterBegin:
    return ClusterBegin(
        cluster.address,
        objects,
        identity={job_type: tuple(handlers_by_type[job_type].identity) for job_type in types},
        slicers={name: handlers_by_type[name].spec for name in types if handlers_by_type[name].has_slicer},
    )


class RayPool(LocalPool):
    module = "worker_service.cluster.ray_driver"
    # Six pings may stay unanswered: a driver that hangs is taken for dead at the seventh, after 10.5 s.
    ping_seconds = 1.5

    def __init__(self, begin: Begin, variables_by_type: Mapping[str, Sequence[str]]) -> None:
        super().__init__(begin)
        self._variables_by_type = variables_by_type
        self.nodes_seen: NodesSeen | None = None
        self.is_connected = False

    def begin(self) -> None:
        if self._connection is None:
            self._connection = self._open_connection(self._begin)

    def drain(self, nodes: Sequence[str]) -> None:
        if self._connection is not None:
            self._send(self._connection, Drain(tuple(nodes)))

    def _process_environment(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if not name.startswith("WORKER_")}

    def _store_nodes(self, nodes_seen: NodesSeen) -> None:
        self.nodes_seen = nodes_seen
        self.is_connected = True

    def _clean_up_after(self, connection: ForkServerConnection, *, seconds: float) -> list[Ended]:
        return [
            Ended(*ended.key, How.CRASHED, code="NODE_LOST", message="the Ray driver died, and its attempts with it")
            for ended in super()._clean_up_after(connection, seconds=seconds)
        ]

    def _forget(self, connection: ForkServerConnection) -> None:
        if self.nodes_seen is not None:
            down = {"state": "down", "slots": 0, "reason": "the Ray driver has ended, and is started again"}
            nodes = tuple(node if node.state == "down" else replace(node, **down) for node in self.nodes_seen.nodes)
            self.nodes_seen = NodesSeen(nodes)
        self.is_connected = False
        super()._forget(connection)


class ClusterPool:
    def __init__(
        self, local: LocalPool, ray: RayPool, types: Collection[str], local_slots: int, log_death: Callable[[str], None]
    ) -> None:
        self.local, self.ray = local, ray
        self.local_slots = local_slots
        self._types = types
        self._log_death = log_death
        self._keys_placed_here: set[Key] = set()
        self._assigned_here: list[AttemptEvent] = []
        self._orders_on_nodes: dict[Key, Order] = {}
        self._was_alive = False
        self._driver_started_at, self._driver_wait_seconds = -math.inf, _RESTART_SECONDS_MIN
        self._epoll = select.epoll()
        for pool in (local, ray):
            self._epoll.register(pool.fileno(), select.EPOLLIN)

    @property
    def is_alive(self) -> bool:
        return self.local.is_alive

    @property
    def next_check_at(self) -> float | None:
        return None if self.ray.is_alive else time.monotonic() + _CHECK_SECONDS

    def fileno(self) -> int:
        return self._epoll.fileno()

    def launch(self, order: Order) -> None:
        if order.job_type not in self._types:
            self.local.launch(order)
        elif PASSWORD in order.inputs or len(self._keys_placed_here) < self.local_slots:
            self._launch_here(order)
        else:
            self._orders_on_nodes[order.key] = order
            self.ray.launch(order)

    def stop(self, job_id: int, fence: int, *, now: bool = False) -> None:
        for pool in (self.local, self.ray):
            pool.stop(job_id, fence, now=now)

    def answer(self, asked: Asked, answer: QuestionAnswer | None, *, code: str = "", message: str = "") -> None:
        # Node servers answer the questions of their attempts themselves.
        self.local.answer(asked, answer, code=code, message=message)

    def take_events(self) -> list[AttemptEvent]:
        assigned, self._assigned_here = self._assigned_here, []
        events = [*assigned, *self.local.take_events(), *self._take_node_events()]
        for event in events:
            if isinstance(event, Ended):
                self._keys_placed_here.discard(event.key)
        if self.ray.is_alive:
            self._was_alive = True
            if self.ray.nodes_seen is not None and any(node.slots for node in self.ray.nodes_seen.nodes):
                self._driver_wait_seconds = _RESTART_SECONDS_MIN
        elif self._was_alive:
            self._was_alive = False
            self._log_death("the Ray driver has ended")
        elif time.monotonic() >= self._driver_started_at + self._driver_wait_seconds:
            self._start_driver()
        return events

    def restart(self) -> Sequence[HandlerDescription]:
        return self.local.restart()

    def _take_node_events(self) -> Iterator[AttemptEvent]:
        for event in self.ray.take_events():
            if isinstance(event, Ended):
                order = self._orders_on_nodes.pop(event.key)
                if event.code in _NEEDS_A_CREDENTIAL:
                    # Nodes have no credentials: run the attempt here.
                    self._launch_here(order)
                    continue
            yield event

    def _launch_here(self, order: Order) -> None:
        self._keys_placed_here.add(order.key)
        self._assigned_here.append(Assigned(*order.key, LOCAL))
        self.local.launch(order)

    def _start_driver(self) -> None:
        self._driver_wait_seconds = min(self._driver_wait_seconds * _RESTART_FACTOR, _RESTART_SECONDS_MAX)
        self._driver_started_at = time.monotonic()
        try:
            self.ray.begin()
        except (OSError, ChildError) as error:
            self._log_death(str(error))
