"""The interface of a source's folders, which a crawl walks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

from worker_service.base.errors import PagemillError

# native: an online document, such as one of Google Docs, which has no file.
EntryKind = Literal["folder", "file", "native", "shortcut"]


class ItemError(PagemillError):
    """One item cannot be read; the walk continues."""


class ListingExpired(Exception):
    """The page or change token is no longer valid: start the listing again."""


class Entry(Struct, frozen=True):
    id: str
    name: str
    kind: EntryKind
    parent_ids: Sequence[str] = ()
    mime: str = ""
    size: int | None = None
    revision: str = ""
    md5: str = ""
    sha256: str = ""
    modified: str = ""
    key: str = ""
    """Resource key to send with the id. A shortcut has the key of its target."""
    corpus: str = ""
    """Id of the shared drive, which has its own list of changes; empty for other files."""
    target_id: str = ""
    refusal: str = ""
    is_trashed: bool = False


class Listing(Struct, frozen=True):
    entries: Sequence[Entry]
    next_page: str = ""
    is_partial: bool = False


class TreeChanges(Struct, frozen=True):
    entries: Sequence[Entry]
    gone_ids: Sequence[str]
    next_token: str
    is_last: bool


class Tree(Protocol):
    platform: str
    source: str
    """The name under which jobs pause together, as in `Source.source_of_jobs`."""
    root_name: str
    """The folder as the job names it."""

    def root(self) -> Entry: ...

    def entry(self, item_id: str, key: str) -> Entry: ...

    def children(self, folder_id: str, key: str, corpus: str, page: str) -> Listing: ...

    def change_token(self, corpus: str) -> str:
        """Return a token for `changes`; empty if the tree must be walked each time."""

    def changes(self, corpus: str, token: str) -> TreeChanges: ...
