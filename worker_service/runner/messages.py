"""The messages between daemon, fork server and children, and between daemon and Ray driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from worker_service.handlers.contract import Limits
from worker_service.jobs.attempts import Count, Usage
from worker_service.jobs.documents import CrawlPage, DocumentFacts, KnownDocument, PageResult, RepublishedFile
from worker_service.jobs.embeddings import Embeddings
from worker_service.jobs.job import NewJob
from worker_service.jobs.workers import HandlerFacts, NodeState

LINE_CHARACTERS_MAX = 2000
MESSAGE_CHARACTERS_MAX = 4000

# Role of the input that contains the user's password for the document.
PASSWORD = "password"
Key = tuple[int, int]
"""Job id and fence: together they identify an attempt."""


def attempt_name(key: Key) -> str:
    return f"{key[0]}-{key[1]}"


class Order(Struct, frozen=True):
    job_id: int
    fence: int
    job_type: str
    platform: str
    account: str | None = None
    payload: str | None = None
    # None uses the handler's limit.
    timeout_seconds: int | None = None
    state: str | None = None
    document_id: int | None = None
    generation: int | None = None
    # Role → published file of the document.
    inputs: Mapping[str, Path] = field(default_factory=dict)
    # Role → SHA-256 of the input, where known.
    contents: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""
    document: KnownDocument | None = None
    parent_id: int | None = None
    node_slots: int = 0
    # Digests from which a cluster node answers `KnownPages`, because it cannot ask the daemon.
    known_digests: Sequence[str] = ()

    @property
    def key(self) -> Key:
        return self.job_id, self.fence


class HandlerDeclaration(Struct, frozen=True):
    """What a handler declares, for display. A child process reads it from the handler itself."""

    limits: Limits = Limits()
    sandbox: str = "default"
    has_keep: bool = False
    environment: Sequence[str] = ()
    credentials: Sequence[str] = ()
    reads: Sequence[Path] = ()
    writes: Sequence[Path] = ()
    about: Mapping[str, str] = field(default_factory=dict)
    offers: str | None = None


class HandlerDescription(Struct, frozen=True):
    facts: HandlerFacts
    reuse: int = 1
    # Why the handler cannot be used: the message with which its jobs fail.
    set_aside: str | None = None
    # Empty if several distributions provide the job type.
    distribution: str = ""
    # The entry point (module:attribute), or the path of a file.
    spec: str = ""
    declared: HandlerDeclaration | None = None
    identity: Sequence[str] = ()
    runs_on_cluster: bool = False
    has_slicer: bool = False

    @property
    def takes_passwords(self) -> bool:
        return self.declared is not None and "password*" in self.declared.credentials


class AttemptMessage(msgspec.Struct, tag=True, frozen=True):
    job_id: int
    fence: int

    @property
    def key(self) -> Key:
        return self.job_id, self.fence


class Assigned(AttemptMessage, tag=True, frozen=True):
    """A cluster node has accepted the attempt; its child process has not started yet."""

    node: str


class Started(AttemptMessage, tag=True, frozen=True):
    """`pid` and `pid_started` (clock ticks) identify one process for ever."""

    pid: int
    pid_started: int
    sandbox: str


class Progressed(AttemptMessage, tag=True, frozen=True):
    percent: float
    message: str
    count: Count | None = None


class Logged(AttemptMessage, tag=True, frozen=True):
    lines: Sequence[str]


class PagesRead(AttemptMessage, tag=True, frozen=True):
    pages: Sequence[PageResult]


class Checkpointed(AttemptMessage, tag=True, frozen=True):
    state: str
    follow_ups: Sequence[NewJob] = ()
    crawl: CrawlPage | None = None
    embeddings: Embeddings | None = None


class Asked(AttemptMessage, tag=True, frozen=True):
    number: int
    kind: str
    body: str


class How(StrEnum):
    """The ways in which an attempt can end."""

    DONE = "done"
    RETRYABLE = "retryable"
    PERMANENT = "permanent"
    SNOOZED = "snoozed"
    STOPPED = "stopped"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    CRASHED = "crashed"
    GARBLED = "garbled"


_HANDLER_DECISIONS = (How.DONE, How.RETRYABLE, How.PERMANENT, How.SNOOZED)
# Codes of ends that look like one of these, but were not chosen by the handler.
_UNDECIDED_CODES = ("HANDLER_ERROR", "SANDBOX_UNAVAILABLE", "INTERRUPTED", "FILES_VANISHED", "FILE_FORGOTTEN")


class Publication(Struct, frozen=True):
    path: Path
    """A synced file in staging: relative in the child's message, absolute in the daemon's."""
    role: str = ""
    name: str = ""
    sha256: str = ""
    md5: str = ""
    note: str = ""


class Ended(AttemptMessage, tag=True, frozen=True):
    """The end of an attempt. When the daemon receives it, no process of the attempt is left."""

    how: How
    result: str | None = None
    follow_ups: Sequence[NewJob] = ()
    published: Sequence[Publication] = ()
    code: str = ""
    message: str = ""
    remedy: str = ""
    after_seconds: float | None = None
    usage: Usage = Usage()
    published_again: Sequence[RepublishedFile] = ()
    """Files of earlier attempts that this one publishes again."""
    document: DocumentFacts | None = None
    publishes: bool = False
    pauses_source: bool = False
    # Duration of an attempt in a reused child, or the minimum wait of an order that was not started.
    took_seconds: float | None = None
    is_reusable: bool = False

    @property
    def files(self) -> list[Path]:
        return [file.path for file in self.published]

    @property
    def is_handlers_decision(self) -> bool:
        return self.how in _HANDLER_DECISIONS and self.code not in _UNDECIDED_CODES


AttemptEvent = Assigned | Started | Progressed | Logged | PagesRead | Checkpointed | Asked | Ended


class ClusterBegin(msgspec.Struct, frozen=True):
    address: str
    objects: Path
    identity: Mapping[str, Sequence[str]] = {}
    # Entry points (module:attribute), by job type.
    slicers: Mapping[str, str] = {}


class Begin(msgspec.Struct, tag=True, frozen=True):
    """Settings of the fork server, sent first. `LocalPool` fills in `pool_id` and `credentials`."""

    staging_root: Path
    keep_root: Path
    lock_fd: int | None = None
    commands: Mapping[str, Mapping[str, Any]] = {}
    sandbox: str = "strict"
    slots: Mapping[str, int] = {}
    # Job types whose handlers are preloaded; empty for all.
    types: Sequence[str] = ()
    grace_seconds: float = 10.0
    import_seconds: float = 20.0
    # Probe the shipped handlers, too, because one of them ended the previous fork server.
    tries_all: bool = False
    # A reusable child without an order is ended after this time.
    idle_seconds: float = 10.0
    # An order without a free slot goes back to the daemon after this time.
    wait_seconds: float = 0.1
    extra_handlers: Sequence[str] = ()
    is_without_installed: bool = False
    handlers_dir: Path | None = None
    pool_id: str = ""
    credentials: Path | None = None
    cluster: ClusterBegin | None = None


class Launch(msgspec.Struct, tag=True, frozen=True):
    order: Order
    environment: dict[str, str]


class Stop(AttemptMessage, tag=True, frozen=True):
    now: bool = False


class Ping(msgspec.Struct, tag=True, frozen=True):
    pass


class Drain(msgspec.Struct, tag=True, frozen=True):
    """All nodes that get no new attempts. Only the Ray driver receives this."""

    nodes: tuple[str, ...] = ()


class Reply(AttemptMessage, tag=True, frozen=True):
    """The answer to a question, or the reason (`code` and `message`) why there is none."""

    number: int
    body: msgspec.Raw = msgspec.Raw(b"null")
    code: str = ""
    message: str = ""


class Hello(msgspec.Struct, tag=True, frozen=True):
    handlers: Sequence[HandlerDescription]


class Pong(msgspec.Struct, tag=True, frozen=True):
    pass


class NodesSeen(msgspec.Struct, tag=True, frozen=True):
    nodes: tuple[NodeState, ...]


class AttemptOver(msgspec.Struct, tag=True, frozen=True):
    """The child's `Ended`, still encoded, and what the fork server measured."""

    ended: msgspec.Raw
    usage: Usage
    took_seconds: float | None = None


DaemonMessage = Begin | Launch | Stop | Ping | Reply | Drain

ChildInput = Launch | Reply

ChildMessage = Started | Progressed | PagesRead | Checkpointed | Asked | Ended

NodeMessage = AttemptOver | Started | Progressed | Logged | PagesRead | Checkpointed | Asked

PoolMessage = Hello | Pong | NodesSeen | Assigned | NodeMessage
