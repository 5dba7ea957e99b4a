"""Forms that change one document: tag it, read it again, give its password, remove it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from worker_service.base.errors import BadInput
from worker_service.base.sanitize import harmless
from worker_service.jobs.documents import Decision
from worker_service.jobs.tags import read_tags
from worker_service.services import document_removal, documents, enqueue, passwords, tags
from worker_service.services.page_images import PageLocked, why_no_image
from worker_service.services.session import Session
from worker_service.web.access import TokenScope, visitor_of
from worker_service.web.database_sessions import session_of
from worker_service.web.middleware import form_of
from worker_service.web.parameters import query_of
from worker_service.web.resources.documents import requested_document
from worker_service.web.resources.jobs import refuse_server_files
from worker_service.web.resources.read_requests import WrongPassword, submit_reindex, unlock_document
from worker_service.web.views import in_rendering_thread, page_route, render
from worker_service.web.views.flash_messages import redirect


class ReindexFormQuery(Struct, frozen=True):
    quality: Literal["", "fast", "auto", "best"] = ""


def reindex_form(request: Request, session: Session) -> Response:
    visitor_of(request).require(TokenScope.OPERATE)
    query = query_of(request, ReindexFormQuery)
    document = requested_document(session, request)
    return render(
        request,
        "document_reindex.html",
        title=f"Read {harmless(document.name)} again?",
        document=document,
        quality=query.quality,
        needs_password=isinstance(why_no_image(session, document), PageLocked),
        has_own_text=documents.has_only_own_text(session, document.id),
        offered=enqueue.offered_choices(session),
    )


def reindex(request: Request, session: Session) -> Response:
    form = form_of(request)
    options = {name: form.getlist(name) for name in form if name not in ("csrf", "anyway")}
    refuse_server_files(visitor_of(request), options)
    document = requested_document(session, request)
    decision = submit_reindex(session, document.id, options, is_forced=bool(form.get("anyway"))).decision
    # The message is named after the decision. Without one, the file has to be fetched first.
    message = str(decision or "fetching")
    is_accepted = decision == Decision.ACCEPTED
    if is_accepted and not form.get("force-ocr") and documents.has_only_own_text(session, document.id):
        message = "own-text"
    return redirect(f"/documents/{document.id}", message=message)


def set_tags(request: Request, session: Session) -> Response:
    document = requested_document(session, request)
    new_tags = read_tags([form_of(request).get("tags", "")])
    removed = [tag for tag in document.tags if tag not in new_tags]
    if removed:
        tags.remove_tags(session, [document.id], removed)
    added = [tag for tag in new_tags if tag not in document.tags]
    if added:
        tags.add_tags(session, [document.id], added)
    return redirect(f"/documents/{document.id}", message="tagged")


def confirm_removal(request: Request, session: Session) -> Response:
    visitor_of(request).require(TokenScope.OPERATE)
    document = requested_document(session, request)
    return render(
        request,
        "document_remove.html",
        title=f"Remove {harmless(document.name)}?",
        document=document,
        weight=document_removal.weigh_removal(session, [document]),
    )


def remove(request: Request, session: Session) -> Response:
    removed, _ = document_removal.remove_documents(session, [requested_document(session, request)])
    if removed.refused:
        raise BadInput(next(iter(removed.refused.values())))
    return redirect("/documents", message="document-removed")


def password_form(request: Request, *, problem: str = "") -> Response:
    visitor_of(request).require(TokenScope.OPERATE)
    with session_of(request) as session:
        document = requested_document(session, request)
    status = 422 if problem else 200
    title = f"Password of {harmless(document.name)}"
    return render(request, "document_password.html", status=status, title=title, document=document, problem=problem)


@in_rendering_thread
def password(request: Request) -> Response:
    form = form_of(request)
    with session_of(request) as session:
        document = requested_document(session, request)
        try:
            text, is_kept = form.get("password", ""), bool(form.get("remember"))
            unlock_document(session, request.app.state.renderer, document, text, is_kept=is_kept)
        except WrongPassword:
            return password_form(request, problem="This password does not open the PDF. Type it again.")
    return redirect(f"/documents/{document.id}", message="unlocked")


def forget_password(request: Request, session: Session) -> Response:
    document = requested_document(session, request)
    passwords.forget(session.settings.workspace, document)
    return redirect(f"/documents/{document.id}", message="password-forgotten")


routes = [
    page_route("/documents/{document_id:id}/tags", set_tags, methods=["POST"]),
    page_route("/documents/{document_id:id}/reindex", reindex_form),
    page_route("/documents/{document_id:id}/reindex", reindex, methods=["POST"]),
    Route("/documents/{document_id:id}/password", password_form),
    Route("/documents/{document_id:id}/password", password, methods=["POST"]),
    page_route("/documents/{document_id:id}/password/forget", forget_password, methods=["POST"]),
    page_route("/documents/{document_id:id}/remove", confirm_removal),
    page_route("/documents/{document_id:id}/remove", remove, methods=["POST"]),
]
