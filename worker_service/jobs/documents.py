"""Requests to read documents, results of their pages and files, and the questions that handlers ask about them.

Each reading of a document is a generation; users see the newest that is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Generic, TypeVar

from msgspec import Struct


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
    """A job to insert when a document, job or batch ends. `follow_ups.SAMPLE_FACTS` has its payload's placeholders."""

    job_type: str
    payload: str = ""
    on_end: OnEnd = OnEnd.SUCCESS
    is_standing: bool = False
    """True: the job is inserted for each new generation."""


class StoredAction(DeferredAction, frozen=True):
    document_id: int = 0
    generation: int = 0
    fired_at: str | None = None
    job_id: int | None = None


class TagAction(DeferredAction, frozen=True):
    tag: str = ""
    owner: str = ""
    """Empty: documents of all owners."""


class DocumentRequest(Struct, frozen=True):
    """A request to read a file as a document, which `generations.decide` accepts or not."""

    source_key: str
    """Drive file id, URL or absolute path. With platform and owner, it identifies the document."""
    name: str
    content: str = ""
    """SHA-256 of the file; empty if not known yet."""
    settings: str = ""
    """JSON of settings that change the text. A missing key keeps the stored value; null means the default."""
    is_forced: bool = False
    is_standing: bool = False
    """An automatic request: a known document keeps its settings."""
    actions: Sequence[DeferredAction] = ()
    revision: str = ""
    """The source's own name of this version of the file; empty if it has none."""
    tags: Sequence[str] = ()
    """A standing request tags only a new document."""


class Decision(StrEnum):
    ACCEPTED = "accepted"
    TAKEN_OVER = "taken over"
    """Accepted, because work under way has stopped progressing or is held up."""
    UNDER_WAY = "under way"
    UNCHANGED = "unchanged"


class TakeoverPatience(Struct, frozen=True):
    """Time without progress before a new request takes over earlier work."""

    queued_seconds: float = 600
    indexing_seconds: float = 2700


class KnownDocument(Struct, frozen=True):
    content: str = ""
    """SHA-256 of the newest original; empty if unknown."""
    kind: str | None = None
    pages: int | None = None
    settings: str = ""
    status: str = ""
    """An `IndexStatus`, or empty."""
    source_key: str = ""
    name: str = ""
    generation: int | None = None
    batch_id: int | None = None


class DocumentFacts(Struct, frozen=True):
    """A field that is None keeps its stored value."""

    kind: str | None = None
    pages: int | None = None
    content: str | None = None
    """SHA-256 of the file."""
    note: str | None = None
    is_locked: bool | None = None


CONFIDENCE_LEAST = 50
"""Pages with less confidence, in per cent, are doubtful."""


class PageResult(Struct, frozen=True):
    """The text of a page. Pages with the same digest have the same text, also in documents of other owners."""

    number: int
    digest: str
    text: str | None = None
    """None: the text is stored already under this digest."""
    method: str = ""
    """layer, ocr, partial (part of the image is damaged), rows, blank, too_large or unreadable."""
    confidence: float | None = None
    """0 to 100. 0: in a script that the chosen languages do not have."""
    layout: str | None = None
    alias_digest: str = ""
    """A second digest that finds the same text."""


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
    """Relative to the workspace."""
    role: str = ""
    size: int = 0
    sha256: str = ""
    md5: str = ""
    note: str = ""


class RepublishedFile(Struct, frozen=True):
    """A published file that a completion publishes again for another job or document."""

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
    """Reason why it was not enqueued; empty if it was."""
    is_gone: bool = False
    detail: str = ""
    """Data for the handler's next run."""
    walk: int = 0
    """Number of the full walk that saw the item last. Set only in answers."""


class CrawlPage(Struct, frozen=True):
    """What a crawl stores in one transaction."""

    crawl: str
    items: Sequence[CrawlItem] = ()
    walk: int = 0
    state: str | None = None
    """None keeps the stored one."""
    unique_key_prefix: str = ""
    """Of jobs that fetch items, to cancel the jobs of vanished items."""


# ── Questions of handlers, each with its answer ──


class QuestionAnswer(Struct, frozen=True):
    pass


A_co = TypeVar("A_co", bound=QuestionAnswer, covariant=True)


class Question(Generic[A_co]):
    """A read-only question of a job about its own document or crawl."""

    __slots__ = ()


class KnownDigests(QuestionAnswer, frozen=True):
    digests: Sequence[str] = ()
    is_stale: bool = False
    """True: the generation is no longer the newest."""


class KnownPages(Question[KnownDigests], Struct, frozen=True):
    """Ask which digests have a stored text."""

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
    """Find published files by SHA-256 of any owner, or by MD5 and size of the job's owner."""

    sha256: str = ""
    md5: str = ""
    size: int | None = None


class IsCurrentAnswer(QuestionAnswer, frozen=True):
    is_current: bool = True


class IsCurrent(Question[IsCurrentAnswer], Struct, frozen=True):
    """Ask whether the generation is still the newest, before expensive work."""


class CrawlMemory(QuestionAnswer, frozen=True):
    state: str | None = None
    items: Sequence[CrawlItem] = ()


class CrawlItems(Question[CrawlMemory], Struct, frozen=True):
    """Find items by `ids`; or by `not_seen_in` or `with_note`, up to 1,000 whose ids follow `after`."""

    crawl: str
    ids: Sequence[str] = ()
    not_seen_in: int | None = None
    """Number of the current walk, which has not seen them."""
    with_note: str | None = None
    after: str = ""


class EmbeddableDocuments(QuestionAnswer, frozen=True):
    documents: Sequence[tuple[int, int]] = ()
    """Documents, each with its current generation."""


# Questions that only jobs of type `embed` may ask, which belong to no owner.


class DocumentsToEmbed(Question[EmbeddableDocuments], Struct, frozen=True):
    """Ask for some documents that lack vectors of a model."""

    model: str


class PagesToEmbed(Question[PagesAnswer], Struct, frozen=True):
    """Ask for pages after the number `after`, with layouts; none if the generation is no longer current."""

    document_id: int
    generation: int
    after: int
    most: int


class KnownVectors(Question[KnownDigests], Struct, frozen=True):
    model: str
    digests: Sequence[str]


QUESTIONS: dict[str, tuple[type[Question[QuestionAnswer]], type[QuestionAnswer]]] = {
    question.__name__: (question, answer)
    for question, answer in (
        (KnownPages, KnownDigests),
        (DocumentPages, PagesAnswer),
        (SameContent, Files),
        (IsCurrent, IsCurrentAnswer),
        (CrawlItems, CrawlMemory),
        (DocumentsToEmbed, EmbeddableDocuments),
        (PagesToEmbed, PagesAnswer),
        (KnownVectors, KnownDigests),
    )
}
