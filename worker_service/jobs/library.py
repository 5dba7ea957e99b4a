"""What people are shown of documents, their pages and what a search finds. Frozen values, like all of `jobs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from worker_service.base.errors import in_a_sentence
from worker_service.jobs.documents import IndexStatus


class DocumentSelector(Struct, frozen=True):
    """Which documents. Empty: all of them."""

    ids: Sequence[int] = ()
    statuses: Sequence[IndexStatus] = ()
    owners: Sequence[str] = ()
    platforms: Sequence[str] = ()
    name: str = ""
    """A part of its name, in small or capital letters."""
    source_keys: Sequence[str] = ()
    is_readable: bool = False
    """Only those of which people can read a generation."""
    batch_ids: Sequence[int] = ()
    """Those that one of these batches asked for, whoever read them."""

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
    """Of its newest generation."""
    state: str
    """The same, and whether people read an older one meanwhile: success; failed; readable, failed."""
    percent: int
    """Of its newest generation; where that failed, of the one that people read."""
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
    """Bytes of its files in the workspace. An original that came in once more counts twice, until it is swept."""

    @property
    def error_text(self) -> str:
        """What went wrong and what to do about it, in one sentence."""
        return in_a_sentence(self.error_message or "", self.error_remedy)

    @property
    def has_failed_anew(self) -> bool:
        """People read it, and a newer reading failed."""
        return self.status is IndexStatus.FAILED and self.current_generation is not None

    @property
    def has_pages_to_see(self) -> bool:
        """Of other kinds there is text alone. None: nobody has looked yet."""
        return self.kind in (None, "pdf", "image")

    @property
    def may_hold_others(self) -> bool:
        return self.kind in ("zip", "mail")


class Provenance(Struct, frozen=True):
    """Where a document comes from, and what of it somebody else can check."""

    folder: str
    """At its source; empty: nobody knows."""
    size: int | None
    """Bytes of its original. None: it is not in the workspace, and was adopted or never came."""
    sha256: str
    md5: str
    read_at: str | None
    """When what people read of it was published."""


class Pace(Struct, frozen=True):
    """How fast the newest documents were read, while any of them was worked for."""

    documents: int
    pages: int
    size: int
    """Bytes of their originals."""
    seconds: float

    def seconds_for(self, size: int) -> float:
        """About how long so many bytes take, if they are like those."""
        return size * self.seconds / self.size


class Weight(Struct, frozen=True):
    """What there is of some documents, and nobody else's."""

    documents: int = 0
    pages: int = 0
    files: int = 0
    size: int = 0
    """Bytes of these files."""
    shared_files: int = 0
    """Files that somebody else uses as well."""

    def __add__(self, other: Weight) -> Weight:
        return Weight(
            self.documents + other.documents,
            self.pages + other.pages,
            self.files + other.files,
            self.size + other.size,
            self.shared_files + other.shared_files,
        )


class Removed(Struct, frozen=True):
    """Documents that are gone, and what that has freed."""

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
    """Bytes."""


class PublishedPath(Struct, frozen=True):
    """A published file as its row has it."""

    id: int
    path: str
    """Below the workspace."""
    size: int
    sha256: str
    """Empty: not known."""
    document_id: int | None


class PageSummary(Struct, frozen=True):
    number: int
    method: str
    confidence: float | None
    characters: int


class Hit(Struct, frozen=True):
    """A page that a search has found."""

    document_id: int
    name: str
    number: int
    snippet: str
    rank: float
    """The smaller, the better."""


class SearchResult(Struct, frozen=True):
    """The best hits, the best first."""

    hits: Sequence[Hit] = ()
    is_partial: bool = False
    """There were so many that only the pages stored last were compared."""


class KeywordCount(Struct, frozen=True):
    term: str
    document_id: int
    number: int
    """Of the page."""
    count: int
