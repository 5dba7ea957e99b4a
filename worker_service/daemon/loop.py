"""The daemon's main loop: collect events, write outcomes, start jobs, wait.

The loop is one thread that runs one turn after another; event sources queue their events and never call into it. The
heartbeat has its own thread and child processes belong to the fork server, so a loop that waits for the store holds up
neither. `attempts` writes what child processes report, `outcomes` how they ended; `heartbeat` tracks what this worker
still owns, `recovery` finds dead workers, and the store's claim decides what may start.
"""

from __future__ import annotations

import select
import signal
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from types import FrameType
from typing import TYPE_CHECKING

from worker_service.base import events
from worker_service.base.errors import StoreError, WorkerUnknown
from worker_service.base.sd_notify import Notifier
from worker_service.daemon.attempts import PAUSE_SECONDS, Attempt, CannotLand, Reporter, Slots, Tools
from worker_service.daemon.chores import Chore
from worker_service.daemon.heartbeat import Heartbeat, Ownership
from worker_service.daemon.outcomes import Landing
from worker_service.jobs.attempts import ChildProcess
from worker_service.jobs.job import Job, Status
from worker_service.jobs.payloads import PayloadCheck
from worker_service.jobs.workers import NODE, wants
from worker_service.runner.messages import (
    Assigned,
    AttemptEvent,
    Described,
    Ended,
    How,
    Logged,
    Order,
    Progressed,
    Started,
)
from worker_service.runner.pool import ChildError, LocalPool
from worker_service.store.change_watch import FileWatch

if TYPE_CHECKING:
    from worker_service.cluster.pool import ClusterPool
    from worker_service.daemon.nodes import Nodes

BAD_TURNS_MOST = 10
DUE_SECONDS = 0.25
FILES_SECONDS = 5.0
GATHER_SECONDS, GATHER_SECONDS_MOST = 0.0005, 0.05
"""Minimum time between turns, per attempt on a node and in total: batches writes under load."""
NAMED_SECONDS = 0.25
DRAINED_SECONDS = 60.0
"""A draining daemon exits although jobs become due later than this."""

EXIT_BUG = 70
EXIT_IO = 74


@dataclass(slots=True)
class Loop:
    tools: Tools
    nursery: LocalPool | ClusterPool
    described: Mapping[str, Described]
    landing: Landing
    heartbeat: Heartbeat
    watch: FileWatch
    signals: Signals
    notifier: Notifier
    is_draining_queue: bool = False
    """Exit when no job can run now or soon."""
    chores: Mapping[str, Chore] = field(default_factory=dict)
    nodes: Nodes | None = None
    """The nodes of the Ray cluster; None without a cluster."""

    _exit_code: int | None = None
    _due_at: dict[str, float] = field(default_factory=dict)
    """When each chore runs next; a chore without an entry runs at once."""
    _is_disk_low: bool = False
    _is_state_told: bool = True
    _deadline_at: float | None = None
    _poll_at: float = 0.0
    _turned_at: float = 0.0
    _has_changed: bool = False
    """Set when another connection committed during the wait."""
    _beats_told: int = -1
    _nursery_again_at: float = 0.0
    _nursery_wait: float = 0.5
    _bad_turns: int = 0
    _reporter: Reporter = field(init=False)
    _ownership: Ownership = field(init=False)
    _stopping: Stopping = field(init=False)
    _claiming: Claiming = field(init=False)

    def __post_init__(self) -> None:
        self._reporter = Reporter(self.tools, self.nursery.answer)
        self._ownership = Ownership(self.tools, self.heartbeat)
        self._stopping = Stopping(self.tools, self.nursery, self._ownership, self.signals)
        self._claiming = Claiming(self.tools, self.nursery, self.landing, self._ownership)

    # ── Turns ──

    def run(self) -> int:
        """Run turns until the daemon is done; return the exit code."""
        while self._exit_code is None:
            try:
                self.turn()
                self._bad_turns = 0
            except CannotLand as error:
                self.tools.log.critical(events.DAEMON_FAILED, reason=str(error))
                return EXIT_IO
            except Exception as error:
                # The outermost frame. The next turn resumes the work that this one left unfinished.
                self._bad_turns += 1
                self.tools.log.error(events.DAEMON_FAILED, turn=self._bad_turns, exc_info=True)
                if self._bad_turns >= BAD_TURNS_MOST:
                    return EXIT_IO if isinstance(error, StoreError) else EXIT_BUG
                time.sleep(PAUSE_SECONDS)
            if self._exit_code is None:
                try:
                    self._wait()
                except StoreError as error:
                    # The queries for commits of other processes and for the next deadline failed; the next turn repeats
                    # them.
                    self.tools.store_failed(error)
        return self._exit_code

    def turn(self) -> None:
        """Run one turn of the main loop."""
        self._turned_at = self.tools.monotonic()
        if not self._is_database_ours():
            return
        self._hear_signals()
        self._hear_heart()
        self._hear_others()
        self._hear_children()
        self._follow_nodes()
        # Write the last reports of an attempt before its outcome: the store rejects later ones.
        self._reporter.report(self.landing.untold())
        self._land()
        self._stopping.stop_children()
        self._tend_nursery()
        # Run chores before claiming, so that recovered jobs can be claimed and a full disk is known.
        self._run_due_chores()
        self._fill_free_slots()
        self._tell_systemd()
        self._end_if_done()

    # ── Collecting events ──

    def _is_database_ours(self) -> bool:
        if self.watch.is_doubtful:
            self.check_files()
        return self._exit_code is None

    def check_files(self) -> float:
        """Exit if the database file was replaced. Also runs as a chore, because not every replacement raises a hint."""
        fault = self.watch.fault()
        if fault is not None:
            # Write nothing more: it would go to the replaced file and be lost. The next daemon recovers the jobs.
            self.tools.log.critical(events.DATABASE_REPLACED, reason=fault)
            self._exit_code = EXIT_IO
        return FILES_SECONDS

    def _hear_signals(self) -> None:
        if self._stopping.hear_signals():
            self._is_state_told = False
            self.notifier.stopping()
        if not self._is_state_told:
            self._tell_state()

    def _tell_state(self) -> None:
        try:
            self.tools.store.workers.set_worker_state(
                self.tools.identity.worker_id, draining=self._stopping.at is not None, disk_low=self._is_disk_low
            )
            self._is_state_told = True
        except WorkerUnknown:
            self._ownership.is_registered = False
        except StoreError:
            # The state is only shown to users; the next signal or chore writes it again.
            self._is_state_told = True

    def tell_disk_low(self, is_low: bool) -> None:
        self._is_disk_low = is_low
        self._tell_state()
        self._claiming.again()

    def _hear_heart(self) -> None:
        if self._ownership.hear_heart():
            self._claiming.again()

    def _register(self) -> None:
        self._ownership.register(self.described.values())
        self._tell_state()
        self._claiming.again()

    def _hear_others(self) -> None:
        """React to commits of other processes: there may be jobs to start, or requests to stop running ones."""
        now = self.tools.monotonic()
        has_changed = self.watch.has_changed() or self._has_changed
        self._has_changed = False
        if has_changed or now >= self._poll_at or (self._deadline_at is not None and now >= self._deadline_at):
            self._poll_at = now + self.tools.settings.poll_interval_seconds
            self._claiming.again()
            self._ownership.compare_leases()
            self._find_deadline()

    def _find_deadline(self) -> None:
        self._claiming.is_deadline_known = True
        deadline = self.tools.store.leases.next_deadline()
        now = self.tools.monotonic()
        if deadline is None:
            self._deadline_at = None
        else:
            # The next claim frees a limited number of due rows, so check again soon if some are due already.
            wait = (deadline - self.tools.clock()).total_seconds()
            self._deadline_at = now + (wait + 0.001 if wait > 0 else DUE_SECONDS)

    def _hear_children(self) -> None:
        if not self._reporter.is_full:
            hear(self.nursery.take_events(), self.tools, self.landing)

    def _follow_nodes(self) -> None:
        if self.nodes is not None and self.nodes.follow():
            self._claiming.again()

    # ── Writing outcomes ──

    def _land(self) -> None:
        landed = self.landing.land()
        self._claiming.ended(landed)
        for attempt in landed:
            self.tools.slots.give_back(attempt)
        if landed or self._reporter.has_committed:
            self._reporter.has_committed = False
            # The watch ignores our own commits, but they may have freed slots or made jobs due.
            self._claiming.again()
        if landed:
            self.heartbeat.leases = self.tools.slots.leases()
        named_at = self._due_at.get("name_documents")
        if named_at is not None and any(attempt.job.document_id is not None for attempt in landed):
            # A user may be waiting for the document and look for its link next.
            self._due_at["name_documents"] = min(named_at, self.tools.monotonic() + NAMED_SECONDS)

    # ── The fork server ──

    def _tend_nursery(self) -> None:
        if self.nursery.is_alive or self.tools.monotonic() < self._nursery_again_at:
            return
        self.tools.log.error(events.NURSERY_DIED, running=len(self.tools.slots))
        self._nursery_again_at = self.tools.monotonic() + self._nursery_wait
        self._nursery_wait = min(30.0, self._nursery_wait * 2)
        try:
            described = self.nursery.restart()
        except (OSError, ChildError) as error:
            self.tools.log.error(events.NURSERY_DIED, reason=str(error))
            return
        self.described = wanted(described, self.tools.settings.types)
        if self.nodes is not None:
            self.described = self.nodes.described(self.described)
        self.tools.log.info(events.NURSERY_RESTARTED, handlers=len(self.described))
        self._register()

    # ── Starting jobs ──

    def _fill_free_slots(self) -> None:
        if not self._ownership.is_registered and not len(self.tools.slots) and not self.tools.must_wait_for_store:
            self._register()
        # Beat before claiming: a worker that cannot beat must own nothing.
        if self._ownership.is_fenced or not self._ownership.is_registered or not self.nursery.is_alive:
            return
        if self._stopping.at is not None or self._exit_code is not None:
            return
        if self.landing.again_at or self.tools.must_wait_for_store:
            return
        if self._claiming.fill(self.described):
            self._nursery_wait = 0.5

    # ── Periodic work ──

    def _run_due_chores(self) -> None:
        for name, chore in self.chores.items():
            now = self.tools.monotonic()
            if now < self._due_at.get(name, 0.0):
                continue
            try:
                self._due_at[name] = now + chore()
                self._claiming.again()
            except Exception as error:
                self.tools.log.warning(events.CHORE_FAILED, chore=name, reason=str(error))
                self._due_at[name] = now + 30.0

    def _tell_systemd(self) -> None:
        # Only a committed beat and a finished turn together are a sign of life.
        if self.heartbeat.committed != self._beats_told:
            self._beats_told = self.heartbeat.committed
            self.notifier.alive()

    def _end_if_done(self) -> None:
        if self._exit_code is not None or len(self.tools.slots) or len(self.landing):
            return
        if self._stopping.at is not None:
            self._exit_code = 0
        elif self.is_draining_queue and not self._claiming.is_worthwhile and not self._comes():
            self.tools.log.info(
                events.DAEMON_DRAINED, pending=self.tools.store.reading.counts().by_status[Status.PENDING]
            )
            self._exit_code = 0

    def _comes(self) -> bool:
        """Return whether a job that becomes due soon, or a node that could run one, is still expected."""
        if (
            self.nodes is not None
            and self.nodes.may_still_come
            and self.tools.store.reading.counts().by_status[Status.PENDING]
        ):
            return True
        soon = self.tools.clock() + timedelta(seconds=DRAINED_SECONDS)
        return self.tools.store.leases.comes_due(self.tools.identity.worker_id, soon)

    # ── Waiting ──

    def _wait(self) -> None:
        apart = min(GATHER_SECONDS * self.tools.slots.taken(NODE), GATHER_SECONDS_MOST)
        time.sleep(max(0.0, self._turned_at + apart - self.tools.monotonic()))
        if not self._claiming.is_deadline_known and not self.tools.must_wait_for_store:
            self._find_deadline()
        until = self.tools.monotonic() + self._seconds_to_wait()
        hints = self.watch.fileno()
        fds = (self._nursery_fd(), hints, self.signals.fileno(), self.heartbeat.fileno())
        waited = [fd for fd in fds if fd is not None]
        while True:
            # Use select: poll rounds up to whole milliseconds, and the watch wants another check after half of one.
            look_at = until if self.watch.look_at is None else min(self.watch.look_at, until)
            ready, _, _ = select.select(waited, [], [], max(0.0, look_at - self.tools.monotonic()))
            if [fd for fd in ready if fd != hints] or self.tools.monotonic() >= until:
                return
            # Most hints come from our own commits, and a turn costs ten times as much as this check.
            self._has_changed = self.watch.has_changed()
            if self._has_changed or self.watch.is_doubtful:
                return

    def _nursery_fd(self) -> int | None:
        # Skip the descriptor while the backlog is full: events that the loop does not read would wake it for nothing.
        return self.nursery.fileno() if self.nursery.is_alive and not self._reporter.is_full else None

    def _seconds_to_wait(self) -> float:
        now = self.tools.monotonic()
        moments = [self._poll_at, self._deadline_at, self.landing.again_at, self._reporter.next_at]
        moments += [self.nursery.next_check_at, None if self.nodes is None else self.nodes.look_at]
        moments.append(self._stopping.next_at())
        moments += self._due_at.values()
        if not self.nursery.is_alive:
            moments.append(self._nursery_again_at)
        is_doubtful = self._ownership.is_fenced or not self._ownership.is_registered
        may_claim = self._stopping.at is None and self.nursery.is_alive and not is_doubtful
        if may_claim and self._claiming.has_room:
            moments.append(max(now, self.tools.store_again_at, self.landing.again_at or 0.0))
        if is_doubtful:
            moments.append(now + 0.2)
        # Wake often enough to notice a missing beat in time.
        moments.append(now + self.tools.settings.orphan_after_seconds * 0.1)
        return min(moment for moment in moments if moment is not None) - now


# ── Events of child processes ─────────────────────────────────────────────────────────────────────────────────────────


def wanted(described: Iterable[Described], types: Sequence[str]) -> dict[str, Described]:
    """Return the handlers of the types that WORKER_TYPES allows, by type."""
    return {one.facts.job_type: one for one in described if wants(types, one.facts.job_type)}


def hear(happenings: Iterable[AttemptEvent], tools: Tools, landing: Landing) -> None:
    for happening in happenings:
        attempt = tools.slots.get(happening.key)
        if attempt is None:
            continue
        tools.slots.talking[happening.key] = attempt
        if isinstance(happening, Assigned):
            attempt.placed(happening.node)
        elif isinstance(happening, Progressed):
            attempt.progressed(happening)
        elif isinstance(happening, Logged):
            attempt.logged(happening.lines)
        elif isinstance(happening, Ended):
            attempt.forget_question()
            attempt.took_seconds = happening.took_seconds
            landing.add(attempt, happening)
        elif isinstance(happening, Started):
            attempt.started(ChildProcess(happening.pid, happening.pid_started, happening.sandbox))
            (tools.log.debug if attempt.is_small else tools.log.info)(
                events.JOB_STARTED,
                job_id=happening.job_id,
                fence=happening.fence,
                pid=happening.pid,
                sandbox=happening.sandbox,
            )
        else:
            attempt.keep(happening, now=tools.monotonic())


# ── Claiming ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Claiming:
    tools: Tools
    nursery: LocalPool | ClusterPool
    landing: Landing
    ownership: Ownership
    is_deadline_known: bool = False
    """False once something of ours may have moved the deadline since it was last read."""
    _should_claim: dict[str, bool] = field(default_factory=dict)
    _ahead: Ahead = field(init=False)

    def __post_init__(self) -> None:
        self.again()
        self._ahead = Ahead(self.tools.slots)

    @property
    def is_worthwhile(self) -> bool:
        """True if a claim may find a job."""
        return any(self._should_claim[one] for one, size in self.tools.slots.sizes.items() if size)

    @property
    def has_room(self) -> bool:
        return any(self._should_claim[one] and self.tools.slots.free(one) for one in self.tools.slots.sizes)

    def again(self) -> None:
        """Claim again in the next turn, and read the deadline again."""
        self._should_claim = dict.fromkeys(self.tools.slots.sizes, True)
        self.is_deadline_known = False

    def ended(self, attempts: Iterable[Attempt]) -> None:
        self._ahead.ended(attempts)

    def fill(self, described: Mapping[str, Described]) -> bool:
        """Claim jobs for the free slots and start them; return whether any was started."""
        before = len(self.tools.slots)
        for job_class in self.tools.slots.sizes:
            free = self.tools.slots.free(job_class)
            if free and self._should_claim[job_class]:
                for job in self._claim(job_class, free):
                    self._start(job, job_class, described.get(job.job_type))
            if self._should_claim[job_class]:
                self._claim_ahead(job_class, described)
        return len(self.tools.slots) > before

    def _claim_ahead(self, job_class: str, described: Mapping[str, Described]) -> None:
        room = self._ahead.room(job_class, described)
        if room:
            for job in self._claim(job_class, sum(room.values()), only=sorted(room)):
                self._start(job, job_class, described.get(job.job_type))

    def _claim(self, job_class: str, most: int, only: Sequence[str] | None = None) -> Sequence[Job]:
        worker_id, heartbeat = self.tools.identity.worker_id, self.ownership.heartbeat
        behind = self.tools.slots.beyond(job_class) + (0 if only is None else most)
        try:
            jobs = self.tools.store.leases.claim(worker_id, most, job_class, behind=behind, only=only)
        except WorkerUnknown:
            self.ownership.disown()
            return ()
        except StoreError as error:
            self.tools.store_failed(error)
            return ()
        self.tools.store_works()
        self._should_claim[job_class] = len(jobs) == most
        if len(jobs) < most:
            # The claim freed due rows, but only a limited number at once; there may be more.
            self.is_deadline_known = False
            if jobs and only is None:
                self.again()
        heartbeat.leases = (*heartbeat.leases, *(job.lease for job in jobs))
        return jobs

    def _start(self, job: Job, job_class: str, described: Described | None) -> None:
        is_at_most_once = described is not None and described.facts.at_most_once
        is_small = described is not None and described.reuse > 1
        attempt = Attempt(job._replace(payload=None, result=None), job_class, is_at_most_once, is_small=is_small)
        self.tools.slots.take(attempt)
        say = self.tools.log.debug if is_small else self.tools.log.info
        say(events.JOB_CLAIMED, job_id=job.id, fence=job.fence, job_type=job.job_type)
        refused = refusal(job, described)
        if refused is not None:
            self.landing.add(attempt, refused)
            return
        # No process was started, so release the job without a retry.
        try:
            order = self._order(job)
            if self.ownership.is_silent:
                # The process was suspended between the claim and this line; another worker may own the job by now.
                self.landing.add(attempt, Ended(job.id, job.fence, How.STOPPED))
            else:
                self.nursery.launch(order)
        except StoreError as error:
            self.tools.store_failed(error)
            self.landing.add(attempt, Ended(job.id, job.fence, How.STOPPED))
        except (OSError, ChildError) as error:
            self.tools.log.error(events.NURSERY_DIED, reason=str(error))
            self.landing.add(attempt, Ended(job.id, job.fence, How.STOPPED))

    def _order(self, job: Job) -> Order:
        files = () if job.document_id is None else self.tools.store.attempts.inputs(job.document_id)
        return Order(
            job.id,
            job.fence,
            job.job_type,
            job.platform,
            job.account,
            job.payload,
            job.timeout_seconds,
            # A first attempt has no state.
            state=self.tools.store.attempts.checkpoint_of(job.id) if job.fence > 1 else None,
            document_id=job.document_id,
            generation=job.generation,
            inputs={file.role: self.tools.settings.workspace.absolute() / file.path for file in files},
            contents={file.role: file.sha256 for file in files if file.sha256},
            owner=job.owner,
            document=None if job.document_id is None else self.tools.store.attempts.known_document(job.document_id),
            parent_id=job.parent_id,
            node_slots=self.tools.slots.sizes.get(NODE, 0),
            # A node cannot ask. On a first attempt, `ingest` has already left out the known pages.
            known_digests=self.tools.store.attempts.known_digests(job.id) if self._asks_no_questions(job) else (),
        )

    def _asks_no_questions(self, job: Job) -> bool:
        return NODE in self.tools.slots.sizes and job.fence > 1 and job.document_id is not None


# ── Claiming ahead of free slots ──────────────────────────────────────────────────────────────────────────────────────

MOMENT_SECONDS = 0.02
MOST = 32
"""Prefetched jobs per slot. One short transaction claims them for all slots, another completes them."""
_WEIGHT = 0.3
"""Weight of the newest duration in the moving average."""


@dataclass(slots=True)
class Ahead:
    slots: Slots
    _seconds: dict[str, float] = field(default_factory=dict)
    """Moving average of the seconds that one attempt takes, by job type."""

    def ended(self, attempts: Iterable[Attempt]) -> None:
        for attempt in attempts:
            if attempt.took_seconds is not None:
                known = self._seconds.get(attempt.job.job_type, attempt.took_seconds)
                self._seconds[attempt.job.job_type] = known + (attempt.took_seconds - known) * _WEIGHT

    def room(self, job_class: str, described: Mapping[str, Described]) -> dict[str, int]:
        """Return how many more jobs of each type may be claimed ahead.

        None for nodes, where jobs could wait for unrelated ones.
        """
        room: dict[str, int] = {}
        if job_class == NODE:
            return room
        for job_type, number in self.slots.by_type(job_class).items():
            most = self._most(job_type, described.get(job_type)) * min(number, self.slots.sizes[job_class])
            if number <= most // 2:
                room[job_type] = most - number
        return room

    def _most(self, job_type: str, described: Described | None) -> int:
        """Return how many jobs of the type one child process should have waiting."""
        if described is None or described.reuse <= 1:
            return 1
        seconds = max(self._seconds.get(job_type, MOMENT_SECONDS), MOMENT_SECONDS / MOST)
        return max(1, min(int(MOMENT_SECONDS / seconds), described.reuse))


# ── Rejecting jobs before they start ──────────────────────────────────────────────────────────────────────────────────

_LOOKED_AT_MOST = 65_536
"""Characters. Checking more would hold up the loop, so the child process checks longer payloads."""


def refusal(job: Job, found: Described | None) -> Ended | None:
    """Return the outcome of a job that must not start, or None if it may start."""
    if found is None:
        return _ended(job, "HANDLER_SET_ASIDE", f"no handler for {job.job_type}")
    if found.set_aside is not None:
        return _ended(job, "HANDLER_SET_ASIDE", found.set_aside)
    if len(job.payload or "") > _LOOKED_AT_MOST:
        return None
    fault = _check(found.facts.payload_schema).fault(job.payload)
    return None if fault is None else _ended(job, "PAYLOAD_INVALID", fault)


# Building a check costs a thousand times more than running it.
_check = cache(PayloadCheck)


def _ended(job: Job, code: str, message: str) -> Ended:
    return Ended(job.id, job.fence, How.PERMANENT, code=code, message=message)


# ── Stopping ──────────────────────────────────────────────────────────────────────────────────────────────────────────

STOP_SECONDS = 10.0
"""Time between asking a child process to stop and killing it."""


class Signals:
    """Counts SIGTERM and SIGINT: the first asks the daemon to finish, the second to stop at once.

    The handler only counts, and writes a byte that ends the loop's wait. Create it in the main thread: Python runs
    signal handlers there.
    """

    def __init__(self) -> None:
        self.asked_to_stop = 0
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._before_wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._before = {name: signal.signal(name, self._count) for name in (signal.SIGTERM, signal.SIGINT)}

    def fileno(self) -> int:
        return self._reader.fileno()

    def drain(self) -> None:
        """Discard the pending wake-up bytes, so that the next wait blocks."""
        try:
            while self._reader.recv(64):
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        for name, handler in self._before.items():
            signal.signal(name, handler)
        signal.set_wakeup_fd(self._before_wakeup)
        self._reader.close()
        self._writer.close()

    def _count(self, _: int, __: FrameType | None) -> None:
        self.asked_to_stop += 1


@dataclass(slots=True)
class Stopping:
    tools: Tools
    nursery: LocalPool | ClusterPool
    ownership: Ownership
    signals: Signals
    at: float | None = None
    """End of the grace period; None until the daemon is asked to stop."""
    _is_now: bool = False

    def hear_signals(self) -> bool:
        """Read new signals; return whether the daemon was asked to stop for the first time."""
        self.signals.drain()
        asked = self.signals.asked_to_stop
        is_new = asked > 0 and self.at is None
        if is_new:
            grace = self.tools.settings.grace_period_seconds
            self.at = self.tools.monotonic() + grace
            self.tools.log.info(events.DAEMON_STOPPING, running=len(self.tools.slots), grace_seconds=grace)
        if asked > 1 and not self._is_now:
            self._is_now = True
            self.at = self.tools.monotonic()
        return is_new

    def stop_children(self) -> None:
        now = self.tools.monotonic()
        is_over = self.at is not None and now >= self.at
        for attempt in self.tools.slots:
            by_force = attempt.is_lost or attempt.without_grace or self.ownership.is_fenced or self._is_now
            if not (by_force or attempt.is_cancelled or attempt.refused or attempt.is_held_up or is_over):
                continue
            job = attempt.job
            if attempt.stopped_at is None:
                attempt.stopped_at = now
                attempt.is_stopped_now = by_force
                self.tools.log.info(events.JOB_STOPPED, job_id=job.id, fence=job.fence, now=by_force)
                self.nursery.stop(job.id, job.fence, now=by_force)
            elif not attempt.is_stopped_now and (
                by_force or now - attempt.stopped_at > self._grace_of(attempt, is_over)
            ):
                attempt.is_stopped_now = True
                self.nursery.stop(job.id, job.fence, now=True)

    def _grace_of(self, attempt: Attempt, is_over: bool) -> float:
        """Return how many seconds an attempt that was asked to stop may take to exit.

        An attempt that stops only because its batch was stopped gets the daemon's grace period to finish its page.
        """
        is_spared = attempt.is_held_up and not (attempt.is_cancelled or attempt.refused or is_over)
        return max(STOP_SECONDS, self.tools.settings.grace_period_seconds) if is_spared else STOP_SECONDS

    def next_at(self) -> float | None:
        """Return when to check again; None if nothing is being stopped."""
        now = self.tools.monotonic()
        moments = [now + 1.0 for attempt in self.tools.slots if attempt.stopped_at is not None]
        if self.at is not None and len(self.tools.slots):
            moments.append(self.at if now < self.at else now + 1.0)
        return min(moments, default=None)
