"""Send a message by e-mail, to a URL, or through Apprise.

    {"to": "mailto:ops@example.com", "subject": "3 jobs failed", "text": "TIMEOUT: 2, HTTP_404: 1"}

The rules `[[notify]]` of the settings enqueue these jobs. `to` is `mailto:ops@example.com`, `https://example.com/hook`
(signed like `webhook`, with a CloudEvents body), or `apprise:ops` for the credential `apprise-ops`.
"""

from __future__ import annotations

from job_handlers.channels import channels
from worker_service.handlers import NOTIFY, Context, Done, Handler, Limits, Message, Permanent

_CHANNELS = channels()


def run(context: Context[Message]) -> Done:
    message = context.payload
    channel = _CHANNELS.get(message.to.partition(":")[0])
    if channel is None:
        schemes = ", ".join(f"{scheme}:" for scheme in sorted(_CHANNELS))
        raise Permanent("PAYLOAD_INVALID", f"`to` must begin with one of {schemes}")
    return Done(channel.send(message, context))


notify = Handler(
    NOTIFY,
    run,
    Message,
    job_class="io",
    limits=Limits(cpu_seconds=60, wall_seconds=300, network=True),
    environment=sorted({name for channel in _CHANNELS.values() for name in channel.ENVIRONMENT}),
    credentials=sorted({name for channel in _CHANNELS.values() for name in channel.CREDENTIALS}),
)
