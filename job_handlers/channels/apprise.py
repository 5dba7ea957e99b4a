"""Send a message to whatever Apprise knows: Slack, Teams, Telegram, Signal, ntfy and a hundred more.

    {"to": "apprise-ops", "subject": "3 jobs failed", "text": "…"}

`to` is a credential whose name begins with `apprise`; each of its lines is an address as Apprise has it. Such an
address holds the secret, so it stands in no payload and no log.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from job_handlers.channels import credential_lines
from worker_service.handlers import (
    BadInput,
    Context,
    Done,
    Handler,
    Lacking,
    Limits,
    Message,
    NewJob,
    Permanent,
    Retryable,
    canonical,
)

_CREDENTIAL = re.compile(r"apprise[\w.-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Payload:
    to: str
    """The credential with the addresses. Its name begins with apprise, so that no other secret can be asked for."""
    subject: str
    text: str


def job_for(address: str, message: Message) -> NewJob:
    """Of ``apprise:NAME``: the credential is apprise-NAME; ``apprise:`` alone means the one called apprise."""
    name = address.removeprefix("apprise:")
    credential = f"apprise-{name}" if name else "apprise"
    if not _CREDENTIAL.fullmatch(credential):
        raise BadInput(f"{address!r} names no credential: write apprise:ops for the one that is called apprise-ops")
    payload = {"to": credential, "subject": message.subject, "text": message.text}
    return NewJob("apprise", payload=canonical(payload), name=message.subject)


def run(context: Context[Payload]) -> Done:
    try:
        import apprise  # takes half a second, and belongs to an extra
    except ImportError as error:
        raise Lacking("Apprise is not installed: pip install 'pagemill[notify]'") from error

    payload = context.payload
    told = apprise.Apprise()
    if not _CREDENTIAL.fullmatch(payload.to):
        raise Permanent("PAYLOAD_INVALID", "`to` is the name of a credential that begins with apprise")
    addresses = [line for line in credential_lines(payload.to) if not line.startswith("#")]
    for number, address in enumerate(addresses, 1):
        if not told.add(address):
            # Not a word about what it is instead.
            raise Permanent("SECRET_INVALID", f"line {number} of the credential {payload.to} is no address of Apprise")
    if not told.notify(title=payload.subject, body=payload.text, body_format=apprise.NotifyFormat.TEXT):
        raise Retryable(f"not every address in {payload.to} took it", code="NOT_DELIVERED")
    return Done({"addresses": len(addresses)})


apprise = Handler(
    "apprise",
    run,
    Payload,
    job_class="io",
    limits=Limits(cpu_seconds=60, wall_seconds=300, network=True),
    credentials=["apprise*"],
)
