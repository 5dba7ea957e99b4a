"""Events, log lines, notices and actions of users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

LOG_LINES_MOST = 3000
"""Number of lines kept per job: the newest."""


class Event(Struct, frozen=True):
    id: int
    job_id: int
    fence: int
    from_status: str
    to_status: str
    at: str


class JobMove(Struct, frozen=True):
    id: int
    at: str
    job_id: int
    from_status: str
    to_status: str
    job_type: str
    owner: str
    name: str | None
    batch_id: int | None
    document_id: int | None
    error_code: str | None


class Notice(Struct, frozen=True):
    id: int
    at: str
    kind: str
    owner: str = ""
    job_id: int | None = None
    document_id: int | None = None
    batch_id: int | None = None
    generation: int | None = None
    """Generation of the document, or round of the batch."""
    code: str | None = None
    message: str | None = None
    remedy: str | None = None


class Episode(Struct, frozen=True):
    """A lasting condition, such as a full disk. Only its beginning is a notice."""

    key: str
    message: str
    job_id: int | None = None
    code: str | None = None
    remedy: str | None = None


class LogLine(Struct, frozen=True):
    id: int
    job_id: int
    fence: int
    at: str
    line: str


OPPOSITE = {
    "cancel": "retry",
    "retry": "cancel",
    "priority": "priority",
    "dismiss": "undismiss",
    "add_schedule": "remove_schedule",
    "change_schedule": "change_schedule",
    "remove_schedule": "add_schedule",
}


class Action(Struct, frozen=True):
    id: int
    at: str
    actor: str
    verb: str
    undone_at: str | None
    jobs: int
    documents: int
    subject: str = ""
    batch_id: int | None = None

    @property
    def is_of_tokens(self) -> bool:
        return self.verb in ("make_token", "remove_token")

    @property
    def is_of_schedule(self) -> bool:
        return self.verb.endswith("_schedule")

    @property
    def opposite(self) -> str | None:
        """The verb that undoes the action, or None if it cannot be undone."""
        return OPPOSITE.get(self.verb)


class Changed(Struct, frozen=True):
    action_id: int | None
    job_ids: Sequence[int]
    asked: Sequence[int] = ()
    """Running jobs that were asked to stop."""
    refused: Mapping[int, str] = field(default_factory=dict)
    batch_id: int | None = None
    waiting: Sequence[int] = ()
    """Batches that must wait after a retry."""
