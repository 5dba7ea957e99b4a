"""How people and programs are told: a module for each way, and the registry that tells whose an address is.

A channel is a module that the entry points `worker_service.channels` name by the scheme of its addresses. Its `send`
returns what it did, as JSON, or raises one of the errors of handlers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from job_handlers.settings import credential_text
from worker_service.handlers import Context, Message, Permanent, find

GROUP = "worker_service.channels"


class Channel(Protocol):
    """A module of this kind."""

    ENVIRONMENT: Sequence[str]
    """The variables of the service that it looks at."""
    CREDENTIALS: Sequence[str]
    """Patterns of the credentials that it takes."""

    def send(self, message: Message, context: Context[Any]) -> object: ...


def channels() -> dict[str, Channel]:
    """By the scheme of their addresses."""
    return {point.name: point.load() for point in find(group=GROUP)}


def credential_lines(name: str) -> list[str]:
    """What a file in $CREDENTIALS_DIRECTORY says, in lines that say something."""
    if lines := [line.strip() for line in credential_text(name).splitlines() if line.strip()]:
        return lines
    raise Permanent("SECRET_INVALID", f"the credential {name} is empty")
