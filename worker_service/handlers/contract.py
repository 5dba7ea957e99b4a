"""The contract between pagemill and the code for one job type.

A handler is a guest: it is called with a `Context`, works inside `context.staging`, and returns `Done` or raises one
of the errors below. It may run twice for one job, and it may be stopped between any two of its lines.
How it is found is told in `registry`; how it is run, in `worker_service.runner`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

from msgspec import Struct, field

from worker_service.base.errors import Problem
from worker_service.jobs.documents import Answer, CrawlPage, DocumentFacts, KnownDocument, PageResult, Question
from worker_service.jobs.model import CAPABILITY_MISSING, NewJob

P = TypeVar("P")
A = TypeVar("A", bound=Answer)
P_co = TypeVar("P_co", covariant=True)

JobClass = Literal["cpu", "io"]
Sandbox = Literal["default", "strict", "off"]

MIB = 1 << 20


class Context(Protocol[P_co]):
    """All that a handler may touch."""

    @property
    def payload(self) -> P_co:
        """Decoded into the handler's own type, validated before the handler is called."""

    @property
    def job_type(self) -> str: ...
    @property
    def platform(self) -> str: ...
    @property
    def account(self) -> str | None: ...
    @property
    def owner(self) -> str: ...

    @property
    def document_id(self) -> int | None:
        """The document that the job works for, and the generation of it that the work is for."""

    @property
    def generation(self) -> int | None: ...

    @property
    def document(self) -> KnownDocument | None:
        """What is known of it, so that no payload has to carry it."""

    @property
    def parent_id(self) -> int | None:
        """The job that asked for this one, or after whose failure it follows."""

    @property
    def inputs(self) -> Mapping[str, Path]:
        """The published files of the job's document by their role ('original', …), readable in the sandbox."""

    @property
    def staging(self) -> Path:
        """Write here. What `Done` names is published; the rest is thrown away."""

    @property
    def keep(self) -> Path:
        """Outlives attempts; for the handlers that declare a `keep_key`. Held by one attempt at a time."""

    @property
    def state(self) -> Any:
        """What this job's last `checkpoint` said; None if there was none."""

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of the job."""

    @property
    def slots(self) -> int:
        """How many attempts may run side by side, here or on nodes: for one that cuts its work into parts."""

    def progress(
        self,
        percent: float | None = None,
        message: str = "",
        *,
        done: int | None = None,
        total: int | None = None,
        unit: str = "",
        rate: float | None = None,
    ) -> None:
        """Report how far the attempt is: as a percentage, or as `done` of `total` units (`pages`, `bytes`), from which
        rate and time left are computed. Without `percent` it follows from the count. `rate` is in units per second,
        where the handler measures it better than as an average. Cheap; call it as often as you like."""

    def log(self, line: str) -> None:
        """Into the job's log, with what is printed to stdout and stderr. The newest 3,000 lines of a job are kept."""

    def cancelled(self) -> bool:
        """True once the attempt should end. A handler that asks is left to finish its piece of work, for the length
        of the grace period; one that never asks gets `Stopped` raised where it stands."""

    def checkpoint(self, state: object, follow_ups: Sequence[NewJob] = (), crawl: CrawlPage | None = None) -> None:
        """Keep `state` (JSON) for the next attempt, enqueue `follow_ups`, and note what a crawl has found, in one
        transaction under the lease. When it returns, the state is on its way; it lands in order."""

    def save_page(self, page: PageResult) -> None:
        """Keep what was read of a page of the job's document, even if the attempt dies."""

    def save_pages(self, pages: Sequence[PageResult]) -> None:
        """The same for some pages at once, which costs less than one by one. For pages that are read in no time."""

    def ask(self, question: Question[A]) -> A:
        """Ask for what is known. Takes milliseconds; ask for many things at once."""


class File(Struct, frozen=True):
    """A file in the staging directory that is to be published, and what is known of it."""

    path: Path | str
    role: str = ""
    """What it is to its document: original, text, pages, pdf, hocr, thumbnail. Empty: nothing to a document."""
    name: str = ""
    """What a person would call it; empty: as it is called in staging."""
    sha256: str = ""
    md5: str = ""
    note: str = ""
    """For a person. Of an original, its document's note tells it too."""


class SameFile(Struct, frozen=True):
    """A published file has the content already: it is published once more, without being copied."""

    file_id: int
    role: str = ""
    name: str = ""


class Done(Struct, frozen=True):
    """The job is done."""

    result: object = None
    """JSON."""
    files: Sequence[Path | str | File | SameFile] = ()
    """In the staging directory; fsynced and published after the handler has returned."""
    follow_ups: Sequence[NewJob] = ()
    document: DocumentFacts | None = None
    """What became known of the job's document."""
    publishes: bool = False
    """From now on the generation of the document that the job is for is the one that people read."""


class HandlerError(Exception):
    """The attempt did not succeed. `code` is stable and counted by; `detail` says what is wrong, `remedy` what a person
    does about it. Both are shown, in places of their own: a detail does not end with its remedy."""

    def __init__(self, code: str, detail: str, remedy: str) -> None:
        super().__init__(code, detail, remedy)
        self.code, self.detail, self.remedy = code, detail, remedy

    @property
    def problem(self) -> Problem:
        return Problem(self.code, self.detail, self.remedy)

    def __str__(self) -> str:
        return str(self.problem) or self.code


class Retryable(HandlerError):
    """Another attempt may succeed. `after`: not before so many seconds; None: as the retries' backoff says."""

    def __init__(
        self, detail: str = "", remedy: str = "", *, after: float | None = None, code: str = "RETRYABLE"
    ) -> None:
        super().__init__(code, detail, remedy)
        self.after = after


class Permanent(HandlerError):
    """No attempt can succeed."""

    def __init__(self, code: str, detail: str = "", remedy: str = "") -> None:
        super().__init__(code, detail, remedy)


class Snooze(HandlerError):
    """Not now, and nothing is wrong with the job: costs no attempt. Give `after` in seconds, or `until` with a zone.
    `WATCHING` as its code: the job has looked, will look again for ever, and nobody waits for its end."""

    def __init__(
        self,
        detail: str = "",
        remedy: str = "",
        *,
        after: float | None = None,
        until: datetime | None = None,
        code: str = "SNOOZED",
    ) -> None:
        if (after is None) == (until is None):
            raise TypeError("a snooze has either after= or until=")
        if until is not None and until.tzinfo is None:
            raise TypeError("until= needs a zone")
        super().__init__(code, detail, remedy)
        self.after, self.until = after, until


class Lacking(Snooze):
    """This machine lacks what the job needs, and others of its type do not. It looks again after a while, and waits
    behind the gate CAPABILITY_MISSING meanwhile."""

    def __init__(self, detail: str, remedy: str = "", *, after: float = 60.0) -> None:
        super().__init__(detail, remedy, after=after, code=CAPABILITY_MISSING)


class Rest(HandlerError):
    """The job's source needs a rest (a quota is used up, a credential is refused): no job of it starts for `after`
    seconds, this one included. Costs no attempt; people see what is wrong, and the remedy."""

    def __init__(self, detail: str, remedy: str = "", *, after: float, code: str = "RESTING") -> None:
        super().__init__(code, detail, remedy)
        self.after = after


class Stopped(BaseException):
    """Raised inside a handler that is asked to end and has never asked `cancelled()`. Clean up; do not catch it."""


class Limits(Struct, frozen=True):
    """What one attempt may use. None: as much as the service itself."""

    memory_bytes: int | None = 1024 * MIB
    """Address space, what the interpreter itself takes included."""
    cpu_seconds: int | None = 3600
    wall_seconds: int = 3600
    open_files: int | None = 256
    file_bytes: int | None = 4096 * MIB
    """Of any one file that it writes."""
    network: bool = False


class Choices(Struct, frozen=True):
    """What one key of a payload may be, so that who asks for something else is told at once."""

    there: Sequence[str]
    """On this machine."""
    to_get: Mapping[str, str] = field(default_factory=dict)
    """What is known besides, and how to get it. A job that needs it waits."""
    called: Mapping[str, str] = field(default_factory=dict)
    """What else people write for these, in small letters."""

    def meant(self, word: str) -> str | None:
        """What somebody had in mind who wrote this."""
        plain = word.lower().replace("-", "_")
        known = {**{one.lower(): one for one in (*self.there, *self.to_get)}, **self.called}
        # Of two or three letters, most are near to some others.
        near = difflib.get_close_matches(plain, known, n=1, cutoff=0.75) if len(plain) > 3 else []
        return known.get(plain) or (known[near[0]] if near else None)


class Handler(Struct, Generic[P], frozen=True):
    """The code for one job type, and what it declares about itself."""

    job_type: str
    run: Callable[[Context[P]], Done | None]
    payload: type[P]
    """A frozen dataclass, as a rule; a payload that does not fit it ends the job PAYLOAD_INVALID. What one calls
    `pages` is told to people when the job fails its document."""
    job_class: JobClass = "cpu"
    limits: Limits = field(default_factory=Limits)
    at_most_once: bool = False
    """Not safe to run twice: once it has begun, the job fails with MAY_HAVE_RUN unless the handler itself asks for
    another attempt."""
    keep_key: Callable[[P], str] | None = None
    """Attempts with the same key share `context.keep`, one at a time."""
    missing: Callable[[], str | Problem | None] | None = None
    """Says what this machine lacks to run it ("tesseract is not installed"), or None. A `Problem` also has the
    remedy ("apt-get install tesseract-ocr")."""
    offers: Callable[[], str | None] | None = None
    """Says what it found on this machine that people may choose from ("trained data for deu, eng")."""
    choices: Callable[[], Mapping[str, Choices]] | None = None
    """By the key of the payload. Asked once, as `missing` is."""
    identity: Callable[[], Sequence[str]] | None = None
    """What its results depend on beside what it is given ("tesseract 5.3.0", "eng 4113088"). Asked once. A cluster
    node that lacks one of them is not used."""
    runs_on_cluster: bool = False
    """Attempts may run on a cluster node: they have no effect but their result and pages, need nothing of this machine
    but their payload and inputs, and ask for nothing but `KnownPages`. They publish no files. An attempt that lacks a
    credential there runs again on this machine."""
    slicer: Callable[[Path], Callable[[P, Path], bool]] | None = None
    """For a handler that runs on a cluster and reads a part of a large file. Opens an original, and returns a function
    that writes the part that an attempt with this payload reads into another file; it returns False if the attempt
    needs the whole file. Called on the head, in a child with the limits of an attempt. The attempt finds the part in
    its inputs as `slice`, and nothing else."""
    environment: Sequence[str] = ()
    """Names of variables that it may see; it sees no others."""
    credentials: Sequence[str] = ()
    """Names of files in $CREDENTIALS_DIRECTORY that it may read, or patterns such as hook-*; it can read no others."""
    reads: Sequence[Path] = ()
    """What it reads beside programs and libraries."""
    reads_payload: Callable[[P], Sequence[Path]] | None = None
    """What one attempt reads beside that, by its payload. Asked in its child before the sandbox shuts."""
    writes: Sequence[Path] = ()
    """What it writes beside its staging and keep directories."""
    about: Mapping[str, str] = field(default_factory=dict)
    """What else `pagemill handlers show` tells of it."""
    sandbox: Sandbox = "default"
    """default: as the settings say; strict, off: whatever they say. Off is for the owner's own programs. Inside one no
    file gets another mode, owner or time: chmod and utime seem to work, for who copies files, and change nothing."""
    reuse: int = 0
    """For many small, trusted jobs: one child serves so many attempts, one at a time, and is then replaced. What a
    handler keeps in its own variables, the next attempt finds. Each has its staging to itself, emptied before the
    next; the child starts no programs. It is replaced early after anything but a clean end: an exception that is none
    of ours, a thread or an open file that is left, a file outside its staging, another directory, mask, environment,
    limit or signal. Where the kernel does not give the whole sandbox, and for a job with files of a document, each
    attempt has a child of its own. What is kept for one key, attempts with another may touch as well."""
    schema: Mapping[str, object] | None = None
    """JSON Schema of the payload, where its type does not tell it: whoever enqueues what cannot fit hears of it."""

    def __post_init__(self) -> None:
        if not self.job_type or len(self.job_type) > 100 or not self.job_type.isprintable():
            raise ValueError(f"{self.job_type!r} is not the name of a job type")
        if self.job_class not in ("cpu", "io"):
            raise ValueError(f"{self.job_type}: job_class is cpu or io, not {self.job_class!r}")
        if self.reuse < 0:
            raise ValueError(f"{self.job_type}: reuse is a number of attempts, not {self.reuse}")
        of_this_machine = (self.reads, self.writes, self.keep_key, self.reads_payload)
        if self.runs_on_cluster and (self.at_most_once or self.sandbox == "off" or any(of_this_machine)):
            raise ValueError(
                f"{self.job_type}: runs_on_cluster does not go with at_most_once, sandbox off, reads, writes, "
                "reads_payload or keep_key: leave one of them out"
            )
        # A jail that is shut once cannot have been cut for one payload; and who is counted may not wait in line.
        hindrances = {
            "reads_payload": self.reads_payload is not None,
            "at_most_once": self.at_most_once,
            'sandbox="off"': self.sandbox == "off",
        }
        for name, is_there in hindrances.items():
            if self.reuse > 1 and is_there:
                raise ValueError(f"{self.job_type}: reuse does not go with {name}: leave one of them out")


class Family(Struct, frozen=True):
    """Handlers that the owner writes as tables in the settings: one job type for each key of one section."""

    section: str
    make: Callable[[str, Mapping[str, object]], Handler[Any]]
    """Given a key and its table; raises ValueError with a sentence about what is wrong with the table."""


NOTIFY = "notify"
"""The job type that tells people something. Whoever provides it gets a `Message` as its payload."""


class Message(Struct, frozen=True):
    """What somebody is to be told, whichever way."""

    to: str
    """An address: `mailto:ops@example.com`, `https://example.com/hook`, `apprise:ops`."""
    subject: str
    """One line."""
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)
    """The same for programs."""
    at: str = ""
    """When it was put together, as RFC 3339 has it."""
