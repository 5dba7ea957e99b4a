"""What `pagemill doctor --online` asks: the checks that come in by the door (entry points `worker_service.checks`),
such as who a credential is out there.

A check is a handler. Its payload are the `credentials` that are there of those that it declares; its result is a list
of findings, each with `level` (ok, warning or critical), `name`, `detail` and `fix`. It is asked in a child with the
sandbox of an attempt: this process never imports a handler, nor the client of a service.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from worker_service.children.messages import Described, Ended, How, Order
from worker_service.children.nursery import heard, nursery_in
from worker_service.config import Settings
from worker_service.handlers.registry import find
from worker_service.operations.health import Finding, Level

CHECKS = "worker_service.checks"


def examine_online(settings: Settings) -> Iterator[Finding]:
    settings.hand_to_handlers()
    for check in find(group=CHECKS):
        answer = _ask(check.spec, settings)
        if isinstance(answer, Ended) and answer.how is How.DONE:
            for told in json.loads(answer.result or "[]"):
                yield Finding(Level[told["level"].upper()], told["name"], told["detail"], told["fix"])
            continue
        said = answer if isinstance(answer, str) else answer.message.strip() or answer.how.value
        what = said.splitlines()[-1]
        yield Finding(Level.CRITICAL, check.name, f"it could not be asked: {what}", "pagemill handlers ls")


def _ask(spec: str, settings: Settings) -> Ended | str:
    with (
        tempfile.TemporaryDirectory(prefix="pagemill-", ignore_cleanup_errors=True) as directory,
        nursery_in(
            Path(directory),
            commands={},
            sandbox=settings.sandbox,
            extra_handlers=[spec],
            is_without_installed=True,
        ) as (nursery, [described]),
    ):
        if described.set_aside:
            return described.set_aside
        payload = json.dumps({"credentials": _credentials(described)})
        nursery.launch(Order(1, 1, described.facts.job_type, "local", None, payload, None))
        return next(one for one in heard(nursery) if isinstance(one, Ended))


def _credentials(described: Described) -> Sequence[str]:
    patterns = described.declared.credentials if described.declared is not None else ()
    directory = os.environ.get("CREDENTIALS_DIRECTORY", "")
    try:
        there = sorted(path.name for path in Path(directory).iterdir()) if directory else []
    except OSError:
        there = []
    return [name for name in there if any(fnmatchcase(name, pattern) for pattern in patterns)]
