"""Tags of documents, and the follow-up jobs of tags and of single documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from worker_service.base.errors import Refused
from worker_service.jobs.documents import OnEnd, StoredAction, TagAction
from worker_service.jobs.follow_ups import read_action
from worker_service.jobs.tags import TagCount, read_one_tag, require_tags
from worker_service.services.enqueue import check_action_payload
from worker_service.services.session import Session, chunks

_TAGS_NAMED_MAX = 50


def add_tags(session: Session, document_ids: Sequence[int], words: Sequence[str]) -> list[int]:
    """Return the ids of documents with a new tag. Actions of new tags start once per generation."""
    return _change_tags(session.store.tags.add, document_ids, words)


def remove_tags(session: Session, document_ids: Sequence[int], words: Sequence[str]) -> list[int]:
    return _change_tags(session.store.tags.remove, document_ids, words)


def _change_tags(
    change: Callable[[Sequence[int], Sequence[str]], Sequence[int]], document_ids: Sequence[int], words: Sequence[str]
) -> list[int]:
    tags, changed_ids = require_tags(words), list[int]()
    for chunk in chunks(document_ids):
        changed_ids += change(chunk, tags)
    return changed_ids


def count_tags(session: Session, owner: str | None = None) -> Sequence[TagCount]:
    return session.store.tags.counts(owner)


def tag_names(session: Session, owner: str | None = None) -> Sequence[str]:
    return session.store.tags.names(owner, most=_TAGS_NAMED_MAX)


# ── Actions ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def actions_of_document(session: Session, document_id: int) -> Sequence[StoredAction]:
    session.library.document(document_id)  # raises `DocumentNotFound`
    return session.library.actions_of(document_id)


def actions_of_tags(session: Session, owner: str | None = None) -> Sequence[TagAction]:
    return session.store.tags.actions(owner)


def add_tag_action(session: Session, tag: str, text: str, *, owner: str = "", on_failure: bool = False) -> bool:
    """Add the action TYPE or TYPE={"url": "…"} to a tag. Return False if the tag has it."""
    action = read_action(text, _on_end(on_failure))
    check_action_payload(session, action)
    return session.store.tags.add_action(read_one_tag(tag), action, owner=owner)


def remove_tag_action(session: Session, tag: str, text: str, *, owner: str = "", on_failure: bool = False) -> None:
    action = read_action(text, _on_end(on_failure))
    if not session.store.tags.remove_action(read_one_tag(tag), action, owner=owner):
        raise Refused(f"the tag {tag!r} has no such action", "`pagemill actions` lists them")


def _on_end(on_failure: bool) -> OnEnd:
    return OnEnd.FAILURE if on_failure else OnEnd.SUCCESS
