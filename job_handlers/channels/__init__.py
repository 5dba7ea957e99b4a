"""The channels of notifications, of which `notify` chooses one by the scheme of the address."""

from __future__ import annotations

from job_handlers.settings import credential_text
from worker_service.handlers import Permanent


def credential_lines(name: str) -> list[str]:
    if lines := [line.strip() for line in credential_text(name).splitlines() if line.strip()]:
        return lines
    raise Permanent("SECRET_INVALID", f"the credential {name} is empty")
