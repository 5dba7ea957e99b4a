"""Diagnostic report for support: versions, settings, state of the service, and recent failures.

Each part is written as far as possible: if the database cannot be opened, the report says why instead. It never
includes payloads, results, logs or pages. Names of files and owners are replaced unless the user wants them kept; the
same name always gets the same substitute, also inside sentences.
"""

from __future__ import annotations

import io
import json
import os
import platform
import re
import tarfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import Struct

from worker_service import VERSION
from worker_service.base.errors import JobNotFound, PagemillError, Refused
from worker_service.base.files import atomic_write
from worker_service.base.sanitize import as_json
from worker_service.jobs.job import Job, Status
from worker_service.jobs.selector import Selector
from worker_service.services import overview
from worker_service.services.database import Session, versions
from worker_service.services.handlers import installed
from worker_service.services.health import examine, health
from worker_service.services.serialize import as_object
from worker_service.settings.config import Settings

_ERRORS_SINCE = "30d"
_EVENTS_MOST = 500
_FAILED_MOST = 50
_OWNERS_MOST = 5000

# Columns about the progress of a job, without its input.
_OF_A_JOB = (
    "id job_type platform priority status state held fence run_at created_at started_at heartbeat_at completed_at "
    "cancel_requested_at retry_count max_retries requeue_count timeout_seconds progress_percent progress_done "
    "progress_total progress_unit progress_rate progress_at batch_id document_id generation parent_id error_code "
    "error_message error_remedy"
).split()
_OF_AN_ATTEMPT = (
    "fence started_at ended_at outcome error_code error_message error_remedy signal cpu_seconds memory_peak_bytes "
    "sandbox heard_at"
).split()
_SECRET = re.compile(r"secret|password|passphrase|token|credential|api_?key", re.IGNORECASE)

# System directories, whose paths may be included: they belong to programs, not to a user.
_OF_THE_SYSTEM = ("/usr", "/bin", "/lib", "/proc", "/sys", "/dev", "/run", "/etc/pagemill", "/var/lib/pagemill", "/nix")
_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>]+", re.IGNORECASE)
_ADDRESS = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_PATH = re.compile(r"(?<![\w<~.])/(?:[^\s/'\":;,()<>]+/?)+")
_FILE = re.compile(
    r"[^\s/'\":;,()<>]+\.(?:pdf|xlsx?|ods|csv|tsv|tiff?|png|gif|jpe?g|docx?|pptx?|od[tp]|txt|zip|eml|html?)\b", re.I
)
_HOME = re.compile(r"/home/[^/\s'\"]+")
_LEAF_LETTERS_LEAST = 4


class Part(Struct, frozen=True):
    """A file of the report."""

    name: str
    about: str
    content: bytes


@dataclass(slots=True)
class Names:
    """Substitutes for the names of owners and files."""

    are_told: bool
    own: Sequence[str] = ()
    """Directories of this program, whose paths may be included."""
    _known: dict[str, str] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)

    def owner(self, name: str) -> str:
        return name if self.are_told or not name else self._for(name, "owner")

    def file(self, name: str | None) -> str | None:
        if self.are_told or not name:
            return name
        return self._for(name, "file", PurePosixPath(name).suffix if PurePosixPath(name).suffix[1:].isalnum() else "")

    def learn(self, job: Job) -> None:
        """Learn the names and input of a job, which sentences about it may repeat."""
        self.owner(job.owner)
        self.file(job.name)
        about = [one for one in (job.name, job.source_key) if one]
        for leaf in _leaves(job.payload):
            if len(leaf) >= _LEAF_LETTERS_LEAST and not any(one in leaf for one in about):
                self._known.setdefault(leaf, "<given>")
        if not self.are_told:
            for key, word in ((job.account, "account"), (job.source_key, "key")):
                if key:
                    self._for(key, word)
            self.file(PurePosixPath(job.source_key).name if job.source_key else None)

    def text(self, text: str | None) -> str | None:
        if not text:
            return text
        # Longest first: replace a path before the name at its end.
        for known in sorted((one for one in self._known if one in text), key=len, reverse=True):
            text = self._known[known].join(re.split(rf"(?<!\w){re.escape(known)}(?!\w)", text))
        if self.are_told:
            return text
        text = _ADDRESS.sub("<address>", _URL.sub("<url>", text))
        text = _FILE.sub("<file>", _PATH.sub(lambda found: self._path(found[0]), text))
        return _HOME.sub("~", text)

    def hidden(self, value: object, *texts: str) -> dict[str, Any]:
        """Return the value as a JSON object, with names replaced in the given fields."""
        told: dict[str, Any] = as_object(value)
        return told | {name: self.text(told[name]) for name in texts}

    def _path(self, path: str) -> str:
        return path if path.startswith((*_OF_THE_SYSTEM, *self.own)) else "<path>"

    def _for(self, name: str, word: str, suffix: str = "") -> str:
        if name not in self._known or self._known[name] == "<given>":
            self._numbers[word] = self._numbers.get(word, 0) + 1
            self._known[name] = f"{word}-{self._numbers[word]}{suffix}"
        return self._known[name]


def _leaves(payload: str | None) -> Iterator[str]:
    """Yield all texts in a payload, at any depth."""
    try:
        left = [json.loads(payload or "null")]
    except (ValueError, RecursionError):
        return
    while left:
        one = left.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, list):
            left += one
        elif isinstance(one, dict):
            left += one.values()


# ── Contents ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def report(
    settings: Settings, open_session: Callable[[], Session], target: Path, *, with_names: bool, is_forced: bool
) -> list[Part]:
    """Write the report to `target`, readable only by the caller; return its parts."""
    if os.path.lexists(target) and not is_forced:
        raise Refused(f"{target} is there already: --force replaces it, -o FILE writes another")
    parts = _parts(settings, open_session, with_names=with_names)
    _write(parts, target)
    return parts


def _parts(settings: Settings, open_session: Callable[[], Session], *, with_names: bool) -> list[Part]:
    names = Names(with_names, (str(settings.database), str(settings.workspace), str(Path(__file__).parents[2])))
    for owner in sorted(settings.limits.get("owner", {}).keys() - {"*"}):
        names.owner(owner)
    try:
        opened: Session | PagemillError = open_session()
    except PagemillError as error:
        opened = PagemillError(f"the database cannot be opened: {error.code}: {error}")

    def session() -> Session:
        if isinstance(opened, PagemillError):
            raise opened
        return opened

    # Learn all names first: an early part may contain names that only a later part introduces.
    with suppress(PagemillError):
        _learn(session(), names)
    told: dict[str, tuple[str, Callable[[], object]]] = {
        "versions.json": ("versions of what runs here", lambda: _machine() | versions(settings)),
        "config.json": ("settings, and where each comes from", lambda: _config(settings, names)),
        "handlers.json": ("handlers, what they offer and what they lack", lambda: _handlers(settings, names)),
        "doctor.json": (
            "what pagemill doctor finds",
            lambda: [names.hidden(one, "name", "detail", "fix") for one in examine(session())],
        ),
        "status.json": ("what pagemill status says", lambda: _status(session(), names)),
        "workers.json": ("the daemons", lambda: overview.workers(session())),
        "counts.json": ("jobs by type and status, documents by state", lambda: _counts(session(), names)),
        "errors.json": (
            f"what failed in the last {_ERRORS_SINCE}, by code",
            lambda: [
                names.hidden(one, "newest_message", "newest_remedy") | {"newest_name": names.file(one.newest_name)}
                for one in overview.errors(session(), since=_ERRORS_SINCE)
            ],
        ),
        "failed.json": (
            f"the newest {_FAILED_MOST} failed jobs and their attempts, without payloads",
            lambda: _failed(session(), names),
        ),
        "events.json": (
            f"the newest {_EVENTS_MOST} changes of status",
            lambda: session().store.reading.newest_events(most=_EVENTS_MOST),
        ),
    }
    return [_part(name, about, tell, names) for name, (about, tell) in told.items()]


def _part(name: str, about: str, tell: Callable[[], object], names: Names) -> Part:
    try:
        return Part(name, about, _written(tell()))
    except (PagemillError, OSError) as error:
        return Part(name, about, _written({"untold": names.text(f"{type(error).__name__}: {error}")}))


def _written(value: object) -> bytes:
    content = as_object(value if isinstance(value, Mapping) else {"items": value})
    return f"{as_json(content, indent=2)}\n".encode("utf-8", "replace")


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


def _config(settings: Settings, names: Names) -> object:
    def told(key: str, value: str) -> str | None:
        return "<secret>" if _SECRET.search(key) and value not in ("", "-") else names.text(value)

    return [
        {"key": names.text(key), "value": told(key, value), "origin": names.text(origin)}
        for key, value, origin in settings.shown()
    ]


def _handlers(settings: Settings, names: Names) -> object:
    settings.hand_to_handlers()
    return [
        {
            "job_type": one.facts.job_type,
            "from": one.distribution,
            "missing": names.text(one.facts.missing),
            "missing_remedy": names.text(one.facts.missing_remedy),
            "set_aside": names.text(one.set_aside),
            "offers": one.declared.offers if one.declared else None,
        }
        for one in installed(settings)
    ]


def _learn(session: Session, names: Names) -> None:
    reading = session.store.reading
    of_documents = [one.owner for one in session.store.upkeep.sizes_by_owner()]
    of_limits = reading.limits().get("owner", {}).keys() - {"*"}
    of_pauses = [one.name for one in reading.pauses() if one.scope == "owner"]
    of_jobs = reading.names("owner", "", most=_OWNERS_MOST)
    for owner in dict.fromkeys([*of_documents, *sorted(of_limits), *of_pauses, *of_jobs]):
        names.owner(owner)
    for job in reading.list(Selector(statuses=(Status.FAILED,)), most=_FAILED_MOST):
        names.learn(job)
    for error in overview.errors(session, since=_ERRORS_SINCE):
        with suppress(JobNotFound):
            names.learn(reading.get(error.newest_job_id))


def _status(session: Session, names: Names) -> object:
    found = health(session)
    return as_object(found) | {"reasons": [names.hidden(reason, "detail", "remedy") for reason in found.reasons]}


def _counts(session: Session, names: Names) -> object:
    found = as_object(overview.numbers(session))
    for one in found["by_owner"]:
        one["owner"] = names.owner(one["owner"])
    return {"jobs": found.pop("items"), **found, "documents": session.store.library.counts_by_state()}


def _failed(session: Session, names: Names) -> object:
    jobs = session.store.reading.list(Selector(statuses=(Status.FAILED,)), most=_FAILED_MOST)
    return [
        {
            **_only(names.hidden(job, "error_message", "error_remedy"), _OF_A_JOB),
            "owner": names.owner(job.owner),
            "name": names.file(job.name),
            "attempts": [
                _only(names.hidden(one, "error_message", "error_remedy"), _OF_AN_ATTEMPT)
                for one in session.store.reading.attempts(job.id)
            ],
        }
        for job in jobs
    ]


def _only(values: Mapping[str, object], wanted: Collection[str]) -> dict[str, object]:
    return {name: values[name] for name in wanted}


def _write(parts: Sequence[Part], target: Path) -> None:
    now = time.time()
    with atomic_write(target, mode=0o600) as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for part in parts:
            member = tarfile.TarInfo(f"pagemill-report/{part.name}")
            member.size, member.mtime, member.mode = len(part.content), now, 0o600
            archive.addfile(member, io.BytesIO(part.content))
