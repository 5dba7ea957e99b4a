"""Build the daemon from its settings, run it, and take it down again. The only page that knows all of its parts."""

from __future__ import annotations

import math
import os
import pwd
import sys
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from worker_service import VERSION, events
from worker_service.children.handlers_on_trial import wants
from worker_service.children.messages import Described
from worker_service.children.nursery import Nursery
from worker_service.clock import wall_clock
from worker_service.config import Settings, load_settings
from worker_service.daemon.attempts import Slots, Tools
from worker_service.daemon.chores import (
    Chore,
    DiskSpace,
    FailUnknown,
    Forget,
    NameDocuments,
    Prune,
    StatusLine,
    SweepKept,
    SweepObjects,
    Tidy,
)
from worker_service.daemon.endings import Landing, Publisher
from worker_service.daemon.heartbeat import Heartbeat, Notifier, boot_clock
from worker_service.daemon.loop import Loop, Signals
from worker_service.daemon.recovery import Recovery
from worker_service.errors import ConfigError, PagemillError
from worker_service.harmless import harmless
from worker_service.liveness import LifeLock, lock_path, own_identity, staging_root
from worker_service.store.base import Store
from worker_service.store.database import WritePauses
from worker_service.store.opening import open_as_set
from worker_service.workspace import take_workspace

if TYPE_CHECKING:
    from worker_service.events import Log

_FILES_SECONDS = 5.0
_KEEPS = "keeps the write lock: end its transaction"
_LOCKED = "somebody else keeps the write lock: look for a sqlite3 session with an open transaction"


def main() -> int:
    """`python -m worker_service`: settings from the environment and the file, errors as one sentence."""
    try:
        return run(load_settings())
    except PagemillError as error:
        print(harmless(f"pagemill: {error}"), file=sys.stderr)
        return error.exit_code


def run(settings: Settings, *, drain: bool = False) -> int:
    """Run until somebody asks it to stop, or (drain) nothing is left that will run soon. Return the exit code."""
    log = events.begin_logging(settings.log_format)
    with ExitStack() as stack:
        return _run(settings, stack, log, drain=drain)


def _run(settings: Settings, stack: ExitStack, log: Log, *, drain: bool) -> int:
    # First of all: a signal that comes while things are being built ends it in good order, too.
    signals = Signals()
    stack.callback(signals.close)
    database, own = settings.database, own_identity()
    open_another = partial(
        open_as_set,
        settings,
        on_long_wait=lambda seconds, holder: log.warning(
            events.STORE_LOCKED, waited_seconds=round(seconds, 1), reason=f"{holder} {_KEEPS}" if holder else _LOCKED
        ),
    )
    # Opened before anything is made: where there is no database, nothing is left behind.
    pauses = WritePauses()
    store = open_another(pauses=pauses)
    stack.callback(store.close)
    refuse_the_services(settings)
    quick_store = open_another(is_durable=False, pauses=pauses)
    stack.callback(quick_store.close)
    notifier = Notifier()
    slots = Slots({"cpu": settings.concurrency, "io": settings.io_concurrency})

    take_workspace(settings.workspace, store.reading.database_id())
    staging, keep = staging_root(settings.workspace, own.worker_id), settings.workspace / "keep"
    for folder in (staging, keep, settings.workspace / "objects"):
        _make(folder)
    stack.callback(_remove, staging)
    lock = LifeLock(lock_path(database, own.worker_id))
    is_gone = False

    def close_lock() -> None:
        lock.close(is_gone=is_gone)

    stack.callback(close_lock)
    recovery = Recovery(
        store,
        own,
        database,
        settings.workspace,
        interval_seconds=settings.recovery_interval_seconds,
        orphan_after_seconds=settings.orphan_after_seconds,
        clock=boot_clock,
        wall=wall_clock,
        log=log,
    )
    settings.hand_to_handlers()
    nursery = Nursery(
        staging_root=staging,
        keep_root=keep,
        lock_fd=lock.fd,
        commands=settings.commands,
        sandbox=settings.sandbox,
        slots=slots.sizes,
        types=settings.types,
    )
    close_children = stack.enter_context(ExitStack())
    close_children.callback(nursery.close)
    is_wanted = partial(wants, settings.types)
    # What the dead left behind can be claimed by others before our own handlers are there.
    known = {d.facts.job_type: d for d in nursery.start(partial(_recover, recovery, log))}
    described = {job_type: handler for job_type, handler in known.items() if is_wanted(job_type)}
    _tell_set_aside(described, log)

    heartbeat = Heartbeat(
        partial(open_another, is_durable=False),
        own.worker_id,
        interval_seconds=beat_seconds(settings.heartbeat_interval_seconds, notifier.watchdog_seconds),
        log=log,
    )
    watch = store.watch()
    stack.callback(watch.close)
    tools = Tools(store, quick_store, slots, settings.workspace, log)
    loop = Loop(
        identity=own,
        version=VERSION,
        tools=tools,
        nursery=nursery,
        described=described,
        is_wanted=is_wanted,
        landing=Landing(tools, Publisher(settings.workspace, staging), rules=settings.retries),
        heartbeat=heartbeat,
        watch=watch,
        signals=signals,
        notifier=notifier,
        chores=(),
        poll_interval_seconds=settings.poll_interval_seconds,
        orphan_after_seconds=settings.orphan_after_seconds,
        grace_period_seconds=settings.grace_period_seconds,
        is_draining_queue=drain,
    )
    tell_limits(store, settings, log)
    store.leases.register(loop.worker())
    heartbeat.start()
    stack.callback(heartbeat.close)
    naming = NameDocuments(store, settings.workspace, log=log)
    loop.chores = [*_chores(settings, loop, recovery, known, log), naming]
    log.info(
        events.DAEMON_STARTED,
        worker_id=own.worker_id,
        database=str(database),
        concurrency=settings.concurrency,
        io_concurrency=settings.io_concurrency,
        types=sorted(described),
    )
    notifier.ready()
    code = loop.run()
    # Before the row goes: a worker that is gone has no processes.
    close_children.close()
    if code == 0:
        with suppress(PagemillError, OSError):
            naming.finish()
        with suppress(PagemillError):
            store.leases.deregister(own.worker_id)
            is_gone = True
    log.info(events.DAEMON_STOPPED, exit_code=code)
    return code


def _recover(recovery: Recovery, log: Log) -> float:
    """In how many seconds to look again. What cannot be done now the loop does, as it does any chore."""
    try:
        return recovery.run()
    except PagemillError as error:
        log.warning(events.CHORE_FAILED, chore=recovery.name, reason=str(error))
        return math.inf


def beat_seconds(interval_seconds: float, watchdog_seconds: float | None) -> float:
    """The watchdog is fed by beats: three of them in each of its times."""
    return interval_seconds if watchdog_seconds is None else min(interval_seconds, watchdog_seconds / 3)


class _Files:
    """Also where no hint tells that a file was replaced."""

    name = "files"

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def run(self) -> float:
        self._loop.check_files()
        return _FILES_SECONDS


def _chores(settings: Settings, loop: Loop, recovery: Recovery, known: Collection[str], log: Log) -> list[Chore]:
    database = settings.database
    return [
        recovery,
        _Files(loop),
        DiskSpace([database.parent, settings.workspace], loop.tell_disk_low, log=log),
        Tidy(loop.tools.store),
        Forget(loop.tools.store, settings.workspace),
        SweepObjects(loop.tools.store, settings.workspace, log=log),
        SweepKept(settings.workspace / "keep", clock=wall_clock, log=log),
        FailUnknown(
            loop.tools.store,
            grace_seconds=settings.unknown_type_grace_seconds,
            known=known,
            clock=wall_clock,
            monotonic=boot_clock,
            log=log,
        ),
        StatusLine(loop.tools.store, loop.tools.slots, loop.notifier, clock=wall_clock),
        Prune(loop.tools.store, settings.prune, clock=wall_clock, log=log),
    ]


def _tell_set_aside(described: Mapping[str, Described], log: Log) -> None:
    for job_type, handler in described.items():
        if handler.set_aside is not None:
            log.warning(events.HANDLER_SET_ASIDE, job_type=job_type, reason=handler.set_aside)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made: {error.strerror}: set WORKER_WORKSPACE") from error


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


# ── How many jobs may run at once: from the settings into the table where every claim reads it ────────────────────────


def tell_limits(store: Store, settings: Settings, log: Log) -> None:
    """Write them; a warning first, where that changes what another daemon goes by."""
    written = store.reading.limits()
    others = [worker.id for worker in store.reading.workers()]
    if others and (changes := list(settings.limits_unlike(written))):
        log.warning(events.LIMITS_REPLACED, changes=changes, workers=others)
    for kind, most in settings.limits_wanted.items():
        store.leases.set_limits(kind, dict(most))


# ── What a daemon may take for its own ────────────────────────────────────────────────────────────────────────────────


def refuse_the_services(settings: Settings) -> None:
    """Refuse a database that was only found because it is the service's, unless the service's user asks."""
    if not settings.is_of_the_service or not settings.database.exists():
        return
    owner = settings.database.stat().st_uid
    if owner != os.geteuid():
        raise ConfigError(
            f"{settings.database} is the service's, and its jobs run as {pwd.getpwuid(owner).pw_name}: systemctl start "
            "pagemill; for a queue of your own: --database PATH, or database in ~/.config/pagemill/pagemill.toml"
        )
