"""Who each credential for Google Drive is, and what it may do. `pagemill doctor --online` runs it, in a child like any
attempt, so that what it finds holds for crawls and downloads too. No job type: it is not installed as a handler.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from job_handlers.fetch.errors import FetchError
from job_handlers.fetch.sources.drive import credentials as drive_credentials
from worker_service.handlers import Context, Done, Handler, Limits, Permanent

_WALL_SECONDS = 120
_MOST = 1000


class IdentityPayload(Struct, frozen=True):
    credentials: Sequence[str]


def run(context: Context[IdentityPayload]) -> Done:
    names = _names(context.payload)
    return Done([_found(name) for name in names] or [_NONE])


_NONE = {
    "level": "warning",
    "name": "drive",
    "detail": "there is no credential for Google Drive here",
    "fix": "look as the service does: CREDENTIALS_DIRECTORY names the directory with the file `drive`",
}


def _names(payload: IdentityPayload) -> list[str]:
    is_given = bool(os.environ.get(drive_credentials.ADC_FILE))
    return [*payload.credentials, *([drive_credentials.APPLICATION_DEFAULT] if is_given else [])]


def _found(credential: str) -> Mapping[str, str]:
    # It takes a second to import.
    from job_handlers.fetch.sources.drive.client import Drive

    name = f"credential {credential}"
    try:
        with closing(Drive(credential)) as drive:
            account, shared = drive.account(), drive.shared_with_me()
    except (FetchError, Permanent) as error:
        fix = error.remedy or _FIXES.get(error.code, "ask again, and look at the network")
        return {"level": "critical", "name": name, "detail": error.detail, "fix": fix}
    said = f"{account} ({drive.kind}) may read"
    if not shared.entries:
        detail, fix = f"{said}, and nothing is shared with it", f"share a folder with {account}"
        return {"level": "warning", "name": name, "detail": detail, "fix": fix}
    number = f"{_MOST} or more" if shared.next_page else str(len(shared.entries))
    return {"level": "ok", "name": name, "detail": f"{said}; shared with it: {number}", "fix": ""}


_FIXES: Mapping[str, str] = {
    "SCOPE_MISSING": "make a credential with the scope drive.readonly",
    "API_DISABLED": "enable it: https://console.cloud.google.com/apis/library/drive.googleapis.com",
    "DOMAIN_POLICY": "ask the administrator to allow it",
}


def _reads(payload: IdentityPayload) -> list[Path]:
    return [path for name in _names(payload) for path in drive_credentials.files_of(name)]


who_am_i = Handler(
    "drive_identity",
    run,
    IdentityPayload,
    job_class="io",
    limits=Limits(wall_seconds=_WALL_SECONDS, network=True),
    environment=drive_credentials.ENVIRONMENT,
    credentials=["drive*"],
    reads_payload=_reads,
)
