"""Periodic work of the daemon, in the main loop. A chore returns the seconds until its next run.

A run does a small part of the work, because the loop and other writers wait meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from worker_service.base import events
from worker_service.base.clock import as_text, boot_clock, from_text, parse_duration
from worker_service.base.directories import open_nested_folder
from worker_service.base.humanize import counted, format_length
from worker_service.base.sd_notify import Notifier
from worker_service.daemon.attempts import DaemonContext
from worker_service.jobs.batches import BATCH_ENDS_READER
from worker_service.jobs.counts import Counts
from worker_service.jobs.embeddings import EMBED
from worker_service.jobs.history import Notice
from worker_service.jobs.job import NewJob, Status
from worker_service.jobs.selector import Selector
from worker_service.services import passwords
from worker_service.settings.value_types import NEVER
from worker_service.workspace import (
    FORGOTTEN_AT_ONCE,
    FREE_BYTES_LEAST,
    delete_unreferenced_files,
    update_due_links,
    update_links,
)

Chore = Callable[[], float]

# Wait of a chore that has more to do, so that other writers get a turn.
_SOON_SECONDS = 0.1


def build_chores(
    context: DaemonContext, notifier: Notifier, known_types: Collection[str], set_disk_low: Callable[[bool], None]
) -> dict[str, Chore]:
    return {
        "notify": partial(send_notifications, context),
        "begin_scheduled": BeginScheduled(context).run,
        "disk_space": DiskSpace(context, set_disk_low).run,
        "adopt_slots": partial(adopt_slots, context),
        "tidy": partial(tidy_database, context),
        "gone_files": partial(delete_removed_files, context),
        "forget_passwords": partial(forget_passwords, context),
        "sweep_objects": partial(sweep_objects, context),
        "sweep_kept": partial(sweep_kept, context),
        "unknown_types": FailUnknownTypes(context, known_types).run,
        "status_line": partial(update_status_line, context, notifier),
        "prune": Prune(context).run,
        "log_notices": LogNotices(context).run,
        "name_documents": LinkDocuments(context).run,
        **({"embed_pages": partial(embed_pages, context)} if context.settings.embeddings != "off" else {}),
    }


_PRUNED_AT_ONCE = 500


@dataclass(slots=True)
class Prune:
    context: DaemonContext
    _unlogged_by_kind: Counter[str] = field(default_factory=Counter)

    def run(self) -> float:
        ages = {kind: age for kind, age in self.context.settings.prune.items() if age != NEVER}
        now = self.context.clock()
        pruned = {kind: self._prune(kind, now - parse_duration(age)) for kind, age in ages.items()}
        self._unlogged_by_kind.update(pruned)
        if _PRUNED_AT_ONCE in pruned.values():
            return _SOON_SECONDS
        if counts := {kind: number for kind, number in self._unlogged_by_kind.items() if number}:
            self.context.log.info(events.JOBS_PRUNED, **counts)
            self._unlogged_by_kind.clear()
        return 600.0

    def _prune(self, kind: str, before: datetime) -> int:
        pruning = self.context.store.pruning
        if kind == "logs":
            notices = self.context.store.notices.prune(before, most=_PRUNED_AT_ONCE)
            lines = pruning.prune_logs(before, most=_PRUNED_AT_ONCE)
            # Not the sum: the caller compares it with `_PRUNED_AT_ONCE` to see whether more rows are left.
            return max(notices, lines)
        return pruning.prune(Selector(statuses=(Status(kind),), older_than=as_text(before)), most=_PRUNED_AT_ONCE)


@dataclass(slots=True)
class LogNotices:
    context: DaemonContext
    _last_id: int = field(init=False)

    def __post_init__(self) -> None:
        self._last_id = self.context.store.notices.newest()

    def run(self) -> float:
        while notices := self.context.store.notices.after(self._last_id):
            for notice in notices:
                self._log_notice(notice)
                self._last_id = notice.id
        return 2.0

    def _log_notice(self, notice: Notice) -> None:
        if notice.kind not in events.NOTICES:
            return
        if notice.kind == events.JOB_FAILED and notice.job_id and self.context.store.history.attempts(notice.job_id):
            # The job has run, and the worker that ran it has logged its failure.
            return
        names = ("owner", "job_id", "document_id", "batch_id", "generation", "code")
        fields = {name: getattr(notice, name) for name in names}
        if notice.kind.startswith("batch."):
            fields["reason"] = notice.message
        log = self.context.log.warning if notice.kind.endswith(".failed") else self.context.log.info
        log(notice.kind, **{name: value for name, value in fields.items() if value not in (None, "")})


_EMBED_SECONDS = 5.0


def embed_pages(context: DaemonContext) -> float:
    from worker_service.services.search import embedder_of  # imported only if the setting is there

    embedder, store = embedder_of(context.settings), context.store
    if not store.embeddings.is_behind(embedder.name):
        has_more_to_delete = store.embeddings.use_model(embedder.name)
        return _SOON_SECONDS if has_more_to_delete else _EMBED_SECONDS
    if store.embeddings.is_job_due():
        store.intake.enqueue(NewJob(EMBED, "local", name="search by meaning", unique_key=EMBED))
    return _EMBED_SECONDS


def tidy_database(context: DaemonContext) -> float:
    context.store.integrity.truncate_wal()
    return 300.0


def adopt_slots(context: DaemonContext) -> float:
    """Take over the number that an administrator has set in the worker's row."""
    for worker in context.store.overview.workers():
        slots_before = context.slots.sizes["cpu"]
        # An administrator can set 1 or more, so 0 is not a wish.
        if worker.id == context.identity.worker_id and worker.cpu_slots not in (0, slots_before):
            context.log.info(events.SLOTS_CHANGED, slots=worker.cpu_slots, before=slots_before)
            context.slots.sizes["cpu"] = worker.cpu_slots
    return 2.0


@dataclass(slots=True)
class DiskSpace:
    context: DaemonContext
    set_disk_low: Callable[[bool], None]
    free_bytes_least: int = FREE_BYTES_LEAST
    _is_low: bool = False

    def run(self) -> float:
        folders = (self.context.settings.database.parent, self.context.settings.workspace)
        free = min(shutil.disk_usage(folder).free for folder in folders)
        # Require 25 % more before resuming, or claiming would stop and resume with every file.
        is_low = free < self.free_bytes_least * (1.25 if self._is_low else 1)
        if is_low != self._is_low:
            self.set_disk_low(is_low)
            self._is_low = is_low
            if is_low:
                self.context.log.error(events.DISK_LOW, free_bytes=free, least_bytes=self.free_bytes_least)
            else:
                self.context.log.info(events.DISK_FREED, free_bytes=free)
        return 15.0


# The chore runs this often even if nothing is due sooner: an administrator may set the system clock.
_SCHEDULE_SECONDS_MAX = 20.0


@dataclass(slots=True)
class BeginScheduled:
    """Enqueues the jobs of due schedules. Other processes may do so, too: each due time enqueues one job."""

    context: DaemonContext
    _logged_troubles: Sequence[object] = ()

    def run(self) -> float:
        settings = self.context.settings
        includes_settings_file = bool(settings.schedule) and settings.schedule_in_daemon
        if not includes_settings_file and not self.context.store.schedules.stored():
            return _SCHEDULE_SECONDS_MAX
        from worker_service.services.schedule_ticks import run_tick, seconds_to_next_slot
        from worker_service.services.session import Session  # imported only if schedules exist

        log = self.context.log
        session = Session(self.context.store, settings, "schedule", self.context.clock)
        tick = run_tick(session, includes_settings_file=includes_settings_file)
        for begun in tick.items:
            log.info(events.SCHEDULE_BEGUN, schedule=begun.schedule, slot=begun.slot, job_id=begun.job_id)
        for missed in tick.missed:
            log.warning(events.SCHEDULE_MISSED, schedule=missed.schedule, slots=missed.slots, until=missed.until)
        # Log each problem once, not at every retry.
        for trouble in tick.troubles:
            if trouble not in self._logged_troubles:
                log.warning(events.SCHEDULE_FAILED, schedule=trouble.schedule, reason=trouble.why)
        self._logged_troubles = tick.troubles
        return min(_SCHEDULE_SECONDS_MAX, seconds_to_next_slot(session, includes_settings_file=includes_settings_file))


_NOTIFY_SECONDS = 5.0


def send_notifications(context: DaemonContext) -> float:
    # The first batch with an address adds this reader, also if the settings name no recipients.
    has_batch_with_address = context.store.notices.has_reader(BATCH_ENDS_READER)
    if not context.settings.notify and not has_batch_with_address:
        return _NOTIFY_SECONDS
    from worker_service.services import notifications  # imported only if there is a recipient
    from worker_service.services.session import Session

    sent = notifications.send_due_notifications(Session(context.store, context.settings, "daemon", context.clock))
    if sent:
        context.log.info(events.PEOPLE_TOLD, messages=sent)
    return _NOTIFY_SECONDS


def update_status_line(context: DaemonContext, notifier: Notifier) -> float:
    counts, slots = context.store.overview.counts(), context.slots
    oldest = counts.oldest_pending_at
    age = None if oldest is None else (context.clock() - from_text(oldest)).total_seconds()
    taken = {name: (slots.used(name), size) for name, size in slots.sizes.items()}
    notifier.status(status_line(taken, counts, oldest_seconds=age))
    return 10.0


def status_line(taken: Mapping[str, tuple[int, int]], counts: Counts, *, oldest_seconds: float | None) -> str:
    """Return a text such as `2/2 cpu · 1/4 io · 14 pending · oldest 3 min`."""
    parts = [f"{used}/{size} {name}" for name, (used, size) in taken.items()]
    parts.append(f"{counts.by_status[Status.PENDING]} pending")
    if oldest_seconds is not None:
        parts.append(f"oldest {format_length(timedelta(seconds=oldest_seconds))}")
    return " · ".join(parts)


# ── Leftover files ────────────────────────────────────────────────────────────────────────────────────────────────────

_JOB_AND_FENCE = re.compile(r"(\d+)-(\d+)")


def sweep_objects(context: DaemonContext) -> float:
    swept = 0
    for folder in (context.settings.workspace / "objects").iterdir():
        match = _JOB_AND_FENCE.fullmatch(folder.name)
        if match and _is_left_over(context, int(match[1]), int(match[2])):
            shutil.rmtree(folder, ignore_errors=True)
            swept += 1
    if swept:
        context.log.info(events.OBJECTS_SWEPT, folders=swept)
    has_more_pages = context.store.removal.forget_superseded_pages(FORGOTTEN_AT_ONCE)
    return 5.0 if has_more_pages else 3600.0


def _is_left_over(context: DaemonContext, job_id: int, fence: int) -> bool:
    outcomes = [attempt.outcome for attempt in context.store.history.attempts(job_id) if attempt.fence == fence]
    # Keep the files of an attempt that is unknown here, still runs (None) or has completed.
    return outcomes not in ([], [None], ["completed"])


def delete_removed_files(context: DaemonContext) -> float:
    workspace = context.settings.workspace
    has_more_rows = context.store.removal.forget_removed_documents(FORGOTTEN_AT_ONCE)
    if undeletable := delete_unreferenced_files(context.store, workspace):
        files = counted(len(undeletable), "file")
        raise PermissionError(f"{files} may not be removed, such as {workspace / undeletable[0]}")
    return _SOON_SECONDS if has_more_rows else 5.0


def forget_passwords(context: DaemonContext) -> float:
    if forgotten := passwords.forget_unneeded(context.store, context.settings.workspace):
        context.log.info(events.PASSWORDS_FORGOTTEN, passwords=forgotten)
    return 15.0


KEEP_AGE = timedelta(days=30)
_SWEPT_PREFIX = ".swept-"


def sweep_kept(context: DaemonContext) -> float:
    used_since = (context.clock() - KEEP_AGE).timestamp()
    folders = list((context.settings.workspace / "keep").iterdir())
    swept = sum(_delete_unless_used(folder, used_since) for folder in folders)
    if swept:
        context.log.info(events.KEPT_SWEPT, folders=swept)
    return 3600.0


def _delete_unless_used(folder: Path, used_since: float) -> bool:
    """Return True if the directory was deleted. Each attempt that uses it locks it and sets its time."""
    try:
        with open_nested_folder(folder.parent, [folder.name]) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_mtime >= used_since:
                return False
            if not folder.name.startswith(_SWEPT_PREFIX):
                # Rename first: a process that opens the directory during deletion would find half of its files.
                folder = folder.rename(folder.with_name(f"{_SWEPT_PREFIX}{folder.name}"))
            shutil.rmtree(folder, ignore_errors=True)
            return True
    except OSError:
        # An attempt has locked it, or it is no directory.
        return False


# ── Jobs of unknown types ─────────────────────────────────────────────────────────────────────────────────────────────

_UNKNOWN_SECONDS_MAX = 60.0
_FAILED_AT_ONCE = 500


@dataclass(slots=True)
class FailUnknownTypes:
    context: DaemonContext
    known_types: Collection[str]
    boot_clock: Callable[[], float] = boot_clock
    _unknown_since: dict[str, float] = field(default_factory=dict)

    def run(self) -> float:
        now, grace_seconds = self.boot_clock(), self.context.settings.unknown_type_grace_seconds
        stored_types = self.context.store.workers.unknown_types()
        unknown_types = [job_type for job_type in stored_types if job_type not in self.known_types]
        self._unknown_since = {job_type: self._unknown_since.get(job_type, now) for job_type in unknown_types}
        has_failed_jobs = False
        for job_type, unknown_since in self._unknown_since.items():
            if now - unknown_since >= grace_seconds:
                has_failed_jobs |= self._fail_jobs(job_type)
        # There may be more such jobs, unless this run has failed none.
        return _SOON_SECONDS if has_failed_jobs else min(_UNKNOWN_SECONDS_MAX, grace_seconds)

    def _fail_jobs(self, job_type: str) -> bool:
        ready_before = self.context.clock() - timedelta(seconds=self.context.settings.unknown_type_grace_seconds)
        failed = self.context.store.workers.fail_unknown(job_type, since=ready_before, most=_FAILED_AT_ONCE)
        if failed:
            self.context.log.warning(events.TYPE_UNKNOWN, job_type=job_type, jobs=len(failed))
        return bool(failed)


# ── Links to documents in the workspace ───────────────────────────────────────────────────────────────────────────────

# All documents are scanned this often, in case a user has removed a link.
SCAN_SECONDS = 3600.0
_LINKED_AT_ONCE = 25
# In the place of a document's id, this asks for the links of all documents.
_ALL = 0


@dataclass(slots=True)
class LinkDocuments:
    context: DaemonContext
    # Last id that the scan of all documents has reached; None if no scan is under way.
    _scanned_id: int | None = None
    _next_scan_at: float = 0.0

    def run(self) -> float:
        links, now = self.context.store.links, self.context.monotonic()
        due_ids = links.links_due(_LINKED_AT_ONCE)
        if _ALL in due_ids or now >= self._next_scan_at:
            # Note the request for all links as fulfilled: the scan begins here.
            links.mark_links_made([_ALL])
            self._scanned_id, self._next_scan_at = 0, now + SCAN_SECONDS
        ids: Sequence[int] = [document_id for document_id in due_ids if document_id != _ALL]
        if not ids and self._scanned_id is not None:
            ids = links.document_ids(self._scanned_id, _LINKED_AT_ONCE)
            self._scanned_id = ids[-1] if ids else None
        if not ids:
            return 5.0
        _log_failed_links(self.context, update_links(self.context.store, self.context.settings.workspace, ids))
        return _SOON_SECONDS


def link_due_documents(context: DaemonContext) -> None:
    _log_failed_links(context, update_due_links(context.store, context.settings.workspace))


def _log_failed_links(context: DaemonContext, reasons: Sequence[str]) -> None:
    if reasons:
        context.log.warning(events.DOCUMENTS_UNNAMED, documents=len(reasons), reason=reasons[0])
