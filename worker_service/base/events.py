"""Log events. Payloads, results and secrets are never logged."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from worker_service.base.sanitize import as_json, harmless, harmless_text

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger, Processor

    Log = FilteringBoundLogger

# Users filter logs by these names, so some keep an older word: nursery is the fork server.
DAEMON_STARTED = "daemon.started"
DAEMON_DRAINED = "daemon.drained"
DAEMON_STOPPING = "daemon.stopping"
DAEMON_STOPPED = "daemon.stopped"
DAEMON_FAILED = "daemon.failed"

JOB_CLAIMED = "job.claimed"
JOB_STARTED = "job.started"
JOB_COMPLETED = "job.completed"
JOB_FAILED = "job.failed"
JOB_RETRIED = "job.retried"
JOB_SNOOZED = "job.snoozed"
JOB_RELEASED = "job.released"
JOB_CANCELLED = "job.cancelled"
JOB_REQUEUED = "job.requeued"
JOB_STOPPED = "job.stopped"
JOB_UNKNOWN = "job.disowned"
LEASE_LOST = "lease.lost"

WORKER_REGISTERED = "worker.registered"
WORKER_FENCED = "worker.fenced"
WORKER_UNFENCED = "worker.unfenced"
SLOTS_CHANGED = "worker.slots_changed"
WORKER_RESCUED = "worker.rescued"
BEAT_FAILED = "beat.failed"

FORK_SERVER_DIED = "nursery.died"
CLUSTER_TYPE_UNKNOWN = "cluster.type_unknown"
RAY_DRIVER_DIED = "ray_driver.died"
FORK_SERVER_RESTARTED = "nursery.restarted"
HANDLER_SET_ASIDE = "handler.set_aside"

STORE_LOCKED = "store.locked"
STORE_UNAVAILABLE = "store.unavailable"
STORE_RECOVERED = "store.recovered"
DATABASE_REPLACED = "database.replaced"
DISK_LOW = "disk.filled"
DISK_FREED = "disk.freed"
JOBS_PRUNED = "jobs.pruned"
PEOPLE_TOLD = "people.told"
LIMITS_REPLACED = "limits.replaced"
SETTINGS_RELOADED = "settings.reloaded"
SETTINGS_REFUSED = "settings.refused"
SCHEDULE_BEGUN = "schedule.begun"
SCHEDULE_MISSED = "schedule.missed"
SCHEDULE_FAILED = "schedule.failed"
TYPE_UNKNOWN = "type.unknown"
OBJECTS_SWEPT = "objects.swept"
KEPT_SWEPT = "kept.swept"
PASSWORDS_FORGOTTEN = "passwords.forgotten"
DOCUMENTS_UNNAMED = "documents.unnamed"
CHORE_FAILED = "chore.failed"

WEB_STARTED = "web.started"
WEB_STOPPED = "web.stopped"
REQUEST_FAILED = "request.failed"
VISITOR_REFUSED = "visitor.refused"

# Notices are also logged, each under its kind. The end of a job is logged as a job event.
NOTICES = (
    "document.started", "document.ready", "document.failed", "document.taken_over",
    "batch.started", "batch.waiting", "batch.stopped", "batch.resumed", "batch.done", "batch.failed",
    "action.fired", "schedule.missed", JOB_FAILED,
)  # fmt: skip

_JOURNAL = "/run/systemd/journal/socket"
_SYSLOG_PRIORITY_BY_LEVEL = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}


def begin_logging(log_format: str, *, environ: Mapping[str, str] | None = None, stream: TextIO | None = None) -> Log:
    with _without_rich():
        import structlog

    stream = stream or sys.stderr
    format_name = _format_for(log_format, os.environ if environ is None else environ, stream)
    processors: list[Processor] = [structlog.processors.add_log_level]
    if format_name == "journal":
        processors += [_as_journal_entry]
    elif format_name == "console":
        processors += [
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            structlog.processors.format_exc_info,
            _sanitised_event,
            structlog.dev.ConsoleRenderer(colors=stream.isatty() and not os.environ.get("NO_COLOR")),
        ]
    else:
        processors += [
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            lambda _, __, event: as_json(event),
        ]
    logger: _LineLogger | _JournalLogger = _JournalLogger() if format_name == "journal" else _LineLogger(stream)
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger("info"),
        logger_factory=lambda *_: logger,
        cache_logger_on_first_use=True,
    )
    log: Log = structlog.get_logger()
    return log


@contextmanager
def _without_rich() -> Iterator[None]:
    # structlog imports rich if it is installed, which takes longer than structlog itself. It is not used here.
    if "rich" in sys.modules:
        yield
        return
    sys.modules["rich"] = None  # type: ignore[assignment]  # its import now fails
    try:
        yield
    finally:
        del sys.modules["rich"]


def _format_for(log_format: str, environ: Mapping[str, str], stream: TextIO) -> str:
    if log_format != "auto":
        return log_format
    if _is_journal(environ.get("JOURNAL_STREAM", ""), stream):
        return "journal"
    return "console" if stream.isatty() else "json"


def _is_journal(journal_stream: str, stream: TextIO) -> bool:
    """`journal_stream` is $JOURNAL_STREAM: device and inode of the stream that systemd reads."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return journal_stream == f"{status.st_dev}:{status.st_ino}"


class _LineLogger:
    """A stream that ignores errors: a closed terminal must not stop the daemon."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def msg(self, line: str) -> None:
        with self._lock:
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):
                pass

    debug = info = warning = warn = error = critical = exception = log = msg


def _sanitised_event(_: Any, __: str, event: Any) -> dict[str, Any]:
    sanitised = dict(event)
    for name, value in event.items():
        if isinstance(value, str):
            sanitised[name] = harmless_text(value) if name == "exception" else harmless(value)
    return sanitised


def _as_journal_entry(_: Any, __: str, event: Any) -> dict[str, Any]:
    """Return an entry: MESSAGE for people, PAGEMILL_* for `journalctl PAGEMILL_JOB_ID=42`."""
    import traceback

    name, level = event.pop("event"), event.pop("level", "info")
    error = event.pop("exc_info", None)
    fields = {
        "PRIORITY": str(_SYSLOG_PRIORITY_BY_LEVEL.get(level, 6)),
        "SYSLOG_IDENTIFIER": "pagemill",
        "PAGEMILL_EVENT": name,
    }
    fields |= {f"PAGEMILL_{key.upper()}": _value_as_text(value) for key, value in event.items()}
    fields["MESSAGE"] = " ".join([name, *(f"{key}={_value_as_text(value)}" for key, value in event.items())])
    if error:
        _, current_exception, _ = sys.exc_info()
        exception = current_exception if error is True else error
        if isinstance(exception, BaseException):
            fields["PAGEMILL_TRACEBACK"] = "".join(traceback.format_exception(exception))
    return {"fields": fields}


def _value_as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


class _JournalLogger:
    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def msg(self, *, fields: Mapping[str, str]) -> None:
        try:
            self._socket.sendto(b"".join(_encoded_field(*field) for field in fields.items()), _JOURNAL)
        except OSError:
            # The entry is too long, or there is no journal. Under systemd, stderr also leads to the journal.
            sys.stderr.write(harmless(fields["MESSAGE"][:2000]) + "\n")

    debug = info = warning = warn = error = critical = exception = log = msg


def _encoded_field(name: str, value: str) -> bytes:
    # The journal's protocol has a second form, with the length, for values with line breaks.
    data = value.encode("utf-8", "replace")
    if b"\n" not in data:
        return name.encode() + b"=" + data + b"\n"
    return name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"
