"""Health of the service: one word for monitoring, or findings with remedies for the user. Read-only."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from enum import IntEnum
from itertools import islice
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from worker_service.base.clock import as_text, from_text
from worker_service.base.humanize import counted
from worker_service.jobs.job import Gate, Pause, Status
from worker_service.jobs.workers import HandlerFacts, WorkerState, wants
from worker_service.runner.worker_lock import lock_path
from worker_service.services.database import Session
from worker_service.services.overview import CheckedWorker, Overview, dead_ids, look, title_of_pause
from worker_service.services.published_files import faults_of_files
from worker_service.settings.config import Settings
from worker_service.store.errors import read_only_error
from worker_service.store.store import Store
from worker_service.workspace import FREE_BYTES_LEAST, fault_of_workspace

LATELY = timedelta(days=1)
_OF_CREDENTIALS = {"CREDENTIAL_ABSENT", "CREDENTIAL_EXPOSED", "SECRET_ABSENT"}
"""Error codes that recur until the user fixes something on this host and restarts the daemon."""
_DOCUMENTS_READ, _LAYOUTS_READ = 100, 200
_FREE_SPACE = "free some space: `pagemill stats` tells who keeps how much, `pagemill documents rm` removes"
_BRING_BACK = "bring it back from a copy of the workspace"
_FILES_MOST = 20
_LOST = {"dead": "it is dead", "dying": "its daemon is dead", "no row": "it has no row"}


class Level(IntEnum):
    """Exit codes of monitoring plugins."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


class Reason(Struct, frozen=True):
    """A problem of the whole service.

    The codes are READ_ONLY, NO_WORKER, WORKERS_LOST, DISK_LOW, NODES_DOWN, OLDEST_WAITS, ALL_PAUSED and STANDSTILL.
    """

    level: Level
    code: str
    detail: str
    remedy: str = ""


class Health(Struct, frozen=True):
    level: Level
    reasons: Sequence[Reason]
    """Worst first."""
    workers: int
    """Number of live workers."""
    jobs: Mapping[Status, int]
    batches_replaced: int = 0
    """Batches that wait until the newer batch of their owner ends."""


class Finding(Struct, frozen=True):
    """One line of `pagemill doctor`."""

    level: Level
    name: str
    detail: str
    fix: str = ""
    """Remedy; empty if there is no problem."""


def health(session: Session, *, oldest_most: timedelta | None = None) -> Health:
    """Judge the service. `oldest_most` is how long the oldest pending job may wait without a warning."""
    overview = look(session)
    standstill = session.store.reading.standstill(dead=dead_ids(overview.workers))
    found = judge(overview, standstill, oldest_most=oldest_most)
    if (fault := read_only_error(session.settings.database)) is not None:
        reasons = [Reason(Level.CRITICAL, fault.code, fault.detail, fault.remedy), *found.reasons]
        found = replace(found, level=Level.CRITICAL, reasons=reasons)
    return replace(found, batches_replaced=session.store.batches.count_replaced())


def judge(overview: Overview, standstill: Sequence[Gate], *, oldest_most: timedelta | None = None) -> Health:
    found: list[Reason] = []
    workers, counts = overview.workers, overview.counts
    alive = [one.state for one in workers if one.is_alive]
    others = Counter(one.state for one in workers if not one.is_alive)
    how = f" ({', '.join(f'{number} {state}' for state, number in others.items())})" if others else ""
    if not alive:
        remedy = "systemctl start pagemill, or here: pagemill run"
        found.append(Reason(Level.CRITICAL, "NO_WORKER", f"no worker is alive{how}", remedy))
    elif others:
        detail = f"{others.total()} of {counted(len(workers), 'worker')} not alive{how}"
        found.append(Reason(Level.WARNING, "WORKERS_LOST", detail, "pagemill doctor"))
    if "disk low" in alive:
        level = Level.CRITICAL if set(alive) == {"disk low"} else Level.WARNING
        found.append(Reason(level, "DISK_LOW", "the disk is nearly full", _FREE_SPACE))
    wanted = [one for one in overview.nodes if not one.is_draining]
    if away := [one for one in wanted if one.state != "up"]:
        which = f"{away[0].name} is {away[0].state}"
        how_many = "none" if len(away) == len(wanted) else f"{len(wanted) - len(away)}"
        detail = f"{how_many} of {counted(len(wanted), 'node')} up: {which}"
        found.append(Reason(Level.WARNING, "NODES_DOWN", detail, "pagemill cluster"))
    oldest = counts.oldest_pending_at
    if oldest_most is not None and oldest is not None and overview.at - from_text(oldest) > oldest_most:
        detail = f"the oldest job that could start waits since {oldest[:19]}"
        found.append(Reason(Level.WARNING, "OLDEST_WAITS", detail, "pagemill why"))
    if any(pause.scope == "all" for pause in overview.pauses):
        found.append(Reason(Level.WARNING, "ALL_PAUSED", "everything is paused", "pagemill unpause --all"))
    elif standstill and alive:
        gate, more = standstill[0], f", and {len(standstill) - 1} more" if len(standstill) > 1 else ""
        detail = f"nothing that is pending can start: {gate.code}, {gate.detail}{more}"
        found.append(Reason(Level.WARNING, "STANDSTILL", detail, gate.remedy or "pagemill why"))
    worst_first = sorted(found, key=lambda reason: -reason.level)
    level = max((reason.level for reason in found), default=Level.OK)
    return Health(level, worst_first, overview.workers_alive, counts.by_status)


def summary(health: Health) -> str:
    """Return the health in one line."""
    if health.reasons:
        return "; ".join(reason.detail for reason in health.reasons)
    running, pending = health.jobs[Status.RUNNING], health.jobs[Status.PENDING]
    return f"{counted(health.workers, 'worker')}, {running} running, {pending} pending"


# ── Doctor ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def examine(session: Session) -> Iterator[Finding]:
    settings, store, now = session.settings, session.store, session.clock()
    yield Finding(Level.OK, "database", str(settings.database))
    if (fault := read_only_error(settings.database)) is not None:
        yield Finding(Level.CRITICAL, "database", fault.detail, fault.remedy)
    yield Finding(Level.OK, "settings", str(settings.file or "no file: the defaults, and what the environment says"))
    for check in store.upkeep.check():
        level, fix = (Level.OK, "") if check.is_good else (Level.CRITICAL, check.fix)
        yield Finding(level, check.name, check.detail, fix)
    overview = look(session)
    yield from _workers(overview.workers)
    yield from _run_as_root(settings.database, overview.workers)
    yield from _nodes(overview)
    yield from _ray(settings)
    alive = [one for one in overview.workers if one.is_alive]
    yield from _lacking(store) if alive else _described(settings)
    yield from _unread_scripts(store)
    yield from _failures(store, alive, now=now)
    yield from _limits(settings, store)
    yield from _standstill(store, overview)
    yield from _pauses(overview.pauses)
    yield from _schedules(session) if settings.schedule else ()
    yield _workspace(settings.workspace, store.reading.database_id())
    yield from _published(session)
    yield _sandbox(settings.sandbox)


def _standstill(store: Store, overview: Overview) -> Iterator[Finding]:
    """Report what `judge` reports and no other check here does."""
    standstill = store.reading.standstill(dead=dead_ids(overview.workers))
    for reason in judge(overview, standstill).reasons:
        if reason.code == "STANDSTILL":
            yield Finding(reason.level, "queue", reason.detail, reason.remedy)


def _workers(workers: Sequence[CheckedWorker]) -> Iterator[Finding]:
    if not workers:
        yield Finding(
            Level.CRITICAL, "workers", "none: nothing runs", "systemctl start pagemill, or here: pagemill run"
        )
    for one in workers:
        name, held = f"worker {one.id}", counted(one.running, "job")
        if one.state in _LOST:
            detail = f"{_LOST[one.state]}, and held {held}"
            yield Finding(Level.CRITICAL, name, detail, "any daemon takes them back: systemctl start pagemill")
        elif one.state == "silent":
            detail = f"pid {one.pid} has not beaten since {one.heartbeat_at[:19]}"
            yield Finding(Level.CRITICAL, name, detail, f"look at it: systemctl status {one.pid}")
        elif one.state == "disk low":
            yield Finding(
                Level.CRITICAL,
                name,
                "it starts nothing: the disk is nearly full",
                _FREE_SPACE,
            )
        else:
            yield Finding(Level.OK, name, f"{one.state}, pid {one.pid}, runs {held}")


def _run_as_root(database: Path, workers: Sequence[CheckedWorker]) -> Iterator[Finding]:
    for one in workers:
        # The owner of the lock file is the user who runs the daemon.
        with suppress(OSError):
            if one.is_alive and lock_path(database, one.id).stat().st_uid == 0:
                detail = "runs as root: an error in a handler or in its libraries could reach the whole machine"
                yield Finding(
                    Level.WARNING, f"worker {one.id}", detail, "run it as its own user: sudo pagemill service install"
                )


def _nodes(overview: Overview) -> Iterator[Finding]:
    for one in overview.nodes:
        why = f" ({one.reason})" if one.reason else ""
        detail = f"{one.state}{why}, {counted(one.slots, 'slot')}, runs {one.running}"
        is_good = one.state == "up" or one.is_draining
        fix = "" if is_good else "to check all nodes: pagemill cluster test"
        yield Finding(Level.OK if is_good else Level.WARNING, f"node {one.name}", detail, fix)


def _ray(settings: Settings) -> Iterator[Finding]:
    """Report whether the daemon can connect to Ray as it should."""
    if settings.cluster is None:
        return
    from worker_service.cluster import ray_environment  # imported only with a cluster

    environ = {**os.environ}
    token = ray_environment.prepare(environ)
    service_token = ray_environment.service_token()
    if ray_environment.ray_version() is None:
        yield Finding(Level.CRITICAL, "Ray", "it is not installed", "pip install 'pagemill[ray]'")
    elif token is None and service_token.exists():
        yield Finding(Level.OK, "Ray", f"only root can read its token, {service_token}: sudo checks it")
    elif fault := ray_environment.fault(settings.cluster.address, environ):
        yield Finding(Level.CRITICAL, "Ray", fault.detail, fault.remedy)
    elif environ.get("RAY_AUTH_MODE") != "token":
        yield Finding(Level.WARNING, "Ray", "it has no token", "pagemill cluster init, on the head")
    else:
        yield Finding(Level.OK, "Ray", f"a token, {'with' if environ.get('RAY_USE_TLS') == '1' else 'without'} TLS")


def _lacking(store: Store) -> Iterator[Finding]:
    """Report what the handlers of live daemons lack."""
    for handler in store.reading.handlers_lacking():
        yield _lack(handler, "systemctl restart pagemill")
    for waiting in store.reading.jobs_lacking():
        fix = f"{waiting.newest_remedy or 'see what it says'}; they look again by themselves"
        name = f"{counted(waiting.jobs, 'job')} {waiting.job_type}"
        yield Finding(Level.WARNING, name, f"wait: {waiting.newest_message or ''}", fix)


def _unread_scripts(store: Store) -> Iterator[Finding]:
    """Report scripts without trained data in the newest documents."""
    pages: Counter[tuple[str, str, str]] = Counter()
    newest: dict[tuple[str, str, str], int] = {}
    for document_id, layout in store.library.doubtful_layouts(documents=_DOCUMENTS_READ, most=_LAYOUTS_READ):
        if unread := json.loads(layout).get("unread"):
            key = unread["script"], unread["language"], unread["install"]
            pages[key] += 1
            newest.setdefault(key, document_id)
    for (script, language, install), count in pages.items():
        again = f"pagemill reindex {newest[script, language, install]} --lang {language}"
        yield Finding(
            Level.WARNING,
            "recognised scripts",
            f"{counted(count, 'page')} of the newest documents: {script.replace('_', ' ')} letters that were read in "
            "other languages",
            f"{install}, then: {again}" if install else again,
        )


def _described(settings: Settings) -> Iterator[Finding]:
    """Report what the handlers lack by asking them here, because no daemon is alive to tell."""
    from worker_service.runner.pool import (
        ChildError,
        describe,  # imports all handlers in child processes
    )

    settings.hand_to_handlers()
    try:
        found = describe(settings.commands, settings.sandbox, settings.handlers_dir)
    except ChildError as error:
        yield Finding(Level.CRITICAL, "handlers", str(error), "pagemill handlers ls")
        return
    for one in sorted(found, key=lambda one: one.facts.job_type):
        name = f"handler {one.facts.job_type}"
        if not wants(settings.types, one.facts.job_type):
            continue
        if one.set_aside is not None:
            reason = one.set_aside.strip().splitlines()[-1]
            yield Finding(Level.WARNING, name, f"it is set aside: {reason}", "mend it, or uninstall it")
        elif one.facts.missing is not None:
            yield _lack(one.facts, "systemctl start pagemill")
        elif one.declared is not None and one.declared.offers is not None:
            yield Finding(Level.OK, name, one.declared.offers)


def _lack(handler: HandlerFacts, then: str) -> Finding:
    fix = f"{handler.missing_remedy}, then: {then}" if handler.missing_remedy else f"when it is there: {then}"
    return Finding(Level.WARNING, f"handler {handler.job_type}", f"it starts no jobs: {handler.missing}", fix)


def _failures(store: Store, alive: Sequence[WorkerState], *, now: datetime) -> Iterator[Finding]:
    """Report failures since yesterday that would recur, except failures before the last start of a daemon."""
    begun = max((worker.started_at for worker in alive), default="")
    for error in store.reading.errors(since=as_text(now - LATELY), to_retry=_OF_CREDENTIALS):
        if error.newest_at < begun:
            continue
        again = f"systemctl restart pagemill, pagemill retry --error {error.code}"
        fix = f"{error.newest_remedy or 'see what it says'}, then: {again}"
        name = f"{counted(error.jobs, 'job')} {error.job_type}"
        yield Finding(Level.WARNING, name, f"{error.code}: {error.newest_message or ''}", fix)


def _limits(settings: Settings, store: Store) -> Iterator[Finding]:
    """Report limits that differ from the database. Before the first daemon, no limits are written."""
    for difference in settings.limits_unlike(store.reading.limits()) if store.reading.workers() else ():
        fix = "give every daemon, and yourself, the same settings file (WORKER_CONFIG), and restart the daemons"
        yield Finding(Level.WARNING, "limits", difference, fix)


def audit(session: Session) -> Iterator[Finding]:
    """Look for broken promises in the rows, their history and the published files, each named by its number."""
    is_sound = True
    for broken in session.store.upkeep.audit():
        is_sound = False
        yield Finding(
            Level.CRITICAL,
            broken.promise,
            broken.detail,
            "a bug, or a row changed behind the triggers: report this line",
        )
    for finding in _audit_files(session):
        is_sound = False
        yield finding
    if is_sound:
        yield Finding(Level.OK, "promises", "no row, nothing in the history and no published file breaks one")


def _audit_files(session: Session) -> Iterator[Finding]:
    faults = faults_of_files(session.store, session.settings.workspace, with_digests=True)
    try:
        for fault in islice(faults, _FILES_MOST):
            again = "" if fault.document_id is None else f", or: pagemill reindex {fault.document_id} --force"
            yield Finding(Level.CRITICAL, "P5", f"published file {fault.path} {fault.detail}", _BRING_BACK + again)
        if rest := sum(1 for _ in faults):
            yield Finding(Level.CRITICAL, "P5", f"{counted(rest, 'more published file')} like these", _BRING_BACK)
    except PermissionError:
        detail = "published files were not checked: you may not read the workspace"
        yield Finding(Level.WARNING, "files", detail, "sudo -u pagemill pagemill doctor --audit")


def _pauses(pauses: Sequence[Pause]) -> Iterator[Finding]:
    for pause in pauses:
        what = title_of_pause(pause.scope, pause.name)
        words = {"all": " --all", "type": f" {pause.name}", "owner": f" --owner {pause.name}"}[pause.scope]
        yield Finding(Level.WARNING, "pause", f"{what} is paused since {pause.since[:19]}", f"pagemill unpause{words}")


def _schedules(session: Session) -> Iterator[Finding]:
    from worker_service.services.schedules import TICKS, list_schedules  # imported only if there are schedules

    found = list_schedules(session)
    for one in found:
        if one.trouble is not None:
            yield Finding(Level.WARNING, "schedules", one.trouble, "put it right in the settings file")
    if waiting := [one.name for one in found if one.is_waiting]:
        yield Finding(Level.WARNING, "schedules", f"nobody begins {', '.join(waiting)}: nothing ticks", TICKS)
    else:
        yield Finding(Level.OK, "schedules", f"{counted(len(found), 'schedule')}, and something ticks")


def _workspace(workspace: Path, database_id: str) -> Finding:
    if not workspace.exists():
        return Finding(Level.OK, "workspace", f"{workspace} is made by the first daemon")
    if not os.access(workspace, os.W_OK | os.X_OK):
        # The user of this command is often not the user who runs the daemon.
        return Finding(
            Level.WARNING, "workspace", f"{workspace} may not be written by you", "sudo -u pagemill pagemill doctor"
        )
    if (fault := fault_of_workspace(workspace, database_id)) is not None:
        return Finding(Level.CRITICAL, "workspace", f"no daemon starts: {fault.detail}", fault.remedy)
    free = shutil.disk_usage(workspace).free
    if free < FREE_BYTES_LEAST:
        return Finding(Level.CRITICAL, "workspace", f"{workspace} has {free / 1e6:.0f} MB free", "free some space")
    return Finding(Level.OK, "workspace", f"{workspace}, {free / 1e9:.1f} GB free")


def _published(session: Session) -> Iterator[Finding]:
    try:
        faults = list(faults_of_files(session.store, session.settings.workspace))
    except PermissionError:
        return  # `_workspace` reports it
    if not faults:
        return
    detail = f"{counted(len(faults), 'published file')} not as published: {faults[0].path} {faults[0].detail}"
    yield Finding(Level.CRITICAL, "files", detail, f"all of them: pagemill doctor --audit; {_BRING_BACK}")


def _sandbox(chosen: str) -> Finding:
    if chosen != "strict":
        return Finding(Level.WARNING, "sandbox", f"set to {chosen}", 'set sandbox = "strict"')
    return Finding(Level.OK, "sandbox", "strict: a handler that cannot be confined is not run")
