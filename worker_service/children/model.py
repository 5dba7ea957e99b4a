"""What passes between the daemon and the room of the children. Frozen; no process, no file, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from worker_service.errors import PagemillError
from worker_service.handlers.contract import Limits
from worker_service.jobs.documents import CrawlPage, DocumentFacts, FileAgain, PageResult
from worker_service.jobs.model import HandlerFacts, NewJob, Usage


@dataclass(frozen=True, slots=True)
class Order:
    """Run one attempt of one job. All that a child learns of it."""

    job_id: int
    fence: int
    job_type: str
    platform: str
    account: str | None
    payload: str | None
    timeout_seconds: int | None
    """The job's own; None: the handler's."""
    state: str | None = None
    """The last checkpoint, JSON."""
    document_id: int | None = None
    generation: int | None = None
    inputs: Mapping[str, Path] = field(default_factory=dict)
    """The published files of its document by their role; absolute, and readable for this attempt."""
    owner: str = ""
    seat: int | None = None
    """The slot that it runs in. A child that is kept belongs to one; None: no child is kept for this."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What a handler says of itself that only people ask for: its child has it from the handler."""

    limits: Limits = Limits()  # noqa: RUF009  frozen
    sandbox: str = "default"
    has_keep: bool = False
    environment: Sequence[str] = ()
    credentials: Sequence[str] = ()
    reads: Sequence[Path] = ()
    writes: Sequence[Path] = ()
    about: Mapping[str, str] = field(default_factory=dict)
    offers: str | None = None


@dataclass(frozen=True, slots=True)
class Described:
    """What the nursery found out about one handler, in a trial child."""

    facts: HandlerFacts
    reuse: int = 0
    set_aside: str | None = None
    """Why it cannot be used: it hangs, crashes or cannot be imported. Its jobs fail with this sentence."""
    distribution: str = ""
    """Who brings it, and where it is: module:attribute. Empty where several do."""
    spec: str = ""
    declared: Declared | None = None
    """None: it was set aside before it could say anything."""


@dataclass(frozen=True, slots=True)
class Started:
    """The child is there. `pid_started`, its start in clock ticks, makes the pid the name of one process for ever."""

    job_id: int
    fence: int
    pid: int
    pid_started: int
    sandbox: str


@dataclass(frozen=True, slots=True)
class Progressed:
    job_id: int
    fence: int
    percent: float
    message: str


@dataclass(frozen=True, slots=True)
class Logged:
    """What it has logged and printed, since it was told of last."""

    job_id: int
    fence: int
    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Checkpointed:
    job_id: int
    fence: int
    state: str
    follow_ups: Sequence[NewJob] = ()
    crawl: CrawlPage | None = None


@dataclass(frozen=True, slots=True)
class PagesRead:
    """Pages of the job's document have been read."""

    job_id: int
    fence: int
    pages: Sequence[PageResult]


@dataclass(frozen=True, slots=True)
class Asked:
    """The child waits for an answer. It has been looked at: it is one of our questions, and a bounded one."""

    job_id: int
    fence: int
    number: int
    kind: str
    body: str
    """JSON; see `asking`."""


class How(StrEnum):
    """How an attempt ended, before anybody decided what follows from it."""

    DONE = "done"
    RETRYABLE = "retryable"
    PERMANENT = "permanent"
    SNOOZED = "snoozed"
    STOPPED = "stopped"
    """We stopped it: cancelled, lease lost, or the daemon drains."""
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    CRASHED = "crashed"
    GARBLED = "garbled"
    """It spoke nonsense, or ended without a result."""


@dataclass(frozen=True, slots=True)
class Publication:
    """A file that is to be published, and what its handler knows of it."""

    path: Path
    """In the staging directory, fsynced."""
    role: str = ""
    name: str = ""
    sha256: str = ""
    md5: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """The child, and everything that it started, is gone. That was proven, not guessed."""

    job_id: int
    fence: int
    how: How
    result: str | None = None
    follow_ups: Sequence[NewJob] = ()
    published: Sequence[Publication] = ()
    """Still to be moved to where published files live."""
    code: str = ""
    message: str = ""
    after_seconds: float | None = None
    usage: Usage = Usage()  # noqa: RUF009  frozen
    published_again: Sequence[FileAgain] = ()
    document: DocumentFacts | None = None
    publishes: bool = False
    """Its generation of the document is from now on the one that people read."""
    rests_source: bool = False
    """Snoozed because its source needs a rest: nothing else of that source should start either."""
    took_seconds: float | None = None
    """In a child that is kept; or, for one that was not begun, how long it has waited at least."""

    @property
    def files(self) -> list[Path]:
        return [one.path for one in self.published]


Happening = Started | Progressed | Logged | PagesRead | Checkpointed | Asked | Ended


class ChildError(PagemillError):
    """The nursery could not be started, or died. Nothing of it runs any more; start it again."""

    code = "nursery_failed"
    exit_code = 69
