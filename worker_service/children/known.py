"""What the nursery knows of handlers: found, tried, loaded. Done once, before it serves anybody."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from worker_service.children import trial
from worker_service.children.model import Described
from worker_service.children.wire import Begin, Introduced
from worker_service.handlers import registry
from worker_service.handlers.contract import Handler
from worker_service.handlers.registry import Found

Bring = Callable[[], Handler[Any]]


@dataclass(frozen=True, slots=True)
class Known:
    described: Described
    bring: Bring | None
    """Called in the child. None: its handler is set aside."""


def learn(begin: Begin, control: int) -> tuple[dict[str, Known], list[Introduced]]:
    settings: dict[str, registry.Commands] = {"commands": begin.commands}
    found = registry.find(begin.extra_handlers, [] if begin.is_without_installed else None)
    verdicts = trial.try_all(found, settings, seconds=begin.import_seconds, control=control)
    introduced: dict[str, Introduced] = {}
    brings: dict[str, Bring] = {}
    claims: list[tuple[str, Found]] = []
    for one in found:
        verdict = verdicts[one]
        if isinstance(verdict, str):
            # Its job types are not known; its name is most likely one of them.
            introduced.setdefault(one.name, trial.set_aside(one.name, verdict, one))
            continue
        # What starts threads is not loaded here: they would be missing in every child. What nobody will ask for is not
        # either: the larger the nursery, the dearer each fork.
        is_wanted = any(wants(begin.types, each.described.facts.job_type) for each in verdict.handlers)
        warm = _load(one, settings) if verdict.threads == 1 and is_wanted else {}
        for each in verdict.handlers:
            job_type = each.described.facts.job_type
            claims.append((job_type, one))
            introduced[job_type] = each
            brings[job_type] = _keeping(warm[job_type]) if job_type in warm else _importing(one, settings, job_type)
    for job_type, reason in registry.clashes(claims).items():
        introduced[job_type] = trial.set_aside(job_type, reason)
    known = {
        job_type: Known(each.described, brings.get(job_type) if each.described.set_aside is None else None)
        for job_type, each in introduced.items()
    }
    return known, list(introduced.values())


def wants(types: Sequence[str], job_type: str) -> bool:
    """Whether WORKER_TYPES lets this worker take a type: those that are named, or all but those with a !."""
    if f"!{job_type}" in types:
        return False
    named = [word for word in types if not word.startswith("!")]
    return not named or job_type in named


def _load(found: Found, settings: dict[str, registry.Commands]) -> dict[str, Handler[Any]]:
    try:
        return {handler.job_type: handler for handler in registry.load(found, settings).handlers}
    except Exception as error:  # it passed its trial; each child will try again
        print(f"nursery: {found.spec} loaded in its trial and not here: {error}", file=sys.stderr)
        return {}


def _keeping(handler: Handler[Any]) -> Bring:
    return lambda: handler


def _importing(found: Found, settings: dict[str, registry.Commands], job_type: str) -> Bring:
    def bring() -> Handler[Any]:
        for handler in registry.load(found, settings).handlers:
            if handler.job_type == job_type:
                return handler
        raise LookupError(f"{found.spec} no longer provides {job_type}")

    return bring
