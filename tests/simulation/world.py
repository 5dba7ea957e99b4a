"""One history: several daemons on two machines over one database, and everything that can befall them, from one seed.

Before every BEGIN and every read, whatever else there is may step in: that is how a worker stands still in the middle
of a verb while others take its jobs. Before every statement its daemon may end. Time is virtual; the boot clock never
jumps, the wall clock may. Then there is calm, in which all jobs have to end; then the books are looked at.

A history is known by its `Plan` alone: the same plan is the same history.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import apsw

from tests.simulation import daemons, events, invariants
from tests.simulation.daemons import Daemon
from tests.simulation.store_pool import ORPHAN_AFTER_SECONDS, StorePool
from tests.simulation.watched_store import LIMITS, Rows, WatchedStore
from tests.store.kit import START
from worker_service.base.clock import from_text
from worker_service.base.errors import PagemillError, StoreBusy, StoreError
from worker_service.daemon.reporting import StoreFailedTooLong
from worker_service.jobs.workers import WorkerState
from worker_service.runner.worker_identity import Identity

KINDS = tuple(events.EVENTS)
_DEPTH_MOST = 3
_LATE = {
    "complete": 0.3,
    "fail": 0.2,
    "report": 0.2,
    "beat": 0.05,
    "snooze": 0.2,
    "release": 0.1,
    "confirm_cancel": 0.2,
}
"""Verbs that need a lease → probability that it is lost by then."""
_CALM_ROUNDS = 150


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    steps: int = 60
    kinds: frozenset[str] = frozenset(KINDS)
    """Kinds of events. Each history has some of them: faults that come alone are found sooner."""


def plan_of(seed: int) -> Plan:
    chance = random.Random(f"plan {seed}")
    steps = chance.choice([30, 60, 90])
    kinds = {kind for kind in KINDS if chance.random() < 0.7 and kind != "batch"}
    # Of its own, in each fifth: the others stay as they were drawn before there were batches.
    return Plan(seed, steps, frozenset({*kinds, "batch"} if seed % 5 == 0 else kinds))


class _Crash(BaseException):
    """Ends the frames of a dead daemon."""


def play(plan: Plan, stores: StorePool) -> list[str]:
    """Run one history and return the broken promises."""
    world = World(plan, stores)
    try:
        with world.with_simulated_processes():
            world.run()
    except Exception as error:
        world.fault(f"nobody expected {error!r}")
    finally:
        world.close()
    return world.faults


@dataclass(slots=True)
class World:
    plan: Plan
    stores: StorePool
    chance: random.Random = field(init=False)
    faults: list[str] = field(default_factory=list)
    rows: Rows = field(default_factory=dict)
    daemons: list[Daemon] = field(default_factory=list)
    people: WatchedStore = field(init=False)
    now: float = 0.0
    step_of_wall: float = 0.0
    boots: dict[str, int] = field(default_factory=lambda: dict.fromkeys(events.HOSTS, 0))
    known: dict[str, Daemon] = field(default_factory=dict)
    acknowledged: list[int] = field(default_factory=list)
    _stack: list[tuple[Daemon, str]] = field(default_factory=list)
    _left_alone: set[tuple[int, int]] = field(default_factory=set)
    """Attempts that were requeued from another machine, which cannot stop their processes."""
    _is_calm: bool = False
    _strays: Counter[tuple[int, int]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.plan.seed)
        self.people = self.open_store()
        for kind, most in LIMITS.items():
            self.people.workers.set_limits(kind, most)

    def close(self) -> None:
        for daemon in self.known.values():
            daemon.close()
        self.stores.tidy(is_sound=not self.faults)

    # ── What daemons need of the world ──

    def wall(self) -> datetime:
        return START + timedelta(seconds=self.now + self.step_of_wall)

    def boot(self) -> float:
        return self.now

    def open_store(self) -> WatchedStore:
        return self.stores.lend(self, self.wall)

    def fault(self, sentence: str) -> None:
        self.faults.append(sentence)

    def daemon_of(self, worker_id: str) -> Daemon:
        return self.known[worker_id]

    def rescued(self, worker: WorkerState) -> None:
        """Check that a requeued worker was silent. If the clock is set, its row proves nothing."""
        silent = self.wall() - from_text(worker.heartbeat_at)
        is_fresh = silent < timedelta(seconds=ORPHAN_AFTER_SECONDS) and "clock" not in self.plan.kinds
        if is_fresh and not self.known[worker.id].is_dead:
            self.fault(f"P1: the jobs of {worker.id} were taken back, and it beats")

    def launched(self, daemon: Daemon, key: tuple[int, int]) -> None:
        for other in self.known.values():
            for living in other.pool.living:
                if living in self._left_alone:
                    continue
                if living[0] == key[0] and other.identity.host == daemon.identity.host:
                    self.fault(f"P1: attempt {key} begins while {living} still lives on the same machine")

    def with_simulated_processes(self) -> ExitStack:
        """Let recovery ask the world which processes live, instead of the kernel."""
        from worker_service.daemon import dead_workers
        from worker_service.jobs import retries
        from worker_service.runner import worker_identity
        from worker_service.store import integrity, leases

        stack = ExitStack()
        given: list[tuple[object, str, object]] = [
            (dead_workers, "is_free", self._is_free),
            (worker_identity, "is_free", self._is_free),
            (worker_identity, "is_running", lambda pid: any(d.identity.pid == pid for d in self.daemons)),
            # So that a history of a hundred steps can come to the cap.
            *((module, "REQUEUES_MAX", 2) for module in (retries, leases, integrity)),
        ]
        for place, name, value in given:
            stack.callback(setattr, place, name, getattr(place, name))
            setattr(place, name, value)
        return stack

    def _is_free(self, lock: Path) -> bool | None:
        daemon = self.known[lock.name.removesuffix(".lock")]
        asks, _ = self._stack[-1]
        near = asks.identity.host == daemon.identity.host
        return daemon.is_lock_free if near else None

    # ── Moments: what may happen between two statements ──

    def moment(self, actor: object, verb: str, sql: str, *, may_enter: bool) -> None:
        if self._is_calm or not isinstance(actor, Daemon) or sql == "ROLLBACK":
            return
        if may_enter and len(self._stack) < _DEPTH_MOST:
            if "cancel" in self.plan.kinds and verb in _LATE and verb != "beat" and self.chance.random() < 0.08:
                events.cancel(self)
            is_late = "still" in self.plan.kinds and self.chance.random() < _LATE.get(verb, 0.0)
            if is_late:
                self._stand_still(actor)
            elif self.chance.random() < (0.3 if verb == "beat" else 0.08):
                for _ in range(self.chance.randint(1, 6)):
                    self._step()
        if actor.is_dead:
            raise _Crash
        if "crash" in self.plan.kinds and self.chance.random() < 0.004:
            self.end(actor)
            raise _Crash
        if "trouble" in self.plan.kinds and self.chance.random() < 0.004:
            raise self.chance.choice([apsw.FullError, apsw.BusyError])("simulated")

    def answer(self, actor: object) -> None:
        """Raise an error at times after a claim has committed."""
        is_befallen = isinstance(actor, Daemon) and not self._is_calm and "trouble" in self.plan.kinds
        if is_befallen and self.chance.random() < 0.05:
            raise StoreBusy("simulated")

    def _stand_still(self, actor: Daemon) -> None:
        """Stop the daemon in the middle of a verb until the others have requeued its jobs."""
        actor.still_until = self.now + 1e9
        events.orphans(self)
        for _ in range(8):
            self.now += ORPHAN_AFTER_SECONDS * 0.2
            for daemon in list(self.daemons):
                if self._may_move(daemon, "loop") and self._may_move(daemon, "heart"):
                    self._beat(daemon)
                    self._loop(daemon)
        for _ in range(self.chance.randint(0, 6)):
            self._step()
        actor.still_until = 0.0

    # ── Steps ──

    def run(self) -> None:
        for name in events.HOSTS:
            self.begin(name)
        for _ in range(3):
            events.enqueue(self)
        for _ in range(self.plan.steps):
            if self.faults:
                return
            self._step()
        self._be_calm()
        if not self.faults:
            self.faults += invariants.end_faults(self.people, self.known.values(), self.acknowledged)

    def _step(self) -> None:
        self.now += self.chance.choice([0.01, 0.3, 2.0, 30.0])
        if not self.daemons or self.chance.random() < 0.15:
            self._apply_event()
            return
        daemon = self.chance.choice(self.daemons)
        if self.now - daemon.beat_at >= daemons.HEARTBEAT_SECONDS:
            self._beat(daemon)
        which = self.chance.random()
        if which < 0.5:
            self._loop(daemon)
        elif which < 0.6:
            self._beat(daemon)
        else:
            daemon.pool.step()

    def _may_move(self, daemon: Daemon, thread: str) -> bool:
        is_busy = any(one is daemon and other == thread for one, other in self._stack)
        return not is_busy and not daemon.is_dead and self.now >= daemon.still_until

    def _apply_event(self) -> None:
        chosen = self.chance.choice(["enqueue", "enqueue", "orphans", *sorted(self.plan.kinds)])
        events.ALL_EVENTS[chosen](self)

    def _move(self, daemon: Daemon, thread: str, deed: Callable[[Daemon], None]) -> None:
        """Run one step of a daemon's loop or heartbeat thread."""
        if not self._may_move(daemon, thread):
            return
        self._stack.append((daemon, thread))
        try:
            deed(daemon)
        except _Crash:
            pass
        finally:
            self._stack.pop()
            self._give_back(daemon)

    def _loop(self, daemon: Daemon) -> None:
        self._move(daemon, "loop", self._turn)

    def _beat(self, daemon: Daemon) -> None:
        self._move(daemon, "heart", self._beat_once)

    def _turn(self, daemon: Daemon) -> None:
        loop = daemon.loop
        was_silent, beats = self._is_silent(daemon), daemon.heartbeat.committed_beats
        try:
            loop.turn()
            daemon.bad_turns = 0
            self._look_for_strays(daemon)
            # A turn that has sent a beat itself may have been stopped once more after it.
            has_not_beaten = daemon.heartbeat.committed_beats == beats
            if was_silent and has_not_beaten and self._is_silent(daemon) and daemon.pool.living:
                self.fault(f"P1: attempts {[*daemon.pool.living]} go on, and their worker has not beaten for long")
        except StoreFailedTooLong:
            loop._exit_code = 74
        except StoreError as error:
            daemon.bad_turns += 1
            if daemon.bad_turns >= 10:
                self.fault(f"ten bad turns: {error!r}")
        except Exception as error:
            self.fault(f"a turn failed: {error!r}")
        if loop._exit_code is not None:
            self._leave(daemon, loop._exit_code)

    def _is_silent(self, daemon: Daemon) -> bool:
        """Return True if other daemons are about to take it for dead."""
        return daemon.heartbeat.silent_seconds() > ORPHAN_AFTER_SECONDS * 0.9

    def _look_for_strays(self, daemon: Daemon) -> None:
        """P13: a child whose lease is known to be lost is asked to stop within one turn."""
        for key, child in daemon.pool.living.items():
            attempt = daemon.loop.context.slots.get(key)
            is_stray = attempt is not None and attempt.is_lost and not child.is_asked_to_stop
            self._strays[key] = self._strays[key] + 1 if is_stray else 0
            if self._strays[key] > 1:
                self.fault(f"P13: attempt {key} goes on, and its lease is lost")

    def _leave(self, daemon: Daemon, code: int) -> None:
        """Exit as `daemon.start` does: the children are gone before the row is removed."""
        daemon.pool.die()
        if code == 0:
            with suppress(PagemillError):
                daemon.store.workers.deregister(daemon.identity.worker_id)
                daemon.is_gone = True
        self.end(daemon)

    def _beat_once(self, daemon: Daemon) -> None:
        daemon.beat_at = self.now
        if self.now < daemon.mute_until:
            return
        with suppress(StoreError):
            daemon.heartbeat._beat(daemon.heart_store)

    def end(self, daemon: Daemon) -> None:
        daemon.is_dead = True
        if daemon in self.daemons:
            self.daemons.remove(daemon)
        if self.chance.random() < 0.5:
            daemon.pool.die()
        self._give_back(daemon)

    def _give_back(self, daemon: Daemon) -> None:
        """Take back the stores of a dead daemon once it has no frames on the stack."""
        if daemon.is_dead and daemon.has_stores and not any(daemon is one for one, _ in self._stack):
            daemon.has_stores = False
            self.stores.take_back(daemon.store)
            self.stores.take_back(daemon.heart_store)

    def begin(self, host: str) -> None:
        number = len(self.known) + 1
        identity = Identity(f"w{number}", host, f"boot{self.boots[host]}", number)
        daemon = daemons.start(self, identity, self.stores.place)
        daemon.pool.is_calm = self._is_calm
        self.known[identity.worker_id] = daemon
        self.daemons.append(daemon)

    def number_on(self, host: str) -> int:
        return sum(daemon.identity.host == host for daemon in self.daemons)

    # ── Calm ──

    def _be_calm(self) -> None:
        """Stop all events and let time pass until every job has ended."""
        if self.faults:
            return
        self._is_calm = True
        self.people.job_control.unpause("all")
        events.go_on(self)
        for daemon in self.known.values():
            daemon.pool.is_calm = True
            daemon.still_until = daemon.mute_until = 0.0
            if daemon.is_dead:
                daemon.pool.die()
        for _ in range(_CALM_ROUNDS):
            for host in dict.fromkeys(events.HOSTS):
                if not self.number_on(host):
                    self.begin(host)
            if not any(row.status in ("pending", "running") for row in self.rows.values()):
                break
            self._calm_round()
            if self.faults:
                return
        else:
            left = [row for row in self.rows.values() if row.status in ("pending", "running")]
            self.fault(f"P3: not all jobs ended in the calm: {left}")
        for daemon in list(self.daemons):
            # One more turn: it hears that its last lease was lost.
            self._loop(daemon)

    def _calm_round(self) -> None:
        deadline = self.people.leases.next_deadline()
        due = (deadline - self.wall()).total_seconds() if deadline else 0.0
        # Not so long at a time that a worker would be taken for dead.
        self.now += max(20.0, min(due, ORPHAN_AFTER_SECONDS / 3))
        for daemon in list(self.daemons):
            self._beat(daemon)
            for _ in range(8):
                daemon.pool.step()
            self._loop(daemon)

    # ── The books ──

    def committed(self, actor: object, before: Rows, after: Rows) -> None:
        """P7: when a job's attempt ends, its processes on this machine are gone."""
        if not isinstance(actor, Daemon):
            return
        for job_id, was in before.items():
            if was.status != "running" or after[job_id].status == "running":
                continue
            for daemon in self.known.values():
                if (job_id, was.fence) not in daemon.pool.living:
                    continue
                if daemon.identity.host == actor.identity.host:
                    self.fault(f"P7: job {job_id} is {after[job_id].status}, and attempt {was.fence} of it lives")
                self._left_alone.add((job_id, was.fence))
