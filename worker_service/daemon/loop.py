"""The daemon's main loop: `Loop.turn` lists the steps of one turn.

A turn never waits for a child process. The only other thread of the daemon writes heartbeats.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING

from worker_service.base import events
from worker_service.base.errors import StoreError, WorkerUnknown
from worker_service.base.sd_notify import Notifier
from worker_service.daemon.attempts import PAUSE_SECONDS, Attempt, DaemonContext
from worker_service.daemon.chores import Chore
from worker_service.daemon.claiming import Claiming
from worker_service.daemon.heartbeat import WAIT_FRACTION, Heartbeat, Ownership
from worker_service.daemon.outcomes import OutcomeWriter
from worker_service.daemon.reporting import Reporter, StoreFailedTooLong
from worker_service.jobs.attempts import ChildProcess
from worker_service.jobs.job import Status
from worker_service.jobs.workers import NODE, allows_type
from worker_service.runner.messages import (
    Assigned,
    AttemptEvent,
    Ended,
    HandlerDescription,
    Logged,
    Progressed,
    Started,
)
from worker_service.runner.pool import ChildError, LocalPool
from worker_service.store.change_watch import FileWatch

if TYPE_CHECKING:
    from worker_service.cluster.pool import ClusterPool
    from worker_service.daemon.nodes import Nodes

# The daemon exits after this many failed turns in a row.
BAD_TURNS_MOST = 10
# Wait until another claim if rows are due already: each claim frees a limited number of them.
DUE_SECONDS = 0.25
# Time between two checks whether the database file was replaced.
FILES_SECONDS = 5.0
# Run what is due this soon in the same turn: an idle daemon then wakes half as often.
_EARLY_SECONDS = 0.03
# Minimum time between turns, per attempt on a cluster node and in total: batches writes under load.
GATHER_SECONDS, GATHER_SECONDS_MOST = 0.0005, 0.05
# Time from the outcome of an attempt to the chore that links its document.
LINK_DOCUMENT_SECONDS = 0.25
# `pagemill run --drain` exits although a pending job becomes due later than this.
DRAIN_WAIT_SECONDS = 60.0
# Wait before the fork server is started again. It doubles up to the maximum until a job has started.
_FORK_SERVER_WAIT_SECONDS, _FORK_SERVER_WAIT_SECONDS_MAX = 0.5, 30.0
# Longest wait of a worker that is fenced or has no row.
_UNOWNED_SECONDS = 0.2

# As in sysexits.h.
EXIT_BUG = 70
EXIT_IO = 74


@dataclass(slots=True)
class Loop:
    context: DaemonContext
    pool: LocalPool | ClusterPool
    handlers_by_type: Mapping[str, HandlerDescription]
    outcomes: OutcomeWriter
    heartbeat: Heartbeat
    watch: FileWatch
    signals: Signals
    notifier: Notifier
    exits_when_drained: bool = False
    chores: Mapping[str, Chore] = field(default_factory=dict)
    nodes: Nodes | None = None
    reload: Callable[[], None] = lambda: None

    _exit_code: int | None = None
    _chore_due_at: dict[str, float] = field(default_factory=dict)
    _is_disk_low: bool = False
    _is_worker_state_written: bool = True
    # When a held job becomes due, or a pause ends.
    _deadline_at: float | None = None
    _poll_at: float = 0.0
    _turn_began_at: float = 0.0
    _has_other_commits: bool = False
    _beats_notified: int = -1
    _restart_at: float = 0.0
    _restart_wait_seconds: float = _FORK_SERVER_WAIT_SECONDS
    _bad_turns: int = 0
    _reporter: Reporter = field(init=False)
    _ownership: Ownership = field(init=False)
    _stopping: Stopping = field(init=False)
    _claiming: Claiming = field(init=False)

    def __post_init__(self) -> None:
        self._reporter = Reporter(self.context, self.pool.answer)
        self._ownership = Ownership(self.context, self.heartbeat)
        self._stopping = Stopping(self.context, self.pool, self._ownership, self.signals)
        self._claiming = Claiming(self.context, self.pool, self.outcomes, self._ownership)

    # ── Turns ──

    def run(self) -> int:
        while self._exit_code is None:
            try:
                self.turn()
                self._bad_turns = 0
            except StoreFailedTooLong as error:
                self.context.log.critical(events.DAEMON_FAILED, reason=str(error))
                return EXIT_IO
            except Exception as error:
                # The outermost frame. The next turn resumes the work that this one left unfinished.
                self._bad_turns += 1
                self.context.log.error(events.DAEMON_FAILED, turn=self._bad_turns, exc_info=True)
                if self._bad_turns >= BAD_TURNS_MOST:
                    return EXIT_IO if isinstance(error, StoreError) else EXIT_BUG
                time.sleep(PAUSE_SECONDS)
            if self._exit_code is None:
                try:
                    self._wait()
                except StoreError as error:
                    # The next turn repeats the queries of the wait: other commits, and the next deadline.
                    self.context.note_store_failure(error)
        return self._exit_code

    def turn(self) -> None:
        self._turn_began_at = self.context.monotonic()
        if self.watch.may_be_replaced:
            self.check_files()
        if self._exit_code is not None:
            return
        self._read_signals()
        self._apply_beat_results()
        self._check_other_commits()
        self._apply_child_events()
        self._update_nodes()
        # Write the last reports of an attempt before its outcome: the store rejects later ones.
        self._reporter.report(self.outcomes.attempts_with_unwritten_reports())
        self._write_outcomes()
        self._stopping.stop_children()
        self._restart_fork_server()
        # Run chores before claiming, so that recovered jobs can be claimed and a full disk is known.
        self._run_due_chores()
        self._fill_free_slots()
        self._notify_systemd()
        self._end_if_done()

    # ── Collecting events ──

    def check_files(self) -> float:
        """Exit if the database file was replaced. This is also a chore, because the watch may miss a replacement."""
        fault = self.watch.fault()
        if fault is not None:
            # Write nothing more: it would go to the replaced file and be lost. The next daemon recovers the jobs.
            self.context.log.critical(events.DATABASE_REPLACED, reason=fault)
            self._exit_code = EXIT_IO
        return FILES_SECONDS

    def _read_signals(self) -> None:
        if self._stopping.read_signals():
            self._is_worker_state_written = False
            self.notifier.stopping()
        if not self._is_worker_state_written and not self.context.must_wait_for_store:
            self._write_worker_state()
        if self.signals.is_reload_requested:
            self.signals.is_reload_requested = False
            self.reload()
            # A chore may be due earlier now.
            self._chore_due_at.clear()

    def _write_worker_state(self) -> None:
        self._is_worker_state_written = False
        try:
            self.context.store.workers.set_worker_state(
                self.context.identity.worker_id, draining=self._stopping.is_requested, disk_low=self._is_disk_low
            )
            self._is_worker_state_written = True
        except WorkerUnknown:
            self._ownership.is_registered = False
        except StoreError as error:
            # Claims depend on this state, so the loop claims nothing until it has been written.
            self.context.note_store_failure(error)

    def set_disk_low(self, is_low: bool) -> None:
        self._is_disk_low = is_low
        self._write_worker_state()
        self._claiming.request_claim()

    def _apply_beat_results(self) -> None:
        if self._ownership.apply_beat_results():
            self._claiming.request_claim()

    def _register(self) -> None:
        self._ownership.register(self.handlers_by_type.values())
        self._write_worker_state()
        self._claiming.request_claim()

    def _check_other_commits(self) -> None:
        now = self.context.monotonic()
        has_other_commits = self.watch.has_changed() or self._has_other_commits
        self._has_other_commits = False
        is_deadline_over = self._deadline_at is not None and now >= self._deadline_at
        if has_other_commits or is_deadline_over or now + _EARLY_SECONDS >= self._poll_at:
            self._poll_at = now + self.context.settings.poll_interval_seconds
            self._claiming.request_claim()
            self._ownership.compare_leases()
            self._find_deadline()

    def _find_deadline(self) -> None:
        self._claiming.is_deadline_known = True
        deadline = self.context.store.leases.next_deadline()
        now = self.context.monotonic()
        if deadline is None:
            self._deadline_at = None
        else:
            # Add a millisecond, the unit of times in the table, so that the row is due by then.
            seconds_left = (deadline - self.context.clock()).total_seconds()
            self._deadline_at = now + (seconds_left + 0.001 if seconds_left > 0 else DUE_SECONDS)

    def _apply_child_events(self) -> None:
        if not self._reporter.is_full:
            apply_child_events(self.pool.take_events(), self.context, self.outcomes)

    def _update_nodes(self) -> None:
        if self.nodes is not None and self.nodes.update():
            self._claiming.request_claim()

    # ── Writing outcomes ──

    def _write_outcomes(self) -> None:
        finished = self.outcomes.write()
        self._claiming.prefetch.learn_durations(finished)
        for attempt in finished:
            self.context.slots.remove(attempt)
        if finished or self._reporter.has_own_commits:
            self._reporter.has_own_commits = False
            # The watch ignores our own commits, but they may have freed slots or made jobs due.
            self._claiming.request_claim()
        if finished:
            self.heartbeat.leases = self.context.slots.leases()
        links_due_at = self._chore_due_at.get("name_documents")
        if links_due_at is not None and any(attempt.job.document_id is not None for attempt in finished):
            # A user may be waiting for the document and look for its link next.
            self._chore_due_at["name_documents"] = min(links_due_at, self.context.monotonic() + LINK_DOCUMENT_SECONDS)

    # ── The fork server ──

    def _restart_fork_server(self) -> None:
        if self.pool.is_alive or self.context.monotonic() < self._restart_at:
            return
        self.context.log.error(events.FORK_SERVER_DIED, running=len(self.context.slots))
        self._restart_at = self.context.monotonic() + self._restart_wait_seconds
        self._restart_wait_seconds = min(self._restart_wait_seconds * 2, _FORK_SERVER_WAIT_SECONDS_MAX)
        try:
            handlers = self.pool.restart()
        except (OSError, ChildError) as error:
            self.context.log.error(events.FORK_SERVER_DIED, reason=str(error))
            return
        self.handlers_by_type = filter_types(handlers, self.context.settings.types)
        if self.nodes is not None:
            self.handlers_by_type = self.nodes.with_node_class(self.handlers_by_type)
        self.context.log.info(events.FORK_SERVER_RESTARTED, handlers=len(self.handlers_by_type))
        self._register()

    # ── Starting jobs ──

    def _fill_free_slots(self) -> None:
        if not self._ownership.is_registered and not len(self.context.slots) and not self.context.must_wait_for_store:
            self._register()
        # A worker that is fenced, because it cannot beat, must own nothing.
        if self._ownership.is_fenced or not self._ownership.is_registered or not self.pool.is_alive:
            return
        if self._stopping.is_requested or self._exit_code is not None:
            return
        # Claim nothing while the outcomes of earlier attempts cannot be written.
        if self.outcomes.again_at or self.context.must_wait_for_store:
            return
        if self._claiming.fill_slots(self.handlers_by_type):
            self._restart_wait_seconds = _FORK_SERVER_WAIT_SECONDS

    # ── Periodic work ──

    def _run_due_chores(self) -> None:
        for name, chore in self.chores.items():
            now = self.context.monotonic()
            if now + _EARLY_SECONDS < self._chore_due_at.get(name, 0.0):
                continue
            try:
                self._chore_due_at[name] = now + chore()
                self._claiming.request_claim()
            except Exception as error:
                self.context.log.warning(events.CHORE_FAILED, chore=name, reason=str(error))
                self._chore_due_at[name] = now + 30.0

    def _notify_systemd(self) -> None:
        # The watchdog needs both: a committed beat of the thread, and a finished turn of the loop.
        if self.heartbeat.committed_beats != self._beats_notified:
            self._beats_notified = self.heartbeat.committed_beats
            self.notifier.alive()

    def _end_if_done(self) -> None:
        if self._exit_code is not None or len(self.context.slots) or len(self.outcomes):
            return
        if self._stopping.is_requested:
            self._exit_code = 0
        elif self.exits_when_drained and not self._claiming.may_find_jobs and not self._is_more_work_expected():
            self.context.log.info(events.DAEMON_DRAINED, pending=self._count_pending())
            self._exit_code = 0

    def _count_pending(self) -> int:
        return self.context.store.overview.count_by_status()[Status.PENDING]

    def _is_more_work_expected(self) -> bool:
        if self.nodes is not None and self.nodes.may_get_first_slots and self._count_pending():
            return True
        soon = self.context.clock() + timedelta(seconds=DRAIN_WAIT_SECONDS)
        return self.context.store.leases.comes_due(self.context.identity.worker_id, soon)

    # ── Waiting ──

    def _wait(self) -> None:
        turn_seconds_min = min(GATHER_SECONDS * self.context.slots.used(NODE), GATHER_SECONDS_MOST)
        time.sleep(max(0.0, self._turn_began_at + turn_seconds_min - self.context.monotonic()))

        if not self._claiming.is_deadline_known and not self.context.must_wait_for_store:
            self._find_deadline()
        until = self.context.monotonic() + self._seconds_to_wait()
        watch_fd = self.watch.fileno()
        fds = (self._pool_fd(), watch_fd, self.signals.fileno(), self.heartbeat.fileno())
        waited = [fd for fd in fds if fd is not None]
        while True:
            # Use select: poll rounds up to whole milliseconds, and the watch wants another check after half of one.
            next_check_at = until if self.watch.next_read_at is None else min(self.watch.next_read_at, until)
            ready, _, _ = select.select(waited, [], [], max(0.0, next_check_at - self.context.monotonic()))
            if any(fd != watch_fd for fd in ready) or self.context.monotonic() >= until:
                return
            # The watch also wakes the loop after its own commits, and a turn costs ten times as much as this check.
            self._has_other_commits = self.watch.has_changed()
            if self._has_other_commits or self.watch.may_be_replaced:
                return

    def _pool_fd(self) -> int | None:
        # Skip the descriptor while the backlog is full: events that the loop does not read would wake it for nothing.
        return self.pool.fileno() if self.pool.is_alive and not self._reporter.is_full else None

    def _seconds_to_wait(self) -> float:
        now = self.context.monotonic()
        moments = [self._poll_at, self._deadline_at, self.outcomes.again_at, self._reporter.next_at]
        moments += [self.pool.next_check_at, None if self.nodes is None else self.nodes.next_update_at]
        moments.append(self._stopping.next_at())
        moments += self._chore_due_at.values()
        if not self.pool.is_alive:
            moments.append(self._restart_at)
        may_own_jobs = self._ownership.is_registered and not self._ownership.is_fenced
        may_claim = may_own_jobs and self.pool.is_alive and not self._stopping.is_requested
        if may_claim and self._claiming.has_room:
            moments.append(max(now, self.context.store_again_at, self.outcomes.again_at or 0.0))
        if not may_own_jobs:
            moments.append(now + _UNOWNED_SECONDS)
        # Wake often enough to notice a missing beat in time.
        moments.append(now + self.context.settings.orphan_after_seconds * WAIT_FRACTION)
        return min(moment for moment in moments if moment is not None) - now


# ── Events of child processes ─────────────────────────────────────────────────────────────────────────────────────────


def filter_types(handlers: Iterable[HandlerDescription], types: Sequence[str]) -> dict[str, HandlerDescription]:
    return {handler.facts.job_type: handler for handler in handlers if allows_type(types, handler.facts.job_type)}


def apply_child_events(child_events: Iterable[AttemptEvent], context: DaemonContext, outcomes: OutcomeWriter) -> None:
    for event in child_events:
        attempt = context.slots.get(event.key)
        if attempt is None:
            continue
        context.slots.reporting[event.key] = attempt
        match event:
            case Assigned():
                attempt.set_node(event.node)
            case Progressed():
                attempt.add_progress(event)
            case Logged():
                attempt.add_lines(event.lines)
            case Ended():
                attempt.drop_question()
                attempt.took_seconds = event.took_seconds
                outcomes.add(attempt, event)
            case Started():
                attempt.set_child(ChildProcess(event.pid, event.pid_started, event.sandbox))
                log = context.log.debug if attempt.shares_child else context.log.info
                log(events.JOB_STARTED, job_id=event.job_id, fence=event.fence, pid=event.pid, sandbox=event.sandbox)
            case _:  # an OrderedReport
                attempt.queue_report(event, now=context.monotonic())


# ── Stopping ──────────────────────────────────────────────────────────────────────────────────────────────────────────

# A child that is asked to stop is killed after this time.
STOP_SECONDS = 10.0
# Time between two checks whether a child that was asked to stop takes too long.
_STOP_CHECK_SECONDS = 1.0


class Signals:
    """The first SIGTERM or SIGINT asks the daemon to finish, the second to stop at once. SIGHUP reloads settings."""

    def __init__(self) -> None:
        self.stop_requests = 0
        self.is_reload_requested = False
        self._ends_with_terminal = _has_terminal() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._wakeup_fd_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._handlers_before = {
            number: signal.signal(number, self._count_stop) for number in (signal.SIGTERM, signal.SIGINT)
        }
        self._handlers_before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._hang_up)

    def fileno(self) -> int:
        return self._reader.fileno()

    def drain(self) -> None:
        with suppress(BlockingIOError):
            while self._reader.recv(64):
                pass

    def close(self) -> None:
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_fd_before)
        self._reader.close()
        self._writer.close()

    def _count_stop(self, _: int, __: FrameType | None) -> None:
        self.stop_requests += 1

    def _hang_up(self, _: int, __: FrameType | None) -> None:
        # A closed terminal also sends SIGHUP.
        if self._ends_with_terminal and not _has_terminal():
            self.stop_requests += 1
        else:
            self.is_reload_requested = True


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


@dataclass(slots=True)
class Stopping:
    context: DaemonContext
    pool: LocalPool | ClusterPool
    ownership: Ownership
    signals: Signals
    # Attempts may run until then. None: the daemon is not asked to stop.
    _grace_ends_at: float | None = None
    _is_immediate: bool = False

    @property
    def is_requested(self) -> bool:
        return self._grace_ends_at is not None

    def read_signals(self) -> bool:
        """Return True if this was the first request to stop."""
        self.signals.drain()
        is_first = self.signals.stop_requests > 0 and not self.is_requested
        if is_first:
            grace = self.context.settings.grace_period_seconds
            self._grace_ends_at = self.context.monotonic() + grace
            self.context.log.info(events.DAEMON_STOPPING, running=len(self.context.slots), grace_seconds=grace)
        if self.signals.stop_requests > 1 and not self._is_immediate:
            self._is_immediate = True
            self._grace_ends_at = self.context.monotonic()
        return is_first

    def stop_children(self) -> None:
        now = self.context.monotonic()
        is_grace_over = self._grace_ends_at is not None and now >= self._grace_ends_at
        for attempt in self.context.slots:
            by_force = attempt.is_lost or attempt.without_grace or self.ownership.is_fenced or self._is_immediate
            must_stop = attempt.is_cancelled or attempt.rejection or attempt.is_batch_stopped or is_grace_over
            if not (by_force or must_stop):
                continue
            job = attempt.job
            if attempt.stopped_at is None:
                attempt.stopped_at = now
                attempt.is_killed = by_force
                self.context.log.info(events.JOB_STOPPED, job_id=job.id, fence=job.fence, now=by_force)
                self.pool.stop(job.id, job.fence, now=by_force)
            elif not attempt.is_killed:
                is_too_slow = now - attempt.stopped_at > self._seconds_to_stop(attempt, is_grace_over=is_grace_over)
                if by_force or is_too_slow:
                    attempt.is_killed = True
                    self.pool.stop(job.id, job.fence, now=True)

    def _seconds_to_stop(self, attempt: Attempt, *, is_grace_over: bool) -> float:
        # An attempt that stops only because its batch was stopped may finish its page.
        may_finish_page = attempt.is_batch_stopped and not (attempt.is_cancelled or attempt.rejection or is_grace_over)
        return max(STOP_SECONDS, self.context.settings.grace_period_seconds) if may_finish_page else STOP_SECONDS

    def next_at(self) -> float | None:
        now = self.context.monotonic()
        moments = []
        if any(attempt.stopped_at is not None for attempt in self.context.slots):
            moments.append(now + _STOP_CHECK_SECONDS)
        if self._grace_ends_at is not None and len(self.context.slots):
            moments.append(self._grace_ends_at if now < self._grace_ends_at else now + _STOP_CHECK_SECONDS)
        return min(moments, default=None)
