"""Changes of passages, for a program that keeps them elsewhere.

A change replaces all passages of its document, and each document is in the feed once, at its last change. So a program
that stores passages and cursor in one transaction misses no change and keeps no passage twice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from worker_service.base.errors import BadInput, DocumentNotFound, Refused
from worker_service.jobs.digest import digest
from worker_service.jobs.library import Document, DocumentChange
from worker_service.jobs.passages import Passage
from worker_service.services.page_blocks import passage_limits, passages_of_document, structured_pages
from worker_service.services.session import Session

_PASSAGES_PER_ANSWER = 2000
"""An answer ends with the document that reaches this number."""
_READS_MAX = 5
_CURSOR = re.compile(r"(\d{1,18})\.([0-9a-f]{12})")


class CursorOutdated(Refused, code="cursor_outdated"): ...


class PassageChange(Struct, frozen=True):
    document_id: int
    generation: int | None
    """None if the document was removed."""
    name: str = ""
    owner: str = ""
    passages: Sequence[Passage] = ()
    note: str = ""


class PassageChanges(Struct, frozen=True):
    items: Sequence[PassageChange]
    next: str
    """Cursor for the next request, also if nothing is new."""
    is_complete: bool


def changed_passages(session: Session, since: str | None, *, owner: str | None, most: int) -> PassageChanges:
    edition = _edition(session)
    last_number = _parse_cursor(since, edition)
    changes = session.library.document_changes(last_number, owner=owner, most=most)
    items: list[PassageChange] = []
    passage_count = 0
    for change in changes:
        items.append(_read_change(session, change))
        passage_count += len(items[-1].passages)
        last_number = change.number
        if passage_count >= _PASSAGES_PER_ANSWER:
            break
    is_complete = len(items) == len(changes) and len(changes) < most
    return PassageChanges(items, f"{last_number}.{edition}", is_complete)


def _edition(session: Session) -> str:
    """Return a digest that changes with the database and with the length of passages."""
    return digest([session.library.database_identity(), passage_limits(session.settings).edition])[:12]


def _parse_cursor(cursor: str | None, edition: str) -> int:
    """Return the number of the last change that the program has."""
    if not cursor:
        return 0
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise BadInput(f"{cursor[:40]!r} is not a cursor", "use the `next` of an earlier answer, or leave it out")
    number, edition_of_cursor = match.groups()
    if edition_of_cursor != edition:
        raise CursorOutdated(
            "the cursor is of another database, or of passages of another length",
            "drop the passages that you have, and begin without a cursor",
        )
    return int(number)


def _read_change(session: Session, change: DocumentChange) -> PassageChange:
    """Return the passages of one generation: if another is published during the reading, read again."""
    for _ in range(_READS_MAX):
        document = _find_document(session, change.document_id)
        if document is None or document.current_generation is None:
            break
        empty = PassageChange(document.id, document.current_generation, document.name, document.owner)
        try:
            pages = structured_pages(session, document.id)
        except BadInput as error:
            return replace(empty, note=str(error))
        read_again = _find_document(session, document.id)
        if read_again is not None and read_again.current_generation == document.current_generation:
            return replace(empty, passages=list(passages_of_document(session, document, pages)))
    # The document was removed, or it changes so often that the feed will have it again.
    return PassageChange(change.document_id, None)


def _find_document(session: Session, document_id: int) -> Document | None:
    try:
        return session.library.document(document_id)
    except DocumentNotFound:
        return None
