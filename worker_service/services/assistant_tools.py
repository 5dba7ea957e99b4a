"""Tools for AI assistants by the Model Context Protocol. Assistants see their names, parameters and docstrings.

`search` and `fetch` have the form that connectors require.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.metadata import version
from typing import Any

from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from msgspec import Struct

from worker_service.base.errors import BadInput, DocumentNotFound, PagemillError
from worker_service.jobs.library import Document, DocumentSelector
from worker_service.jobs.page_structure import STRUCTURED_PAGES_MAX
from worker_service.jobs.search import SearchRequest
from worker_service.services import documents
from worker_service.services.page_blocks import with_markdown
from worker_service.services.page_images import PageRenderer, page_image
from worker_service.services.page_tables import tables_of
from worker_service.services.search import find_documents
from worker_service.services.server_address import address
from worker_service.services.session import Session
from worker_service.settings.config import Settings

_FETCHED_CHARACTERS_MAX = 200_000
_INSTRUCTIONS = (
    "A library of documents, read page by page, by OCR where needed. Search it with `search`, read what you find "
    "with `fetch` or `read_pages`, and quote document and page, as in 7:12 (page 12 of document 7)."
)


class Caller(Struct, frozen=True):
    session: Session
    owner: str | None = None
    """None: all owners."""

    def document(self, document_id: int) -> Document:
        selector = DocumentSelector(ids=(document_id,), owners=() if self.owner is None else (self.owner,))
        for document in self.session.library.documents(selector, most=1):
            return document
        raise DocumentNotFound(f"there is no document {document_id}", "`list_documents` shows those that are there")


class AssistantTools:
    def __init__(
        self,
        settings: Settings,
        renderer: PageRenderer,
        open_caller: Callable[[], AbstractContextManager[Caller]],
        add_source: Callable[[Caller, str], dict[str, Any]],
    ) -> None:
        """Each call of a tool enters `open_caller`. `add_source` submits a source and returns the answer."""
        self._renderer, self._open_caller, self._add_source = renderer, open_caller, add_source
        self._address = address(settings) or settings.web_address

    def search(self, query: str, limit: int = 10) -> dict[str, Any]:
        """Find pages for a question or some words: up to three pages of each of the `limit` best documents.

        The query may also have "a phrase", a NEAR b, a OR b, a NOT b, begin*. Each result is a page, for fetch.
        """
        with self._open_caller() as caller:
            request = SearchRequest(query, owner=caller.owner, documents=max(1, min(limit, 100)))
            result = find_documents(caller.session, request)
        return {
            "results": [
                {
                    "id": f"{document.document_id}:{page.number}",
                    "title": f"{document.name}, page {page.number}",
                    "text": page.snippet,
                    "url": self._url(document.document_id, page.number),
                    "has_all_words": document.has_all_words,
                }
                for document in result.items
                for page in document.best_pages
            ]
        }

    def fetch(self, id: str) -> dict[str, Any]:
        """Return the text of a page (id such as 7:12) or of a whole document (7)."""
        document_id, _, page_number = id.partition(":")
        if not document_id.isdigit() or (page_number and not page_number.isdigit()):
            raise BadInput(f"{id!r} is not an id", "use 7 for document 7, or 7:12 for its page 12")
        with self._open_caller() as caller:
            document = caller.document(int(document_id))
            _, pages = documents.document_text(caller.session, document.id, pages=page_number or None)
        text = "\f".join(page.text or "" for page in pages)
        return {
            "id": id,
            "title": document.name + (f", page {page_number}" if page_number else ""),
            "text": text[:_FETCHED_CHARACTERS_MAX],
            "url": self._url(document.id, int(page_number) if page_number else None),
            "metadata": {
                "owner": document.owner,
                "pages": document.pages,
                "is_cut": len(text) > _FETCHED_CHARACTERS_MAX,
            },
        }

    def list_documents(self, name: str = "", before: int | None = None, limit: int = 50) -> dict[str, Any]:
        """List documents, newest first; `name` is a part of the file name. For more, pass `next` as `before`."""
        with self._open_caller() as caller:
            selector = DocumentSelector(owners=() if caller.owner is None else (caller.owner,), name=name)
            listed = documents.list_documents(caller.session, selector, limit=max(1, min(limit, 200)), before_id=before)
        items = [
            {
                "id": document.id,
                "name": document.name,
                "pages": document.pages,
                "status": str(document.status),
                "url": self._url(document.id),
            }
            for document in listed.items
        ]
        return {"documents": items, "next": listed.next}

    def read_pages(self, document: int, first: int, last: int) -> dict[str, Any]:
        """Return a range of pages of a document as Markdown, with how each was read and how sure OCR was (per cent)."""
        with self._open_caller() as caller:
            shown_document = caller.document(document)
            _, pages = documents.document_text(caller.session, document, pages=f"{first}-{last}")
            # Markdown needs the blocks of all pages, so the pages of a longer document stay plain text.
            if (shown_document.pages or 0) <= STRUCTURED_PAGES_MAX:
                pages = with_markdown(caller.session, document, pages)
        return {
            "title": shown_document.name,
            "pages": [
                {
                    "page": page.number,
                    "text": page.text or "",
                    "method": str(page.method),
                    "confidence": page.confidence,
                }
                for page in pages
            ],
        }

    def tables(self, document: int, first: int, last: int) -> dict[str, Any]:
        """Return the tables on a range of pages of a document, as rows of cells."""
        with self._open_caller() as caller:
            name = caller.document(document).name
            tables = list(tables_of(caller.session, document, pages=f"{first}-{last}"))
        return {"title": name, "tables": [{"page": table.page, "rows": table.rows} for table in tables]}

    def page_image(self, document: int, page: int) -> Image:
        """Return a page as an image, to look at a figure, a signature or a layout."""
        with self._open_caller() as caller:
            caller.document(document)  # raises unless the caller may see it
            return Image(path=page_image(caller.session, self._renderer, document, page).path)

    def add_document(self, source: str) -> dict[str, Any]:
        """Add a file or directory of the server, a Google Drive folder or an https address. Returns the batch."""
        with self._open_caller() as caller:
            return self._add_source(caller, source)

    def _url(self, document_id: int, page: int | None = None) -> str:
        return f"{self._address}/documents/{document_id}" + (f"?page={page}" if page else "")


def make_server(tools: AssistantTools, *, may_add: bool, is_single_threaded: bool = False) -> MCPServer:
    server = MCPServer("pagemill", version=version("pagemill"), instructions=_INSTRUCTIONS, log_level="WARNING")
    offered: list[Callable[..., Any]] = [
        tools.search, tools.fetch, tools.list_documents, tools.read_pages, tools.tables, tools.page_image,
    ]  # fmt: skip
    if may_add:
        offered.append(tools.add_document)
    for tool in offered:
        readable = _with_readable_errors(tool)
        server.tool()(_in_event_loop(readable) if is_single_threaded else readable)
    return server


def _with_readable_errors(tool: Callable[..., Any]) -> Callable[..., Any]:
    """Raise `ToolError`: the server hides the text of other errors."""

    @functools.wraps(tool)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return tool(*arguments, **named)
        except PagemillError as error:
            raise ToolError(str(error)) from error

    return call


def _in_event_loop(tool: Callable[..., Any]) -> Callable[..., Any]:
    # The server calls a coroutine in its own thread, and other functions in worker threads.
    @functools.wraps(tool)
    async def call(*arguments: Any, **named: Any) -> Any:
        return tool(*arguments, **named)

    return call
