"""Check which account each Drive credential has and what it can read, for `pagemill doctor --online`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from job_handlers.fetch.error_rules import FetchError
from job_handlers.fetch.sources.drive import credentials as drive_credentials
from worker_service.handlers import Context, Done, Handler, Limits, Permanent

_WALL_SECONDS = 120


class IdentityPayload(Struct, frozen=True):
    credentials: Sequence[str]


def run(context: Context[IdentityPayload]) -> Done:
    names = _credential_names(context.payload)
    return Done([_finding(name) for name in names] or [_NO_CREDENTIAL])


_NO_CREDENTIAL = {
    "level": "warning",
    "name": "drive",
    "detail": "no credential for Google Drive was found",
    "fix": "set CREDENTIALS_DIRECTORY to the service's directory, which contains the file `drive`",
}


def _credential_names(payload: IdentityPayload) -> list[str]:
    has_adc = bool(os.environ.get(drive_credentials.ADC_FILE))
    return [*payload.credentials, *([drive_credentials.APPLICATION_DEFAULT] if has_adc else [])]


def _finding(credential: str) -> Mapping[str, str]:
    # Takes a second to import.
    from job_handlers.fetch.sources.drive.client import PAGE_ENTRIES, Drive

    name = f"credential {credential}"
    try:
        with closing(Drive(credential)) as drive:
            account, shared = drive.request_account(), drive.shared_with_me()
    except (FetchError, Permanent) as error:
        fix = error.remedy or _FIXES.get(error.code, "try again, and check the network")
        return {"level": "critical", "name": name, "detail": error.detail, "fix": fix}
    summary = f"{account} ({drive.login.kind}) can read Drive"
    if not shared.entries:
        detail, fix = f"{summary}, but nothing is shared with it", f"share a folder with {account}"
        return {"level": "warning", "name": name, "detail": detail, "fix": fix}
    number = f"{PAGE_ENTRIES} or more" if shared.next_page else str(len(shared.entries))
    return {"level": "ok", "name": name, "detail": f"{summary}; shared with it: {number}", "fix": ""}


_FIXES: Mapping[str, str] = {
    "SCOPE_MISSING": "create a credential with the scope drive.readonly",
    "API_DISABLED": "enable it: https://console.cloud.google.com/apis/library/drive.googleapis.com",
    "DOMAIN_POLICY": "ask the administrator to allow it",
}


def _credential_files(payload: IdentityPayload) -> list[Path]:
    return [path for name in _credential_names(payload) for path in drive_credentials.files_to_read(name)]


who_am_i = Handler(
    "drive_identity",
    run,
    IdentityPayload,
    job_class="io",
    limits=Limits(wall_seconds=_WALL_SECONDS, network=True),
    environment=drive_credentials.ENVIRONMENT,
    credentials=["drive*"],
    reads_payload=_credential_files,
)
