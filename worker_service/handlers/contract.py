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
    RepublishedFile,
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
    def payload(self) -> P_co: ...
    @property
    def job_type(self) -> str: ...
    @property
    def platform(self) -> str: ...
    @property
    def account(self) -> str | None: ...
    @property
    def owner(self) -> str: ...
    @property
    def document_id(self) -> int | None: ...
    @property
    def generation(self) -> int | None: ...
    @property
    def document(self) -> KnownDocument | None: ...

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
        """A directory that outlives attempts, for handlers with a `keep_key`. One attempt at a time can use it."""

    @property
    def state(self) -> Any:
        """The state of the job's last `checkpoint`, or None."""

    @property
    def idempotency_key(self) -> str:
        """Equal for all attempts of the job."""

    @property
    def slots(self) -> int:
        """Number of attempts that can run at once, here or on cluster nodes."""

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

        Pass `rate` (units per second) if the handler has a better figure than the average.
        """

    def log(self, line: str) -> None:
        """Write a line to the job's log, which keeps the newest 3,000."""

    def cancelled(self) -> bool:
        """Return True once the attempt should end.

        A handler that calls this is not interrupted by `Stopped`, so it can finish its piece of work.
        """

    def checkpoint(
        self,
        state: object,
        follow_ups: Sequence[NewJob] = (),
        crawl: CrawlPage | None = None,
        embeddings: Embeddings | None = None,
    ) -> None:
        """Keep `state` (JSON) for the next attempt, enqueue `follow_ups`, and record results, in one transaction.

        The call returns before the transaction. Pages and checkpoints are written in the order of the calls.
        """

    def save_page(self, page: PageResult) -> None:
        """Save a page of the job's document, even if the attempt fails later."""

    def save_pages(self, pages: Sequence[PageResult]) -> None: ...

    def ask(self, question: Question[A]) -> A:
        """Query the database. Each call takes milliseconds, so ask for many things at once."""


class File(Struct, frozen=True):
    path: Path | str
    role: str = ""
    """Role in the job's document: original, text, pages, pdf or thumbnail. Empty for other files."""
    name: str = ""
    """Name that users see. Empty uses the name in staging."""
    sha256: str = ""
    md5: str = ""
    note: str = ""
    """Text for users. The note of an original is also shown with its document."""


class Done(Struct, frozen=True):
    result: object = None
    files: Sequence[Path | str | File | RepublishedFile] = ()
    """Files in staging, published after the handler has returned."""
    follow_ups: Sequence[NewJob] = ()
    document: DocumentFacts | None = None
    publishes: bool = False
    """True if users should now see this generation of the document."""


class HandlerError(Exception):
    """`code` is stable; `detail` says what is wrong, `remedy` what the user can do about it."""

    def __init__(self, code: str, detail: str = "", remedy: str = "") -> None:
        super().__init__(code, detail, remedy)
        self.code, self.detail, self.remedy = code, detail, remedy

    @property
    def problem(self) -> Problem:
        return Problem(self.code, self.detail, self.remedy)

    def __str__(self) -> str:
        return str(self.problem) or self.code


class Retryable(HandlerError):
    """Another attempt may succeed. `after` is its minimum delay in seconds; None uses the retry policy."""

    def __init__(
        self, detail: str = "", remedy: str = "", *, after: float | None = None, code: str = "RETRYABLE"
    ) -> None:
        super().__init__(code, detail, remedy)
        self.after = after


class Permanent(HandlerError):
    """No other attempt can succeed."""


class Snooze(HandlerError):
    """The job must wait. This costs no attempt. Pass `after` in seconds, or `until` with a time zone."""

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
    """The machine lacks something that not every job of this type needs. The job waits `after` seconds."""

    def __init__(self, detail: str, remedy: str = "", *, after: float = 60.0) -> None:
        super().__init__(detail, remedy, after=after, code=CAPABILITY_MISSING)


class PauseSource(HandlerError):
    """The source of the job rests: the daemon starts no job of it for `after` seconds. This costs no attempt."""

    def __init__(self, detail: str, remedy: str = "", *, after: float, code: str = "RESTING") -> None:
        super().__init__(code, detail, remedy)
        self.after = after


class Stopped(BaseException):
    """Raised in a handler that must end and has not called `cancelled()`. Clean up, but do not catch it."""


class Limits(Struct, frozen=True):
    """Limits of one attempt. None uses the limit of the service itself."""

    memory_bytes: int | None = 1024 * MIB
    cpu_seconds: int | None = 3600
    wall_seconds: int = 3600
    open_files: int | None = 256
    file_bytes: int | None = 4096 * MIB
    network: bool = False


class Choices(Struct, frozen=True):
    # The encoded names are in the rows of the table `handler`.
    available: Sequence[str] = field(name="there")
    """Values available on this machine."""
    how_to_install: Mapping[str, str] = field(default_factory=dict, name="to_get")
    """Command by missing value. A job that needs such a value waits."""
    value_by_alias: Mapping[str, str] = field(default_factory=dict, name="called")

    def closest(self, word: str) -> str | None:
        normalised = word.lower().replace("-", "_")
        values = (*self.available, *self.how_to_install)
        value_by_word = {**{value.lower(): value for value in values}, **self.value_by_alias}
        if normalised in value_by_word:
            return value_by_word[normalised]
        # A word of two or three letters is close to many values.
        near = difflib.get_close_matches(normalised, value_by_word, n=1, cutoff=0.75) if len(normalised) > 3 else []
        return value_by_word[near[0]] if near else None


class Handler(Struct, Generic[P], frozen=True):
    job_type: str
    run: Callable[[Context[P]], Done | None]
    payload: type[P]
    """Usually a frozen dataclass. Users see the field `pages` if the failure of this job makes its document fail."""
    job_class: JobClass = "cpu"
    limits: Limits = field(default_factory=Limits)
    at_most_once: bool = False
    """After the handler has started, the job runs again only if the handler raises `Retryable` or `Snooze`."""
    keep_key: Callable[[P], str] | None = None
    """Attempts with the same key share `context.keep`, one at a time."""
    missing: Callable[[], str | Problem | None] | None = None
    """Returns what this machine lacks for this handler, or None. A `Problem` also names the remedy."""
    offers: Callable[[], str | None] | None = None
    """Returns what users can choose from on this machine ("trained data for deu, eng")."""
    choices: Callable[[], Mapping[str, Choices]] | None = None
    """Returns the choices by payload key. Called once, like `missing`."""
    identity: Callable[[], Sequence[str]] | None = None
    """Returns what the results depend on ("tesseract 5.3.0"). Cluster nodes where this differs are not used."""
    runs_on_cluster: bool = False
    """True if attempts only save pages, return a result and ask `KnownPages`, so that any machine can run them."""
    slicer: Callable[[Path], Callable[[P, Path], bool]] | None = None
    """Opens an original, and returns a function that writes the part for a payload to a file. Runs in a sandbox.

    An attempt on a cluster node gets only this part, as the input `slice`, unless the function returns False.
    """
    environment: Sequence[str] = ()
    """Names of the only environment variables that the handler can see."""
    credentials: Sequence[str] = ()
    """Names or patterns (hook-*) of the only files in $CREDENTIALS_DIRECTORY that the handler can read."""
    reads: Sequence[Path] = ()
    """Readable paths besides programs and libraries."""
    reads_payload: Callable[[P], Sequence[Path]] | None = None
    """Returns more readable paths for one payload. Called in the child before the sandbox is applied."""
    writes: Sequence[Path] = ()
    """Writable paths besides the staging and keep directories."""
    about: Mapping[str, str] = field(default_factory=dict)
    sandbox: Sandbox = "default"
    """`off` is only for the administrator's own programs. In a sandbox, chmod and utime pretend to succeed."""
    reuse: int = 0
    """Number of attempts that one child process runs in turn, for many small, trusted jobs.

    Variables keep their values, attempts can write the keep directories of other keys, and the child cannot start
    programs. If an attempt leaves threads, files or other changes behind, the child ends.
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
        needs_this_machine = any((self.reads, self.writes, self.keep_key, self.reads_payload))
        if self.runs_on_cluster and (self.at_most_once or self.sandbox == "off" or needs_this_machine):
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
        for name, is_set in hindrances.items():
            if self.reuse > 1 and is_set:
                raise ValueError(f"{self.job_type}: reuse does not go with {name}: leave one of them out")


class Family(Struct, frozen=True):
    """A factory of handlers from tables in the settings: one job type for each key of one section."""

    section: str
    make: Callable[[str, Mapping[str, object]], Handler[Any]]
    """Makes a handler from a key and its table. Raises ValueError if the table is invalid."""


NOTIFY = "notify"


class Message(Struct, frozen=True):
    to: str
    """An address: `mailto:ops@example.com`, `https://example.com/hook`, `apprise:ops`."""
    subject: str
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)
    at: str = ""
    """Time of the message, in RFC 3339 format."""
