"""Undo an action of a user."""

from __future__ import annotations

from msgspec.structs import replace

from worker_service.base.errors import Refused
from worker_service.jobs.batches import OwnerPolicy
from worker_service.jobs.history import Action, Changed
from worker_service.services.job_control import apply_owner_policy
from worker_service.services.schedules import begin_restored_schedules
from worker_service.services.session import Session

ACTIONS_EXAMINED_MAX = 1000


def find_undoable(session: Session, action_id: int | None) -> Action:
    """Return the action with this id, or without an id the newest one that can be undone."""
    newest_first = session.history.actions(most=ACTIONS_EXAMINED_MAX)
    if action_id is None:
        candidates = [action for action in newest_first if action.undone_at is None and action.opposite]
    else:
        candidates = [action for action in newest_first if action.id == action_id]
    if not candidates:
        which = "nothing" if action_id is None else f"no action {action_id}"
        raise Refused(f"there is {which} to undo", "see pagemill undo --list")
    action = candidates[0]
    if action.undone_at is not None:
        raise Refused(f"action {action.id} was undone already")
    if action.opposite is None:
        raise Refused(f"action {action.id} cannot be undone: {_why_not(action)}")
    return action


def _why_not(action: Action) -> str:
    if action.is_of_tokens:
        return "`pagemill token make` and `rm` change who may sign in"
    match action.verb:
        case "stop_batch":
            return f"it stopped batch {action.batch_id}; `pagemill batch resume {action.batch_id}` resumes it"
        case "resume_batch" | "retry_batch":
            return f"it started batch {action.batch_id} again; `pagemill batch stop {action.batch_id}` stops it"
        case _:
            return f"it was a {action.verb}, which removes permanently"


def undo_action(session: Session, action: Action) -> Changed:
    """Reverse an action, except for jobs that have changed since."""
    if action.is_of_schedule:
        session.store.schedules.undo(action.id, actor=session.actor)
        begin_restored_schedules(session)
        return Changed(action.id, ())
    changed = session.store.job_control.undo(action.id, actor=session.actor)
    if action.verb != "cancel":
        return changed
    if action.batch_id is None:
        return apply_owner_policy(session, changed)
    policy = OwnerPolicy(session.settings.owner_policy)
    batch = session.store.batches.undo_cancel(action.id, actor=session.actor, policy=policy)
    return replace(changed, batch_id=None if batch is None else batch.id)
