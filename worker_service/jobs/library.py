"""Stored documents: how they are selected and listed, and what removing them frees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from worker_service.base.errors import in_a_sentence
from worker_service.jobs.documents import IndexStatus


class DocumentSelector(Struct, frozen=True):
    ids: Sequence[int] = ()
    statuses: Sequence[IndexStatus] = ()
    owners: Sequence[str] = ()
    platforms: Sequence[str] = ()
    name: str = ""
    source_keys: Sequence[str] = ()
    is_readable: bool = False
    """Leaves out documents without a published generation."""
    batch_ids: Sequence[int] = ()
    """Documents that these batches requested, even if another batch read them."""
    tags: Sequence[str] = ()
    """Documents with all of these tags."""
    kinds: Sequence[str] = ()
    since: str | None = None
    """Documents added at this time (UTC) or later."""
    until: str | None = None
    """Documents added before this time (UTC)."""

    @property
    def is_empty(self) -> bool:
        return self == DocumentSelector()


class DocumentSort(StrEnum):
    DATE = "date"
    NAME = "name"
    PAGES = "pages"
    STATE = "state"
    """Failed documents first."""


class DocumentOrder(Struct, frozen=True):
    sort: DocumentSort = DocumentSort.DATE
    is_reversed: bool = False

    @property
    def is_descending(self) -> bool:
        return (self.sort in (DocumentSort.DATE, DocumentSort.PAGES)) != self.is_reversed


NEWEST_FIRST = DocumentOrder()


class DocumentTotals(Struct, frozen=True):
    documents: int
    pages: int


class Document(Struct, frozen=True):
    id: int
    owner: str
    platform: str
    source_key: str
    name: str
    content: str
    """SHA-256; empty if unknown."""
    kind: str | None
    pages: int | None
    status: IndexStatus
    state: str
    """The status; preceded by "readable, " if an older generation is published."""
    percent: int
    """Per cent of the newest generation's pages that are read; 100 if it failed and an older one is readable."""
    index_generation: int
    """The newest one."""
    current_generation: int | None
    settings: str
    """JSON of its reading settings."""
    note: str | None
    error_code: str | None
    error_message: str | None
    error_remedy: str | None
    created_at: str
    updated_at: str
    gone_at: str | None
    """When a crawl missed it."""
    size: int
    """Bytes of the newest original; 0: there is none."""
    is_locked: bool
    """The file opens only with a password."""
    tags: Sequence[str] = ()

    @property
    def error_text(self) -> str:
        return in_a_sentence(self.error_message or "", self.error_remedy)

    @property
    def has_failed_anew(self) -> bool:
        return self.status is IndexStatus.FAILED and self.current_generation is not None

    @property
    def has_page_images(self) -> bool:
        return self.kind in (None, "pdf", "image")  # None: the file has not been read yet.

    @property
    def has_thumbnail(self) -> bool:
        has_drawable_original = self.kind in ("pdf", "image") and bool(self.size)
        is_first_reading_failed = self.status is IndexStatus.FAILED and self.current_generation is None
        return has_drawable_original and not is_first_reading_failed


class DocumentChange(Struct, frozen=True):
    number: int
    document_id: int
    generation: int | None
    """None: the document was removed."""


class Provenance(Struct, frozen=True):
    folder: str
    size: int | None
    """None: the workspace has no original."""
    sha256: str
    md5: str
    read_at: str | None


class ReadingSpeed(Struct, frozen=True):
    """Amounts read in `seconds`, without the times when nothing was read."""

    documents: int
    pages: int
    size: int
    seconds: float

    def seconds_for(self, size: int) -> float:
        return size * self.seconds / self.size


class Weight(Struct, frozen=True):
    """Amounts that removing documents would free."""

    documents: int = 0
    pages: int = 0
    files: int = 0
    size: int = 0
    shared_files: int = 0
    """Files that stay because other documents have them."""

    def __add__(self, other: Weight) -> Weight:
        return Weight(
            self.documents + other.documents,
            self.pages + other.pages,
            self.files + other.files,
            self.size + other.size,
            self.shared_files + other.shared_files,
        )


class Removed(Struct, frozen=True):
    action_id: int | None
    """Id in the history."""
    document_ids: Sequence[int]
    refused: Mapping[int, str]
    freed: Weight


class OwnerSize(Struct, frozen=True):
    owner: str
    documents: int
    pages: int
    files: int
    size: int


class PublishedPath(Struct, frozen=True):
    id: int
    path: str
    size: int
    sha256: str
    document_id: int | None


class PageSummary(Struct, frozen=True):
    number: int
    method: str
    confidence: float | None
    characters: int
