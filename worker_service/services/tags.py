"""Tags of documents, and the follow-up jobs of tags and of single documents."""

from __future__ import annotations

from collections.abc import Sequence

from worker_service.base.errors import Refused
from worker_service.jobs.documents import AskedAction, OnEnd, TagAction
from worker_service.jobs.follow_ups import read_action
from worker_service.jobs.tags import TagCount, read_one_tag, require_tags
from worker_service.services.enqueue import check_action_payload
from worker_service.services.session import Session, chunks

_NAMED_MAX = 50


def add_tags(session: Session, document_ids: Sequence[int], words: Sequence[str]) -> list[int]:
    """Return the documents that were tagged. Actions of new tags start once per generation."""
    tags = require_tags(words)
    return [document_id for part in chunks(document_ids) for document_id in session.store.tags.add(part, tags)]


def remove_tags(session: Session, document_ids: Sequence[int], words: Sequence[str]) -> list[int]:
    tags = require_tags(words)
    return [document_id for part in chunks(document_ids) for document_id in session.store.tags.remove(part, tags)]


def count_tags(session: Session, owner: str | None = None) -> Sequence[TagCount]:
    return session.store.tags.counts(owner)


def name_tags(session: Session, owner: str | None = None) -> Sequence[str]:
    return session.store.tags.names(owner, most=_NAMED_MAX)


# ── Actions ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def actions_of_document(session: Session, document_id: int) -> Sequence[AskedAction]:
    session.library.document(document_id)
    return session.library.actions_of(document_id)


def actions_of_tags(session: Session, owner: str | None = None) -> Sequence[TagAction]:
    return session.store.tags.actions(owner)


def add_tag_action(session: Session, tag: str, word: str, *, owner: str = "", on_failure: bool = False) -> bool:
    """Add the action TYPE or TYPE={"url": "…"} to a tag. Return False if the tag has it."""
    action = read_action(word, _when(on_failure))
    check_action_payload(session, action)
    return session.store.tags.add_action(read_one_tag(tag), action, owner=owner)


def remove_tag_action(session: Session, tag: str, word: str, *, owner: str = "", on_failure: bool = False) -> None:
    if not session.store.tags.remove_action(read_one_tag(tag), read_action(word, _when(on_failure)), owner=owner):
        raise Refused(f"the tag {tag!r} has no such action", "`pagemill actions` lists them")


def _when(on_failure: bool) -> OnEnd:
    return OnEnd.FAILURE if on_failure else OnEnd.SUCCESS
