"""Follow-up actions: for one document, or for every document of an owner."""

from __future__ import annotations

from collections.abc import Sequence

from worker_service.base.errors import Refused
from worker_service.jobs.documents import AskedAction, OnEnd
from worker_service.jobs.follow_ups import read_action
from worker_service.services.database import Session
from worker_service.services.enqueue import check_action_payload


def actions_of_document(session: Session, document_id: int) -> Sequence[AskedAction]:
    session.store.library.document(document_id)
    return session.store.library.actions_of(document_id)


def add_standing_action(session: Session, owner: str, word: str, *, on_failure: bool) -> bool:
    """Run an action for each document of this owner that is read, or fails, from now on.

    `word` is TYPE or TYPE={"url": "…"}. Return False if the rule exists already.
    """
    action = read_action(word, _when(on_failure))
    check_action_payload(session, action)
    return session.store.intake.ask_always(owner, action)


def remove_standing_action(session: Session, owner: str, word: str, *, on_failure: bool) -> None:
    if not session.store.intake.ask_no_more(owner, read_action(word, _when(on_failure))):
        raise Refused(f"nothing like that follows for {owner}", "`pagemill then ls` shows what does")


def _when(on_failure: bool) -> OnEnd:
    return OnEnd.FAILURE if on_failure else OnEnd.SUCCESS
