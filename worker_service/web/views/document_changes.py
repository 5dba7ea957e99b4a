"""Changes of several documents: download, tag, read again, remove."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal
from urllib.parse import urlencode

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from worker_service.base.errors import BadInput
from worker_service.base.humanize import counted
from worker_service.jobs.documents import Decision
from worker_service.jobs.library import Document, DocumentSelector
from worker_service.services import document_removal, enqueue, tags
from worker_service.services.documents import each_document
from worker_service.services.session import Session
from worker_service.web.access import TokenScope, visitor_of
from worker_service.web.middleware import form_of
from worker_service.web.parameters import query_of, read_known_parameters
from worker_service.web.resources.documents import DocumentsQuery, document_selector, zip_response
from worker_service.web.resources.read_requests import submit_reindex
from worker_service.web.views import page_route, render
from worker_service.web.views.flash_messages import redirect

_AT_ONCE_MAX = 1000
"""Reading again or removing takes milliseconds for each document."""
_SAMPLE_MAX = 5
_TAGS_OF_DOCUMENTS_MAX = 500
"""Documents whose tags are offered for removal."""
_READING_OPTIONS = ("lang", "quality", "force-ocr")
_LIST_PARAMETERS = ("status", "owner", "name", "batch", "tag", "kind", "since", "until", "sort", "view")

FILE_KINDS: Mapping[str, str] = {"original": "Originals", "txt": "Text", "pdf": "Searchable PDFs"}
TITLES: Mapping[str, str] = {
    "download": "Download {documents}", "tag": "Tag {documents}", "again": "Read {documents} again",
    "remove": "Remove {documents}?",
}  # fmt: skip


class ChosenQuery(DocumentsQuery, frozen=True, kw_only=True):
    scope: Literal["", "all"] = ""
    """all: the documents that match the filters, instead of the ids."""
    view: str = ""

    @property
    def is_empty(self) -> bool:
        return not (self.id or self.scope)

    @property
    def filters(self) -> Sequence[tuple[str, object]]:
        pairs: list[tuple[str, object]] = []
        for name in _LIST_PARAMETERS:
            value = getattr(self, name)
            values = value if isinstance(value, tuple) else [value]
            pairs += [(name, single_value) for single_value in values if single_value]
        return [pair for pair in pairs if pair != ("sort", "date")]  # the default

    @property
    def fields(self) -> Sequence[tuple[str, object]]:
        """Hidden fields of a form that asks for the same documents."""
        chosen = [("scope", "all")] if self.scope else [("id", document_id) for document_id in self.id]
        return [*chosen, *self.filters]


class ChangeQuery(ChosenQuery, frozen=True, kw_only=True):
    verb: Literal["download", "tag", "again", "remove"]
    expect: int | None = None
    """Number of documents that the user was asked about."""
    add: str = ""
    """Tags to add, with commas between them."""
    without: tuple[str, ...] = ()
    """Tags to remove."""
    anyway: bool = False


class ZipQuery(ChosenQuery, frozen=True, kw_only=True):
    form: tuple[Literal["original", "txt", "pdf"], ...] = ("original",)


def confirm_change(request: Request, session: Session) -> Response:
    visitor, query = visitor_of(request), query_of(request, ChangeQuery)
    if query.verb != "download":
        visitor.require(TokenScope.OPERATE)
    selector = _selector(request, session, query)
    count = 0 if query.is_empty else session.library.totals(selector).documents
    if not count:
        return redirect(_list_path(query), message="nothing-chosen")
    _refuse_too_many(query.verb, count)
    is_removal = query.verb == "remove"
    # A removal weighs all documents. The others show only a sample, and tags.
    documents = session.library.documents(selector, most=_AT_ONCE_MAX if is_removal else _TAGS_OF_DOCUMENTS_MAX)
    return render(
        request,
        "document_changes.html",
        title=TITLES[query.verb].format(documents=counted(count, "document")),
        query=query,
        count=count,
        sample=documents[:_SAMPLE_MAX],
        weight=document_removal.weigh_removal(session, documents) if is_removal else None,
        file_kinds=FILE_KINDS,
        tags_of_chosen=sorted({tag for document in documents for tag in document.tags}),
        tags_known=tags.tag_names(session, visitor.owner),
        offered=enqueue.offered_choices(session) if query.verb == "again" else {},
        back=_list_path(query),
    )


def apply_change(request: Request, session: Session) -> Response:
    form = form_of(request)
    query = read_known_parameters(form.multi_items(), ChangeQuery)
    ids = [] if query.is_empty else session.library.document_ids(_selector(request, session, query))
    if not ids:
        return redirect(_list_path(query), message="nothing-chosen")
    _refuse_too_many(query.verb, len(ids))
    if query.expect not in (None, len(ids)):
        raise BadInput(f"now {counted(len(ids), 'document')} match, not {query.expect}", "go back and look again")
    if query.verb == "tag":
        return _tag(session, ids, query)
    if query.verb == "again":
        options = {name: form.getlist(name) for name in _READING_OPTIONS if name in form}
        requests = [submit_reindex(session, document_id, options, is_forced=query.anyway) for document_id in ids]
        is_unchanged = all(read_request.decision == Decision.UNCHANGED for read_request in requests)
        return redirect(_list_path(query), message="all-unchanged" if is_unchanged else "read-again")
    if query.verb == "remove":
        documents = session.library.documents(DocumentSelector(ids=ids), most=len(ids))
        removed, _ = document_removal.remove_documents(session, documents)
        return redirect(_list_path(query), done=removed.action_id, refused=len(removed.refused) or None)
    raise BadInput(f"documents have no change {query.verb!r}")


def _tag(session: Session, ids: Sequence[int], query: ChangeQuery) -> Response:
    if query.without:
        tags.remove_tags(session, ids, query.without)
    if query.add.strip():
        tags.add_tags(session, ids, [query.add])
    return redirect(_list_path(query), message="tagged" if query.without or query.add.strip() else "nothing")


def files(request: Request, session: Session) -> Response:
    query = query_of(request, ZipQuery)
    selector = _selector(request, session, query)

    def find(session: Session) -> Iterator[Document]:
        return each_document(session, selector)

    return zip_response(request, find, query.form, file_name="documents.zip")


def _selector(request: Request, session: Session, query: ChosenQuery) -> DocumentSelector:
    # Ticked documents are chosen even if they no longer match the filters.
    is_ticked = bool(query.id) and not query.scope
    chosen = DocumentsQuery(id=query.id) if is_ticked else replace(query, id=())
    return document_selector(session, visitor_of(request), chosen)


def _refuse_too_many(verb: str, count: int) -> None:
    if verb in ("again", "remove") and count > _AT_ONCE_MAX:
        name = "reindex" if verb == "again" else "documents rm"
        remedy = f"choose fewer, or use `pagemill {name}` with --tag, --batch or --name on the server"
        raise BadInput(f"{counted(count, 'document')}: at most {_AT_ONCE_MAX:,} can be changed at a time", remedy)


def _list_path(query: ChosenQuery) -> str:
    return f"/documents?{urlencode(query.filters)}" if query.filters else "/documents"


routes = [
    page_route("/documents/change", confirm_change),
    page_route("/documents/change", apply_change, methods=["POST"]),
    page_route("/documents.zip", files),
]
