"""Workers, as registered (`Worker`) and as stored (`WorkerState`), their handlers, nodes and leases."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from worker_service.base.errors import in_a_sentence
from worker_service.jobs.job import Lease


class HandlerFacts(Struct, frozen=True):
    job_type: str
    job_class: str = "cpu"
    missing: str | None = None
    """What the worker lacks for it."""
    missing_remedy: str = ""
    at_most_once: bool = False
    payload_schema: str | None = None
    timeout_seconds: int = 3600
    choices: str | None = None
    """JSON: by payload key, its values and how to install missing ones."""

    @property
    def missing_text(self) -> str:
        return in_a_sentence(self.missing or "", self.missing_remedy)


def allows_type(types: Sequence[str], job_type: str) -> bool:
    """`types` is WORKER_TYPES: `!type` excludes a type; if some are named, only they are allowed."""
    if f"!{job_type}" in types:
        return False
    named = [word for word in types if not word.startswith("!")]
    return not named or job_type in named


class _WorkerFacts(Struct, frozen=True):
    id: str
    host: str
    boot_id: str
    pid: int
    version: str
    cpu_slots: int
    io_slots: int


class Worker(_WorkerFacts, frozen=True):
    handlers: Sequence[HandlerFacts] = ()
    node_slots: int = 0


class WorkerState(_WorkerFacts, frozen=True):
    is_draining: bool
    is_disk_low: bool
    started_at: str
    heartbeat_at: str
    running: int
    node_slots: int = 0


NODE = "node"
"""`job_class` of handlers whose attempts take slots of cluster nodes."""


class NodeState(Struct, frozen=True):
    name: str
    state: str
    """One of starting, up, draining, refused, down."""
    slots: int = 0
    version: str = ""
    reason: str = ""


class NodeRow(Struct, frozen=True):
    name: str
    worker_id: str
    state: str
    slots: int
    version: str
    reason: str
    is_draining: bool
    """True: at a user's request, without new attempts."""


class NodeWork(Struct, frozen=True):
    node: str
    job_id: int


class LeaseRow(Struct, frozen=True):
    lease: Lease
    is_cancelled: bool
    without_grace: bool = False
    """True: kill it at once."""
    is_stopped: bool = False
    """True: the batch is stopped or waits, so the job must be released."""


class Beat(Struct, frozen=True):
    lost: Sequence[Lease]
    to_cancel: Sequence[Lease]
