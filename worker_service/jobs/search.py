"""Search requests of users, and the documents and pages found."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct


class SearchRequest(Struct, frozen=True):
    text: str
    owner: str | None = None
    document_id: int | None = None
    batch_id: int | None = None
    kind: str | None = None
    tags: Sequence[str] = ()
    """Only documents with all of these tags."""
    since: str | None = None
    """Only documents added at this time (UTC) or later."""
    until: str | None = None
    """Only documents added before this time (UTC)."""
    is_sure: bool = False
    """Leaves out pages below `CONFIDENCE_LEAST`."""
    needs_all: bool = False
    """Leaves out pages without some of the words."""
    documents: int = 10
    """Maximum number of documents in the answer."""
    skip: int = 0
    """Number of documents on earlier pages of the answer."""
    pages_each: int = 3
    """Maximum number of snippets per document."""
    marks: tuple[str, str] = ("[", "]")
    """Texts before and after each match in a snippet."""


class FoundPage(Struct, frozen=True):
    number: int
    snippet: str
    missing_words: Sequence[str] = ()
    """Words of the query that the page is known to lack."""


class FoundCopy(Struct, frozen=True):
    document_id: int
    name: str
    owner: str


class FoundDocument(Struct, frozen=True):
    document_id: int
    name: str
    owner: str
    kind: str | None
    pages: int | None
    created_at: str
    tags: Sequence[str]
    has_all_words: bool
    is_named: bool
    """True if its name and tags have all words."""
    is_similar: bool
    """True if found by meaning alone."""
    best_pages: Sequence[FoundPage]
    page_numbers: Sequence[int]
    """All pages found, in the order of the document."""
    copies: Sequence[FoundCopy]
    """Other documents with the same content, which are not listed."""


class SearchResult(Struct, frozen=True):
    """Documents, best first: with all words in name and tags, then on one page, then with some words."""

    items: Sequence[FoundDocument] = ()
    documents_with_all: int = 0
    pages_with_all: int = 0
    documents_with_some: int = 0
    """Not counted, and 0, if documents with all words fill this page of the answer."""
    pages_with_some: int = 0
    next: int | None = None
    """The `skip` of the next page of the answer."""
    is_partial: bool = False
    """True if only the pages stored last were ranked, because there were too many."""
    suggestion: str | None = None
    """The query with similar words for words on no page; only if no document has all words."""


class KeywordCount(Struct, frozen=True):
    term: str
    document_id: int
    number: int
    count: int
