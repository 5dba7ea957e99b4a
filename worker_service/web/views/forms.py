"""Page requests: filters in the URL, form fields, and the message about the previous request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import urlencode

from msgspec import Struct
from starlette.datastructures import FormData, ImmutableMultiDict, QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from worker_service.base.clock import wall_clock
from worker_service.base.errors import BadInput
from worker_service.base.humanize import counted
from worker_service.jobs.history import Action, Changed
from worker_service.jobs.selector import CHOSEN_BY, Selector
from worker_service.services.database import Session
from worker_service.services.job_control import DONE
from worker_service.services.parse import read_selector
from worker_service.web.access import visitor_of
from worker_service.web.middleware import form_of

_NUMBER_DIGITS_MOST = 18
_LATELY_MOST = 200

_MANY = ("status", "match", *(c.flag[2:] for c in CHOSEN_BY if c.chosen_by.endswith("s")))
_ONE = ("since", "older_than", *(c.flag[2:] for c in CHOSEN_BY if not c.chosen_by.endswith("s")))
_COLUMNS = {column.flag[2:]: column for column in CHOSEN_BY}

Handler = Callable[[Request, FormData], Response]


def posted(handler: Handler) -> Callable[[Request], Response]:
    """Return a route function that passes the form to `handler`."""

    def read(request: Request) -> Response:
        return handler(request, form_of(request))

    return read


def number(text: str | None, what: str) -> int | None:
    """Return the number, or None if the text is empty. Raise `BadInput` if it is no number."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _NUMBER_DIGITS_MOST):
        raise BadInput(f"{what} must be a number, not {text!r}")
    return int(text)


def said(form: FormData, name: str) -> str:
    """Return the form field, or an empty string if it is absent."""
    word = form.get(name)
    return word if isinstance(word, str) else ""


def back_to(place: str, **fields: object) -> Response:
    told = {name: value for name, value in fields.items() if value not in (None, "")}
    return RedirectResponse(f"{place}?{urlencode(told)}" if told else place, 303)


# ── Filters ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Filters(Struct, frozen=True):
    """Job filters in the URL: options of the command line, and `id` for each ticked job."""

    said: Sequence[tuple[str, str]]
    """Pairs of name and value, none empty."""

    @classmethod
    def of(cls, query: QueryParams | FormData | ImmutableMultiDict[str, object]) -> Filters:
        known = (*_MANY, *_ONE, "id")
        return cls(
            [(name, word) for name, word in query.multi_items() if name in known and isinstance(word, str) and word]
        )

    def get(self, name: str) -> str:
        return next((word for known, word in self.said if known == name), "")

    def all(self, name: str) -> list[str]:
        return [part.strip() for known, word in self.said if known == name for part in word.split(",") if part.strip()]

    def __bool__(self) -> bool:
        return bool(self.said)

    @property
    def beside_status(self) -> bool:
        """True if a filter other than status is set."""
        return any(name != "status" for name, _ in self.said)

    def selector(self) -> Selector:
        named: dict[str, object] = {}
        for name, column in _COLUMNS.items():
            words = [word for known, word in self.said if known == name]
            if words:
                named[column.chosen_by] = words if name in _MANY else words[-1]
                if column.is_number:
                    named[column.chosen_by] = number(words[-1], name)
        return read_selector(
            now=wall_clock(),
            ids=[word for name, word in self.said if name == "id"],
            statuses=self.all("status"),
            since=self.get("since") or None,
            older_than=self.get("older_than") or None,
            match=[word for name, word in self.said if name == "match"],
            **named,
        )

    def address(self, **changes: object) -> str:
        """Return the URL query with some filters changed; None removes one."""
        kept = [(name, word) for name, word in self.said if name not in changes]
        return "?" + urlencode([*kept, *((name, word) for name, word in changes.items() if word is not None)])

    def words(self) -> list[str]:
        """Return the filters as command-line arguments."""
        ids = [word for name, word in self.said if name == "id"]
        flags = [(f"--{name.replace('_', '-')}", word) for name, word in self.said if name != "id"]
        return [*(part for flag in flags for part in flag), *ids]


# ── Messages ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Told(Struct, frozen=True):
    """Message about the previous request, with the action that can be undone."""

    sentence: str
    undo: int | None = None
    is_bad: bool = False


def told(session: Session, request: Request) -> Told | None:
    """Return the message named in the URL: `done` is an action id, `said` a key of `_SENTENCES`."""
    visitor, query = visitor_of(request), request.query_params
    if sentence := _SENTENCES.get(query.get("said", "")):
        return Told(sentence)
    refused = number(query.get("refused"), "refused") or 0
    action_id = number(query.get("done"), "done")
    if action_id is None:
        return (
            Told(f"{counted(refused, 'job')} could not be changed; each job's page says why", is_bad=True)
            if refused
            else None
        )
    found = session.reading.actions(most=_LATELY_MOST)
    action = next((one for one in found if one.id == action_id), None)
    if action is None or (visitor.owner is not None and action.actor != visitor.name):
        return None
    return _told(action, refused)


def sentence(action: Action) -> str:
    """Describe an action in the past tense."""
    if action.tokens:
        return f"{action.tokens} {'made' if action.verb == 'make_token' else 'removed'}"
    if action.batch_id is not None:
        done = _OF_BATCHES[action.verb]
        return f"Batch {action.batch_id} {done}" + (f" ({counted(action.jobs, 'job')})" if action.jobs else "")
    if action.verb == "remove":
        return f"{counted(action.documents, 'document')} removed"
    return f"{counted(action.jobs, 'job')} {DONE.get(action.verb, action.verb)}"


_OF_BATCHES = {
    "cancel": "cancelled",
    "stop_batch": "stopped",
    "resume_batch": "resumed",
    "retry_batch": "retried",
    "forget_batch": "removed",
}


def _told(action: Action, refused: int) -> Told:
    what = sentence(action)
    more = f"; {refused:,} could not be changed" if refused else ""
    if action.undone_at is not None:
        return Told(f"{what}{more}; undone since")
    return Told(f"{what}{more}", action.id if action.opposite else None)


_SENTENCES = {
    "nothing": "Nothing to do",
    "undone": "Undone",
    "unpaused": "Unpaused",
    "paused": "Paused. Running jobs continue; no new ones start.",
    "stopped": "Batch stopped. Running pages go back to the queue; nothing is lost.",
    "resumed": "Batch resumed",
    "retried": "Failed jobs of the batch are being retried",
    "cancelled": "Remaining jobs of the batch cancelled",
    "forgotten": "Batch removed. Its jobs and documents are kept.",
    "begun": "Started",
    "submitted": "Batch queued",
    "enqueued": "Job queued",
    "existing": "This job is already queued or running",
}


def outcome(changed: Changed) -> dict[str, object]:
    """Return the URL fields from which the next page builds its message."""
    if changed.action_id is None and not changed.refused:
        return {"said": "nothing"}
    return {"done": changed.action_id, "refused": len(changed.refused) or None}
