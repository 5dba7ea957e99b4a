"""The loop: hear what happened, write it, start what may start, wait.

One thread, one turn after another; nothing reacts from inside an event. The heartbeat is a thread of its own, and
children live in the nursery: what the loop waits for holds up neither. It decides little: what children say is
written by `reporting`, how they ended by `verdicts` and `landing`; what is still this worker's is known to `owning`,
who is dead to `recovery`, what may start is the store's claim.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from worker_service import events
from worker_service.children.messages import Asked, ChildError, Described, Happening, Order
from worker_service.clock import Clock, wall_clock
from worker_service.daemon.breath import Breath
from worker_service.daemon.chores import Chore
from worker_service.daemon.claiming import Claiming
from worker_service.daemon.guard import Guard
from worker_service.daemon.hearing import hear
from worker_service.daemon.heartbeat import Heartbeat
from worker_service.daemon.identity import Identity
from worker_service.daemon.landing import CannotLand, Landing
from worker_service.daemon.owning import Ownership
from worker_service.daemon.reporting import Reporter
from worker_service.daemon.signals import Signals
from worker_service.daemon.slots import Slots
from worker_service.daemon.starting import Starter
from worker_service.daemon.stopping import Stopping
from worker_service.daemon.systemd import Notifier
from worker_service.daemon.trouble import PAUSE_SECONDS, Trouble
from worker_service.daemon.wake import Wake
from worker_service.errors import StoreError, WorkerUnknown
from worker_service.jobs.documents import Answer
from worker_service.jobs.model import HandlerFacts, Status, Worker
from worker_service.store.base import Store

if TYPE_CHECKING:
    from worker_service.events import Log

BAD_TURNS_MOST = 10
DUE_SECONDS = 0.25
DRAINED_SECONDS = 60.0
"""What comes due later than this is left to the next one who drains the queue."""

EXIT_BUG = 70
EXIT_IO = 74


class Children(Protocol):
    """What the loop needs of the nursery."""

    @property
    def is_alive(self) -> bool: ...
    def fileno(self) -> int: ...
    def launch(self, order: Order) -> None: ...
    def stop(self, job_id: int, fence: int, *, now: bool = False) -> None: ...
    def answer(self, asked: Asked, answer: Answer | None, *, code: str = "", message: str = "") -> None: ...
    def happened(self) -> list[Happening]: ...
    def restart(self) -> Sequence[Described]: ...


@dataclass(slots=True)
class Timer:
    """Due at once, then when the last run said."""

    chore: Chore
    due_at: float = 0.0


@dataclass(slots=True)
class Loop:
    identity: Identity
    version: str
    store: Store
    quick_store: Store
    """For what may be lost in a power cut: progress and log lines."""
    nursery: Children
    described: Mapping[str, Described]
    is_wanted: Callable[[str], bool]
    slots: Slots
    landing: Landing
    breath: Breath
    heartbeat: Heartbeat
    wake: Wake
    guard: Guard
    signals: Signals
    notifier: Notifier
    chores: Sequence[Chore]
    log: Log
    poll_interval_seconds: float
    orphan_after_seconds: float
    grace_period_seconds: float
    is_draining_queue: bool = False
    """End when nothing is left that could run now, or will soon."""
    workspace: Path = Path()
    """Where the files lie that handlers get as inputs."""
    clock: Clock = wall_clock
    monotonic: Callable[[], float] = time.monotonic

    _exit_code: int | None = None
    _timers: list[Timer] = field(default_factory=list)
    _is_disk_low: bool = False
    _is_state_told: bool = True
    _deadline_at: float | None = None
    _poll_at: float = 0.0
    _beats_told: int = -1
    _nursery_again_at: float = 0.0
    _nursery_wait: float = 0.5
    _bad_turns: int = 0
    _trouble: Trouble = field(init=False)
    _reporter: Reporter = field(init=False)
    _ownership: Ownership = field(init=False)
    _starter: Starter = field(init=False)
    _stopping: Stopping = field(init=False)
    _claiming: Claiming = field(init=False)

    def __post_init__(self) -> None:
        self._trouble = Trouble(self.log, self.monotonic)
        self._reporter = Reporter(
            self.store,
            self.quick_store,
            self.slots,
            tell=self.nursery.answer,
            trouble=self._trouble,
            breath=self.breath,
            log=self.log,
            monotonic=self.monotonic,
            workspace=self.workspace,
        )
        self._starter = Starter(
            self.nursery,
            self.store,
            self.slots,
            self.landing,
            trouble=self._trouble,
            workspace=self.workspace,
            log=self.log,
        )
        self._ownership = Ownership(
            self.worker,
            self.store,
            self.slots,
            self.heartbeat,
            worker_id=self.identity.worker_id,
            orphan_after_seconds=self.orphan_after_seconds,
            log=self.log,
        )
        self._stopping = Stopping(
            self.signals,
            self.slots,
            self._ownership,
            stop=self.nursery.stop,
            grace_period_seconds=self.grace_period_seconds,
            monotonic=self.monotonic,
            log=self.log,
        )
        self._claiming = Claiming(
            self.store,
            self.slots,
            self._starter,
            worker_id=self.identity.worker_id,
            heartbeat=self.heartbeat,
            ownership=self._ownership,
            trouble=self._trouble,
            breath=self.breath,
        )

    # ── Turns ──

    def run(self) -> int:
        """Turn until there is nothing to do any more; return the exit code."""
        self._timers = [Timer(chore) for chore in self.chores]
        while self._exit_code is None:
            try:
                self.turn()
                self._bad_turns = 0
            except CannotLand as error:
                self.log.critical(events.DAEMON_FAILED, reason=str(error))
                return EXIT_IO
            except Exception as error:
                # The outermost frame. What it did not finish it does in the next turn.
                self._bad_turns += 1
                self.log.error(events.DAEMON_FAILED, turn=self._bad_turns, exc_info=True)
                if self._bad_turns >= BAD_TURNS_MOST:
                    return EXIT_IO if isinstance(error, StoreError) else EXIT_BUG
                time.sleep(PAUSE_SECONDS)
            if self._exit_code is None:
                self._wait()
        return self._exit_code

    def turn(self) -> None:
        """One turn of the loop. It asks; it never reacts from inside an event."""
        if not self._is_database_ours():
            return
        self.breath.turn()
        self._hear_signals()
        self._hear_heart()
        self._hear_others()
        self._hear_children()
        # The last words of an attempt go out before its end does: after it nothing lands.
        self._reporter.report(self.landing.untold())
        self._land()
        self._stopping.stop_children()
        self._tend_nursery()
        # Before the claim: what the dead left behind is taken back first, and a full disk is known.
        self._run_due_chores()
        self._fill_free_slots()
        self._tell_systemd()
        self._end_if_done()

    # ── What happened ──

    def _is_database_ours(self) -> bool:
        if self.wake.is_replaced:
            self.wake.is_replaced = False
            self.check_files()
        return self._exit_code is None

    def check_files(self) -> None:
        fault = self.guard.fault()
        if fault is not None:
            # Nothing is written any more: it would be lost, and called done. Whoever starts next takes it all back.
            self.log.critical(events.DATABASE_REPLACED, reason=fault)
            self._exit_code = EXIT_IO

    def _hear_signals(self) -> None:
        if self._stopping.hear_signals():
            self._is_state_told = False
            self.notifier.stopping()
        if not self._is_state_told:
            self._tell_state()

    def _tell_state(self) -> None:
        try:
            self.store.set_worker_state(
                self.identity.worker_id, draining=self._stopping.at is not None, disk_low=self._is_disk_low
            )
            self._is_state_told = True
        except WorkerUnknown:
            self._ownership.is_registered = False
        except StoreError:
            # For the eyes of others only; it is told again with the next signal or chore.
            self._is_state_told = True

    def tell_disk_low(self, is_low: bool) -> None:
        self._is_disk_low = is_low
        self._tell_state()
        self._claiming.again()

    def _hear_heart(self) -> None:
        if self._ownership.hear_heart():
            self._claiming.again()

    def _register(self) -> None:
        self._ownership.register()
        self._tell_state()
        self._claiming.again()

    def _hear_others(self) -> None:
        """Somebody has committed: there may be jobs to start, and ours may be asked to stop."""
        now = self.monotonic()
        has_changed = self.wake.has_changed()
        if has_changed or now >= self._poll_at or (self._deadline_at is not None and now >= self._deadline_at):
            self._poll_at = now + self.poll_interval_seconds
            self._claiming.again()
            self._ownership.compare_leases()
            self._find_deadline()

    def _find_deadline(self) -> None:
        self._claiming.is_deadline_known = True
        deadline = self.store.next_deadline()
        now = self.monotonic()
        if deadline is None:
            self._deadline_at = None
        else:
            # What is due already is freed by the next claim, so much at once; the rest soon.
            wait = (deadline - self.clock()).total_seconds()
            self._deadline_at = now + (wait + 0.001 if wait > 0 else DUE_SECONDS)

    def _hear_children(self) -> None:
        if not self._reporter.is_full:
            hear(self.nursery.happened(), self.slots, self.landing, now=self.monotonic(), log=self.log)

    # ── What is written ──

    def _land(self) -> None:
        landed = self.landing.land()
        self._claiming.ended(landed)
        for attempt in landed:
            self.slots.give_back(attempt)
        if landed or self._reporter.has_committed:
            self._reporter.has_committed = False
            # No hint tells of writes of our own: they may have made room, or something due.
            self._claiming.again()
        self.heartbeat.leases = self.slots.leases()

    # ── The nursery ──

    def _tend_nursery(self) -> None:
        if self.nursery.is_alive or self.monotonic() < self._nursery_again_at:
            return
        self.log.error(events.NURSERY_DIED, running=len(self.slots))
        self._nursery_again_at = self.monotonic() + self._nursery_wait
        self._nursery_wait = min(30.0, self._nursery_wait * 2)
        try:
            described = self.nursery.restart()
        except (OSError, ChildError) as error:
            self.log.error(events.NURSERY_DIED, reason=str(error))
            return
        self.described = {d.facts.job_type: d for d in described if self.is_wanted(d.facts.job_type)}
        self.log.info(events.NURSERY_RESTARTED, handlers=len(self.described))
        self._register()

    # ── What may start ──

    def _fill_free_slots(self) -> None:
        if not self._ownership.is_registered and not len(self.slots) and not self._trouble.is_there:
            self._register()
        # Beat before claiming: a worker that cannot beat must own nothing.
        if self._ownership.is_fenced or not self._ownership.is_registered or not self.nursery.is_alive:
            return
        if self._stopping.at is not None or self._exit_code is not None:
            return
        if self.landing.again_at or self._trouble.is_there:
            return
        if self._claiming.fill(self.described):
            self._nursery_wait = 0.5

    def worker(self) -> Worker:
        """As this worker registers itself."""
        own = self.identity
        sizes = self.slots.sizes
        facts: Sequence[HandlerFacts] = [described.facts for described in self.described.values()]
        return Worker(own.worker_id, own.host, own.boot_id, own.pid, self.version, sizes["cpu"], sizes["io"], facts)

    # ── Now and then ──

    def _run_due_chores(self) -> None:
        for timer in self._timers:
            now = self.monotonic()
            if now < timer.due_at:
                continue
            try:
                timer.due_at = now + timer.chore.run()
                self._claiming.again()
            except Exception as error:
                self.log.warning(events.CHORE_FAILED, chore=timer.chore.name, reason=str(error))
                timer.due_at = now + 30.0

    def _tell_systemd(self) -> None:
        # A beat has committed and the loop has turned: only both together are a sign of life.
        if self.heartbeat.committed != self._beats_told:
            self._beats_told = self.heartbeat.committed
            self.notifier.alive()

    def _end_if_done(self) -> None:
        if self._exit_code is not None or len(self.slots) or len(self.landing):
            return
        if self._stopping.at is not None:
            self._exit_code = 0
        elif self.is_draining_queue and not self._claiming.is_worthwhile and not self._comes_due():
            self.log.info(events.DAEMON_DRAINED, pending=self.store.counts().by_status.get(Status.PENDING, 0))
            self._exit_code = 0

    def _comes_due(self) -> bool:
        soon = self.clock() + timedelta(seconds=DRAINED_SECONDS)
        return self.store.comes_due(self.identity.worker_id, soon)

    # ── Waiting ──

    def _wait(self) -> None:
        if not self._claiming.is_deadline_known and not self._trouble.is_there:
            self._find_deadline()
        timeout = self._seconds_to_wait()
        fds = (self._nursery_fd(), self.wake.fileno(), self.signals.fileno(), self.heartbeat.fileno())
        # To the microsecond: poll rounds up to whole milliseconds, and a commit is looked for again after half of one.
        select.select([fd for fd in fds if fd is not None], [], [], max(0.0, timeout))

    def _nursery_fd(self) -> int | None:
        # What is not listened to would wake us for nothing.
        return self.nursery.fileno() if self.nursery.is_alive and not self._reporter.is_full else None

    def _seconds_to_wait(self) -> float:
        now = self.monotonic()
        moments = [self._poll_at, self._deadline_at, self.wake.look_at, self.landing.again_at, self._reporter.next_at]
        moments.append(self._stopping.next_at())
        moments += [timer.due_at for timer in self._timers]
        if not self.nursery.is_alive:
            moments.append(self._nursery_again_at)
        is_doubtful = self._ownership.is_fenced or not self._ownership.is_registered
        may_claim = self._stopping.at is None and self.nursery.is_alive and not is_doubtful
        if may_claim and self._claiming.has_room:
            moments.append(max(now, self._trouble.over_at, self.landing.again_at or 0.0))
        if is_doubtful:
            moments.append(now + 0.2)
        # Fenced in time, also when no answer comes.
        moments.append(now + self.orphan_after_seconds * 0.1)
        return min(moment for moment in moments if moment is not None) - now
