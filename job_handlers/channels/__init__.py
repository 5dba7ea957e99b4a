"""Channels send notifications; `worker_service.channels` names one for each address scheme."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from job_handlers.settings import credential_text
from worker_service.handlers import Context, Message, Permanent, find

GROUP = "worker_service.channels"


class Channel(Protocol):
    ENVIRONMENT: Sequence[str]
    """Environment variables of the service that it reads."""
    CREDENTIALS: Sequence[str]
    """Patterns of the credentials that it reads."""

    def send(self, message: Message, context: Context[Any]) -> object:
        """Return the result of the job, as JSON, or raise a `HandlerError`."""


def channels() -> dict[str, Channel]:
    return {point.name: point.load() for point in find(group=GROUP)}


def credential_lines(name: str) -> list[str]:
    if lines := [line.strip() for line in credential_text(name).splitlines() if line.strip()]:
        return lines
    raise Permanent("SECRET_INVALID", f"the credential {name} is empty")
