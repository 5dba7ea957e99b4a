"""Send messages with Apprise (Slack, Teams, Telegram, ntfy and more).

Its addresses contain secrets, so they are lines of a credential, and no payload or log shows them.
"""

from __future__ import annotations

import re
from typing import Any

from job_handlers.channels import credential_lines
from worker_service.handlers import Context, Message, MissingDependency, Permanent, Retryable

ENVIRONMENT: list[str] = []
CREDENTIALS = ["apprise*"]

_CREDENTIAL = re.compile(r"apprise[\w.-]*", re.ASCII)


def send(message: Message, context: Context[Any]) -> object:
    try:
        import apprise  # takes half a second, and is an extra
    except ImportError as error:
        raise MissingDependency("Apprise is not installed", "pip install 'pagemill[notify]'") from error

    name = message.to.removeprefix("apprise:")
    credential = f"apprise-{name}" if name else "apprise"
    if not _CREDENTIAL.fullmatch(credential):
        raise Permanent(
            "PAYLOAD_INVALID", "`to` names no credential", "write apprise:ops for the credential apprise-ops"
        )
    notifier = apprise.Apprise()
    addresses = [line for line in credential_lines(credential) if not line.startswith("#")]
    for number, address in enumerate(addresses, 1):
        if not notifier.add(address):
            # Do not quote the address, which may contain a secret.
            raise Permanent("SECRET_INVALID", f"line {number} of the credential {credential} is not an Apprise address")
    if not notifier.notify(title=message.subject, body=message.text, body_format=apprise.NotifyFormat.TEXT):
        raise Retryable(f"an address in the credential {credential} did not accept the message", code="NOT_DELIVERED")
    return {"addresses": len(addresses)}
