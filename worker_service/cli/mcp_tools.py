"""The tools of `pagemill mcp`. Their names, parameters and docstrings are what an assistant reads.

`search` and `fetch` have the shape that assistants expect of a connector: results with id, title, text and url.
"""

from __future__ import annotations

from typing import Any

from mcp.server.mcpserver import Image

from job_handlers.crawl.requests import SourceOptions, jobs_of_sources
from job_handlers.reading.find_files import LeftOut
from worker_service.base.errors import BadInput, DocumentNotFound
from worker_service.jobs.library import Document, DocumentSelector
from worker_service.services import batches, documents
from worker_service.services.database import Session
from worker_service.services.page_images import PageRenderer, page_image
from worker_service.services.page_layouts import tables_of
from worker_service.services.server_address import address

_FETCHED_CHARACTERS_MAX = 200_000


class Tools:
    """Tools over one session. They are asynchronous so that all run in its thread."""

    def __init__(self, session: Session, owner: str | None) -> None:
        self._session = session
        self._owner = owner
        self._renderer = PageRenderer(session.settings)
        self._address = address(session.settings) or session.settings.web_address

    def close(self) -> None:
        self._renderer.close()

    async def search(self, query: str, limit: int = 10) -> dict[str, Any]:
        """Find pages for a question or some words, best first.

        The query may also have "a phrase", a NEAR b, a OR b, a NOT b, begin*. Each result is a page, for fetch.
        """
        found = self._session.library.search(query, owner=self._owner, most=max(1, min(limit, 100)))
        return {
            "results": [
                {
                    "id": f"{hit.document_id}:{hit.number}",
                    "title": f"{hit.name}, page {hit.number}",
                    "text": hit.snippet,
                    "url": self._url(hit.document_id, hit.number),
                    "has_all_words": hit.has_all_words,
                }
                for hit in found.hits
            ]
        }

    async def fetch(self, id: str) -> dict[str, Any]:
        """Return the text of a page (id such as 7:12) or of a whole document (7)."""
        number, _, page = id.partition(":")
        if not number.isdigit() or not (page.isdigit() or not page):
            raise BadInput(f"{id!r} is not an id", "use 7 for document 7, or 7:12 for its page 12")
        document = self._document(int(number))
        pages = documents.document_text(self._session, document.id, pages=page or None)[1]
        text = "\f".join(one.text or "" for one in pages)
        return {
            "id": id,
            "title": document.name + (f", page {page}" if page else ""),
            "text": text[:_FETCHED_CHARACTERS_MAX],
            "url": self._url(document.id, int(page) if page else None),
            "metadata": {
                "owner": document.owner,
                "pages": document.pages,
                "is_cut": len(text) > _FETCHED_CHARACTERS_MAX,
            },
        }

    async def list_documents(self, name: str = "", before: int | None = None, limit: int = 50) -> dict[str, Any]:
        """List documents, newest first; `name` is a part of the file name. For more, pass `next` as `before`."""
        selector = DocumentSelector(owners=(self._owner,) if self._owner else (), name=name)
        page = documents.list_documents(self._session, selector, limit=max(1, min(limit, 200)), before_id=before)
        items = [
            {"id": one.id, "name": one.name, "pages": one.pages, "status": str(one.status), "url": self._url(one.id)}
            for one in page.items
        ]
        return {"documents": items, "next": page.next}

    async def read_pages(self, document: int, first: int, last: int) -> dict[str, Any]:
        """Return the text of a range of pages of a document, with how each was read and how sure OCR was (per cent)."""
        found = self._document(document)
        pages = documents.document_text(self._session, found.id, pages=f"{first}-{last}")[1]
        return {
            "title": found.name,
            "pages": [
                {"page": one.number, "text": one.text or "", "method": str(one.method), "confidence": one.confidence}
                for one in pages
            ],
        }

    async def tables(self, document: int, first: int, last: int) -> dict[str, Any]:
        """Return the tables on a range of pages of a document, as rows of cells."""
        found = self._document(document)
        tables = tables_of(self._session, found.id, pages=f"{first}-{last}")
        return {"title": found.name, "tables": [{"page": one.page, "rows": one.rows} for one in tables]}

    async def page_image(self, document: int, page: int) -> Image:
        """Return a page as an image, to look at a figure, a signature or a layout."""
        found = self._document(document)
        image = page_image(self._session, self._renderer, found.id, page)
        return Image(path=image.path)

    async def add_document(self, source: str) -> dict[str, Any]:
        """Add a file or directory of the server, a Google Drive folder or an https address. Returns the batch."""
        left_out = LeftOut()
        jobs = jobs_of_sources([source], SourceOptions(), owner=self._owner or "", left_out=left_out)
        added = batches.add_batch(self._session, jobs, owner=self._owner or "", asked={"sources": [source]})
        return {"batch": added.batch.id, "jobs": len(added.jobs), **left_out.as_answer()}

    def _document(self, document_id: int) -> Document:
        found = self._session.library.document(document_id)
        if self._owner not in (None, found.owner):
            raise DocumentNotFound(f"there is no document {document_id}", "`list_documents` shows those that are there")
        return found

    def _url(self, document_id: int, page: int | None = None) -> str:
        return f"{self._address}/documents/{document_id}" + (f"?page={page}" if page else "")
