"""Installed handlers: what they declare, a single attempt, and plugged-in checks.

Opens no database. Only child processes import handlers, so a fork server is started and asked. A check is a handler of
the entry point group `worker_service.checks`, for instance one that reports whose account a credential belongs to. Its
payload has the names of the available `credentials` that it declares; its result is a list of findings,
each with `level` (ok, warning or critical), `name`, `detail` and `fix`.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path

from worker_service.base.errors import PagemillError
from worker_service.handlers.registry import find
from worker_service.runner.pool import attempt_events, describe, open_pool
from worker_service.runner.protocol import AttemptEvent, Begin, Described, Ended, How, Order
from worker_service.services.health import Finding, Level
from worker_service.services.parse import read_payload
from worker_service.settings.config import Settings

CHECKS = "worker_service.checks"


class HandlerAbsent(PagemillError):
    """No handler here can run jobs of this type."""

    code = "handler_absent"
    exit_code = 69


def installed(settings: Settings) -> list[Described]:
    return sorted(
        describe(settings.commands, settings.sandbox, settings.handlers_dir), key=lambda one: one.facts.job_type
    )


def handler(settings: Settings, job_type: str) -> Described:
    return _chosen(job_type, installed(settings))


def run_one(
    settings: Settings,
    job_type: str,
    payload: str | None,
    stdin: Callable[[int], bytes],
    *,
    account: str | None = None,
    platform: str = "local",
    directory: Path | None = None,
) -> Iterator[AttemptEvent]:
    """Run one attempt in a real child process and yield its events, the outcome last.

    Its files are kept in `directory`; without one, they are deleted when the caller stops iterating.
    """
    settings.hand_to_handlers()
    text = read_payload(payload, (), settings.payload_bytes_max, stdin)
    with ExitStack() as stack:
        if directory is None:
            # Child processes that were stopped may still be deleting their files.
            temporary = tempfile.TemporaryDirectory(prefix="pagemill-", ignore_cleanup_errors=True)
            directory = Path(stack.enter_context(temporary))
        begin = Begin(
            directory / "staging",
            directory / "keep",
            commands=settings.commands,
            sandbox=settings.sandbox,
            types=[job_type],
            handlers_dir=settings.handlers_dir,
            grace_seconds=1.0,
        )
        nursery, described = stack.enter_context(open_pool(begin))
        found = _chosen(job_type, described)
        if (reason := found.set_aside or found.facts.missing_text or None) is not None:
            raise HandlerAbsent(f"{job_type} cannot be run here: {reason}")
        nursery.launch(Order(1, 1, job_type, platform, account, text, None))
        for happening in attempt_events(nursery):
            yield happening
            if isinstance(happening, Ended):
                return


def _chosen(job_type: str, described: Sequence[Described]) -> Described:
    for one in described:
        if one.facts.job_type == job_type:
            return one
    known = ", ".join(sorted(one.facts.job_type for one in described)) or "none"
    raise HandlerAbsent(f"there is no handler for {job_type!r}; those that are installed: {known}")


# ── Checks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def examine_online(settings: Settings) -> Iterator[Finding]:
    settings.hand_to_handlers()
    for check in find(group=CHECKS):
        answer = _ask(check.spec, settings)
        if isinstance(answer, Ended) and answer.how is How.DONE:
            for told in json.loads(answer.result or "[]"):
                level = Level[told["level"].upper()]
                yield Finding(level, told["name"], told["detail"], told["fix"] if level else "")
            continue
        said = answer if isinstance(answer, str) else answer.message.strip() or answer.how.value
        what = said.splitlines()[-1]
        yield Finding(Level.CRITICAL, check.name, f"it could not be asked: {what}", "pagemill handlers ls")


def _ask(spec: str, settings: Settings) -> Ended | str:
    with tempfile.TemporaryDirectory(prefix="pagemill-", ignore_cleanup_errors=True) as place:
        begin = Begin(
            Path(place) / "staging",
            Path(place) / "keep",
            sandbox=settings.sandbox,
            grace_seconds=1.0,
            extra_handlers=[spec],
            is_without_installed=True,
        )
        with open_pool(begin) as (nursery, [described]):
            if described.set_aside:
                return described.set_aside
            payload = json.dumps({"credentials": _credentials(described)})
            nursery.launch(Order(1, 1, described.facts.job_type, "local", None, payload, None))
            return next(one for one in attempt_events(nursery) if isinstance(one, Ended))


def _credentials(described: Described) -> Sequence[str]:
    patterns = described.declared.credentials if described.declared is not None else ()
    directory = os.environ.get("CREDENTIALS_DIRECTORY", "")
    try:
        there = sorted(path.name for path in Path(directory).iterdir()) if directory else []
    except OSError:
        there = []
    return [name for name in there if any(fnmatchcase(name, pattern) for pattern in patterns)]
