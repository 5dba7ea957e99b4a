"""The machines that run attempts for the head: how each is, what a person wishes of it, and whether it could be one."""

from __future__ import annotations

import hashlib
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from worker_service import VERSION
from worker_service.config import Settings
from worker_service.errors import ConfigError, NodeNotFound, did_you_mean
from worker_service.jobs.model import NodeRow, NodeWork
from worker_service.jobs.values import dataclass
from worker_service.operations.database import Session

if TYPE_CHECKING:
    from worker_service.cluster import Cluster
    from worker_service.nodes.engine import Engine

WISHES = {"drain": "drain", "remove": "remove", "use": ""}
"""By the verb: what is written as a person's wish."""
_HOUSE = "7e57" * 4
"""What a trial settles as: no head has it, and so nothing of one is disturbed."""
_TRIPS = 20
_SETTLE_SECONDS, _CALL_SECONDS = 60.0, 30.0


@dataclass(frozen=True, slots=True)
class CheckedNode(NodeRow):
    jobs: Sequence[int] = ()
    """Those that run there."""

    @property
    def is_wanted(self) -> bool:
        return not self.wish


@dataclass(frozen=True, slots=True)
class NodeTrial:
    """What a node answered that was tried without a daemon."""

    name: str
    is_good: bool
    reason: str = ""
    version: str = ""
    slots: int = 0
    landlock: int = 0
    round_trip_seconds: float | None = None
    bytes_per_second: float | None = None


def checked_nodes(rows: Sequence[NodeRow], work: Sequence[NodeWork], alive: Sequence[str]) -> list[CheckedNode]:
    """`alive`: the workers that live; of a node whose daemon does not nobody knows anything."""
    found = []
    for row in rows:
        jobs = [one.job_id for one in work if one.node == row.name]
        one = CheckedNode(**{name: getattr(row, name) for name in NodeRow.__match_args__}, jobs=jobs)
        if row.worker_id not in alive:
            one = replace(one, state="down", slots=0, reason="its daemon is gone")
        found.append(one)
    return found


def wish(session: Session, verb: str, name: str) -> str:
    """Of a person: what the node does from now on."""
    if not session.store.steering.wish_of_node(name, WISHES[verb]):
        known = [row.name for row in session.store.reading.nodes()]
        hint = did_you_mean(name, known, f"the nodes are {', '.join(known) or 'none yet'}", 0.5)
        raise NodeNotFound(f"there is no node {name!r}: {hint}")
    running = sum(row.running for row in session.store.reading.nodes() if row.name == name)
    if verb == "use":
        return f"{name} gets what is next"
    left = f"; it finishes the {running} that it runs" if running else ""
    return f"{name} gets nothing new{left}" + (", then it is left alone" if verb == "remove" else "")


# ── Before there is a daemon ──────────────────────────────────────────────────────────────────────────────────────────


def try_nodes(settings: Settings) -> Iterator[NodeTrial]:
    """Start a node on each machine as the daemon would, ask it what it is, and let it go."""
    from worker_service.children.nursery import describe  # imports all handlers, in processes of their own
    from worker_service.nodes.engine import engine_of
    from worker_service.nodes.routes import gateway_begin, outbound

    cluster = settings.cluster
    if cluster is None:
        raise ConfigError("there is no cluster: set WORKER_CLUSTER, or [cluster] in the settings: ssh:box2*8")
    settings.hand_to_handlers()
    described = {
        one.facts.job_type: one for one in describe(settings.commands, settings.sandbox, settings.handlers_dir)
    }
    begin = gateway_begin(
        cluster,
        described,
        outbound(described, cluster),
        database_id="",
        local_slots=settings.concurrency,
        objects=(settings.workspace / "objects").absolute(),
    )
    engine = engine_of(begin, None)
    try:
        engine.door()
        engine.connect()
        for name, slots in sorted(engine.nodes().items()):
            yield _try(engine, name, slots, cluster, settings.sandbox, begin.fit)
    finally:
        engine.close()


def _try(
    engine: Engine, name: str, slots: int | None, cluster: Cluster, sandbox: str, fit: Mapping[str, Sequence[str]]
) -> NodeTrial:
    from worker_service.children.messages import Garbled, hello_from
    from worker_service.cluster import FENCE_PART
    from worker_service.nodes import calls
    from worker_service.nodes.engine import Lost
    from worker_service.nodes.node import fault_of

    def ask(call: calls.Call, seconds: float = _CALL_SECONDS) -> calls.Answer:
        answer = calls.answer_from(handle.call(calls.encoded(call), timeout=seconds))
        if isinstance(answer, calls.Refused):
            raise Lost(answer.message)
        return answer

    settle = calls.Settle(
        calls.VERSION, VERSION, _HOUSE, slots, sandbox, tuple(fit), 10.0, cluster.patience_seconds * FENCE_PART
    )
    try:
        handle = engine.host(name)
        try:
            settled = ask(settle, _SETTLE_SECONDS)
            if not isinstance(settled, calls.Settled):
                raise Garbled("an answer to something else")
            found = NodeTrial(name, True, "", settled.version, settled.slots, settled.landlock)
            fault = fault_of(hello_from(settled.hello), fit)
            if sandbox == "strict" and not settled.landlock:
                fault = "its kernel has no Landlock: children cannot be confined there"
            trips, body = [], os.urandom(calls.PIECE_BYTES_MAX)
            key = hashlib.sha256(body).hexdigest()
            for _ in range(_TRIPS):
                began = time.monotonic()
                ask(calls.Has(key, len(body)))
                trips.append(time.monotonic() - began)
            began = time.monotonic()
            ask(calls.Put(key, len(body), 0, body))
            rate = len(body) / max(time.monotonic() - began, 1e-6)
            ask(calls.Leave())
        finally:
            handle.close()
    except (Lost, Garbled) as error:
        return NodeTrial(name, False, str(error))
    except TimeoutError:
        return NodeTrial(name, False, "it does not answer")
    trip = statistics.median(trips)
    return replace(found, is_good=not fault, reason=fault, round_trip_seconds=trip, bytes_per_second=rate)
