"""Addresses like `apprise:ops`: whatever Apprise knows, such as Slack, Teams, Telegram, Signal and ntfy.

It means the credential `apprise-ops`, and `apprise:` alone the one called `apprise`; each of its lines is an address as
Apprise has it. Such an address holds the secret, so it stands in no payload and no log.
"""

from __future__ import annotations

import re
from typing import Any

from job_handlers.channels import credential_lines
from worker_service.handlers import (
    Context,
    Message,
    MissingDependency,
    Permanent,
    Retryable,
)

ENVIRONMENT: list[str] = []
CREDENTIALS = ["apprise*"]

_CREDENTIAL = re.compile(r"apprise[\w.-]*", re.ASCII)


def send(message: Message, context: Context[Any]) -> object:
    try:
        import apprise  # takes half a second, and belongs to an extra
    except ImportError as error:
        raise MissingDependency("Apprise is not installed", "pip install 'pagemill[notify]'") from error

    name = message.to.removeprefix("apprise:")
    credential = f"apprise-{name}" if name else "apprise"
    told = apprise.Apprise()
    if not _CREDENTIAL.fullmatch(credential):
        raise Permanent("PAYLOAD_INVALID", "`to` names no credential", "write apprise:ops for apprise-ops")
    addresses = [line for line in credential_lines(credential) if not line.startswith("#")]
    for number, address in enumerate(addresses, 1):
        if not told.add(address):
            # Not a word about what it is instead.
            raise Permanent("SECRET_INVALID", f"line {number} of the credential {credential} is no address of Apprise")
    if not told.notify(title=message.subject, body=message.text, body_format=apprise.NotifyFormat.TEXT):
        raise Retryable(f"not every address in {credential} took it", code="NOT_DELIVERED")
    return {"addresses": len(addresses)}
