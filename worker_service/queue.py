"""The counter: what the command line and HTTP ask of the queue, in one place.

It opens the store, knows who is asking, and decides which jobs a verb is about. What a person wrote is read in
`worker_service.words`; what is done to rows is the store's; how it is shown is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from worker_service.clock import Clock, as_text, from_text, parse_length, shifted, wall_clock
from worker_service.config import Settings
from worker_service.errors import BadInput, BadPayload, JobNotFound, Refused, WaitTimedOut
from worker_service.jobs.model import Action, Changed, Enqueued, Job, NewJob, Status
from worker_service.jobs.selector import Selector
from worker_service.plurals import counted
from worker_service.words import (
    JobWords,
    SelectorWords,
    read_job,
    read_past,
    read_priority,
    read_selector,
)

if TYPE_CHECKING:
    from worker_service.handlers.contract import Choices
    from worker_service.store.base import Store

_LIVE = (Status.PENDING, Status.RUNNING)
_ENDED = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)
_IDS_AT_ONCE = 500
_PRUNED_AT_ONCE = 1000
_POLL_SECONDS = 0.05
_TYPES_MOST = 10_000

# What ends the reading of a document, where one of its jobs is like that, and the error code that the document gets.
_FAILS = {"cancel": (_LIVE, "CANCELLED"), "delete": ((Status.PENDING,), "JOB_DELETED")}

# What each verb can do anything about. The first is meant when nobody says otherwise, the second is possible:
# `retry --type ocr_pages` never runs again what has completed, unless it is asked for by its status or id.
_MEANT = {
    "cancel": (_LIVE, _LIVE),
    "retry": ((Status.FAILED, Status.CANCELLED), _ENDED),
    "delete": ((Status.PENDING, *_ENDED), (Status.PENDING, *_ENDED)),
    "priority": ((Status.PENDING,), (Status.PENDING,)),
    "prune": (_ENDED, _ENDED),
}
_DONE = {"cancel": "cancelled", "retry": "retried", "delete": "deleted", "priority": "reprioritised", "prune": "pruned"}


@dataclass(frozen=True, slots=True)
class Waiting:
    """How far the jobs are that somebody waits for."""

    total: int
    by_status: Mapping[Status, int]
    jobs: Sequence[Job]
    """All of them, where they are few; else those that run and the newest that failed, as many as were asked for."""

    @property
    def ended(self) -> int:
        return sum(number for status, number in self.by_status.items() if status.is_ended)


Watch = Callable[[Callable[[int], Waiting], bool], None]
"""Called again and again while somebody waits, at last with True. It may look, at so many jobs; a look costs some
milliseconds."""


@dataclass(frozen=True, slots=True)
class Failing:
    """Documents that are being read, and will be failed by what is done to their jobs."""

    document_ids: Sequence[int] = ()
    code: str = ""


NO_DOCUMENT_FAILS = Failing()


@dataclass(frozen=True, slots=True)
class Unended:
    job_id: int
    why: str


@dataclass(frozen=True, slots=True)
class Waited:
    """How the jobs that somebody waited for have ended."""

    completed: int
    failed: int
    cancelled: int
    gone: int
    watching: Sequence[int]
    """The ids of those that look again and again: nobody waits for that to end."""
    going_on: int
    """Jobs that came of them, and that nobody has waited for."""

    @property
    def is_good(self) -> bool:
        return not (self.failed or self.cancelled or self.gone)


def installed_types(settings: Settings) -> list[str]:
    """By the names of what is installed, which is not imported, and of the programs in the settings."""
    from worker_service.handlers.registry import find  # looks through all that is installed

    return [*(found.name for found in find()), *settings.commands]


class Queue:
    """An open store, the settings it was opened with, and who is asking."""

    def __init__(self, store: Store, settings: Settings, *, actor: str, clock: Clock = wall_clock) -> None:
        self.store = store
        self.settings = settings
        self.actor = actor
        self._clock = clock

    def enqueue(self, words: JobWords, stdin: Callable[[int], bytes], *, is_checked: bool = True) -> Enqueued:
        """`is_checked`: refuse a payload that no worker which lives could give to its handler."""
        job = read_job(words, self.settings, now=self._clock(), stdin=stdin)
        if is_checked:
            self.refuse_unfit(job, otherwise=", and --no-check puts it into the queue all the same")
        self.require(job.after)
        return self.store.intake.enqueue(job)

    def doubt(self, job_type: str) -> str:
        """What speaks against a type that no worker and no handler installed here knows; empty: nothing. It may be
        known tomorrow: a row may come before its handler."""
        told = self.store.reading.names("handler", "", most=_TYPES_MOST)
        if job_type in told or job_type in (installed := installed_types(self.settings)):
            return ""
        import difflib  # only for a mistake

        near = difflib.get_close_matches(job_type, {*told, *installed}, n=1)
        meant = f"did you mean {near[0]}?" if near else "`pagemill handlers ls` lists those that are installed"
        return f"no handler here knows {job_type!r}: {meant}"

    def refuse_unfit(self, job: NewJob, *, otherwise: str = "") -> None:
        """A payload that no worker which lives could give to its handler. `otherwise`: what else can be done."""
        schemas = self.store.reading.payload_schemas(job.job_type)
        if not schemas or None in schemas:
            return
        from worker_service.jobs.payloads import PayloadCheck  # brings a validator along: not for every command

        faults = [PayloadCheck(schema).fault(job.payload) for schema in schemas]
        if None not in faults:
            raise BadPayload(
                f"the payload does not fit {job.job_type}: {faults[0]}; `pagemill handlers show {job.job_type}` tells "
                f"what fits{otherwise}"
            )

    def lacking(self, asked: Mapping[str, object]) -> list[str]:
        """A sentence for each thing in a payload that the machines of the workers which live lack: jobs will wait for
        it. What nobody knows is refused."""
        import msgspec  # not for every command

        from worker_service.handlers.contract import Choices

        described: list[dict[str, Choices]] = []
        for text in self.store.reading.choices():
            with suppress(msgspec.MsgspecError):  # which no daemon has written
                described.append(msgspec.json.decode(text, type=dict[str, Choices]))
        sentences: list[str] = []
        for key, wanted in asked.items():
            choices = [one[key] for one in described if key in one]
            there = list(dict.fromkeys(word for one in choices for word in one.there))
            words = wanted if isinstance(wanted, list) else [wanted]
            for word in words if choices else ():
                if isinstance(word, str) and word not in there:
                    sentences.append(_lacking(word, key, choices, ", ".join(there)))
        return sentences

    def selector(self, words: SelectorWords) -> Selector:
        return read_selector(words, now=self._clock())

    def meant(self, verb: str, selector: Selector) -> Selector:
        """The jobs that a verb which changes many is about. Each id must be there; nothing said is refused."""
        if selector.is_empty:
            raise BadInput(f"say which jobs to {_to(verb)}: ids, or selectors such as --status failed --since 1d")
        self.require(selector.ids)
        if selector.ids and not selector.statuses:
            return selector
        meant, possible = _MEANT[verb]
        statuses = tuple(status for status in selector.statuses if status in possible) if selector.statuses else meant
        if not statuses:
            words = " or ".join(possible)
            raise BadInput(
                f"only jobs that are {words} can be {_DONE[verb]}, not {' or '.join(selector.statuses)} ones"
            )
        return replace(selector, statuses=statuses)

    def require(self, ids: Sequence[int]) -> None:
        """Raise `JobNotFound` unless each of these is there."""
        for chunk in _chunks(ids):
            found = set(self.store.reading.ids(Selector(ids=chunk)))
            for missing in (job_id for job_id in chunk if job_id not in found):
                raise JobNotFound(f"there is no job {missing}: `pagemill ls` shows those that are there")

    def change(
        self, verb: str, selector: Selector, *, priority: int | None = None, is_hurried: bool = False
    ) -> Changed:
        """Do what was confirmed: one action, in one transaction."""
        if verb == "cancel":
            return self.store.steering.cancel(selector, actor=self.actor, is_hurried=is_hurried)
        if verb == "retry":
            return self.store.steering.retry(selector, actor=self.actor)
        if verb == "delete":
            return self.store.steering.delete(selector, actor=self.actor)
        return self.store.steering.priority(selector, read_priority(priority), actor=self.actor)

    def failing(self, verb: str, selector: Selector) -> Failing:
        """What becomes of documents, if this is done to these jobs."""
        statuses, code = _FAILS.get(verb, ((), ""))
        return Failing(self.store.reading.documents_failing(selector, statuses), code) if statuses else Failing()

    def await_ends(
        self,
        ids: Sequence[int],
        *,
        seconds: float,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
        alive: Callable[[], Collection[str]],
    ) -> Sequence[Unended]:
        """Return once these have ended, or when the time is up; then those that have not, and why that may be."""
        deadline = monotonic() + seconds
        while (left := self._live(ids)) and monotonic() < deadline:
            sleep(_POLL_SECONDS)
        return list(self._unended(ids, alive())) if left else []

    def _unended(self, ids: Sequence[int], alive: Collection[str]) -> Iterator[Unended]:
        workers = {worker.id: worker for worker in self.store.reading.workers()}
        for part in _chunks(ids):
            for job in self.store.reading.list(Selector(part, _LIVE), most=_IDS_AT_ONCE):
                worker = workers.get(job.worker_id or "")
                if worker is None or worker.id not in alive:
                    why = f"its worker {job.worker_id} is gone or silent: the next daemon that looks after it ends it"
                else:
                    why = f"worker {worker.id} (pid {worker.pid} on {worker.host}) has yet to prove its processes gone"
                yield Unended(job.id, why)

    def undoable(self, action_id: int | None, actions: Sequence[Action]) -> Action:
        """The action that an undo is about: the one with this number, else the newest that was not undone yet."""
        if action_id is None:
            open_actions = (action for action in actions if action.undone_at is None and not action.documents)
            action = next(open_actions, None)
        else:
            action = next((action for action in actions if action.id == action_id), None)
        if action is None:
            which = "nothing" if action_id is None else f"no action {action_id}"
            raise Refused(f"there is {which} to undo: see pagemill undo --list")
        if action.documents:
            raise Refused(f"action {action.id} removed documents for good: bring their files in again")
        if action.undone_at is not None:
            raise Refused(f"action {action.id} was undone already")
        return action

    def prune(self, selector: Selector) -> int:
        """In pieces, so that nobody waits long for the write lock."""
        pruned = 0
        while gone := self.store.steering.prune(selector, most=_PRUNED_AT_ONCE):
            pruned += gone
        return pruned

    def pause(self, scope: str, name: str, *, length: str | None, reason: str | None) -> datetime | None:
        """Pause, and return until when (None: until somebody unpauses it)."""
        until = None if length is None else shifted(self._clock(), parse_length(length))
        self.store.steering.pause(scope, name, until=until, reason=reason)
        return until

    def audit(self) -> Sequence[str]:
        """A sentence for each promise that was broken, the number of the promise first."""
        return self.store.upkeep.audit()

    def since(self, text: str) -> str:
        return as_text(read_past(text, now=self._clock()))

    def wait(
        self,
        selector: Selector,
        *,
        timeout: str | None,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
        watch: Watch | None = None,
        follows: bool = False,
    ) -> Waited:
        """Return once every job that is meant has ended, and (`follows`) every job that came of one of them. Jobs named
        by id or batch are meant whatever has become of them; by other selectors those that are live now. What watches
        is waited for until it has looked. Looks only when somebody has committed something."""
        if selector.is_empty:
            raise BadInput("say which jobs to wait for: ids, or selectors such as --owner alice")
        deadline = None if timeout is None else monotonic() + parse_length(timeout).total_seconds()
        self.require(selector.ids)
        ids = self.store.reading.ids(selector)
        if not ids:
            raise JobNotFound("no job matches: there is nothing to wait for")
        if not (selector.ids or selector.statuses or selector.batch_id is not None):
            ids = self.store.reading.ids(replace(selector, statuses=_LIVE))
        awaited: Sequence[int] = ()
        while len(ids) > len(awaited):
            awaited = ids
            for chunk in _chunks(ids):
                seen = None
                while (now_at := self.store.reading.change_counter()) == seen or self._are_awaited(chunk):
                    seen = now_at
                    if watch is not None:
                        watch(partial(self._waiting, ids), False)
                    if deadline is not None and monotonic() >= deadline:
                        raise WaitTimedOut(
                            f"after {timeout}, {counted(self._live(ids), 'job')} of {len(ids)} had not ended"
                        )
                    sleep(_POLL_SECONDS)
            ids = self.store.reading.family(ids) if follows else ids
        if watch is not None:
            watch(partial(self._waiting, ids), True)
        return self._waited(ids)

    def _are_awaited(self, ids: Sequence[int]) -> bool:
        """Whether one of them has not got as far as it ever will."""
        live = self.store.reading.count(Selector(ids, _LIVE))
        return live > 0 and len(self._watching(ids)) < live

    def _watching(self, ids: Sequence[int]) -> list[int]:
        return [job_id for part in _chunks(ids) for job_id in self.store.reading.watching(part)]

    def _waited(self, ids: Sequence[int]) -> Waited:
        ended = {s: sum(self.store.reading.count(Selector(part, (s,))) for part in _chunks(ids)) for s in _ENDED}
        watching = self._watching(ids)
        family = self.store.reading.family(ids)
        going_on = self._live(family) - len(self._watching(family)) if len(family) > len(ids) else 0
        gone = len(ids) - sum(ended.values()) - len(watching)
        of = (ended[Status.COMPLETED], ended[Status.FAILED], ended[Status.CANCELLED])
        return Waited(*of, gone=gone, watching=watching, going_on=going_on)

    def _live(self, ids: Sequence[int]) -> int:
        return sum(self.store.reading.count(Selector(part, _LIVE)) for part in _chunks(ids))

    def _waiting(self, ids: Sequence[int], most: int) -> Waiting:
        by_status = {s: sum(self.store.reading.count(Selector(part, (s,))) for part in _chunks(ids)) for s in Status}
        if len(ids) <= most:
            jobs = [job for part in _chunks(ids) for job in self.store.reading.list(Selector(part), most=most)]
            return Waiting(len(ids), by_status, sorted(jobs, key=_by_id))
        failed = min(by_status[Status.FAILED], max(most - by_status[Status.RUNNING], most // 4))
        running = self._newest(ids, Status.RUNNING, most - failed)
        return Waiting(len(ids), by_status, [*running, *self._newest(ids, Status.FAILED, failed)])

    def _newest(self, ids: Sequence[int], status: Status, most: int) -> list[Job]:
        """The oldest of them first."""
        found: list[Job] = []
        for part in reversed(_chunks(ids)):
            if (room := most - len(found)) > 0:
                found += self.store.reading.list(Selector(part, (status,)), most=room)
        return sorted(found, key=_by_id)


# ── Words about jobs ─────────────────────────────────────────────────────────────────────────────────────────────


def state_of(job: Job, *, now: datetime | None = None) -> str:
    """One word for where a job is: its status, or what keeps a pending one from being looked at."""
    if job.status is Status.RUNNING and job.cancel_requested_at is not None:
        return "stopping"
    is_due = job.run_at is None or from_text(job.run_at) <= (now or wall_clock())
    for bit, word in ((1, "scheduled"), (2, "backoff"), (4, "waiting"), (8, "key-busy")):
        if job.held & bit and not (bit < 4 and is_due):
            return word
    return job.status.value


def named(job: Job) -> str:
    """``job 42 (download, report.pdf)``"""
    return f"job {job.id} ({', '.join(filter(None, [job.job_type, job.name]))})"


def _by_id(job: Job) -> int:
    return job.id


def _chunks(ids: Sequence[int]) -> list[Sequence[int]]:
    return [ids[start : start + _IDS_AT_ONCE] for start in range(0, len(ids), _IDS_AT_ONCE)]


def _to(verb: str) -> str:
    return "priority" if verb == "priority" else verb


def _lacking(word: str, key: str, choices: Sequence[Choices], there: str) -> str:
    for one in choices:
        if word in one.to_get:
            there = there or "none"
            return f"{word} is not installed ({key} that are: {there}), and what needs it waits: {one.to_get[word]}"
    near = next((near for one in choices if (near := one.meant(word))), None)
    hint = f"did you mean {near}? " if near else ""
    raise BadInput(
        f"{word!r} is none of the {key} that are known: {hint}Installed: {there or 'none'}. What is new on the machine "
        "is seen once the worker is restarted"
    )
