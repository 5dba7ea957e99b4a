"""Workers, pauses and actions that a visitor may see."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from worker_service.base.errors import BadInput, Refused
from worker_service.jobs.history import Action
from worker_service.services import job_control
from worker_service.services.job_control import Paused
from worker_service.services.overview import CheckedNode, CheckedWorker, Overview
from worker_service.services.session import Session
from worker_service.services.undo import find_undoable
from worker_service.web.access import TokenScope, Visitor
from worker_service.web.error_responses import NotAllowed

_ACTIONS_SEARCHED_MAX = 1000

PAUSE_SCOPES = ("type", "owner", "all")


class WorkersAndNodes(Struct, frozen=True):
    items: Sequence[CheckedWorker]
    nodes: Sequence[CheckedNode]


def list_workers(session: Session) -> WorkersAndNodes:
    overview = Overview(session)
    return WorkersAndNodes(overview.workers, overview.nodes)


def pause(
    session: Session, visitor: Visitor, scope: str, name: str, *, length: str | None, reason: str | None
) -> Paused:
    _check_pause_scope(visitor, scope, name)
    return job_control.pause(session, scope, name, length=length, reason=reason)


def unpause(session: Session, visitor: Visitor, scope: str, name: str) -> None:
    _check_pause_scope(visitor, scope, name)
    job_control.unpause(session, scope, name, owner=visitor.owner)


def _check_pause_scope(visitor: Visitor, scope: str, name: str) -> None:
    if scope not in PAUSE_SCOPES:
        raise BadInput(f"{scope!r} is not a scope", f"choose {', '.join(PAUSE_SCOPES)}")
    if scope == "all" and name:
        raise BadInput("a pause of all jobs has no name", "leave the name empty")
    if scope != "all" and not name:
        raise BadInput(f"enter the name of the {scope} to pause")
    if visitor.owner is not None and (scope, name) != ("owner", visitor.owner):
        raise NotAllowed(visitor.limit_in_words)


def list_actions(session: Session, visitor: Visitor, limit: int) -> Sequence[Action]:
    """Return to a visitor of one owner only their own actions: others may concern other owners."""
    if visitor.owner is None:
        return session.history.actions(most=limit)
    return _own_actions(session, visitor)[:limit]


def undoable_action(session: Session, visitor: Visitor, action_id: int) -> Action:
    is_own = any(action.id == action_id for action in _own_actions(session, visitor))
    if not is_own and visitor.owner is not None:
        raise Refused(f"there is no action {action_id} to undo", "see pagemill undo --list")
    if not is_own:
        visitor.require(TokenScope.ADMIN)
    return find_undoable(session, action_id)


def _own_actions(session: Session, visitor: Visitor) -> Sequence[Action]:
    return [action for action in session.history.actions(most=_ACTIONS_SEARCHED_MAX) if action.actor == visitor.name]
