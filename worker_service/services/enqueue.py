"""Enqueue a job as users describe it, or jobs that a command has prepared.

The choices of a handler are the values that it knows for a payload key, such as the languages of `lang`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from worker_service.base.clock import PERIODS, period_of
from worker_service.base.errors import BadInput, BadPayload
from worker_service.base.suggestions import did_you_mean
from worker_service.jobs.documents import DeferredAction
from worker_service.jobs.follow_ups import SAMPLE_FACTS, fill_placeholders
from worker_service.jobs.job import Enqueued, NewJob
from worker_service.services.jobs import require_jobs
from worker_service.services.parse_job import read_job
from worker_service.services.session import Session, chunks
from worker_service.settings.config import Settings
from worker_service.workspace import find_deleted_sources

if TYPE_CHECKING:
    from worker_service.handlers.contract import Choices

_JOB_TYPES_MAX = 10_000
_OwnerAndPlatform = tuple[str, str]


def enqueue(
    session: Session,
    request: Mapping[str, Any],
    read_stdin: Callable[[int], bytes],
    *,
    is_payload_checked: bool = True,
) -> Enqueued:
    """Enqueue the job that `request` describes, by column name. `read_stdin` gets the maximum number of bytes.

    With `once_per`, there is at most one job for each unique key and period; jobs that have ended count.
    """
    period, now = request.get("once_per"), session.clock()
    job = read_job(request, session.settings, now=now, read_stdin=read_stdin)
    if period is not None and (job.unique_key is None or period not in PERIODS):
        raise BadInput(f"--once-per is one of {', '.join(PERIODS)}, and needs a --unique KEY")
    if is_payload_checked:
        check_payload(session, job, hint="; --no-check enqueues it anyway")
        for action in job.on_failure:
            check_action_payload(session, action)
    require_jobs(session, job.after)
    if period is None or job.unique_key is None:
        return session.store.intake.enqueue(job)
    return session.store.schedules.enqueue_once(job.unique_key, period_of(now, period, session.settings.zone), job)


def enqueue_job(session: Session, job: NewJob) -> Enqueued:
    [job] = with_lost_files_forced(session, [job])
    return session.store.intake.enqueue(job)


def enqueue_jobs(session: Session, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Enqueue in several short transactions."""
    enqueued: list[Enqueued] = []
    for chunk in chunks(with_lost_files_forced(session, jobs)):
        enqueued += session.store.intake.enqueue_many(chunk)
    return enqueued


def with_lost_files_forced(session: Session, jobs: Sequence[NewJob], *, owner: str | None = None) -> Sequence[NewJob]:
    """Force the download of known files whose copies were deleted by hand. `owner` is that of the batch."""
    keys_to_check: dict[_OwnerAndPlatform, set[str]] = defaultdict(set)
    for job in jobs:
        if (document := job.adds_document) is not None:
            keys_to_check[_owner_and_platform(job, owner)].add(document.source_key)
    deleted_keys = {
        owner_and_platform: find_deleted_sources(session.store, session.settings.workspace, *owner_and_platform, keys)
        for owner_and_platform, keys in keys_to_check.items()
    }
    forced_jobs: list[NewJob] = []
    for job in jobs:
        document = job.adds_document
        is_lost = document is not None and document.source_key in deleted_keys[_owner_and_platform(job, owner)]
        # With `adds_document`, a job is not inserted if this revision of the file is known.
        forced_jobs.append(replace(job, adds_document=None) if is_lost else job)
    return forced_jobs


def _owner_and_platform(job: NewJob, owner: str | None) -> _OwnerAndPlatform:
    return job.owner if owner is None else owner, job.platform


def check_action_payload(session: Session, action: DeferredAction) -> None:
    payload = fill_placeholders(action.payload, SAMPLE_FACTS) if action.payload else None
    check_payload(session, NewJob(action.job_type, payload=payload))


def check_payload(session: Session, job: NewJob, *, hint: str = "") -> None:
    schemas = session.overview.payload_schemas(job.job_type)
    if not schemas or None in schemas:
        # No live daemon has a handler for the type, or one has a handler without a schema, which accepts every payload.
        return
    from worker_service.jobs.payloads import PayloadCheck  # imported only when needed: it loads a JSON Schema validator

    faults = [PayloadCheck(schema).fault(job.payload) for schema in schemas]
    if None not in faults:  # the daemons may have several versions of the handler, and one that fits is enough
        remedy = f"`pagemill handlers show {job.job_type}` shows what fits{hint}"
        raise BadPayload(f"the payload does not fit {job.job_type}: {faults[0]}; {remedy}")


# ── Job types ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def installed_types(settings: Settings) -> list[str]:
    from worker_service.handlers import registry

    # Searches all installed packages, in 10 ms.
    handlers = [*registry.find_entry_points(), *registry.find_in_directory(settings.handlers_dir)]
    return [*(handler.name for handler in handlers), *settings.commands]


def unknown_type_warning(session: Session, job_type: str) -> str:
    loaded = session.job_queries.names(column="handler", prefix="", most=_JOB_TYPES_MAX)
    if job_type in loaded:
        return ""
    installed = installed_types(session.settings)
    if job_type in installed:
        return ""
    hint = did_you_mean(job_type, {*loaded, *installed}, "`pagemill handlers ls` lists the installed ones")
    return f"no handler is installed for {job_type!r}: {hint}"


def unknown_type_warnings(session: Session, actions: Sequence[DeferredAction]) -> list[str]:
    job_types = dict.fromkeys(action.job_type for action in actions)
    warnings = [unknown_type_warning(session, job_type) for job_type in job_types]
    return [f"the follow-up jobs will wait: {warning}" for warning in warnings if warning]


# ── Choices ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def uninstalled_choice_warnings(session: Session, value_by_key: Mapping[str, object]) -> list[str]:
    """Return warnings for choices that are known but not installed. Raise `BadInput` for unknown ones."""
    choices_of_handlers = _choices_of_handlers(session)
    warnings: list[str] = []
    for key, value in value_by_key.items():
        choices = [choices_by_key[key] for choices_by_key in choices_of_handlers if key in choices_by_key]
        if not choices:
            continue
        for word in value if isinstance(value, list) else [value]:
            is_installed = any(word in choice.available for choice in choices)
            if isinstance(word, str) and not is_installed:
                warnings.append(_warn_or_refuse(word, key, choices))
    return warnings


def offered_choices(session: Session) -> Mapping[str, Sequence[str]]:
    words_by_key: dict[str, dict[str, None]] = defaultdict(dict)
    for choices_by_key in _choices_of_handlers(session):
        for key, choices in choices_by_key.items():
            words_by_key[key].update(dict.fromkeys(choices.available))
    return {key: list(words) for key, words in words_by_key.items()}


def _choices_of_handlers(session: Session) -> list[dict[str, Choices]]:
    import msgspec  # not needed by every command

    from worker_service.handlers.contract import Choices

    choices_of_handlers: list[dict[str, Choices]] = []
    for text in session.overview.handler_choices():
        # Daemons write values that can be decoded; a row that was edited by hand may not be one.
        with suppress(msgspec.MsgspecError):
            choices_of_handlers.append(msgspec.json.decode(text, type=dict[str, Choices]))
    return choices_of_handlers


def _warn_or_refuse(word: str, key: str, choices: Sequence[Choices]) -> str:
    installed = ", ".join(dict.fromkeys(value for choice in choices for value in choice.available)) or "none"
    for choices_of_handler in choices:
        if (how_to_install := choices_of_handler.how_to_install.get(word)) is not None:
            return f"{word} is not installed, so its jobs wait (installed {key}: {installed}): {how_to_install}"
    closest_words = filter(None, (choices_of_handler.closest(word) for choices_of_handler in choices))
    closest = next(closest_words, None)
    hint = f"did you mean {closest}? " if closest else ""
    remedy = f"{hint}installed: {installed} (restart the worker after you have installed more)"
    raise BadInput(f"{word!r} is not one of the known {key}", remedy)
