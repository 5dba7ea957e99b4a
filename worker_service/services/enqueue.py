"""Jobs into the queue: one that a person writes, or those that a verb has made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from worker_service.base.clock import PERIODS, period_of
from worker_service.base.errors import BadInput, BadPayload, did_you_mean
from worker_service.jobs.documents import FACTS, DeferredAction, filled
from worker_service.jobs.model import Enqueued, NewJob
from worker_service.services.database import Session
from worker_service.services.jobs import IDS_AT_ONCE, require
from worker_service.services.parse import read_job
from worker_service.settings.config import Settings
from worker_service.workspace import lost

if TYPE_CHECKING:
    from worker_service.handlers.contract import Choices

_TYPES_MOST = 10_000


def enqueue(
    session: Session,
    words: Mapping[str, Any],
    stdin: Callable[[int], bytes],
    *,
    is_checked: bool = True,
) -> Enqueued:
    """`words`: see `read_job`; and `once_per`, a period in which its unique key stands for one job, whatever has become
    of it. `is_checked`: refuse a payload that no worker which lives could give to its handler."""
    period, now = words.get("once_per"), session.clock()
    job = read_job(words, session.settings, now=now, stdin=stdin)
    if period is not None and (job.unique_key is None or period not in PERIODS):
        raise BadInput(f"--once-per is one of {', '.join(PERIODS)}, and needs a --unique KEY that it is remembered by")
    if is_checked:
        refuse_unfit(session, job, otherwise=", and --no-check puts it into the queue all the same")
        for action in job.on_failure:
            refuse_unfit_action(session, action)
    require(session, job.after)
    if period is None or job.unique_key is None:
        return session.store.intake.enqueue(job)
    return session.store.schedules.enqueue_once(job.unique_key, period_of(now, period, session.settings.zone), job)


def enqueue_job(session: Session, job: NewJob) -> Enqueued:
    return session.store.intake.enqueue(*with_lost(session, [job]))


def enqueue_jobs(session: Session, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """In pieces, so that nobody waits long for the write lock."""
    jobs = with_lost(session, jobs)
    parts = (jobs[start : start + IDS_AT_ONCE] for start in range(0, len(jobs), IDS_AT_ONCE))
    return [one for part in parts for one in session.store.intake.enqueue_many(part)]


def with_lost(session: Session, jobs: Sequence[NewJob], *, owner: str | None = None) -> Sequence[NewJob]:
    """A file that is known needs no job, unless somebody has deleted its copy from the workspace by hand. `owner`:
    whose they will be, whatever they say themselves."""
    made = [*jobs]
    brought: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for at, job in enumerate(jobs):
        if job.brings is not None:
            place = job.owner if owner is None else owner, job.platform
            brought.setdefault(place, []).append((at, job.brings.source_key))
    for place, some in brought.items():
        gone = lost(session.store, session.settings.workspace, *place, {key for _, key in some})
        for at, key in some:
            if key in gone:
                made[at] = replace(made[at], brings=None)
    return made


def refuse_unfit_action(session: Session, action: DeferredAction) -> None:
    """What stands for a fact is a number, as a rule."""
    payload = filled(action.payload, FACTS) if action.payload else None
    refuse_unfit(session, NewJob(action.job_type, payload=payload))


def refuse_unfit(session: Session, job: NewJob, *, otherwise: str = "") -> None:
    """A payload that no worker which lives could give to its handler. `otherwise`: what else can be done."""
    schemas = session.store.reading.payload_schemas(job.job_type)
    if not schemas or None in schemas:
        return
    from worker_service.jobs.payloads import PayloadCheck  # brings a validator along: not for every command

    faults = [PayloadCheck(schema).fault(job.payload) for schema in schemas]
    if None not in faults:
        raise BadPayload(
            f"the payload does not fit {job.job_type}: {faults[0]}; `pagemill handlers show {job.job_type}` tells "
            f"what fits{otherwise}"
        )


# ── Types ───────────────────────────────────────────────────────────────────────────────────────────────────────


def installed_types(settings: Settings) -> list[str]:
    """By the names of what is installed, which is not imported, and of the programs in the settings."""
    from worker_service.handlers.registry import find  # looks through all that is installed

    return [*(found.name for found in find()), *settings.commands]


def doubt(session: Session, job_type: str) -> str:
    """What speaks against a type that no worker and no handler installed here knows; empty: nothing. It may be known
    tomorrow: a row may come before its handler."""
    told = session.store.reading.names("handler", "", most=_TYPES_MOST)
    if job_type in told or job_type in (installed := installed_types(session.settings)):
        return ""
    meant = did_you_mean(job_type, {*told, *installed}, "`pagemill handlers ls` lists those that are installed")
    return f"no handler here knows {job_type!r}: {meant}"


def doubts(session: Session, actions: Sequence[DeferredAction]) -> list[str]:
    """The same of what is to follow, where it is asked for: by the time that it follows nobody looks."""
    sentences = (doubt(session, job_type) for job_type in dict.fromkeys(action.job_type for action in actions))
    return [f"what is to follow will wait: {sentence}" for sentence in sentences if sentence]


# ── What machines lack ──────────────────────────────────────────────────────────────────────────────────────────


def lacking(session: Session, asked: Mapping[str, object]) -> list[str]:
    """A sentence for each thing in a payload that the machines of the workers which live lack: jobs will wait for it.
    What nobody knows is refused."""
    import msgspec  # not for every command

    from worker_service.handlers.contract import Choices

    described: list[dict[str, Choices]] = []
    for text in session.store.reading.choices():
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


def _lacking(word: str, key: str, choices: Sequence[Choices], there: str) -> str:
    for one in choices:
        if word in one.to_get:
            there = there or "none"
            return f"{word} is not installed ({key} that are: {there}), and what needs it waits: {one.to_get[word]}"
    near = next((near for one in choices if (near := one.meant(word))), None)
    hint = f"did you mean {near}? " if near else ""
    raise BadInput(
        f"{word!r} is none of the {key} that are known",
        f"{hint}{there or 'none'} can be used (restart the worker after you have installed more)",
    )
