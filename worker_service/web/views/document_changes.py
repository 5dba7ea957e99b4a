"""Changes of several documents: download, tag, read again, remove."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal
from urllib.parse import urlencode

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from worker_service.base.errors import BadInput
from worker_service.base.humanize import counted
from worker_service.jobs.documents import Decision
from worker_service.jobs.library import Document, DocumentSelector
from worker_service.services import document_removal, enqueue, tags
from worker_service.services.database import Session
from worker_service.services.documents import each_document
from worker_service.web.access import Power, visitor_of
from worker_service.web.middleware import form_of
from worker_service.web.parameters import read_known
from worker_service.web.resources.documents import DocumentsQuery, selected, zip_response
from worker_service.web.resources.read_requests import submit_reindex
from worker_service.web.views import page, render

_AT_ONCE_MAX = 1000
"""Reading again or removing takes milliseconds for each."""
_NAMED = 5
_TAGS_OF_MAX = 500
_OPTIONS = ("lang", "quality", "force-ocr")
_LIST_PARAMETERS = ("status", "owner", "name", "batch", "tag", "kind", "since", "until", "sort", "view")

FORMS: Mapping[str, str] = {"original": "Originals", "txt": "Text", "pdf": "Searchable PDFs"}
TITLES: Mapping[str, str] = {
    "download": "Download {}", "tag": "Tag {}", "again": "Read {} again", "remove": "Remove {}?",
}  # fmt: skip


class ChosenQuery(DocumentsQuery, frozen=True, kw_only=True):
    scope: Literal["", "all"] = ""
    """all: what the filters choose, instead of the ids."""
    view: str = ""

    @property
    def is_empty(self) -> bool:
        return not (self.id or self.scope)

    @property
    def filters(self) -> Sequence[tuple[str, object]]:
        given = {name: getattr(self, name) for name in _LIST_PARAMETERS if getattr(self, name)}
        pairs = [(name, one) for name, word in given.items() for one in (word if isinstance(word, tuple) else [word])]
        return [pair for pair in pairs if pair != ("sort", "date")]

    @property
    def fields(self) -> Sequence[tuple[str, object]]:
        return [*([("scope", "all")] if self.scope else [("id", one) for one in self.id]), *self.filters]


class ChangeQuery(ChosenQuery, frozen=True, kw_only=True):
    verb: Literal["download", "tag", "again", "remove"]
    expect: int | None = None
    """Number of documents that the user was asked about."""
    add: str = ""
    without: tuple[str, ...] = ()
    anyway: bool = False


class ZipQuery(ChosenQuery, frozen=True, kw_only=True):
    form: tuple[Literal["original", "txt", "pdf"], ...] = ("original",)


def ask(request: Request, session: Session) -> Response:
    visitor, query = visitor_of(request), read_known(request.query_params.multi_items(), ChangeQuery)
    if query.verb != "download":
        visitor.require(Power.OPERATE)
    selector = _selector(request, session, query)
    count = 0 if query.is_empty else session.library.totals(selector).documents
    if not count:
        return _to_list(query, message="nothing-chosen")
    _refuse_too_many(query.verb, count)
    is_removal = query.verb == "remove"
    found = session.library.documents(selector, most=_AT_ONCE_MAX if is_removal else _TAGS_OF_MAX)
    return render(
        request,
        "document_changes.html",
        title=TITLES[query.verb].format(counted(count, "document")),
        query=query,
        count=count,
        sample=found[:_NAMED],
        weight=document_removal.weigh_removal(session, found) if is_removal else None,
        forms=FORMS,
        tags_of_chosen=sorted({tag for one in found for tag in one.tags}),
        tags_known=tags.name_tags(session, visitor.owner),
        offered=enqueue.offered_choices(session) if query.verb == "again" else {},
        back=_list_address(query),
    )


def change(request: Request, session: Session) -> Response:
    visitor_of(request).require(Power.OPERATE)
    fields = form_of(request)
    query = read_known(fields.multi_items(), ChangeQuery)
    ids = [] if query.is_empty else session.library.document_ids(_selector(request, session, query))
    if not ids:
        return _to_list(query, message="nothing-chosen")
    _refuse_too_many(query.verb, len(ids))
    if query.expect not in (None, len(ids)):
        raise BadInput(f"now {counted(len(ids), 'document')} match, not {query.expect}", "go back and look again")
    if query.verb == "tag":
        return _tag(session, ids, query)
    if query.verb == "again":
        options = {name: fields.getlist(name) for name in _OPTIONS if name in fields}
        requested = [submit_reindex(session, one, options, is_forced=query.anyway) for one in ids]
        is_unchanged = all(one.enqueued.decision is Decision.UNCHANGED for one in requested)
        return _to_list(query, message="all-unchanged" if is_unchanged else "read-again")
    chosen = session.library.documents(DocumentSelector(ids=ids), most=len(ids)) if query.verb == "remove" else ()
    removed, _ = document_removal.remove_documents(session, chosen)
    return _to_list(query, done=removed.action_id, refused=len(removed.refused) or None)


def _tag(session: Session, ids: Sequence[int], query: ChangeQuery) -> Response:
    if query.without:
        tags.remove_tags(session, ids, query.without)
    if query.add.strip():
        tags.add_tags(session, ids, [query.add])
    return _to_list(query, message="tagged" if query.without or query.add.strip() else "nothing")


def files(request: Request, session: Session) -> Response:
    query = read_known(request.query_params.multi_items(), ZipQuery)
    selector = _selector(request, session, query)

    def find(session: Session) -> Iterator[Document]:
        return each_document(session, selector)

    return zip_response(request, find, query.form, file_name="documents.zip")


def _selector(request: Request, session: Session, query: ChosenQuery) -> DocumentSelector:
    chosen = replace(query, id=()) if query.scope or not query.id else DocumentsQuery(id=query.id)
    return selected(session, visitor_of(request), chosen)


def _refuse_too_many(verb: str, count: int) -> None:
    if verb in ("again", "remove") and count > _AT_ONCE_MAX:
        name = "reindex" if verb == "again" else "documents rm"
        remedy = f"choose fewer, or use `pagemill {name}` with --tag, --batch or --name on the server"
        raise BadInput(f"{counted(count, 'document')}: at most {_AT_ONCE_MAX:,} can be changed at a time", remedy)


def _list_address(query: ChosenQuery) -> str:
    return f"/documents?{urlencode(query.filters)}" if query.filters else "/documents"


def _to_list(query: ChosenQuery, **message: object) -> Response:
    words = [*query.filters, *((name, word) for name, word in message.items() if word is not None)]
    return RedirectResponse(f"/documents?{urlencode(words)}", 303)


routes = [
    page("/documents/change", ask),
    page("/documents/change", change, methods=["POST"]),
    page("/documents.zip", files),
]
