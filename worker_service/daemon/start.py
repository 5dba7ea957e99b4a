"""Build the daemon from its settings, run its loop, and shut it down. Reload settings on SIGHUP."""

from __future__ import annotations

import math
import os
import pwd
import resource
import shutil
import sys
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from worker_service.base import events
from worker_service.base.errors import ConfigError, PagemillError
from worker_service.base.sanitize import harmless
from worker_service.base.sd_notify import Notifier
from worker_service.daemon.attempts import DaemonContext, Slots
from worker_service.daemon.chores import build_chores, link_due_documents
from worker_service.daemon.dead_workers import Recovery
from worker_service.daemon.heartbeat import Heartbeat, own_worker
from worker_service.daemon.loop import Loop, Signals, filter_types
from worker_service.daemon.outcomes import OutcomeWriter
from worker_service.daemon.publisher import Publisher
from worker_service.runner.messages import Begin, HandlerDescription
from worker_service.runner.pool import LocalPool
from worker_service.runner.worker_identity import WorkerLock, lock_path, own_identity, staging_root
from worker_service.settings.config import RELOADABLE, Settings
from worker_service.settings.loading import load_settings
from worker_service.store.database import WriteOptions, WritePauses
from worker_service.store.errors import read_only_error
from worker_service.store.lock_owner import LockOwner
from worker_service.store.opening import open_with_settings
from worker_service.store.store import Store
from worker_service.workspace import bind_to_database

if TYPE_CHECKING:
    from worker_service.base.events import Log
    from worker_service.cluster.pool import ClusterPool
    from worker_service.daemon.nodes import Nodes

# The fork server inherits the limit of open files, and needs four of them for each child.
_DESCRIPTORS_MIN = 256
_UNKNOWN_LOCK_OWNER = "another program keeps the write lock: look for a sqlite3 session with an open transaction"


def main() -> int:
    try:
        return run(load_settings())
    except PagemillError as error:
        print(harmless(f"pagemill: {error}"), file=sys.stderr)
        return error.exit_code


def run(settings: Settings, *, drain: bool = False) -> int:
    """Run until a signal stops the daemon. With `drain`, stop when no job can run soon."""
    log = events.begin_logging(settings.log_format)
    with ExitStack() as stack:
        return _run(settings, stack, log, drain=drain)


def _ensure_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _DESCRIPTORS_MIN:
        if hard != resource.RLIM_INFINITY and hard < _DESCRIPTORS_MIN:
            raise ConfigError(
                f"the limit of open files is {hard}, and the daemon needs {_DESCRIPTORS_MIN}",
                "raise the limit: ulimit -n 1024, or LimitNOFILE= in the unit",
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (_DESCRIPTORS_MIN, hard))


def _run(settings: Settings, stack: ExitStack, log: Log, *, drain: bool) -> int:
    environ_at_start = {**os.environ}
    # Install the signal handlers first, so that a signal during startup also shuts down cleanly.
    signals = Signals()
    stack.callback(signals.close)
    _ensure_descriptors()
    store = _open_store(settings, stack, log)
    slots = Slots({"cpu": settings.concurrency, "io": settings.io_concurrency})
    context = DaemonContext(settings, own_identity(), log, store, store.relaxed_durability(), slots)
    staging = _prepare_workspace(context, stack)
    # Children inherit the lock, so take it before the pool starts.
    lock = WorkerLock(lock_path(settings.database, context.identity.worker_id))
    stack.callback(lock.close)
    _set_environment(settings)
    recovery, notifier = Recovery(context), Notifier()
    children_stack = stack.enter_context(ExitStack())
    started = _start_pool(context, staging, lock, recovery, children_stack)
    heartbeat = _build_heartbeat(context, notifier)
    watch = store.watch()
    stack.callback(watch.close)
    outcomes = OutcomeWriter(context, Publisher(settings.workspace, staging))
    loop = Loop(
        context,
        started.pool,
        started.handlers_by_type,
        outcomes,
        heartbeat,
        watch,
        signals,
        notifier,
        exits_when_drained=drain,
        nodes=started.nodes,
        reload=partial(reload_settings, context, environ_at_start),
    )
    # Recovery comes first, so that the jobs it requeues can start in the same turn.
    loop.chores = {
        "recovery": recovery.run,
        "files": loop.check_files,
        **build_chores(context, notifier, started.known_types, loop.set_disk_low),
    }
    write_limits(store, settings, log)
    store.workers.register(own_worker(context, started.handlers_by_type.values()))
    heartbeat.start()
    stack.callback(heartbeat.close)
    _log_start(context, started.handlers_by_type)
    notifier.ready()
    code = loop.run()
    # Stop the child processes before deleting the worker's row: a worker without a row must have no processes.
    children_stack.close()
    if code == 0:
        _deregister(context, lock)
    log.info(events.DAEMON_STOPPED, exit_code=code)
    return code


def _open_store(settings: Settings, stack: ExitStack, log: Log) -> Store:
    # Open the database before creating any folder: without a database, startup must leave nothing behind.
    store = open_with_settings(settings, WriteOptions(on_long_wait=partial(_log_locked, log), pauses=WritePauses()))
    stack.callback(store.close)
    refuse_service_database(settings)
    if (fault := read_only_error(settings.database)) is not None:
        raise fault
    store.integrity.ensure_wal_mode()
    return store


def _prepare_workspace(context: DaemonContext, stack: ExitStack) -> Path:
    workspace = context.settings.workspace
    bind_to_database(workspace, context.store.job_queries.database_id())
    staging = staging_root(workspace, context.identity.worker_id)
    for folder in (staging, workspace / "keep", workspace / "objects"):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{folder} cannot be made: {error.strerror}", "set WORKER_WORKSPACE") from error
    stack.callback(shutil.rmtree, staging, ignore_errors=True)
    return staging


def _set_environment(settings: Settings) -> None:
    settings.export_handler_settings()
    # For the user's own programs that call `pagemill`.
    os.environ["WORKER_DATABASE"] = str(settings.database.absolute())
    os.environ["WORKER_WORKSPACE"] = str(settings.workspace.absolute())
    # For the job `embed`.
    os.environ["WORKER_EMBEDDINGS"] = settings.embeddings
    os.environ["WORKER_EMBEDDINGS_MODEL"] = settings.embeddings_model
    os.environ["WORKER_PASSAGE_TOKENS"] = str(settings.passage_tokens)
    os.environ["WORKER_PASSAGE_OVERLAP"] = str(settings.passage_overlap)


class _StartedPool(NamedTuple):
    pool: LocalPool | ClusterPool
    handlers_by_type: Mapping[str, HandlerDescription]
    known_types: Collection[str]
    nodes: Nodes | None


def _start_pool(
    context: DaemonContext, staging: Path, lock: WorkerLock, recovery: Recovery, children_stack: ExitStack
) -> _StartedPool:
    settings = context.settings
    begin = Begin(
        staging,
        settings.workspace / "keep",
        lock.fd,
        settings.commands,
        settings.sandbox,
        slots={**context.slots.sizes},
        types=settings.types,
        handlers_dir=settings.handlers_dir,
    )
    local = LocalPool(begin)
    children_stack.callback(local.close)
    # Recovery runs while handlers are imported, so that other workers can claim the jobs of dead ones meanwhile.
    installed = local.start(partial(_recover, recovery, context.log))
    known_types = {handler.facts.job_type for handler in installed}
    handlers_by_type = filter_types(installed, settings.types)
    for job_type, handler in handlers_by_type.items():
        if handler.set_aside is not None:
            context.log.warning(events.HANDLER_SET_ASIDE, job_type=job_type, reason=handler.set_aside)
    if settings.cluster is not None:
        from worker_service.daemon.nodes import open_nodes  # imported only with a cluster

        nodes = open_nodes(context, settings.cluster, local, begin, handlers_by_type, staging / "cluster")
        if nodes is not None:
            children_stack.callback(nodes.pool.ray.close)
            return _StartedPool(nodes.pool, nodes.with_node_class(handlers_by_type), known_types, nodes)
    return _StartedPool(local, handlers_by_type, known_types, None)


def _build_heartbeat(context: DaemonContext, notifier: Notifier) -> Heartbeat:
    settings = context.settings
    return Heartbeat(
        partial(
            open_with_settings, settings, WriteOptions(is_durable=False, on_long_wait=partial(_log_locked, context.log))
        ),
        context.identity.worker_id,
        context.log,
        beat_seconds(settings.heartbeat_interval_seconds, notifier.watchdog_seconds),
    )


def _log_start(context: DaemonContext, handlers_by_type: Mapping[str, HandlerDescription]) -> None:
    settings = context.settings
    context.log.info(
        events.DAEMON_STARTED,
        worker_id=context.identity.worker_id,
        database=str(settings.database),
        concurrency=settings.concurrency,
        io_concurrency=settings.io_concurrency,
        types=sorted(handlers_by_type),
    )


def _deregister(context: DaemonContext, lock: WorkerLock) -> None:
    # The chore that links documents has run for the last time.
    with suppress(PagemillError, OSError):
        link_due_documents(context)
    with suppress(PagemillError):
        context.store.workers.deregister(context.identity.worker_id)
        lock.remove()


def _log_locked(log: Log, seconds: float, holder: LockOwner | None) -> None:
    reason = f"{holder} keeps the write lock: end its transaction" if holder else _UNKNOWN_LOCK_OWNER
    log.warning(events.STORE_LOCKED, waited_seconds=round(seconds, 1), reason=reason)


def _recover(recovery: Recovery, log: Log) -> float:
    try:
        return recovery.run()
    except PagemillError as error:
        log.warning(events.CHORE_FAILED, chore="recovery", reason=str(error))
        # Do not call it again here: the loop runs recovery as a chore.
        return math.inf


def beat_seconds(interval_seconds: float, watchdog_seconds: float | None) -> float:
    """Each beat feeds the watchdog, so at least three must fit in its period."""
    return interval_seconds if watchdog_seconds is None else min(interval_seconds, watchdog_seconds / 3)


# ── Concurrency limits: copied from the settings into the table that every claim reads ────────────────────────────────


def write_limits(store: Store, settings: Settings, log: Log) -> None:
    """Warn if this changes the limits of a running daemon."""
    changes = list(settings.limit_differences(store.overview.limits()))
    other_workers = [worker.id for worker in store.overview.workers()]
    if changes and other_workers:
        log.warning(events.LIMITS_REPLACED, changes=changes, workers=other_workers)
    for kind, limits in settings.wanted_limits.items():
        store.workers.set_limits(kind, dict(limits))


# ── Settings that change while the daemon runs ───────────────────────────────────────────────────────────────────────


def reload_settings(context: DaemonContext, environ: Mapping[str, str]) -> None:
    """Apply the settings that may change; none if the file has an error. `environ` is the environment at the start."""
    before = context.settings
    try:
        reloaded = load_settings({"database": str(before.database)}, environ=environ)
        keys = sorted(before.values.keys() | reloaded.values.keys())
        changed = [key for key in keys if before.values.get(key) != reloaded.values.get(key)]
        applied = [key for key in changed if key in RELOADABLE]
        after = replace(before, values={**before.values, **{key: reloaded.values[key] for key in applied}})
        if "limits" in applied:
            for kind, limits in after.wanted_limits.items():
                context.store.workers.set_limits(kind, dict(limits))
    except PagemillError as error:
        context.log.error(events.SETTINGS_REFUSED, reason=str(error))
        return
    context.settings = after
    context.log.info(
        events.SETTINGS_RELOADED, applied=applied, need_restart=[key for key in changed if key not in RELOADABLE]
    )


# ── Database ownership ────────────────────────────────────────────────────────────────────────────────────────────────


def refuse_service_database(settings: Settings) -> None:
    """Raise if this process would run the jobs of the installed service as another user."""
    if not settings.is_of_the_service or not settings.database.exists():
        return
    owner = settings.database.stat().st_uid
    if owner != os.geteuid():
        raise ConfigError(
            f"{settings.database} is the service's, and its jobs run as {pwd.getpwuid(owner).pw_name}",
            "systemctl start pagemill; for a queue of your own: "
            "--database PATH, or database in ~/.config/pagemill/pagemill.toml",
        )
