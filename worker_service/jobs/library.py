"""Values for showing documents, pages, files and search results. All are immutable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from worker_service.base.errors import in_a_sentence
from worker_service.jobs.documents import IndexStatus


class DocumentSelector(Struct, frozen=True):
    """Documents that match all given fields. An empty selector matches every document."""

    ids: Sequence[int] = ()
    statuses: Sequence[IndexStatus] = ()
    owners: Sequence[str] = ()
    platforms: Sequence[str] = ()
    name: str = ""
    """Part of the document's name; case is ignored."""
    source_keys: Sequence[str] = ()
    is_readable: bool = False
    """True: select only documents with a published generation."""
    batch_ids: Sequence[int] = ()
    """Batches that have requested the documents, even if another batch has read them."""

    @property
    def is_empty(self) -> bool:
        return self == DocumentSelector()


class Document(Struct, frozen=True):
    id: int
    owner: str
    platform: str
    source_key: str
    name: str
    content: str
    kind: str | None
    pages: int | None
    status: IndexStatus
    """Status of the newest generation."""
    state: str
    """The status, preceded by "readable, " if an older generation is published: success; failed; readable, failed."""
    percent: int
    """Percentage of pages read: of the newest generation, or of the current one if the newest has failed."""
    index_generation: int
    current_generation: int | None
    settings: str
    note: str | None
    error_code: str | None
    error_message: str | None
    error_remedy: str | None
    created_at: str
    updated_at: str
    gone_at: str | None
    size: int
    """Bytes of its newest original; 0: there is none. The same as SIZE in a CSV."""

    @property
    def error_text(self) -> str:
        """Error message and remedy in one sentence."""
        return in_a_sentence(self.error_message or "", self.error_remedy)

    @property
    def has_failed_anew(self) -> bool:
        """True if a generation is published and a newer one has failed."""
        return self.status is IndexStatus.FAILED and self.current_generation is not None

    @property
    def has_pages_to_see(self) -> bool:
        """True if the kind has page images. A document of unknown kind counts as one."""
        return self.kind in (None, "pdf", "image")

    @property
    def may_hold_others(self) -> bool:
        return self.kind in ("zip", "mail")


class Provenance(Struct, frozen=True):
    """Origin of a document, and the facts by which a reader can verify it."""

    folder: str
    """Folder at the source. Empty: unknown."""
    size: int | None
    """Bytes of its original. None: the workspace has no original of it."""
    sha256: str
    md5: str
    read_at: str | None
    """Time when the current generation was published."""


class ReadingSpeed(Struct, frozen=True):
    """Reading speed of the newest documents, without the time when none of them was being read."""

    documents: int
    pages: int
    size: int
    """Total bytes of their originals."""
    seconds: float

    def seconds_for(self, size: int) -> float:
        """Estimate the seconds that `size` bytes take."""
        return size * self.seconds / self.size


class Weight(Struct, frozen=True):
    """Pages and files of some documents that no other document shares."""

    documents: int = 0
    pages: int = 0
    files: int = 0
    size: int = 0
    """Total bytes of these files."""
    shared_files: int = 0
    """Number of files that other documents use as well."""

    def __add__(self, other: Weight) -> Weight:
        return Weight(
            self.documents + other.documents,
            self.pages + other.pages,
            self.files + other.files,
            self.size + other.size,
            self.shared_files + other.shared_files,
        )


class Removed(Struct, frozen=True):
    """Result of removing documents."""

    action_id: int | None
    document_ids: Sequence[int]
    refused: Mapping[int, str]
    freed: Weight


class OwnerSize(Struct, frozen=True):
    owner: str
    documents: int
    pages: int
    files: int
    size: int
    """Total bytes of the files."""


class PublishedPath(Struct, frozen=True):
    """A published file as recorded in its row."""

    id: int
    path: str
    """Path relative to the workspace."""
    size: int
    sha256: str
    """Empty: unknown."""
    document_id: int | None


class PageSummary(Struct, frozen=True):
    number: int
    method: str
    confidence: float | None
    characters: int


class Hit(Struct, frozen=True):
    """A page found by a search."""

    document_id: int
    name: str
    number: int
    snippet: str
    rank: float
    """FTS5's rank; smaller is better."""
    has_all_words: bool = True


class SearchResult(Struct, frozen=True):
    """Hits, best first; those with all words come before those with some of them."""

    hits: Sequence[Hit] = ()
    is_partial: bool = False
    """True if there were too many hits to rank, so that only the pages stored last were ranked."""


class KeywordCount(Struct, frozen=True):
    term: str
    document_id: int
    number: int
    """Page number."""
    count: int
