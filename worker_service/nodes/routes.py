"""The daemon's children where there are nodes: its own nursery, and a gateway, each order by its type to one of them.

A gateway that dies never hurts what runs here: it is started again beside it. What it had on nodes has not ended with
it: an attempt has when its node says that it began anew, which it can only with the lock that everything before it
held, or when the patience is over, after which a node that nobody has heard has ended everything by itself.
"""

from __future__ import annotations

import hashlib
import math
import os
import select
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL
from subprocess import TimeoutExpired

from worker_service.children.messages import (
    Asked,
    Begin,
    ChildError,
    Described,
    Ended,
    GatewayBegin,
    Happening,
    How,
    Key,
    NodesSeen,
    Order,
    Placed,
    Wishes,
)
from worker_service.children.nursery import Nursery, _Line
from worker_service.clock import boot_clock
from worker_service.cluster import Cluster
from worker_service.jobs.documents import Answer
from worker_service.jobs.model import NODE
from worker_service.jobs.values import dataclass
from worker_service.nodes.heard import notes_in

_FIRST_SECONDS, _MOST_SECONDS = 0.25, 30.0
"""Between two starts, twice as long after each that brought no node."""
_KILLED_SECONDS = 2.0
"""At most, after one that did not end by itself."""
_EXIT_SECONDS = 0.02
_FIRST_WORD_SECONDS = 60.0
_LOOK_SECONDS = 0.2


def outbound(described: Mapping[str, Described], cluster: Cluster) -> list[str]:
    """The types that run on nodes: those that the settings name, or those whose handlers may."""
    wanted = cluster.types or [job_type for job_type, one in described.items() if one.travels]
    return sorted(job_type for job_type in wanted if job_type in described and described[job_type].set_aside is None)


def of_nodes(described: Mapping[str, Described], types: Collection[str]) -> dict[str, Described]:
    """As the claims see them. What this machine lacks for one of them a node may have."""
    return {
        job_type: replace(one, facts=replace(one.facts, job_class=NODE, missing=None)) if job_type in types else one
        for job_type, one in described.items()
    }


@dataclass(frozen=True, slots=True)
class _Held:
    """An attempt whose gateway has died."""

    node: str | None
    """None: it may be on any."""
    at: float
    """When it died."""


class FarNursery(Nursery):
    """A gateway in the nursery's place."""

    module = "worker_service.nodes.gateway"
    # While it stands still its nodes end what they run.
    ask_seconds = 1.5

    def __init__(self, begin: Begin, environment: Mapping[str, Sequence[str]]) -> None:
        super().__init__(begin)
        assert begin.gateway is not None
        self._patience_seconds = begin.gateway.patience_seconds
        self._of_types = environment
        self._places: dict[Key, str] = {}
        self._held: dict[Key, _Held] = {}
        self.was_killed = False
        """The one before, by somebody else than us."""
        self.seen: NodesSeen | None = None
        """What the gateway said of its nodes last; None: it has not yet."""

    def start(self, meanwhile: Callable[[], float] | None = None) -> Sequence[Described]:
        self.seen = None
        described = super().start(meanwhile)
        self._environment = self._of_types
        return described

    def begin(self) -> None:
        """Start it, and do not wait for its first word."""
        if self._line is None:
            self.seen = None
            self._line = self._open(self._begin)
            self._environment = self._of_types

    @property
    def look_at(self) -> float | None:
        return time.monotonic() + _LOOK_SECONDS if self._held or not self.is_alive else None

    def wish(self, wishes: Wishes) -> None:
        if self._line is not None:
            self._send(self._line, wishes)

    @property
    def held(self) -> Counter[str | None]:
        """By node: attempts of gateways that have died. They may live on there."""
        return Counter(held.node for held in self._held.values())

    def happened(self) -> list[Happening]:
        line = self._line
        if line is not None and line.hello is None and time.monotonic() > line.asked_at + _FIRST_WORD_SECONDS:
            line.is_broken = True
        return [*super().happened(), *self._proven()]

    def has_begun_anew(self, names: Collection[str]) -> bool:
        """Whether all of these nodes have begun anew with this gateway: nothing that was there before is left."""
        there = () if self.seen is None else self.seen.nodes
        return set(names) <= {node.name for node in there if node.state in ("up", "draining")}

    def _surroundings(self) -> dict[str, str]:
        # Engines and ssh have variables of their own.
        return {name: value for name, value in os.environ.items() if not name.startswith("WORKER_")}

    def _see(self, seen: NodesSeen) -> None:
        self.seen = seen

    def _hear(self, line: _Line, body: bytes) -> Iterator[Happening]:
        for one in super()._hear(line, body):
            if isinstance(one, Placed):
                self._places[one.key] = one.node
            elif isinstance(one, Ended):
                self._places.pop(one.key, None)
            yield one

    def _bury(self, line: _Line, *, seconds: float) -> list[Happening]:
        # What it said of its nodes proves nothing of what it had there.
        self.seen = None
        for one in super()._bury(line, seconds=seconds):
            assert isinstance(one, Ended)
            self._held[one.key] = _Held(self._places.pop(one.key, None), boot_clock())
        return []

    def _unregister(self, line: _Line) -> None:
        if line.socket.fileno() >= 0:
            # Before we end it ourselves.
            with suppress(TimeoutExpired):
                line.process.wait(_EXIT_SECONDS)
            self.was_killed = line.process.returncode == -SIGKILL
        super()._unregister(line)

    def _proven(self) -> Iterator[Happening]:
        """The ends of those that are gone for certain."""
        if not self._held:
            return
        now, heard = boot_clock(), notes_in(self._staging_root)
        for key, held in list(self._held.items()):
            # One that may be on any is on one that was heard, which the next gateway may not have found yet.
            names = [*heard] if held.node is None and heard else [held.node or "any node"]
            silent = {
                name: now - min(heard.get(name, held.at), held.at) for name in names if not self.has_begun_anew([name])
            }
            if all(seconds > self._patience_seconds for seconds in silent.values()):
                why = ", ".join(f"{name} was not heard for {seconds:.1f} s" for name, seconds in silent.items())
                message = f"the gateway died, and {why or 'the attempt with it'}"
                del self._held[key]
                yield Ended(*key, How.CRASHED, code="NURSERY_DIED", message=message)


class Children:
    """What the loop knows as its nursery."""

    def __init__(self, near: Nursery, far: FarNursery, types: Collection[str], tell: Callable[[str], None]) -> None:
        self.near, self.far = near, far
        self._types = types
        self._tell = tell
        """Somebody wants to know that a gateway has died."""
        self.may_begin: Callable[[], bool] = lambda: True
        self._was_alive = False
        self._began_at = -math.inf
        self._wait = _FIRST_SECONDS
        self._epoll = select.epoll()
        for one in (near, far):
            self._epoll.register(one.fileno(), select.EPOLLIN)

    @property
    def is_alive(self) -> bool:
        return self.near.is_alive

    @property
    def look_at(self) -> float | None:
        return self.far.look_at

    def fileno(self) -> int:
        return self._epoll.fileno()

    def launch(self, order: Order) -> None:
        (self.far if order.job_type in self._types else self.near).launch(order)

    def stop(self, job_id: int, fence: int, *, now: bool = False) -> None:
        for one in (self.near, self.far):
            one.stop(job_id, fence, now=now)

    def answer(self, asked: Asked, answer: Answer | None, *, code: str = "", message: str = "") -> None:
        for one in (self.near, self.far):
            one.answer(asked, answer, code=code, message=message)

    def happened(self) -> list[Happening]:
        happenings = [*self.near.happened(), *self.far.happened()]
        if self.far.is_alive:
            self._was_alive = True
            if self.far.seen is not None and any(node.slots for node in self.far.seen.nodes):
                self._wait = _FIRST_SECONDS
        elif self._was_alive:
            self._was_alive = False
            self._tell("the gateway has ended")
        elif time.monotonic() >= self._again_at and self.may_begin():
            self._begin_gateway()
        return happenings

    @property
    def _again_at(self) -> float:
        return self._began_at + (min(self._wait, _KILLED_SECONDS) if self.far.was_killed else self._wait)

    def restart(self) -> Sequence[Described]:
        return self.near.restart()

    def _begin_gateway(self) -> None:
        self._wait = min(self._wait * 2, _MOST_SECONDS)
        self._began_at = time.monotonic()
        try:
            self.far.begin()
        except (OSError, ChildError) as error:
            self._tell(str(error))


def gateway_begin(
    cluster: Cluster,
    described: Mapping[str, Described],
    types: Sequence[str],
    *,
    database_id: str,
    local_slots: int,
    objects: Path,
) -> GatewayBegin:
    return GatewayBegin(
        hashlib.blake2s(database_id.encode(), digest_size=8).hexdigest(),
        cluster.engine,
        tuple(cluster.places),
        local_slots if cluster.local_slots is None else cluster.local_slots,
        cluster.patience_seconds,
        objects,
        {job_type: tuple(described[job_type].identity) for job_type in types},
        cluster.is_shared,
        {job_type: described[job_type].facts.timeout_seconds for job_type in types},
        {job_type: described[job_type].spec for job_type in types if described[job_type].has_portion},
        cluster.autoscale,
    )
