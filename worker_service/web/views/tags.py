"""The Tags page: all tags, and the jobs that follow documents with a tag."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from worker_service.jobs.documents import OnEnd
from worker_service.jobs.follow_ups import read_json
from worker_service.jobs.tags import TagCount
from worker_service.services import tags
from worker_service.services.enqueue import installed_types
from worker_service.services.session import Session
from worker_service.web.access import visitor_of
from worker_service.web.middleware import form_of
from worker_service.web.resources.jobs import action_text, owner_for, refuse_server_files
from worker_service.web.views import page_route, render
from worker_service.web.views.documents import owners_of
from worker_service.web.views.flash_messages import redirect


def tags_page(request: Request, session: Session) -> Response:
    visitor = visitor_of(request)
    counts = [*tags.count_tags(session, visitor.owner)]
    actions = tags.actions_of_tags(session, visitor.owner)
    tags_of_documents = {count.tag for count in counts}
    other_tags = dict.fromkeys(action.tag for action in actions if action.tag not in tags_of_documents)
    return render(
        request,
        "tags.html",
        title="Tags",
        counts=[*counts, *(TagCount(tag, 0) for tag in other_tags)],
        actions={tag: [action for action in actions if action.tag == tag] for tag in [*tags_of_documents, *other_tags]},
        types=sorted({*session.job_queries.names("handler", prefix=""), *installed_types(session.settings)}),
        owners=owners_of(session, visitor),
    )


def change_actions(request: Request, session: Session) -> Response:
    visitor, form = visitor_of(request), form_of(request)
    tag, text = form.get("tag", ""), form.get("payload", "").strip()
    payload = read_json(text) if text else None
    refuse_server_files(visitor, payload)
    action = action_text({"job_type": form.get("type", "").strip(), "payload": payload})
    owner = owner_for(visitor, form.get("owner") or None)
    on_failure = form.get("on_end") == OnEnd.FAILURE
    if form.get("verb") == "remove":
        tags.remove_tag_action(session, tag, action, owner=owner, on_failure=on_failure)
        return redirect("/tags", message="action-removed")
    is_new = tags.add_tag_action(session, tag, action, owner=owner, on_failure=on_failure)
    return redirect("/tags", message="action-added" if is_new else "nothing")


routes = [page_route("/tags", tags_page), page_route("/tags/actions", change_actions, methods=["POST"])]
