"""How people and programs are told: a handler for each way, and the job that carries one message to one address.

The entry points `worker_service.channels` name, by the scheme of an address, who makes that job.
"""

from __future__ import annotations

from job_handlers.settings import credential_text
from worker_service.handlers import Permanent


def credential_lines(name: str) -> list[str]:
    """What a file in $CREDENTIALS_DIRECTORY says, in lines that say something."""
    if lines := [line.strip() for line in credential_text(name).splitlines() if line.strip()]:
        return lines
    raise Permanent("SECRET_INVALID", f"the credential {name} is empty")
