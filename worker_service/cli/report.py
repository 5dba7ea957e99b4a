"""`pagemill report`: an archive for support. It has only the fields listed below: others may contain names."""

from __future__ import annotations

import io
import os
import platform
import re
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from msgspec import Struct

from worker_service import VERSION
from worker_service.base.clock import as_text, wall_clock
from worker_service.base.errors import PagemillError, Refused
from worker_service.base.files import atomic_write
from worker_service.base.sanitize import as_json
from worker_service.cli import output
from worker_service.cli.context import Invocation, verb
from worker_service.cli.doctor import examine
from worker_service.cli.handlers import installed_handlers
from worker_service.jobs.job import Status
from worker_service.jobs.selector import Selector
from worker_service.services.database_maintenance import versions
from worker_service.services.health import check_health
from worker_service.services.overview import Overview, statistics
from worker_service.services.serialize import as_object
from worker_service.settings.config import Settings

_ERRORS_SINCE = timedelta(days=30)
_EVENTS_MAX = 500
_FAILED_JOBS_MAX = 50

_SETTINGS_WITHOUT_NAMES = (
    "payload_bytes_max concurrency io_concurrency poll_interval heartbeat_interval orphan_after recovery_interval "
    "grace_period unknown_type_grace queued_patience indexing_patience owner_policy sandbox log_format zone "
    "schedule_in_daemon notify_old_after upload_bytes_max prune.completed "
    "prune.failed prune.cancelled prune.logs"
).split()
"""Settings whose values are numbers, lengths of time, or words of ours."""
_SECRET_KEY = re.compile(r"secret|password|passphrase|token|credential|api_?key", re.IGNORECASE)


class _Fields(Struct, frozen=True):
    """Names of fields, separated by spaces. `only_with_names` are in a report --with-names."""

    always: str
    only_with_names: str = ""

    def select(self, value: object, *, with_names: bool) -> dict[str, Any]:
        fields = f"{self.always} {self.only_with_names if with_names else ''}".split()
        values: Mapping[str, Any] = as_object(value)
        return {field: values[field] for field in fields}


_FINDING = _Fields("level name", "detail fix")
_REASON = _Fields("level code", "detail remedy")
_HEALTH = _Fields("level workers jobs batches_replaced failures")
_WORKER = _Fields(
    "id state pid version cpu_slots io_slots node_slots is_draining is_disk_low started_at heartbeat_at running", "host"
)
_ERROR = _Fields("code job_type jobs newest_job_id newest_at", "newest_name newest_message newest_remedy")
_OWNER = _Fields("documents pages files size", "owner")
_JOB = _Fields(
    "id job_type priority status state held fence run_at created_at started_at heartbeat_at completed_at "
    "cancel_requested_at retry_count max_retries requeue_count timeout_seconds progress_percent progress_done "
    "progress_total progress_unit progress_rate progress_at batch_id document_id generation parent_id error_code",
    "owner name platform error_message error_remedy",
)
_ATTEMPT = _Fields(
    "fence started_at ended_at outcome error_code signal cpu_seconds memory_peak_bytes sandbox heard_at",
    "error_message error_remedy",
)
_EVENT = _Fields("id job_id fence from_status to_status at")


class _ReportFile(Struct, frozen=True):
    name: str
    about: str
    content: bytes


@verb
@click.option(
    "-o",
    "--output",
    "target",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("pagemill-report.tar.gz"),
    metavar="FILE",
    help="Default: pagemill-report.tar.gz.",
)
@click.option("--with-names", is_flag=True, help="Include names of files and owners, all settings, and error messages.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
def report(call: Invocation, target: Path, with_names: bool, force: bool) -> None:
    """\b
    pagemill report
    pagemill report -o bundle.tar.gz
    pagemill report -o bundle.tar.gz --with-names --force

    Write a support report: versions, settings, the output of doctor and status, workers, counts, errors, the newest
    failed jobs and events. Prints its contents; check it before you share it.

    Payloads, results, logs, the text of documents and credentials are never in it. Names of files and owners, paths and
    messages are in it only with --with-names. A message may repeat what a program printed or a part of its payload.
    """
    files = _write_report(call, target, with_names=with_names, is_forced=force)
    items = [{"name": file.name, "bytes": len(file.content), "about": file.about} for file in files]
    if call.print_if_json({"report": target, "with_names": with_names, "items": items}):
        return
    output.show_table(("FILE", "BYTES", "CONTENT"), [(file.name, len(file.content), file.about) for file in files])
    names = "with names and messages: check it before you share it" if with_names else "without names and messages"
    output.note(f"wrote {target}; {names}")


def _write_report(call: Invocation, target: Path, *, with_names: bool, is_forced: bool) -> list[_ReportFile]:
    if os.path.lexists(target) and not is_forced:
        raise Refused(f"{target} exists already", "--force replaces it, -o FILE writes another")
    files = [
        _make_file(name, about, make_content, with_names=with_names)
        for name, (about, make_content) in _contents(call, with_names=with_names).items()
    ]
    now = time.time()
    with atomic_write(target, mode=0o600) as target_file, tarfile.open(fileobj=target_file, mode="w:gz") as archive:
        for file in files:
            member = tarfile.TarInfo(f"pagemill-report/{file.name}")
            member.size, member.mtime, member.mode = len(file.content), now, 0o600
            archive.addfile(member, io.BytesIO(file.content))
    return files


def _contents(call: Invocation, *, with_names: bool) -> dict[str, tuple[str, Callable[[], object]]]:
    """Return a description of each file, and a function that makes its content."""
    settings = call.settings

    def select_all(values: Sequence[object], fields: _Fields) -> list[dict[str, Any]]:
        return [fields.select(value, with_names=with_names) for value in values]

    def health() -> object:
        checked = check_health(Overview(call.session))
        return _HEALTH.select(checked, with_names=with_names) | {"reasons": select_all(checked.reasons, _REASON)}

    def counts() -> object:
        totals = statistics(call.session)
        documents = call.session.library.counts_by_state()
        numbers = {"jobs": totals.items, "documents": documents, "files": totals.files, "size": totals.size}
        return numbers | {"by_owner": select_all(totals.by_owner, _OWNER)}

    def failed_jobs() -> object:
        jobs = call.session.job_queries.list(Selector(statuses=(Status.FAILED,)), most=_FAILED_JOBS_MAX)
        return [
            _JOB.select(job, with_names=with_names)
            | {"attempts": select_all(call.session.history.attempts(job.id), _ATTEMPT)}
            for job in jobs
        ]

    return {
        "versions.json": ("versions of what runs here", lambda: _machine() | versions(settings)),
        "config.json": ("settings, and which of them are set", lambda: _config(settings, with_names=with_names)),
        "handlers.json": (
            "handlers, what they offer and what they lack",
            lambda: _handlers(settings, with_names=with_names),
        ),
        "doctor.json": ("what pagemill doctor finds", lambda: select_all(list(examine(call.session)), _FINDING)),
        "status.json": ("what pagemill status says", health),
        "workers.json": ("the daemons", lambda: select_all(Overview(call.session).workers, _WORKER)),
        "counts.json": ("jobs by type and status, documents by state", counts),
        "errors.json": (
            f"what failed in the last {_ERRORS_SINCE.days}d, by code",
            lambda: select_all(call.session.overview.errors(since=as_text(wall_clock() - _ERRORS_SINCE)), _ERROR),
        ),
        "failed.json": (
            f"the newest {_FAILED_JOBS_MAX} failed jobs and their attempts, without payloads",
            failed_jobs,
        ),
        "events.json": (
            f"the newest {_EVENTS_MAX} changes of status",
            lambda: select_all(call.session.history.newest_events(most=_EVENTS_MAX), _EVENT),
        ),
    }


def _make_file(name: str, about: str, make_content: Callable[[], object], *, with_names: bool) -> _ReportFile:
    """Return the file with the content, or with the error that `make_content` raises."""
    try:
        content = make_content()
    except (PagemillError, OSError) as error:
        content = {"error": error.code if isinstance(error, PagemillError) else type(error).__name__}
        content |= {"detail": str(error)} if with_names else {}
    object_to_write = content if isinstance(content, Mapping) else {"items": content}
    text = as_json(as_object(object_to_write), indent=2)
    return _ReportFile(name, about, f"{text}\n".encode("utf-8", "replace"))


def _machine() -> dict[str, object]:
    system = ""
    with suppress(OSError):
        system = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    return {
        "pagemill": VERSION,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "system": system,
        "processors": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def _config(settings: Settings, *, with_names: bool) -> object:
    items = []
    for key, value, origin in settings.describe_values():
        # The full origin may be the path of a file.
        safe_origin = "default" if origin == "default" else "set"
        if with_names:
            is_secret = _SECRET_KEY.search(key) and value not in ("", "-")
            items.append({"key": key, "value": "<secret>" if is_secret else value, "origin": origin})
        elif key in _SETTINGS_WITHOUT_NAMES:
            items.append({"key": key, "value": value, "origin": safe_origin})
        elif "." not in key:  # what follows a dot is a name that the owner chose
            items.append({"key": key, "origin": safe_origin})
    return items


def _handlers(settings: Settings, *, with_names: bool) -> object:
    settings.export_handler_settings()
    items = []
    for handler in installed_handlers(settings):
        item: dict[str, object] = {
            "job_type": handler.facts.job_type,
            "from": handler.distribution,
            "is_missing_something": handler.facts.missing is not None,
            "is_set_aside": handler.set_aside is not None,
            "offers": handler.declared.offers if handler.declared else None,
        }
        if with_names:
            item |= {"missing": handler.facts.missing_text, "set_aside": handler.set_aside}
        items.append(item)
    return items
