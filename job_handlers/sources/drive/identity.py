"""Who each credential for Google Drive is, and what it may do. `pagemill doctor --online` runs it, in a child like any
attempt, so that what it finds holds for crawls and downloads too. No job type: it is not installed as a handler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from job_handlers.download.troubles import Trouble
from job_handlers.sources.drive import credentials as drive_credentials
from worker_service.handlers import Context, Done, Handler, Limits, Permanent

_WALL_SECONDS = 120
_MOST = 1000


@dataclass(frozen=True, slots=True)
class Payload:
    credentials: Sequence[str]


def run(context: Context[Payload]) -> Done:
    return Done([{"name": name, **_asked(name)} for name in context.payload.credentials])


def _asked(name: str) -> Mapping[str, object]:
    # It takes a second to import.
    from job_handlers.sources.drive.client import Drive

    try:
        drive = Drive(name)
        try:
            who = drive.identity()
            shared = drive.shared_with_me()
        finally:
            drive.close()
    except (Trouble, Permanent) as error:
        said = error.sentence if isinstance(error, Trouble) else error.message
        wrong, _, fix = said.partition(": ")
        return {
            "wrong": wrong,
            "fix": fix or _FIXES.get(error.code, "ask again, and look at the network"),
            "code": error.code,
        }
    number = f"{_MOST} or more" if shared.next_page else str(len(shared.entries))
    return {"who": who.name, "kind": who.kind, "may": who.may, "sees": number}


_FIXES: Mapping[str, str] = {
    "SCOPE_MISSING": "make a credential with the scope drive.readonly",
    "API_DISABLED": "enable it: https://console.cloud.google.com/apis/library/drive.googleapis.com",
    "DOMAIN_POLICY": "ask the administrator to allow it",
}


def _reads(payload: Payload) -> list[Path]:
    return [path for name in payload.credentials for path in drive_credentials.files_of(name)]


who_am_i = Handler(
    "drive_identity",
    run,
    Payload,
    job_class="io",
    limits=Limits(wall_seconds=_WALL_SECONDS, network=True),
    environment=drive_credentials.ENVIRONMENT,
    credentials=["drive*"],
    reads_payload=_reads,
)
