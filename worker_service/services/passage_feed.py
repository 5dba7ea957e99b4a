"""Changes of passages, for a program that keeps them elsewhere.

A change replaces all passages of its document, which is in the feed once, at its last change. So a program that stores
passages and cursor in one transaction misses nothing and has nothing twice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from worker_service.base.errors import BadInput, DocumentNotFound, Refused
from worker_service.jobs.digest import digest
from worker_service.jobs.library import Document, DocumentChange
from worker_service.jobs.passages import Passage
from worker_service.services.database import Session
from worker_service.services.page_blocks import passage_limits, passages_of_document, structured_pages

_PASSAGES_ENOUGH = 2000
_ATTEMPTS = 5
_CURSOR = re.compile(r"(\d{1,18})\.([0-9a-f]{12})")


class CursorOutdated(Refused, code="cursor_outdated"):
    """The cursor is of another database, or of passages of another length."""


class PassageChange(Struct, frozen=True):
    document_id: int
    generation: int | None
    """None: the document was removed."""
    name: str = ""
    owner: str = ""
    passages: Sequence[Passage] = ()
    note: str = ""


class PassageChanges(Struct, frozen=True):
    items: Sequence[PassageChange]
    next: str
    """For the next request, also if there was nothing new."""
    is_complete: bool


def changed_passages(session: Session, since: str | None, *, owner: str | None, most: int) -> PassageChanges:
    edition = _edition(session)
    after = _position(since, edition)
    changes = session.library.document_changes(after, owner=owner, most=most)
    items: list[PassageChange] = []
    passages = 0
    for change in changes:
        items.append(_read(session, change))
        passages += len(items[-1].passages)
        after = change.number
        if passages >= _PASSAGES_ENOUGH:
            break
    is_complete = len(items) == len(changes) < most
    return PassageChanges(items, f"{after}.{edition}", is_complete)


def _edition(session: Session) -> str:
    return digest([session.library.history(), passage_limits(session.settings).edition])[:12]


def _position(since: str | None, edition: str) -> int:
    if not since:
        return 0
    found = _CURSOR.fullmatch(since)
    if found is None:
        raise BadInput(f"{since[:40]!r} is not a cursor", "use the `next` of an earlier answer, or leave it out")
    if found[2] != edition:
        raise CursorOutdated(
            "the cursor is of another database, or of passages of another length",
            "drop the passages that you have, and begin without a cursor",
        )
    return int(found[1])


def _read(session: Session, change: DocumentChange) -> PassageChange:
    """Return the passages of one generation, although another may be published meanwhile."""
    for _ in range(_ATTEMPTS):
        document = _find(session, change.document_id)
        if document is None or document.current_generation is None:
            break
        about = document.current_generation, document.name, document.owner
        try:
            pages = structured_pages(session, document.id)
        except BadInput as error:
            return PassageChange(document.id, *about, note=str(error))
        now = _find(session, document.id)
        if now is not None and now.current_generation == document.current_generation:
            found = list(passages_of_document(session, document, pages))
            return PassageChange(document.id, *about, found)
    # It was removed; or it changes so often that it is in the feed again, later.
    return PassageChange(change.document_id, None)


def _find(session: Session, document_id: int) -> Document | None:
    try:
        return session.library.document(document_id)
    except DocumentNotFound:
        return None
