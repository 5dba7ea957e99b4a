"""What `pagemill doctor --online` asks: who each credential is out there, and what it may do.

Asked in a child with the sandbox of an attempt: this process never imports a handler, nor a client of Google's.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from worker_service.children.messages import Ended, How, Order
from worker_service.children.nursery import heard, nursery_in
from worker_service.config import Settings
from worker_service.daemon.health import Finding, Level

_ASKS = "job_handlers.sources.drive.identity:who_am_i"
_JOB_TYPE = "drive_identity"
_PATTERN = "drive*"
_APPLICATION_DEFAULT = "GOOGLE_APPLICATION_CREDENTIALS"


def examine_online(settings: Settings) -> Iterator[Finding]:
    """One finding for each credential, or one that says that there are none."""
    settings.hand_to_handlers()
    names = _names()
    if not names:
        yield Finding(
            Level.WARNING,
            "drive",
            "there is no credential for Google Drive here",
            "look as the service does: CREDENTIALS_DIRECTORY names the directory with the file `drive`",
        )
        return
    ended = _ask(names, settings)
    if ended.how is not How.DONE:
        what = ended.message.strip().splitlines()[-1:] or [ended.how.value]
        yield Finding(Level.CRITICAL, "drive", f"it could not be asked: {what[0]}", "pagemill handlers ls")
        return
    for told in json.loads(ended.result or "[]"):
        yield _finding(told)


def _names() -> list[str]:
    directory = os.environ.get("CREDENTIALS_DIRECTORY", "")
    try:
        found = sorted(path.name for path in Path(directory).glob(_PATTERN)) if directory else []
    except OSError:
        found = []
    return [*found, *(["adc"] if os.environ.get(_APPLICATION_DEFAULT) else [])]


def _ask(names: list[str], settings: Settings) -> Ended:
    with (
        tempfile.TemporaryDirectory(prefix="pagemill-", ignore_cleanup_errors=True) as directory,
        nursery_in(
            Path(directory),
            commands={},
            sandbox=settings.sandbox,
            extra_handlers=[_ASKS],
            is_without_installed=True,
        ) as (nursery, _),
    ):
        nursery.launch(Order(1, 1, _JOB_TYPE, "gdrive", None, json.dumps({"credentials": names}), None))
        return next(one for one in heard(nursery) if isinstance(one, Ended))


def _finding(told: Mapping[str, str]) -> Finding:
    name = f"credential {told['name']}"
    if "wrong" in told:
        return Finding(Level.CRITICAL, name, told["wrong"], told["fix"])
    said = f"{told['who']} ({told['kind']}) may {told['may']}"
    if told["sees"] == "0":
        return Finding(
            Level.WARNING, name, f"{said}, and nothing is shared with it", f"share a folder with {told['who']}"
        )
    return Finding(Level.OK, name, f"{said}; shared with it: {told['sees']}")
