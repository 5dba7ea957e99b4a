"""Send a message by e-mail, to a URL, or through Apprise.

    {"to": "mailto:ops@example.com", "subject": "3 jobs failed", "text": "TIMEOUT: 2, HTTP_404: 1"}

The rules `[[notify]]` of the settings enqueue these jobs. `to` is `mailto:ops@example.com`, `https://example.com/hook`
(signed like `webhook`, with a CloudEvents body), or `apprise:ops` for the credential `apprise-ops`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from worker_service.handlers import NOTIFY, Context, Done, Handler, Limits, Message, Permanent, find_entry_points


class Channel(Protocol):
    ENVIRONMENT: Sequence[str]
    CREDENTIALS: Sequence[str]

    def send(self, message: Message, context: Context[Any]) -> object:
        """Return the job's result, as JSON."""


_CHANNEL_BY_SCHEME: dict[str, Channel] = {
    entry_point.name: entry_point.load() for entry_point in find_entry_points(group="worker_service.channels")
}


def run(context: Context[Message]) -> Done:
    message = context.payload
    channel = _CHANNEL_BY_SCHEME.get(message.to.partition(":")[0])
    if channel is None:
        schemes = ", ".join(f"{scheme}:" for scheme in sorted(_CHANNEL_BY_SCHEME))
        raise Permanent("PAYLOAD_INVALID", f"`to` must begin with one of {schemes}")
    return Done(channel.send(message, context))


notify = Handler(
    NOTIFY,
    run,
    Message,
    job_class="io",
    limits=Limits(cpu_seconds=60, wall_seconds=300, network=True),
    environment=sorted({name for channel in _CHANNEL_BY_SCHEME.values() for name in channel.ENVIRONMENT}),
    credentials=sorted({name for channel in _CHANNEL_BY_SCHEME.values() for name in channel.CREDENTIALS}),
)
