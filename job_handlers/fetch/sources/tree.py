"""What a crawl walks over: folders and files, wherever they are. One file for each place knows its ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

from worker_service.handlers import in_a_sentence

EntryKind = Literal["folder", "file", "native", "shortcut"]


class ItemError(Exception):
    """One item cannot be listed or read, and trying again will not help. The walk goes on without it."""

    def __init__(self, detail: str, remedy: str = "") -> None:
        super().__init__(detail, remedy)
        self.detail, self.remedy = detail, remedy

    def __str__(self) -> str:
        return in_a_sentence(self.detail, self.remedy)


class ListingExpired(Exception):
    """The place no longer knows this page of a listing: it is to be begun again."""


class Entry(Struct, frozen=True):
    """A file or folder as its place describes it."""

    id: str
    name: str
    kind: EntryKind
    parent_ids: Sequence[str] = ()
    mime: str = ""
    size: int | None = None
    revision: str = ""
    """TreeChanges when its content does."""
    md5: str = ""
    sha256: str = ""
    modified: str = ""
    """UTC, ISO 8601."""
    key: str = ""
    """What has to be shown beside its id to get at it."""
    corpus: str = ""
    """The part of the place that it lives in, such as a shared drive; each tells its changes for itself."""
    target_id: str = ""
    """Of a shortcut, whose `key` is the target's."""
    refusal: str = ""
    """Why it may not be downloaded, in words."""
    is_trashed: bool = False


class Listing(Struct, frozen=True):
    entries: Sequence[Entry]
    next_page: str = ""
    """Empty: this was the last."""
    is_partial: bool = False
    """The place says that it has not looked everywhere."""


class TreeChanges(Struct, frozen=True):
    entries: Sequence[Entry]
    gone_ids: Sequence[str]
    next_token: str
    is_last: bool


class Tree(Protocol):
    platform: str
    source: str
    """What may ask for a rest, such as the credential."""
    root_name: str
    """What the crawl is about, known without asking anybody."""

    def root(self) -> Entry:
        """The folder that the crawl is about. Raise `ItemError` if it is not there."""

    def entry(self, item_id: str, key: str) -> Entry:
        """What a shortcut leads to."""

    def children(self, folder_id: str, key: str, corpus: str, page: str) -> Listing: ...

    def change_token(self, corpus: str) -> str:
        """From here on `changes` tells what has changed. Empty: this place cannot tell; it is walked each time."""

    def changes(self, corpus: str, token: str) -> TreeChanges: ...
