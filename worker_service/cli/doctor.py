"""`pagemill doctor`: findings about the service, each with its remedy."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from fnmatch import fnmatchcase
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import click
from msgspec import Struct

from worker_service.base.clock import as_text
from worker_service.base.humanize import counted
from worker_service.cli import output
from worker_service.cli.context import Invocation, verb
from worker_service.cli.handlers import installed_handlers
from worker_service.jobs.job import Pause
from worker_service.jobs.workers import HandlerFacts, allows_type
from worker_service.runner.messages import Begin, Ended, HandlerDescription, How, Order
from worker_service.runner.pool import ChildError
from worker_service.runner.without_daemon import attempt_events, open_pool
from worker_service.runner.worker_identity import lock_path
from worker_service.services.database_maintenance import audit_database, check_database
from worker_service.services.health import HOW_TO_FREE_SPACE, Level, check_health
from worker_service.services.overview import CheckedWorker, Overview, title_of_pause
from worker_service.services.published_files import find_file_faults
from worker_service.services.schedules import HOW_TO_RUN_TICKS, list_schedules
from worker_service.services.session import Session
from worker_service.settings.config import Settings
from worker_service.workspace import FREE_BYTES_LEAST, fault_of_workspace

_SIGN_AND_COLOUR_BY_LEVEL = {0: ("✓", "green"), 1: ("!", "yellow"), 2: ("✗", "red")}
_CREDENTIAL_ERRORS_SINCE = timedelta(days=1)
_CREDENTIAL_ERRORS = {"CREDENTIAL_ABSENT", "CREDENTIAL_EXPOSED", "SECRET_ABSENT"}
"""Errors that recur until the user fixes something and restarts the daemon."""
_NEWEST_DOCUMENTS, _LAYOUTS_EXAMINED_MAX = 100, 200
_RESTORE_REMEDY = "restore it from a copy of the workspace"
_FAULTY_FILES_LISTED_MAX = 20
_DRIVE_CHECK = "job_handlers.fetch.sources.drive.identity:who_am_i"
"""A handler that asks Google about each credential."""
_PHRASE_BY_LOST_STATE = {"dead": "it is dead", "dying": "its daemon is dead", "no row": "it has no row"}


class Finding(Struct, frozen=True):
    level: Level
    name: str
    detail: str
    fix: str = ""


class _UnreadScript(NamedTuple):
    name: str
    language: str
    install_command: str


@verb
@click.option("--audit", is_flag=True, help="Check all rows, their history and every published file instead.")
@click.option("--online", is_flag=True, help="Ask Google, too, which account each credential has, and what it may do.")
def doctor(call: Invocation, audit: bool, online: bool) -> int:
    """\b
    pagemill doctor
    pagemill doctor --json
    pagemill doctor --audit
    pagemill doctor --online

    Find problems and say how to fix them. ✓ is good, ! is a warning, ✗ is a problem, with exit code 1.

    --audit only checks whether rows, attempts, events and published files break a promise (P1 … P13). It reads every
    published file; without it, doctor compares sizes.
    """
    findings = list(audit_promises(call.session) if audit else examine(call.session))
    if online:
        findings += examine_online(call.settings)
    if not call.print_if_json({"items": findings}):
        for finding in findings:
            sign, colour = _SIGN_AND_COLOUR_BY_LEVEL[finding.level]
            shown_sign = output.styled(sign, fg=colour) if output.is_terminal(sys.stdout) else sign
            output.show(output.join_styled(shown_sign, f" {finding.name}: {finding.detail}"))
            if finding.fix:
                output.show(f"    {finding.fix}")
    return 1 if any(finding.level is Level.CRITICAL for finding in findings) else 0


def examine(session: Session) -> Iterator[Finding]:
    settings, overview = session.settings, Overview(session)
    yield Finding(Level.OK, "database", str(settings.database))
    yield Finding(Level.OK, "settings", str(settings.file or "no file: defaults and environment variables"))
    for check in check_database(session):
        level, fix = (Level.OK, "") if check.is_good else (Level.CRITICAL, check.fix)
        yield Finding(level, check.name, check.detail, fix)
    yield from _check_service(overview)
    yield from _check_workers(settings, overview.workers)
    yield from _check_daemon_users(settings.database, overview.live_workers)
    yield from _check_nodes(overview)
    yield from _check_ray(settings)
    yield from _check_loaded_handlers(session) if overview.live_workers else _check_installed_handlers(settings)
    yield from _check_unread_scripts(session)
    yield from _check_credentials(session, overview)
    yield from _check_equal_limits(session)
    yield from _check_pauses(overview.pauses)
    yield from _check_schedules(session)
    yield _check_workspace(settings.workspace, session.job_queries.database_id())
    yield from _check_published_files(session)
    yield _check_sandbox(settings.sandbox)


def _check_service(overview: Overview) -> Iterator[Finding]:
    # Other findings cover the other reasons in more detail.
    name_by_code = {"READ_ONLY": "database", "STANDSTILL": "queue"}
    for reason in check_health(overview).reasons:
        if reason.code in name_by_code:
            yield Finding(reason.level, name_by_code[reason.code], reason.detail, reason.remedy)


def _check_workers(settings: Settings, workers: Sequence[CheckedWorker]) -> Iterator[Finding]:
    if not workers:
        fix = f"to start one: {settings.start_command}"
        yield Finding(Level.CRITICAL, "daemon", "none is running, so no job starts", fix)
    for worker in workers:
        name, running_jobs = f"worker {worker.id}", counted(worker.running, "job")
        if worker.state in _PHRASE_BY_LOST_STATE:
            detail = f"{_PHRASE_BY_LOST_STATE[worker.state]}, and held {running_jobs}"
            yield Finding(Level.CRITICAL, name, detail, f"any daemon takes them back: {settings.start_command}")
        elif worker.state == "silent":
            detail = f"pid {worker.pid} has sent no heartbeat since {worker.heartbeat_at[:19]}"
            yield Finding(Level.CRITICAL, name, detail, f"look at it: ps -fp {worker.pid}")
        elif worker.state == "disk low":
            yield Finding(Level.CRITICAL, name, "it starts nothing: the disk is nearly full", HOW_TO_FREE_SPACE)
        else:
            yield Finding(Level.OK, name, f"{worker.state}, pid {worker.pid}, runs {running_jobs}")


def _check_daemon_users(database: Path, live_workers: Sequence[CheckedWorker]) -> Iterator[Finding]:
    for worker in live_workers:
        # The owner of the lock file is the user who runs the daemon.
        with suppress(OSError):
            if lock_path(database, worker.id).stat().st_uid == 0:
                detail = "runs as root: an error in a handler or in its libraries could reach the whole machine"
                fix = "run it as its own user: sudo pagemill service install"
                yield Finding(Level.WARNING, f"worker {worker.id}", detail, fix)


def _check_nodes(overview: Overview) -> Iterator[Finding]:
    for node in overview.nodes:
        reason = f" ({node.reason})" if node.reason else ""
        detail = f"{node.state}{reason}, {counted(node.slots, 'slot')}, runs {node.running}"
        is_good = node.state == "up" or node.is_draining
        fix = "" if is_good else "to check all nodes: pagemill cluster test"
        yield Finding(Level.OK if is_good else Level.WARNING, f"node {node.name}", detail, fix)


def _check_ray(settings: Settings) -> Iterator[Finding]:
    if settings.cluster is None:
        return
    from worker_service.cluster import ray_settings  # imported only with a cluster

    environ = {**os.environ}
    token = ray_settings.prepare(environ)
    if find_spec("ray") is None:
        yield Finding(Level.CRITICAL, "Ray", "it is not installed", "pip install 'pagemill[ray]'")
    elif token is None and ray_settings.SERVICE_TOKEN.exists():
        yield Finding(Level.OK, "Ray", f"only root can read its token, {ray_settings.SERVICE_TOKEN}: sudo checks it")
    elif fault := ray_settings.fault(settings.cluster.address, environ):
        yield Finding(Level.CRITICAL, "Ray", fault.detail, fault.remedy)
    elif environ.get("RAY_AUTH_MODE") != "token":
        yield Finding(Level.WARNING, "Ray", "it has no token", "pagemill cluster init, on the head")
    else:
        yield Finding(Level.OK, "Ray", f"a token, {'with' if environ.get('RAY_USE_TLS') == '1' else 'without'} TLS")


def _check_loaded_handlers(session: Session) -> Iterator[Finding]:
    for handler in session.overview.missing_handlers():
        yield _missing_finding(handler, session.settings.restart_command)
    for waiting in session.overview.jobs_without_handler():
        fix = f"{waiting.newest_remedy or 'install what is missing'}; the jobs check again by themselves"
        detail = f"{counted(waiting.jobs, 'job')} waiting: {waiting.newest_message or ''}"
        yield Finding(Level.WARNING, waiting.job_type, detail, fix)


def _check_unread_scripts(session: Session) -> Iterator[Finding]:
    pages_by_script: Counter[_UnreadScript] = Counter()
    newest_document_by_script: dict[_UnreadScript, int] = {}
    for document_id, layout in session.library.doubtful_layouts(
        documents=_NEWEST_DOCUMENTS, most=_LAYOUTS_EXAMINED_MAX
    ):
        unread = json.loads(layout).get("unread")
        if unread:
            script = _UnreadScript(unread["script"], unread["language"], unread["install"])
            pages_by_script[script] += 1
            newest_document_by_script.setdefault(script, document_id)
    for script, pages in pages_by_script.items():
        reindex = f"pagemill reindex {newest_document_by_script[script]} --lang {script.language}"
        letters = f"{script.name.replace('_', ' ')} letters"
        detail = f"{counted(pages, 'page')} of the newest documents: {letters} that were read in other languages"
        fix = f"{script.install_command}, then: {reindex}" if script.install_command else reindex
        yield Finding(Level.WARNING, "recognised scripts", detail, fix)


def _check_installed_handlers(settings: Settings) -> Iterator[Finding]:
    settings.export_handler_settings()
    try:
        handlers = installed_handlers(settings)
    except ChildError as error:
        yield Finding(Level.CRITICAL, "handlers", str(error), "pagemill handlers ls")
        return
    for handler in handlers:
        name = f"handler {handler.facts.job_type}"
        if not allows_type(settings.types, handler.facts.job_type):
            continue
        if handler.set_aside is not None:
            # The last line of a traceback has the reason.
            reason = handler.set_aside.strip().splitlines()[-1]
            yield Finding(Level.WARNING, name, f"it cannot be used: {reason}", "fix or uninstall it")
        elif handler.facts.missing is not None:
            yield _missing_finding(handler.facts, settings.start_command)
        elif handler.declared is not None and handler.declared.offers is not None:
            yield Finding(Level.OK, name, handler.declared.offers)


def _missing_finding(handler: HandlerFacts, next_command: str) -> Finding:
    first_step = f"{handler.missing_remedy}, then" if handler.missing_remedy else "when it is installed"
    return Finding(
        Level.WARNING,
        f"handler {handler.job_type}",
        f"it starts no jobs: {handler.missing}",
        f"{first_step}: {next_command}",
    )


def _check_credentials(session: Session, overview: Overview) -> Iterator[Finding]:
    last_start = max((worker.started_at for worker in overview.live_workers), default="")
    since = as_text(overview.at - _CREDENTIAL_ERRORS_SINCE)
    for error in session.overview.errors(since=since, to_retry=_CREDENTIAL_ERRORS):
        if error.newest_at < last_start:
            continue  # a daemon has started since
        retry = f"{session.settings.restart_command}, pagemill retry --error {error.code}"
        fix = f"{error.newest_remedy}, then: {retry}" if error.newest_remedy else retry
        name = f"{counted(error.jobs, 'job')} {error.job_type}"
        yield Finding(Level.WARNING, name, f"{error.code}: {error.newest_message or ''}", fix)


def _check_equal_limits(session: Session) -> Iterator[Finding]:
    if not session.overview.workers():
        return
    for difference in session.settings.limit_differences(session.overview.limits()):
        fix = "give every daemon, and yourself, the same settings file (WORKER_CONFIG), and restart the daemons"
        yield Finding(Level.WARNING, "limits", difference, fix)


def _check_pauses(pauses: Sequence[Pause]) -> Iterator[Finding]:
    for pause in pauses:
        detail = f"{title_of_pause(pause.scope, pause.name)} is paused since {pause.since[:19]}"
        option = {"all": "--all", "type": pause.name, "owner": f"--owner {pause.name}"}[pause.scope]
        yield Finding(Level.WARNING, "pause", detail, f"pagemill unpause {option}")


def _check_schedules(session: Session) -> Iterator[Finding]:
    schedules = list_schedules(session)
    for schedule in schedules:
        if schedule.trouble is not None:
            is_in_database = schedule.definition is not None
            fix = f"pagemill schedules change {schedule.name!r}" if is_in_database else "correct the settings file"
            yield Finding(Level.WARNING, "schedules", schedule.trouble, fix)
    overdue = [schedule.name for schedule in schedules if schedule.is_waiting]
    if overdue:
        yield Finding(Level.WARNING, "schedules", f"overdue: {', '.join(overdue)}", HOW_TO_RUN_TICKS)
    elif schedules:
        yield Finding(Level.OK, "schedules", f"{counted(len(schedules), 'schedule')}, started in time")


def _check_workspace(workspace: Path, database_id: str) -> Finding:
    if not workspace.exists():
        return Finding(Level.OK, "workspace", f"the first daemon creates {workspace}")
    if not os.access(workspace, os.W_OK | os.X_OK):
        # The user of this command is often not the user who runs the daemon.
        detail = f"you may not write to {workspace}"
        return Finding(Level.WARNING, "workspace", detail, "sudo -u pagemill pagemill doctor")
    if (fault := fault_of_workspace(workspace, database_id)) is not None:
        return Finding(Level.CRITICAL, "workspace", f"no daemon starts: {fault.detail}", fault.remedy)
    free = shutil.disk_usage(workspace).free
    if free < FREE_BYTES_LEAST:
        return Finding(Level.CRITICAL, "workspace", f"{workspace} has {free / 1e6:.0f} MB free", "free some space")
    return Finding(Level.OK, "workspace", f"{workspace}, {free / 1e9:.1f} GB free")


def _check_published_files(session: Session) -> Iterator[Finding]:
    try:
        faults = list(find_file_faults(session))
    except PermissionError:
        return  # `_check_workspace` reports it
    if not faults:
        return
    detail = f"{counted(len(faults), 'published file')} not as published: {faults[0].path} {faults[0].detail}"
    yield Finding(Level.CRITICAL, "files", detail, f"all of them: pagemill doctor --audit; {_RESTORE_REMEDY}")


def _check_sandbox(level: str) -> Finding:
    if level != "strict":
        return Finding(Level.WARNING, "sandbox", f"set to {level}", 'set sandbox = "strict"')
    return Finding(Level.OK, "sandbox", "strict: a handler that cannot be confined is not run")


# ── Audit ───────────────────────────────────────────────────────────────────────────────────────────────────────


def audit_promises(session: Session) -> Iterator[Finding]:
    fix = "a bug, or a row changed without the triggers: report this line"
    findings = [
        *(Finding(Level.CRITICAL, broken.promise, broken.detail, fix) for broken in audit_database(session)),
        *_audit_files(session),
    ]
    yield from findings
    if not findings:
        yield Finding(Level.OK, "consistency", "rows, history and published files agree")


def _audit_files(session: Session) -> Iterator[Finding]:
    faults = find_file_faults(session, with_digests=True)
    try:
        for fault in islice(faults, _FAULTY_FILES_LISTED_MAX):
            reindex = "" if fault.document_id is None else f", or: pagemill reindex {fault.document_id} --force"
            yield Finding(
                Level.CRITICAL, "P5", f"published file {fault.path} {fault.detail}", _RESTORE_REMEDY + reindex
            )
        more = sum(1 for _ in faults)  # `islice` has left these
        if more:
            yield Finding(Level.CRITICAL, "P5", f"{counted(more, 'more published file')} like these", _RESTORE_REMEDY)
    except PermissionError:
        detail = "published files were not checked: you may not read the workspace"
        yield Finding(Level.WARNING, "files", detail, "sudo -u pagemill pagemill doctor --audit")


# ── Credentials, asked online ───────────────────────────────────────────────────────────────────────────────────


def examine_online(settings: Settings) -> Iterator[Finding]:
    settings.export_handler_settings()
    ended = _run_drive_check(settings)
    if isinstance(ended, Ended) and ended.how is How.DONE:
        for finding in json.loads(ended.result or "[]"):
            yield Finding(Level[finding["level"].upper()], finding["name"], finding["detail"], finding["fix"])
    else:
        reason = ended if isinstance(ended, str) else ended.message.strip() or ended.how.value
        detail = f"the check of the credentials failed: {reason.splitlines()[-1]}"
        yield Finding(Level.CRITICAL, "drive", detail, "pagemill handlers ls")


def _run_drive_check(settings: Settings) -> Ended | str:
    """Return the end of the check, or the reason why it could not be loaded."""
    with tempfile.TemporaryDirectory(prefix="pagemill-", ignore_cleanup_errors=True) as directory:
        begin = Begin(
            Path(directory) / "staging",
            Path(directory) / "keep",
            sandbox=settings.sandbox,
            grace_seconds=1.0,
            extra_handlers=[_DRIVE_CHECK],
            is_without_installed=True,
        )
        with open_pool(begin) as (fork_server, [handler]):
            if handler.set_aside:
                return handler.set_aside
            payload = json.dumps({"credentials": _credential_names(handler)})
            order = Order(job_id=1, fence=1, job_type=handler.facts.job_type, platform="local", payload=payload)
            fork_server.launch(order)
            return next(event for event in attempt_events(fork_server) if isinstance(event, Ended))


def _credential_names(handler: HandlerDescription) -> Sequence[str]:
    patterns = () if handler.declared is None else handler.declared.credentials
    directory = os.environ.get("CREDENTIALS_DIRECTORY", "")
    try:
        names = sorted(path.name for path in Path(directory).iterdir()) if directory else []
    except OSError:
        names = []
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
