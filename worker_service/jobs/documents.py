"""Documents, their files and pages, crawl items, and the questions of handlers.

Each accepted request to read a document starts a new generation; only jobs of the newest generation may publish (P11).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Generic, TypeVar

from msgspec import Struct, field


class IndexStatus(StrEnum):
    NOT_INDEXED = "not_indexed"
    QUEUED = "queued"
    INDEXING = "indexing"
    SUCCESS = "success"
    FAILED = "failed"


class OnEnd(StrEnum):
    SUCCESS = "success"
    FAILURE = "failure"


class DeferredAction(Struct, frozen=True):
    """A job to insert when a document, job or batch ends. `FACTS` lists the placeholders of its payload."""

    job_type: str
    payload: str = ""
    on_end: OnEnd = OnEnd.SUCCESS
    is_standing: bool = False
    """True: repeat it for each generation of the document."""


class AskedAction(DeferredAction, frozen=True):
    document_id: int = 0
    generation: int = 0
    fired_at: str | None = None
    job_id: int | None = None


class TagAction(DeferredAction, frozen=True):
    """An action for each document with a tag."""

    tag: str = ""
    owner: str = ""
    """Only documents of this owner. Empty: of all owners."""


class DocumentRequest(Struct, frozen=True):
    """A request to read a document, attached to the job that would read it and is not inserted without need."""

    source_key: str
    """Drive file id, URL or absolute path. With platform and owner it identifies the document permanently."""
    name: str
    content: str = ""
    settings: str = ""
    """JSON: reading settings that can change the text. A missing key keeps the stored value, null restores the default.
    If a setting changes, the document is read again."""
    is_forced: bool = False
    is_standing: bool = False
    """True for automatic requests: a known document keeps its stored settings, and `settings` is ignored."""
    actions: Sequence[DeferredAction] = ()
    revision: str = ""
    """The source's name for this content, such as a revision id. Empty: there is none that is stable."""
    tags: Sequence[str] = ()
    """Added to those that the document has. A standing request tags only a new document."""


class Decision(StrEnum):
    ACCEPTED = "accepted"
    TAKEN_OVER = "taken over"
    """Accepted although work was under way, because that work had not advanced for too long or is held up."""
    UNDER_WAY = "under way"
    """Nothing to do: the same content and settings are queued or indexing."""
    UNCHANGED = "unchanged"
    """Nothing to do: the document was read successfully with the same content and settings."""


class TakeoverTimeouts(Struct, frozen=True):
    """Seconds without progress after which a new request may take over a document."""

    queued_seconds: float = 600
    indexing_seconds: float = 2700


class KnownDocument(Struct, frozen=True):
    content: str = ""
    """SHA-256 of its newest published original. Empty: unknown."""
    kind: str | None = None
    pages: int | None = None
    settings: str = ""
    status: str = ""
    source_key: str = ""
    name: str = ""
    generation: int | None = None
    batch_id: int | None = None


class DocumentFacts(Struct, frozen=True):
    """Facts that a job has found out about its document. None: unchanged."""

    kind: str | None = None
    pages: int | None = None
    content: str | None = None
    note: str | None = None
    is_locked: bool | None = None


CONFIDENCE_LEAST = 50
"""Minimum OCR confidence in per cent. Pages below it are doubtful: notes name them, and a search can leave them out."""


class PageResult(Struct, frozen=True):
    """Text of one page. Pages with the same digest have the same text, also across documents and owners."""

    number: int
    digest: str
    text: str | None = None
    """None: the text is stored already under this digest."""
    method: str = ""
    """layer, ocr, partial, rows, blank, too_large or unreadable. `partial`: part of the page image is damaged."""
    confidence: float | None = None
    """OCR confidence, 0 to 100. 0 if the page is in a script for which it was not recognised."""
    layout: str | None = None
    also: str = ""
    """Second digest (alias) under which the page can be found."""


class PublishedFile(Struct, frozen=True):
    id: int
    job_id: int
    role: str
    name: str
    path: str
    size: int
    sha256: str
    md5: str


class NewFile(Struct, frozen=True):
    name: str
    path: str
    """Path relative to the workspace, where the file is already."""
    role: str = ""
    size: int = 0
    sha256: str = ""
    md5: str = ""
    note: str = ""


class FileAgain(Struct, frozen=True):
    """An already published file that a completion publishes again for another job or document."""

    file_id: int
    role: str = ""
    name: str = ""


class CrawlItem(Struct, frozen=True):
    id: str
    parent_id: str = ""
    name: str = ""
    kind: str = ""
    revision: str = ""
    size: int | None = None
    note: str = ""
    """Reason why the item was not enqueued. Empty: it was enqueued."""
    is_gone: bool = False
    detail: str = ""
    walk: int = 0
    """Number of the full walk that saw the item last. Set in answers only."""


class CrawlPage(Struct, frozen=True):
    crawl: str
    items: Sequence[CrawlItem] = ()
    walk: int = 0
    state: str | None = None
    keys: str = ""
    """Prefix of the unique keys of jobs that fetch items; the item's id and a colon follow. When an item disappears,
    its pending jobs are cancelled. Empty: none are."""


# ── Questions of handlers, each with its answer ──


class QuestionAnswer(Struct, frozen=True):
    pass


A_co = TypeVar("A_co", bound=QuestionAnswer, covariant=True)


class Question(Generic[A_co]):
    """Base class of read-only questions about the job's own document or crawl."""

    __slots__ = ()


class KnownDigests(QuestionAnswer, frozen=True):
    digests: Sequence[str] = ()
    is_stale: bool = False
    """True if the job's generation is no longer the newest, so that asking again is pointless."""


class KnownPages(Question[KnownDigests], Struct, frozen=True):
    digests: Sequence[str]


class PagesAnswer(QuestionAnswer, frozen=True):
    pages: Sequence[PageResult] = ()


class DocumentPages(Question[PagesAnswer], Struct, frozen=True):
    first: int
    last: int
    with_layout: bool = False


class Files(QuestionAnswer, frozen=True):
    files: Sequence[PublishedFile] = ()


class SameContent(Question[Files], Struct, frozen=True):
    """Published files with the same content. SHA-256 finds files of all owners; MD5 with size those of the job's."""

    sha256: str = ""
    md5: str = ""
    size: int | None = None


class Currency(QuestionAnswer, frozen=True):
    is_current: bool = True


class IsCurrent(Question[Currency], Struct, frozen=True):
    """Is the job's generation still the newest? Ask before expensive work."""


class CrawlMemory(QuestionAnswer, frozen=True):
    state: str | None = None
    items: Sequence[CrawlItem] = field(default_factory=tuple)


class CrawlItems(Question[CrawlMemory], Struct, frozen=True):
    """State of a crawl, and items by ids; with `not_seen_in` or `with_note`, up to 1,000 items after the id `after`."""

    crawl: str
    ids: Sequence[str] = ()
    not_seen_in: int | None = None
    """Number of a walk: select the items that neither this walk nor a later one has seen."""
    with_note: str | None = None
    after: str = ""


QUESTIONS: dict[str, tuple[type[Question[QuestionAnswer]], type[QuestionAnswer]]] = {
    question.__name__: (question, answer)
    for question, answer in (
        (KnownPages, KnownDigests),
        (DocumentPages, PagesAnswer),
        (SameContent, Files),
        (IsCurrent, Currency),
        (CrawlItems, CrawlMemory),
    )
}
