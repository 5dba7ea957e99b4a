"""The loop: hear what happened, write it, start what may start, wait.

One thread, one turn after another; nothing reacts from inside an event. The heartbeat is a thread of its own, and
children live in the nursery: what the loop waits for holds up neither. It decides little: how an attempt's end is
written is `verdicts` and `landing`, who is dead is `recovery`, what may start is the store's claim.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from worker_service import events
from worker_service.children.model import (
    Checkpointed,
    ChildError,
    Described,
    Ended,
    Happening,
    How,
    Logged,
    Order,
    Progressed,
    Started,
)
from worker_service.clock import Clock, wall_clock
from worker_service.daemon.breath import Breath
from worker_service.daemon.chores import Chore
from worker_service.daemon.guard import Guard
from worker_service.daemon.heartbeat import Heartbeat
from worker_service.daemon.identity import Identity
from worker_service.daemon.landing import CannotLand, Landing
from worker_service.daemon.signals import Signals
from worker_service.daemon.slots import Attempt, Slots
from worker_service.daemon.systemd import Notifier
from worker_service.daemon.wake import Wake
from worker_service.errors import LeaseLost, StoreError, WorkerUnknown
from worker_service.jobs.model import Child, Failure, HandlerFacts, Job, Worker
from worker_service.store.base import Store

if TYPE_CHECKING:
    from worker_service.events import Log

REPORT_SECONDS = 0.25
"""Progress is written a few times a second, however often a handler says it."""
FENCED_AFTER = 0.8
"""The part of the orphan time without a beat after which a worker no longer trusts that it owns anything."""
STOP_SECONDS = 10.0
"""How long a child that was asked to stop may take before it is stopped by force."""
STORE_PAUSE_SECONDS = 1.0
BAD_TURNS_MOST = 10
CLASSES = ("cpu", "io")

EXIT_BUG = 70
EXIT_IO = 74


class Children(Protocol):
    """What the loop needs of the nursery."""

    @property
    def is_alive(self) -> bool: ...
    def fileno(self) -> int: ...
    def launch(self, order: Order) -> None: ...
    def stop(self, job_id: int, fence: int, *, now: bool = False) -> None: ...
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
    """End when nothing is left that could run."""
    clock: Clock = wall_clock
    monotonic: Callable[[], float] = time.monotonic

    _exit_code: int | None = None
    _timers: list[Timer] = field(default_factory=list)
    _should_claim: dict[str, bool] = field(default_factory=lambda: dict.fromkeys(CLASSES, True))
    _is_registered: bool = True
    _is_fenced: bool = False
    _is_disk_low: bool = False
    _is_state_told: bool = True
    _stop_at: float | None = None
    """When the grace period of a stop ends."""
    _is_stopped_now: bool = False
    _report_at: float = 0.0
    _store_again_at: float = 0.0
    _deadline_at: float | None = None
    _poll_at: float = 0.0
    _beats_told: int = -1
    _nursery_again_at: float = 0.0
    _nursery_wait: float = 0.5
    _bad_turns: int = 0

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
                time.sleep(STORE_PAUSE_SECONDS)
            if self._exit_code is None:
                self._wait()
        return self._exit_code

    def turn(self) -> None:
        """One turn of the loop. It asks; it never reacts from inside an event."""
        if not self._is_database_ours():
            return
        self._hear_signals()
        self._hear_heart()
        self._hear_others()
        self._hear_children()
        self._report()
        self._land()
        self._stop_children()
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
        self.signals.drain()
        asked = self.signals.asked_to_stop
        if asked and self._stop_at is None:
            self._stop_at = self.monotonic() + self.grace_period_seconds
            self._is_state_told = False
            self.notifier.stopping()
            self.log.info(events.DAEMON_STOPPING, running=len(self.slots), grace_seconds=self.grace_period_seconds)
        if asked > 1 and not self._is_stopped_now:
            self._is_stopped_now = True
            self._stop_at = self.monotonic()
        if not self._is_state_told:
            self._tell_state()

    def _tell_state(self) -> None:
        try:
            self.store.set_worker_state(
                self.identity.worker_id, draining=self._stop_at is not None, disk_low=self._is_disk_low
            )
            self._is_state_told = True
        except WorkerUnknown:
            self._is_registered = False
        except StoreError:
            # For the eyes of others only; it is told again with the next signal or chore.
            self._is_state_told = True

    def tell_disk_low(self, is_low: bool) -> None:
        self._is_disk_low = is_low
        self._tell_state()
        self._claim_again()

    def _hear_heart(self) -> None:
        for answer in self.heartbeat.answers():
            if not answer.is_known and all(w.id != self.identity.worker_id for w in self.store.workers()):
                self._disowned()
            elif answer.is_known:
                for lease in answer.beat.lost:
                    self._lost(self.slots.get((lease.job_id, lease.fence)))
                for lease in answer.beat.to_cancel:
                    self._cancelled(self.slots.get((lease.job_id, lease.fence)))
        silent = self.heartbeat.silent_seconds()
        if silent > self.orphan_after_seconds * FENCED_AFTER:
            if not self._is_fenced:
                self._is_fenced = True
                self.log.error(events.WORKER_FENCED, silent_seconds=round(silent, 1), running=len(self.slots))
                self.heartbeat.now()
        elif self._is_fenced:
            self._is_fenced = False
            self.log.info(events.WORKER_UNFENCED)
            self._claim_again()

    def _disowned(self) -> None:
        """Others gave this worker up for dead and took its jobs back."""
        if self._is_registered:
            self.log.error(events.LEASE_LOST, reason="this worker was given up for dead", running=len(self.slots))
        self._is_registered = False
        for attempt in self.slots:
            self._lost(attempt)

    def _register(self) -> None:
        """Also the first beat after others gave it up: what it held before stays lost."""
        self.store.register(self.worker())
        self._is_registered = True
        self.heartbeat.now()
        self.log.info(events.WORKER_REGISTERED, worker_id=self.identity.worker_id, handlers=len(self.described))
        self._tell_state()
        self._claim_again()

    def _lost(self, attempt: Attempt | None) -> None:
        if attempt is not None:
            attempt.is_lost = True

    def _cancelled(self, attempt: Attempt | None) -> None:
        if attempt is not None:
            attempt.is_cancelled = True

    def _hear_others(self) -> None:
        """Somebody has committed: there may be jobs to start, and ours may be asked to stop."""
        now = self.monotonic()
        has_changed = self.wake.has_changed()
        if has_changed or now >= self._poll_at or (self._deadline_at is not None and now >= self._deadline_at):
            self._poll_at = now + self.poll_interval_seconds
            self._claim_again()
            self._compare_leases()
            self._find_deadline()

    def _compare_leases(self) -> None:
        """Both ways (P13): each of our rows has its attempt, each of our attempts its row."""
        held = {(h.lease.job_id, h.lease.fence): h for h in self.store.leases_of(self.identity.worker_id)}
        for attempt in self.slots:
            row = held.pop(attempt.key, None)
            if row is None:
                self._lost(attempt)
            elif row.is_cancelled:
                self._cancelled(attempt)
        for row in held.values():
            # A claim that committed, and whose answer never came.
            self.log.warning(events.JOB_UNKNOWN, job_id=row.lease.job_id, fence=row.lease.fence)
            try:
                if row.is_cancelled:
                    self.store.confirm_cancel(row.lease)
                else:
                    self.store.release(row.lease)
            except LeaseLost:
                continue

    def _find_deadline(self) -> None:
        deadline = self.store.next_deadline()
        now = self.monotonic()
        if deadline is None:
            self._deadline_at = None
        else:
            # What is due already is freed by the next claim; until a slot is free there is nothing to wait for.
            wait = (deadline - self.clock()).total_seconds()
            self._deadline_at = now + wait + 0.001 if wait > 0 else None

    def _hear_children(self) -> None:
        for happening in self.nursery.happened():
            attempt = self.slots.get((happening.job_id, happening.fence))
            if attempt is None:
                continue
            if isinstance(happening, Progressed):
                attempt.progressed(happening.percent, happening.message)
            elif isinstance(happening, Logged):
                attempt.logged(happening.line)
            elif isinstance(happening, Ended):
                self.landing.add(attempt, happening)
            elif isinstance(happening, Checkpointed):
                attempt.refuse(Failure("CHECKPOINT_UNSUPPORTED", "this version keeps no checkpoints"))
            elif isinstance(happening, Started):
                attempt.started(Child(happening.pid, happening.pid_started, happening.sandbox))
                self.log.info(
                    events.JOB_STARTED,
                    job_id=happening.job_id,
                    fence=happening.fence,
                    pid=happening.pid,
                    sandbox=happening.sandbox,
                )

    # ── What is written ──

    def _report(self) -> None:
        now = self.monotonic()
        # The lines of an attempt that has ended go out before its end does: after it nothing lands.
        if now < self._report_at and not len(self.landing):
            return
        if self._is_store_resting():
            return
        told = [attempt for attempt in self.slots if attempt.has_news and not attempt.is_lost]
        if not told:
            return
        self._report_at = now + REPORT_SECONDS
        reports = [(attempt, attempt.take_report()) for attempt in told]
        try:
            with self.breath:
                lost = self.quick_store.report([report for _, report in reports])
        except StoreError as error:
            self._store_failed(error)
            for attempt, report in reports:
                attempt.put_back(report)
            return
        for lease in lost:
            self._lost(self.slots.get((lease.job_id, lease.fence)))

    def _land(self) -> None:
        for attempt in self.landing.land():
            self.slots.give_back(attempt)
            self._should_claim[attempt.job_class] = True
        self.heartbeat.leases = self.slots.leases()

    # ── Children that are to end ──

    def _stop_children(self) -> None:
        now = self.monotonic()
        is_stopping = self._stop_at is not None and now >= self._stop_at
        for attempt in self.slots:
            by_force = attempt.is_lost or self._is_fenced or self._is_stopped_now
            if not (by_force or attempt.is_cancelled or attempt.refused or is_stopping):
                continue
            if attempt.stopped_at is None:
                attempt.stopped_at = now
                attempt.is_stopped_now = by_force
                self.log.info(events.JOB_STOPPED, job_id=attempt.job.id, fence=attempt.job.fence, now=by_force)
                self.nursery.stop(attempt.job.id, attempt.job.fence, now=by_force)
            elif not attempt.is_stopped_now and (by_force or now - attempt.stopped_at > STOP_SECONDS):
                attempt.is_stopped_now = True
                self.nursery.stop(attempt.job.id, attempt.job.fence, now=True)

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
        if not self._is_registered and not len(self.slots) and not self._is_store_resting():
            self._register()
        # Beat before claiming: a worker that cannot beat must own nothing.
        if self._is_fenced or not self._is_registered or not self.nursery.is_alive:
            return
        if self._stop_at is not None or self._exit_code is not None:
            return
        if self.landing.again_at or self._is_store_resting():
            return
        for job_class in CLASSES:
            free = self.slots.free(job_class)
            if free and self._should_claim[job_class]:
                self._claim(job_class, free)

    def _claim(self, job_class: str, free: int) -> None:
        try:
            with self.breath:
                jobs = self.store.claim(self.identity.worker_id, free, job_class)
        except WorkerUnknown:
            self._disowned()
            return
        except StoreError as error:
            self._store_failed(error)
            return
        self._store_again_at = 0.0
        self._should_claim[job_class] = len(jobs) == free
        if not jobs:
            return
        self._nursery_wait = 0.5
        self.heartbeat.leases = (*self.heartbeat.leases, *(job.lease for job in jobs))
        for job in jobs:
            self._start(job, job_class)

    def _start(self, job: Job, job_class: str) -> None:
        attempt = Attempt(job._replace(payload=None, result=None), job_class)
        self.slots.take(attempt)
        self.log.info(events.JOB_CLAIMED, job_id=job.id, fence=job.fence, job_type=job.job_type)
        described = self.described.get(job.job_type)
        if described is None or described.set_aside is not None:
            reason = f"no handler for {job.job_type}" if described is None else str(described.set_aside)
            ended = Ended(job.id, job.fence, How.PERMANENT, code="HANDLER_SET_ASIDE", message=reason)
            self.landing.add(attempt, ended)
            return
        order = Order(job.id, job.fence, job.job_type, job.platform, job.account, job.payload, job.timeout_seconds)
        try:
            self.nursery.launch(order)
        except (OSError, ChildError) as error:
            # Nothing was begun, so nothing is to blame on the job.
            self.log.error(events.NURSERY_DIED, reason=str(error))
            self.landing.add(attempt, Ended(job.id, job.fence, How.STOPPED))

    def _claim_again(self) -> None:
        self._should_claim = dict.fromkeys(CLASSES, True)

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
        if self._stop_at is not None:
            self._exit_code = 0
        elif self.is_draining_queue and not any(self._should_claim[c] for c in CLASSES if self.slots.sizes[c]):
            self.log.info(events.DAEMON_DRAINED)
            self._exit_code = 0

    # ── The store's troubles ──

    def _store_failed(self, error: StoreError) -> None:
        if not self._store_again_at:
            self.log.error(events.STORE_UNAVAILABLE, reason=str(error))
        self._store_again_at = self.monotonic() + STORE_PAUSE_SECONDS

    def _is_store_resting(self) -> bool:
        return self.monotonic() < self._store_again_at

    # ── Waiting ──

    def _wait(self) -> None:
        timeout = self._seconds_to_wait()
        poll = select.poll()
        for fd in (self._nursery_fd(), self.wake.fileno(), self.signals.fileno(), self.heartbeat.fileno()):
            if fd is not None:
                poll.register(fd, select.POLLIN)
        poll.poll(max(0.0, timeout) * 1000)

    def _nursery_fd(self) -> int | None:
        return self.nursery.fileno() if self.nursery.is_alive else None

    def _seconds_to_wait(self) -> float:
        now = self.monotonic()
        moments = [self._poll_at, self._deadline_at, self.wake.look_at, self.landing.again_at]
        moments += [timer.due_at for timer in self._timers]
        if self._stop_at is not None and len(self.slots):
            moments.append(self._stop_at if now < self._stop_at else now + 1.0)
        if any(attempt.has_news for attempt in self.slots):
            moments.append(self._report_at)
        if any(attempt.stopped_at is not None for attempt in self.slots):
            moments.append(now + 1.0)
        if not self.nursery.is_alive:
            moments.append(self._nursery_again_at)
        may_claim = self._stop_at is None and self._is_registered and not self._is_fenced and self.nursery.is_alive
        if may_claim and any(self._should_claim[c] and self.slots.free(c) for c in CLASSES):
            moments.append(max(now, self._store_again_at, self.landing.again_at or 0.0))
        if self._is_fenced or not self._is_registered:
            moments.append(now + 0.2)
        # Fenced in time, also when no answer comes.
        moments.append(now + self.orphan_after_seconds * 0.1)
        return min(moment for moment in moments if moment is not None) - now
