"""Channels of notifications; `worker_service.channels` names one for each address scheme."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from job_handlers.settings import credential_text
from worker_service.handlers import Context, Message, Permanent, find

GROUP = "worker_service.channels"


class Channel(Protocol):
    ENVIRONMENT: Sequence[str]
    CREDENTIALS: Sequence[str]

    def send(self, message: Message, context: Context[Any]) -> object:
        """Return the job's result, as JSON."""


def channels() -> dict[str, Channel]:
    return {point.name: point.load() for point in find(group=GROUP)}


def credential_lines(name: str) -> list[str]:
    if lines := [line.strip() for line in credential_text(name).splitlines() if line.strip()]:
        return lines
    raise Permanent("SECRET_INVALID", f"the credential {name} is empty")
