"""Tags of documents, and the jobs that follow documents with a tag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct

from worker_service.jobs.documents import OnEnd, TagAction
from worker_service.jobs.tags import TagCount
from worker_service.services import tags
from worker_service.web.api.endpoint import ApiRequest, ApiResponse, Items, endpoint
from worker_service.web.parameters import FilledText, Given, Id, about
from worker_service.web.resources.documents import OwnerParameter, visible_document
from worker_service.web.resources.jobs import action_text, owner_for, refuse_server_files

_DOCUMENTS_MAX = 1000


class TagsQuery(Struct, frozen=True):
    owner: OwnerParameter | None = None


class TagsBody(Struct, frozen=True, forbid_unknown_fields=True):
    id: Annotated[list[Id], about("The documents."), Meta(min_length=1, max_length=_DOCUMENTS_MAX)]
    add: Annotated[list[FilledText], about("Tags to add.")] = []
    remove: Annotated[list[FilledText], about("Tags to remove.")] = []


class TaggedDocuments(Struct, frozen=True):
    items: Annotated[Sequence[Id], about("The documents that changed.")]


class TagActionBody(Struct, frozen=True, forbid_unknown_fields=True):
    tag: FilledText
    job_type: FilledText
    payload: Given[dict[str, Any]] = UNSET
    on_end: OnEnd = OnEnd.SUCCESS
    owner: Annotated[str, about("Only documents of this owner; empty: of all owners.")] = ""


class NewTagAction(Struct, frozen=True):
    tag: str
    is_new: Annotated[bool, about("False: the tag has this action already.")]


@endpoint("GET", "/api/tags")
def list_tags(call: ApiRequest, query: TagsQuery) -> Items[TagCount]:
    """List the tags with the number of their documents."""
    owner = call.visitor.owner or query.owner
    return Items([] if query.owner not in (None, owner) else tags.count_tags(call.session, owner))


@endpoint("POST", "/api/tags", refusals=(404,))
def tag(call: ApiRequest, body: TagsBody) -> TaggedDocuments:
    """Tag and untag documents. The actions of new tags start for documents that are read already."""
    ids = [visible_document(call.session, call.visitor, document_id).id for document_id in body.id]
    removed = tags.remove_tags(call.session, ids, body.remove) if body.remove else []
    added = tags.add_tags(call.session, ids, body.add) if body.add else []
    return TaggedDocuments(sorted({*removed, *added}))


@endpoint("GET", "/api/tags/actions")
def list_tag_actions(call: ApiRequest) -> Items[TagAction]:
    """List the jobs that follow documents with a tag."""
    return Items(tags.actions_of_tags(call.session, call.visitor.owner))


@endpoint("POST", "/api/tags/actions", statuses=(201,))
def add_tag_action(call: ApiRequest, body: TagActionBody) -> ApiResponse[NewTagAction]:
    """Enqueue a job for each document with this tag that is read, or fails, from now on."""
    action, owner = _action_and_owner(call, body)
    is_new = tags.add_tag_action(call.session, body.tag, action, owner=owner, on_failure=body.on_end is OnEnd.FAILURE)
    return ApiResponse(NewTagAction(body.tag, is_new), 201)


@endpoint("POST", "/api/tags/actions/remove")
def remove_tag_action(call: ApiRequest, body: TagActionBody) -> NewTagAction:
    """Remove an action from a tag. Jobs that it has started continue."""
    action, owner = _action_and_owner(call, body)
    tags.remove_tag_action(call.session, body.tag, action, owner=owner, on_failure=body.on_end is OnEnd.FAILURE)
    return NewTagAction(body.tag, is_new=False)


def _action_and_owner(call: ApiRequest, body: TagActionBody) -> tuple[str, str]:
    payload = None if body.payload is UNSET else body.payload
    refuse_server_files(call.visitor, payload)
    return action_text({"job_type": body.job_type, "payload": payload}), owner_for(call.visitor, body.owner or None)
