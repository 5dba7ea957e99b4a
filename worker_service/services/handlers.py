"""List the installed handlers, and run one attempt, without a database."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path

from worker_service.base.errors import PagemillError
from worker_service.runner.messages import AttemptEvent, Begin, Ended, HandlerDescription, How, Order
from worker_service.runner.without_daemon import attempt_events, describe, open_pool
from worker_service.services.doctor import Finding
from worker_service.services.health import Level
from worker_service.services.parse_job import read_payload
from worker_service.settings.config import Settings

DRIVE_CHECK = "job_handlers.fetch.sources.drive.identity:who_am_i"


class HandlerAbsent(PagemillError):
    code = "handler_absent"
    exit_code = 69


def installed_handlers(settings: Settings) -> list[HandlerDescription]:
    return sorted(
        describe(settings.commands, settings.sandbox, settings.handlers_dir), key=lambda one: one.facts.job_type
    )


def get_handler(settings: Settings, job_type: str) -> HandlerDescription:
    return _description_of(job_type, installed_handlers(settings))


def run_one_job(
    settings: Settings,
    job_type: str,
    payload: str | None,
    stdin: Callable[[int], bytes],
    *,
    account: str | None = None,
    platform: str = "local",
    directory: Path | None = None,
) -> Iterator[AttemptEvent]:
    """Run one attempt. Yield its outcome last. Without a `directory`, its files are deleted at the end."""
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
        fork_server, described = stack.enter_context(open_pool(begin))
        found = _description_of(job_type, described)
        if (reason := found.set_aside or found.facts.missing_text or None) is not None:
            raise HandlerAbsent(f"{job_type} cannot be run here: {reason}")
        fork_server.launch(Order(1, 1, job_type, platform, account, text, None))
        for event in attempt_events(fork_server):
            yield event
            if isinstance(event, Ended):
                return


def _description_of(job_type: str, described: Sequence[HandlerDescription]) -> HandlerDescription:
    for one in described:
        if one.facts.job_type == job_type:
            return one
    known = ", ".join(sorted(one.facts.job_type for one in described)) or "none"
    raise HandlerAbsent(f"there is no handler for {job_type!r}; those that are installed: {known}")


# ── Checks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def examine_online(settings: Settings) -> Iterator[Finding]:
    settings.hand_to_handlers()
    ended = _check_credentials(settings)
    if isinstance(ended, Ended) and ended.how is How.DONE:
        for found in json.loads(ended.result or "[]"):
            yield Finding(Level[found["level"].upper()], found["name"], found["detail"], found["fix"])
    else:
        reason = ended if isinstance(ended, str) else ended.message.strip() or ended.how.value
        detail = f"the check of the credentials failed: {reason.splitlines()[-1]}"
        yield Finding(Level.CRITICAL, "drive", detail, "pagemill handlers ls")


def _check_credentials(settings: Settings) -> Ended | str:
    with tempfile.TemporaryDirectory(prefix="pagemill-", ignore_cleanup_errors=True) as directory:
        begin = Begin(
            Path(directory) / "staging",
            Path(directory) / "keep",
            sandbox=settings.sandbox,
            grace_seconds=1.0,
            extra_handlers=[DRIVE_CHECK],
            is_without_installed=True,
        )
        with open_pool(begin) as (fork_server, [described]):
            if described.set_aside:
                return described.set_aside
            payload = json.dumps({"credentials": _credential_names(described)})
            fork_server.launch(Order(1, 1, described.facts.job_type, "local", None, payload, None))
            return next(one for one in attempt_events(fork_server) if isinstance(one, Ended))


def _credential_names(described: HandlerDescription) -> Sequence[str]:
    patterns = described.declared.credentials if described.declared is not None else ()
    directory = os.environ.get("CREDENTIALS_DIRECTORY", "")
    try:
        names = sorted(path.name for path in Path(directory).iterdir()) if directory else []
    except OSError:
        names = []
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
