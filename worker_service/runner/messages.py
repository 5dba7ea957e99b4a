"""The messages between daemon, fork server and children."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from worker_service.handlers.contract import Limits
from worker_service.jobs.attempts import Count, Usage
from worker_service.jobs.documents import CrawlPage, DocumentFacts, FileAgain, KnownDocument, PageResult
from worker_service.jobs.job import NewJob
from worker_service.jobs.workers import HandlerFacts, NodeState

LINE_CHARACTERS_MAX = 2000
MESSAGE_CHARACTERS_MAX = 4000

Key = tuple[int, int]
"""Job id and fence: together they identify one attempt for ever."""


def attempt_name(key: Key) -> str:
    return f"{key[0]}-{key[1]}"


class Order(Struct, frozen=True):
    """One attempt of one job, with everything that its child needs to know."""

    job_id: int
    fence: int
    job_type: str
    platform: str
    account: str | None
    payload: str | None
    timeout_seconds: int | None
    """The job's own limit; None uses the handler's."""
    state: str | None = None
    """The last checkpoint, as JSON."""
    document_id: int | None = None
    generation: int | None = None
    inputs: Mapping[str, Path] = field(default_factory=dict)
    """Published files of the job's document by role; absolute paths, readable in this attempt."""
    contents: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of inputs by role, where it is known."""
    owner: str = ""
    document: KnownDocument | None = None
    parent_id: int | None = None
    """The job that enqueued this one."""
    node_slots: int = 0
    """Total slots of all cluster nodes."""
    known_digests: Sequence[str] = ()
    """Digests of the document's pages that earlier attempts have read. A node answers `KnownPages` from these."""

    @property
    def key(self) -> Key:
        return self.job_id, self.fence


class Declared(Struct, frozen=True):
    """Declarations of a handler that are only shown to users. Its child reads them from the handler itself."""

    limits: Limits = Limits()
    sandbox: str = "default"
    has_keep: bool = False
    environment: Sequence[str] = ()
    credentials: Sequence[str] = ()
    reads: Sequence[Path] = ()
    writes: Sequence[Path] = ()
    about: Mapping[str, str] = field(default_factory=dict)
    offers: str | None = None


class Described(Struct, frozen=True):
    """The description of one handler, made in a trial child."""

    facts: HandlerFacts
    reuse: int = 1
    """Maximum number of attempts that one child may serve."""
    set_aside: str | None = None
    """Why the handler cannot be used: it hangs, crashes or cannot be imported. Its jobs fail with this message."""
    distribution: str = ""
    """Distribution and module:attribute of the handler; empty if several provide it."""
    spec: str = ""
    declared: Declared | None = None
    """None if the handler was set aside before it was imported."""
    identity: Sequence[str] = ()
    """Programs and data that its results depend on (see `Handler.identity`)."""
    runs_on_cluster: bool = False
    has_slicer: bool = False


class AttemptReport(msgspec.Struct, tag=True, frozen=True):
    """Base class of the messages about one attempt."""

    job_id: int
    fence: int

    @property
    def key(self) -> Key:
        return self.job_id, self.fence


class Assigned(AttemptReport, tag=True, frozen=True):
    """The attempt's Ray task runs on this cluster node; its child has not started yet."""

    node: str


class Started(AttemptReport, tag=True, frozen=True):
    """The child runs and its sandbox is applied. `pid_started` is its start time in clock ticks; together with the pid
    it identifies one process for ever."""

    pid: int
    pid_started: int
    sandbox: str


class Progressed(AttemptReport, tag=True, frozen=True):
    percent: float
    message: str
    count: Count | None = None


class Logged(AttemptReport, tag=True, frozen=True):
    """Lines that the attempt has logged and printed since the last message. Sent by the fork server, which reads the
    output."""

    lines: Sequence[str]


class PagesRead(AttemptReport, tag=True, frozen=True):
    """Pages of the job's document. A child sends many at once, because each message wakes fork server and daemon."""

    pages: Sequence[PageResult]


class Checkpointed(AttemptReport, tag=True, frozen=True):
    state: str
    follow_ups: Sequence[NewJob] = ()
    crawl: CrawlPage | None = None


class Asked(AttemptReport, tag=True, frozen=True):
    """A question of the child, which waits for a `Reply` with the same number."""

    number: int
    kind: str
    body: str
    """The question as JSON."""


class How(StrEnum):
    """The end of an attempt, before the daemon decides what happens to the job."""

    DONE = "done"
    RETRYABLE = "retryable"
    PERMANENT = "permanent"
    SNOOZED = "snoozed"
    STOPPED = "stopped"
    """Stopped by the daemon: the job was cancelled, the lease was lost, or the daemon drains."""
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    CRASHED = "crashed"
    GARBLED = "garbled"
    """The child sent garbage, or ended without a result."""


class Publication(Struct, frozen=True):
    """A file to be published, and its handler's description of it."""

    path: Path
    """A file in the staging directory, fsynced: relative in the child's message, absolute in the daemon's."""
    role: str = ""
    name: str = ""
    sha256: str = ""
    md5: str = ""
    note: str = ""


class Ended(AttemptReport, tag=True, frozen=True):
    """The end of an attempt, sent by its child or by the fork server. When the daemon receives it, no process of the
    attempt is left."""

    how: How
    result: str | None = None
    follow_ups: Sequence[NewJob] = ()
    published: Sequence[Publication] = ()
    """Files that the daemon still has to move to the published files."""
    code: str = ""
    message: str = ""
    remedy: str = ""
    after_seconds: float | None = None
    usage: Usage = Usage()
    published_again: Sequence[FileAgain] = ()
    document: DocumentFacts | None = None
    publishes: bool = False
    """The generation of the document becomes the one that users see."""
    pauses_source: bool = False
    """Snoozed because its source must pause: no other job of the source should start either."""
    took_seconds: float | None = None
    """Duration, for a child that serves several attempts. For an order that was not started, its minimum wait."""
    is_reusable: bool = False
    """The child is unchanged and can take the next order."""

    @property
    def files(self) -> list[Path]:
        return [one.path for one in self.published]


AttemptEvent = Assigned | Started | Progressed | Logged | PagesRead | Checkpointed | Asked | Ended


class ClusterBegin(msgspec.Struct, frozen=True):
    """The part of `Begin` that is for the Ray driver."""

    address: str
    """HOST:PORT of the Ray head."""
    objects: Path
    """The directory of published files: the only one of the workspace that the driver may read."""
    identity: Mapping[str, Sequence[str]] = {}
    """`Handler.identity` on this machine, by job type that runs on nodes."""
    slicers: Mapping[str, str] = {}
    """Entry point of the handler (module:attribute), by job type whose originals can be sliced."""


class Begin(msgspec.Struct, tag=True, frozen=True):
    """The first message, with the settings of the fork server. `LocalPool` fills in `pool_id` and `credentials`."""

    staging_root: Path
    keep_root: Path
    lock_fd: int | None = None
    commands: Mapping[str, Mapping[str, Any]] = {}
    sandbox: str = "strict"
    slots: Mapping[str, int] = {}
    """Maximum number of running attempts, by job class. More orders wait, if their handler declares reuse."""
    types: Sequence[str] = ()
    """Job types that this worker will claim (WORKER_TYPES). Other handlers are not preloaded."""
    grace_seconds: float = 10.0
    import_seconds: float = 20.0
    tries_all: bool = False
    """Try the shipped handlers in children, too. Set after one of them ended a fork server that loaded them untried."""
    idle_seconds: float = 10.0
    """Maximum idle time of a child; then it is stopped."""
    wait_seconds: float = 0.1
    """Maximum wait of an order while no attempt of its class ends; then it goes back to the daemon."""
    extra_handlers: Sequence[str] = ()
    """``module:attribute``, for tests, where nothing is installed."""
    is_without_installed: bool = False
    handlers_dir: Path | None = None
    """Directory of handler files; None for no such directory."""
    pool_id: str = ""
    credentials: Path | None = None
    cluster: ClusterBegin | None = None
    """Present only for the Ray driver, which takes the place of a fork server."""


class Launch(msgspec.Struct, tag=True, frozen=True):
    order: Order
    environment: dict[str, str]
    """The variables that the handler declares; the fork server itself has none of them."""


class Stop(msgspec.Struct, tag=True, frozen=True):
    job_id: int
    fence: int
    now: bool = False


class Ping(msgspec.Struct, tag=True, frozen=True):
    """A check whether the fork server still responds."""


class Drain(msgspec.Struct, tag=True, frozen=True):
    """The names of all nodes that get no new attempts; sent only to the Ray driver."""

    nodes: tuple[str, ...] = ()


class Reply(msgspec.Struct, tag=True, frozen=True):
    """The answer to the child's question of this number. If `code` is set, there is no answer; `message` says why."""

    job_id: int
    fence: int
    number: int
    body: msgspec.Raw = msgspec.Raw(b"null")
    code: str = ""
    message: str = ""


class Hello(msgspec.Struct, tag=True, frozen=True):
    threads: int
    handlers: Sequence[Described]


class Pong(msgspec.Struct, tag=True, frozen=True):
    pass


class NodesSeen(msgspec.Struct, tag=True, frozen=True):
    """All nodes of the cluster, as the Ray driver sees them."""

    nodes: tuple[NodeState, ...]


class AttemptOver(msgspec.Struct, tag=True, frozen=True):
    """The proven end of an attempt. `ended` is the child's message unchanged; usage and duration in it are ignored."""

    ended: msgspec.Raw
    usage: Usage
    took_seconds: float | None = None


DaemonMessage = Begin | Launch | Stop | Ping | Reply | Drain

ChildInput = Launch | Reply

ChildMessage = Started | Progressed | PagesRead | Checkpointed | Asked | Ended

NodeMessage = AttemptOver | Started | Progressed | Logged | PagesRead | Checkpointed | Asked

PoolMessage = (
    Hello | Pong | NodesSeen | AttemptOver | Assigned | Started | Progressed | Logged | PagesRead | Checkpointed | Asked
)
