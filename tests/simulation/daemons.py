"""A daemon under simulation: the real loop, heartbeat, recovery and outcomes, over a watched store, in one thread.

What is simulated around them: time, children, the locks that tell who lives, and the hint that somebody has committed.
The loop and the heartbeat are two actors, as they are two threads, each with a store of its own.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from tests.simulation.children import DESCRIBED, STAGING, SimulatedForkServer
from tests.simulation.store_pool import ORPHAN_AFTER_SECONDS
from tests.simulation.watched_store import WatchedStore
from worker_service.base.clock import Clock
from worker_service.base.sd_notify import Notifier
from worker_service.daemon.attempts import DaemonContext, Slots
from worker_service.daemon.dead_workers import Recovery
from worker_service.daemon.heartbeat import Heartbeat, own_worker
from worker_service.daemon.loop import Loop, filter_types
from worker_service.daemon.outcomes import OutcomeWriter
from worker_service.jobs.documents import NewFile
from worker_service.jobs.workers import WorkerState
from worker_service.runner.messages import Ended
from worker_service.runner.worker_identity import Identity
from worker_service.settings.config import Settings
from worker_service.settings.loading import load_settings

HEARTBEAT_SECONDS = 30.0


class Machine(Protocol):
    """The part of the world that a daemon uses."""

    chance: random.Random

    def wall(self) -> Any: ...
    def boot(self) -> float: ...
    def open_store(self) -> WatchedStore: ...
    def fault(self, sentence: str) -> None: ...
    def rescued(self, worker: WorkerState) -> None: ...
    def launched(self, daemon: Daemon, key: tuple[int, int]) -> None: ...
    def daemon_of(self, worker_id: str) -> Daemon: ...


class SimulatedRecovery(Recovery):
    """The real recovery, which can stop processes on its own machine only."""

    machine: Machine

    def _requeue(self, worker: WorkerState, reason: str) -> None:
        self.machine.rescued(worker)
        super()._requeue(worker, reason)

    def _sweep(self, worker: WorkerState) -> bool:
        self._stop_processes(worker)
        return True

    def _living_processes(self, worker: WorkerState) -> Sequence[int]:
        rest = self.machine.daemon_of(worker.id)
        is_near = rest.identity.host == self.context.identity.host
        return [key[0] for key in rest.pool.living] if is_near else []

    def _stop_processes(self, worker: WorkerState) -> None:
        rest = self.machine.daemon_of(worker.id)
        if rest.identity.host == self.context.identity.host:
            rest.pool.die()


@dataclass(slots=True)
class Daemon:
    identity: Identity
    store: WatchedStore
    heart_store: WatchedStore
    pool: SimulatedForkServer
    heartbeat: Heartbeat
    loop: Loop
    published: set[tuple[int, int]]
    is_dead: bool = False
    has_stores: bool = True
    is_gone: bool = False
    """True after an orderly exit, which removes its row."""
    still_until: float = 0.0
    """Time until which it is stopped (SIGSTOP)."""
    mute_until: float = 0.0
    """Time until which its beats fail."""
    bad_turns: int = 0
    beat_at: float = 0.0

    @property
    def is_lock_free(self) -> bool:
        return self.is_dead and not self.pool.living

    def close(self) -> None:
        os.close(self.heartbeat.fileno())


def start(machine: Machine, identity: Identity, place: Path) -> Daemon:
    """Return a registered daemon before its first turn."""
    store, heart_store = machine.open_store(), machine.open_store()
    log: Any = _Log(machine)
    heartbeat = Heartbeat(lambda: heart_store, identity.worker_id, log, HEARTBEAT_SECONDS, machine.boot)
    clock: Clock = machine.wall
    context = DaemonContext(
        settings_in(place), identity, log, store, store, Slots({"cpu": 2, "io": 1}), clock, machine.boot
    )
    recovery = SimulatedRecovery(context, machine.boot)
    recovery.machine = machine
    published: set[tuple[int, int]] = set()
    pool = SimulatedForkServer(machine.chance, lambda key: machine.launched(daemon, key))
    loop = _loop(machine, context, pool, heartbeat, published)
    loop.chores = {"recovery": recovery.run}
    daemon = Daemon(identity, store, heart_store, pool, heartbeat, loop, published)
    # Nothing befalls it before it owns anything.
    store.workers.register(own_worker(context, DESCRIBED))
    store.database.actor = heart_store.database.actor = daemon
    heartbeat.last_beat_at = machine.boot()
    daemon.beat_at = machine.boot()
    return daemon


def _loop(
    machine: Machine,
    context: DaemonContext,
    pool: SimulatedForkServer,
    heartbeat: Heartbeat,
    published: set[tuple[int, int]],
) -> Loop:
    # Parts that are simulated have the shape of the real ones, and not their type.
    watch: Any = _Watch(machine.chance)
    signals: Any = _Signals()
    publisher: Any = _Publisher(published)
    children: Any = pool
    outcomes = OutcomeWriter(context, publisher)
    return Loop(context, children, filter_types(DESCRIBED, ()), outcomes, heartbeat, watch, signals, Notifier({}))


@cache
def settings_in(place: Path) -> Settings:
    environ = {"WORKER_DATABASE": str(place / "pagemill.db"), "WORKER_WORKSPACE": str(place)}
    settings = load_settings(environ=environ, directory=place)
    assert settings.orphan_after_seconds == ORPHAN_AFTER_SECONDS
    return settings


class _Watch:
    """Reports a change most of the time."""

    next_read_at: float | None = None
    may_be_replaced = False

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def has_changed(self) -> bool:
        return self._chance.random() < 0.6

    def fault(self) -> str | None:
        return None


class _Signals:
    stop_requests = 0
    is_reload_requested = False

    def drain(self) -> None:
        pass


class _Publisher:
    """Remembers which attempts have files that are read once the completion has committed."""

    def __init__(self, published: set[tuple[int, int]]) -> None:
        self._published = published

    def publish(self, ended: Ended) -> None:
        assert all(file.is_relative_to(STAGING) for file in ended.files)
        self._published.add((ended.job_id, ended.fence))

    def new_files(self, ended: Ended) -> list[NewFile]:
        return []

    def retract(self, ended: Ended) -> None:
        self._published.discard((ended.job_id, ended.fence))


class _Log:
    """Reports a chore that fails for another reason than a simulated error of the store."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def info(self, event: str, **fields: object) -> None:
        reason = str(fields.get("reason", ""))
        if event == "chore.failed" and "is full" not in reason and "has been locked" not in reason:
            self._machine.fault(f"a chore failed: {reason}")

    warning = error = critical = debug = info
