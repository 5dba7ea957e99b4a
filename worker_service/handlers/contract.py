"""The contract between pagemill and the code for one job type.

A handler may run twice for one job, and be stopped between any two of its lines.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

from msgspec import Struct, field

from worker_service.base.errors import Problem
from worker_service.jobs.documents import (
    CrawlPage,
    DocumentFacts,
    KnownDocument,
    PageResult,
    Question,
    QuestionAnswer,
)
from worker_service.jobs.embeddings import Embeddings
from worker_service.jobs.job import CAPABILITY_MISSING, NewJob

P = TypeVar("P")
A = TypeVar("A", bound=QuestionAnswer)
P_co = TypeVar("P_co", covariant=True)

JobClass = Literal["cpu", "io"]
Sandbox = Literal["default", "strict", "off"]

MIB = 1 << 20


class Context(Protocol[P_co]):
    @property
    def payload(self) -> P_co:
        pass

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
        pass

    @property
    def generation(self) -> int | None: ...

    @property
    def document(self) -> KnownDocument | None:
        pass

    @property
    def parent_id(self) -> int | None:
        """The job that enqueued this one, or whose failure triggered it."""

    @property
    def inputs(self) -> Mapping[str, Path]:
        """Published files of the document by role ('original', …), readable in the sandbox."""

    @property
    def staging(self) -> Path:
        """The directory to write to. Files named in `Done` are published; the rest is deleted."""

    @property
    def keep(self) -> Path:
        """A directory that outlives attempts, for handlers with a `keep_key`. One attempt at a time has it."""

    @property
    def state(self) -> Any:
        """The state of the job's last `checkpoint`, or None."""

    @property
    def idempotency_key(self) -> str:
        pass

    @property
    def slots(self) -> int:
        """Attempts that can run at once, here or on nodes; for handlers that split their work."""

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
        """Report a percentage, or `done` of `total` units (`pages`, `bytes`).

        Calls are cheap. Pass `rate` (units per second) if the handler has a better figure than the average.
        """

    def log(self, line: str) -> None:
        """Write a line to the job's log, which keeps the newest 3,000."""

    def cancelled(self) -> bool:
        """Return True once the attempt should end.

        A handler that calls it may finish its piece of work; in any other, `Stopped` is raised.
        """

    def checkpoint(
        self,
        state: object,
        follow_ups: Sequence[NewJob] = (),
        crawl: CrawlPage | None = None,
        embeddings: Embeddings | None = None,
    ) -> None:
        """Keep `state` (JSON) for the next attempt, enqueue `follow_ups`, and record results, in one transaction.

        Returns when the state is sent, before it is written; messages are written in order.
        """

    def save_page(self, page: PageResult) -> None:
        """Save a page of the job's document, even if the attempt fails later."""

    def save_pages(self, pages: Sequence[PageResult]) -> None:
        pass

    def ask(self, question: Question[A]) -> A:
        """Query the database. Takes milliseconds, so ask for many things at once."""


class File(Struct, frozen=True):
    path: Path | str
    role: str = ""
    """original, text, pages, pdf or thumbnail. Empty: not part of a document."""
    name: str = ""
    """Name for users; empty uses the name in staging."""
    sha256: str = ""
    md5: str = ""
    note: str = ""
    """Text for users. The note of an original is also shown with its document."""


class SameFile(Struct, frozen=True):
    """A published file, to be published again without a copy."""

    file_id: int
    role: str = ""
    name: str = ""


class Done(Struct, frozen=True):
    result: object = None
    files: Sequence[Path | str | File | SameFile] = ()
    """Files in staging, published after the handler has returned."""
    follow_ups: Sequence[NewJob] = ()
    document: DocumentFacts | None = None
    publishes: bool = False
    """Users should now see this generation of the document."""


class HandlerError(Exception):
    """`code` is stable; `detail` says what is wrong, `remedy` what the user can do about it."""

    def __init__(self, code: str, detail: str, remedy: str) -> None:
        super().__init__(code, detail, remedy)
        self.code, self.detail, self.remedy = code, detail, remedy

    @property
    def problem(self) -> Problem:
        return Problem(self.code, self.detail, self.remedy)

    def __str__(self) -> str:
        return str(self.problem) or self.code


class Retryable(HandlerError):
    """Another attempt may succeed. `after` is the minimum delay in seconds; None uses the retry backoff."""

    def __init__(
        self, detail: str = "", remedy: str = "", *, after: float | None = None, code: str = "RETRYABLE"
    ) -> None:
        super().__init__(code, detail, remedy)
        self.after = after


class Permanent(HandlerError):
    def __init__(self, code: str, detail: str = "", remedy: str = "") -> None:
        super().__init__(code, detail, remedy)


class Snooze(HandlerError):
    """The job must wait; costs no attempt. Pass `after` in seconds, or `until` with a time zone."""

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


class MissingDependency(Snooze):
    """The machine lacks what the job needs, though not what others of its type need. The job is tried again later."""

    def __init__(self, detail: str, remedy: str = "", *, after: float = 60.0) -> None:
        super().__init__(detail, remedy, after=after, code=CAPABILITY_MISSING)


class PauseSource(HandlerError):
    """Start no job of this source for `after` seconds. Costs no attempt."""

    def __init__(self, detail: str, remedy: str = "", *, after: float, code: str = "RESTING") -> None:
        super().__init__(code, detail, remedy)
        self.after = after


class Stopped(BaseException):
    """Raised in a handler that must end and has never called `cancelled()`. Clean up; do not catch it."""


class Limits(Struct, frozen=True):
    """Limits of one attempt. None: the limit of the service itself."""

    memory_bytes: int | None = 1024 * MIB
    cpu_seconds: int | None = 3600
    wall_seconds: int = 3600
    open_files: int | None = 256
    file_bytes: int | None = 4096 * MIB
    network: bool = False


class Choices(Struct, frozen=True):
    there: Sequence[str]
    """Values available on this machine."""
    to_get: Mapping[str, str] = field(default_factory=dict)
    """Other known values, and how to install each. A job that needs one waits."""
    called: Mapping[str, str] = field(default_factory=dict)

    def closest(self, word: str) -> str | None:
        plain = word.lower().replace("-", "_")
        known = {**{one.lower(): one for one in (*self.there, *self.to_get)}, **self.called}
        # A word of two or three letters is close to many values.
        near = difflib.get_close_matches(plain, known, n=1, cutoff=0.75) if len(plain) > 3 else []
        return known.get(plain) or (known[near[0]] if near else None)


class Handler(Struct, Generic[P], frozen=True):
    job_type: str
    run: Callable[[Context[P]], Done | None]
    payload: type[P]
    """Usually a frozen dataclass. A field `pages` is shown to users when the job fails its document."""
    job_class: JobClass = "cpu"
    limits: Limits = field(default_factory=Limits)
    at_most_once: bool = False
    """Once started, the job fails with MAY_HAVE_RUN instead of running again, unless the handler asks for it."""
    keep_key: Callable[[P], str] | None = None
    """Attempts with the same key share `context.keep`, one at a time."""
    missing: Callable[[], str | Problem | None] | None = None
    """Returns what this machine lacks to run it, or None. A `Problem` also has the remedy."""
    offers: Callable[[], str | None] | None = None
    """Returns what users can choose from on this machine ("trained data for deu, eng")."""
    choices: Callable[[], Mapping[str, Choices]] | None = None
    """Returns the choices by payload key. Called once, like `missing`."""
    identity: Callable[[], Sequence[str]] | None = None
    """Returns what its results depend on ("tesseract 5.3.0"). A node without that is not used."""
    runs_on_cluster: bool = False
    """Attempts may run on a cluster node: they have no effect but result and pages, and ask only `KnownPages`."""
    slicer: Callable[[Path], Callable[[P, Path], bool]] | None = None
    """Opens an original, and returns a function that writes the part for a payload, for attempts on a cluster.

    It runs in a sandbox. The function returns False if the attempt needs the whole file; otherwise its only input is
    `slice`.
    """
    environment: Sequence[str] = ()
    """Names of the only environment variables that it can see."""
    credentials: Sequence[str] = ()
    """Names or patterns (hook-*) of the only files in $CREDENTIALS_DIRECTORY that it can read."""
    reads: Sequence[Path] = ()
    """Paths that it reads besides programs and libraries."""
    reads_payload: Callable[[P], Sequence[Path]] | None = None
    """Returns more readable paths for one payload. Called in the child before the sandbox is applied."""
    writes: Sequence[Path] = ()
    """Paths that it writes besides its staging and keep directories."""
    about: Mapping[str, str] = field(default_factory=dict)
    sandbox: Sandbox = "default"
    """`off` is only for the administrator's own programs. In a sandbox, chmod and utime pretend to succeed."""
    reuse: int = 0
    """Number of attempts that one child serves in turn; for many small, trusted jobs.

    Variables of the handler survive, attempts can write the keep directories of other keys, and the child starts no
    programs. Anything that an attempt leaves behind ends the child.
    """
    schema: Mapping[str, object] | None = None
    """JSON Schema of the payload, if its type does not define it."""

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
        # The sandbox of a reused child is applied once, so it cannot depend on the payload. An at-most-once job must
        # not wait in a queue after it was counted as started.
        hindrances = {
            "reads_payload": self.reads_payload is not None,
            "at_most_once": self.at_most_once,
            'sandbox="off"': self.sandbox == "off",
        }
        for name, is_there in hindrances.items():
            if self.reuse > 1 and is_there:
                raise ValueError(f"{self.job_type}: reuse does not go with {name}: leave one of them out")


class Family(Struct, frozen=True):
    """A factory of handlers from tables in the settings: one job type for each key of one section."""

    section: str
    make: Callable[[str, Mapping[str, object]], Handler[Any]]
    """Makes a handler from a key and its table. Raises ValueError about a bad table."""


NOTIFY = "notify"


class Message(Struct, frozen=True):
    to: str
    """An address: `mailto:ops@example.com`, `https://example.com/hook`, `apprise:ops`."""
    subject: str
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)
    at: str = ""
    """When it was composed, in RFC 3339 format."""
