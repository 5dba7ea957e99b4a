"""What passes between the daemon and the room of the children. Frozen; no process, no file, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from worker_service.errors import PagemillError
from worker_service.handlers.contract import Limits
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


@dataclass(frozen=True, slots=True)
class Described:
    """What the nursery found out about one handler, in a trial child."""

    facts: HandlerFacts
    reuse: int = 0
    wall_seconds: int = 3600
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
    job_id: int
    fence: int
    line: str


@dataclass(frozen=True, slots=True)
class Checkpointed:
    job_id: int
    fence: int
    state: str
    follow_ups: Sequence[NewJob] = ()


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
class Ended:
    """The child, and everything that it started, is gone. That was proven, not guessed."""

    job_id: int
    fence: int
    how: How
    result: str | None = None
    follow_ups: Sequence[NewJob] = ()
    files: Sequence[Path] = ()
    """In the staging directory, fsynced; still to be published."""
    code: str = ""
    message: str = ""
    after_seconds: float | None = None
    usage: Usage = Usage()  # noqa: RUF009  frozen


Happening = Started | Progressed | Logged | Checkpointed | Ended


class ChildError(PagemillError):
    """The nursery could not be started, or died. Nothing of it runs any more; start it again."""

    code = "nursery_failed"
    exit_code = 69
