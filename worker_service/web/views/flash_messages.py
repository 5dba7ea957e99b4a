"""The message about the previous request, named in the URL of its redirect."""

from __future__ import annotations

from urllib.parse import urlencode

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from worker_service.base.humanize import counted
from worker_service.jobs.history import Action, Changed
from worker_service.services.job_control import PAST_PARTICIPLES
from worker_service.services.session import Session
from worker_service.web.access import visitor_of
from worker_service.web.parameters import query_of
from worker_service.web.views.template_filters import capitalised

_NEWEST_ACTIONS_SEARCHED = 200

_SENTENCES = {
    "nothing": "Nothing to do",
    "undone": "Undone",
    "unpaused": "Resumed. Jobs start again.",
    "schedule-saved": "Schedule saved",
    "slots": "The number of slots was changed, until the worker restarts",
    "paused": "Paused. Running jobs continue; no new ones start.",
    "stopped": "Batch stopped. Running pages go back to the queue; nothing is lost.",
    "resumed": "Batch resumed",
    "retried": "Failed jobs of the batch are being retried",
    "cancelled": "Remaining jobs of the batch cancelled",
    "batch-removed": "Batch removed. Its jobs and documents are kept.",
    "started": "Started",
    "submitted": "Batch queued",
    "enqueued": "Job queued",
    "existing": "This job is already queued or running",
    "nothing-chosen": "No document was selected.",
    "action-added": "Action added",
    "action-removed": "Action removed. Jobs that it has started continue.",
    "read-again": "The documents will be read again.",
    "all-unchanged": "Already read with these options. To read again anyway, tick “Even if nothing has changed”.",
    "document-removed": "Document removed",
    "accepted": "The document will be read again.",
    "taken over": "The document will be read again, because earlier work on it had stopped.",
    "under way": "The document is already being read with these options.",
    "unchanged": "The document was already read with these options. To read it anyway, tick “Even if nothing has "
    "changed”.",
    "own-text": "The document will be read again. Its pages have text of their own, which neither quality nor language "
    "changes; to recognise them, tick “Recognise pages that have text of their own”.",
    "tagged": "Tags saved",
    "unlocked": "The password opens the PDF.",
    "password-forgotten": "The password is deleted. The text stays readable.",
    "fetching": "The file will be fetched again, then read.",
}

# Past participles by verb: of actions on a token or a schedule, and on a batch.
_SUBJECT_PARTICIPLES = {
    "make_token": "created",
    "remove_token": "removed",
    "add_schedule": "added",
    "change_schedule": "changed",
    "remove_schedule": "removed",
}
_BATCH_PARTICIPLES = {
    "cancel": "cancelled",
    "stop_batch": "stopped",
    "resume_batch": "resumed",
    "retry_batch": "retried",
    "forget_batch": "removed",
}


class Flash(Struct, frozen=True):
    sentence: str
    undo_action_id: int | None = None
    path_after_undo: str = "/activity"
    is_bad: bool = False


class FlashQuery(Struct, frozen=True):
    message: str = ""
    done: int | None = None
    """Id of the action that was taken."""
    refused: int = 0


def redirect(path: str, **parameters: object) -> Response:
    query = urlencode({name: value for name, value in parameters.items() if value not in (None, "")}, doseq=True)
    separator = "&" if "?" in path else "?"
    return RedirectResponse(f"{path}{separator}{query}" if query else path, 303)


def redirect_after(path: str, changed: Changed) -> Response:
    if changed.action_id is None and not changed.refused:
        return redirect(path, message="nothing")
    return redirect(path, done=changed.action_id, refused=len(changed.refused) or None)


def flash_of(session: Session, request: Request) -> Flash | None:
    visitor, query = visitor_of(request), query_of(request, FlashQuery)
    if sentence := _SENTENCES.get(query.message):
        return Flash(sentence, is_bad=query.message in ("unchanged", "all-unchanged", "nothing-chosen"))
    if query.done is None:
        sentence = f"{counted(query.refused, 'job')} could not be changed; each job's page says why"
        return Flash(sentence, is_bad=True) if query.refused else None
    action = next(
        (action for action in session.history.actions(most=_NEWEST_ACTIONS_SEARCHED) if action.id == query.done), None
    )
    if action is None or (visitor.owner is not None and action.actor != visitor.name):
        return None
    sentence = describe_action(action) + (f"; {query.refused:,} could not be changed" if query.refused else "")
    if action.undone_at is not None:
        return Flash(f"{sentence}; undone since")
    return Flash(sentence, action.id if action.opposite else None, request.url.path)


def describe_action(action: Action) -> str:
    if action.subject:
        return f"{capitalised(action.subject)} {_SUBJECT_PARTICIPLES[action.verb]}"
    if action.batch_id is not None:
        jobs = f" ({counted(action.jobs, 'job')})" if action.jobs else ""
        return f"Batch {action.batch_id} {_BATCH_PARTICIPLES[action.verb]}{jobs}"
    if action.verb == "remove":
        return f"{counted(action.documents, 'document')} removed"
    noun = "failure" if action.verb == "dismiss" else "job"
    return f"{counted(action.jobs, noun)} {PAST_PARTICIPLES.get(action.verb, action.verb)}"
