"""Post an event to a URL, signed as Standard Webhooks has it (https://www.standardwebhooks.com).

    {"url": "https://example.com/hooks", "event": {"type": "report.ready", "data": {"id": 42}}, "secret": "webhook"}

After a document (`pagemill ingest … --then webhook={"url": …}`), and with `--on-failure`, `event` may be left out: it
says which document was read, or has failed, or which job has failed.
`secret` names a file in $CREDENTIALS_DIRECTORY; each of its lines is a key, `whsec_` and base64, and signs. While a key
is exchanged there are two. The receiver sees one event once: `webhook-id` is the same for every attempt.

WORKER_WEBHOOK_ALLOW lists the networks that may be reached although they are not public. No redirect is
followed. A URL may hold a secret, so no more than its host is ever told.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import http.client
import json
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct

from job_handlers.channels import credential_lines
from job_handlers.fetch.sources.addresses import (
    Place,
    Target,
    allowed_networks,
    bounded,
    checked_places,
    connection_to,
    read_url,
    retry_after,
)
from job_handlers.settings import HandlersSettings
from worker_service.handlers import Context, Done, Handler, KnownDocument, Limits, Message, Permanent, Retryable

ALLOW = HandlersSettings.webhook_allow
ENVIRONMENT = [ALLOW.variable]
CREDENTIALS = ["webhook*"]

_CONNECT_SECONDS = 10.0
_ANSWER_SECONDS = 30.0
_WALL_SECONDS = 120
_KEY_BYTES_LEAST = 24
_TOLD_BYTES = 200
_TRY_AGAIN = (408, 425, 429)
_SECRET = re.compile(r"webhook[\w.-]*", re.ASCII)


class WebhookPayload(Struct, frozen=True):
    url: str
    """Where it is posted to."""
    event: dict[str, Any] | None = None
    """The body, as JSON; unless given, which document or job has ended."""
    secret: str = "webhook"
    """The credential that signs it. Its name begins with webhook, so that no other secret can be asked for."""


def send(message: Message, context: Context[Any]) -> object:
    """The event is as CloudEvents 1.0 has it."""
    event = {
        "specversion": "1.0",
        "id": context.idempotency_key,
        "source": "pagemill",
        "type": "pagemill.notice",
        "subject": message.subject,
        "time": message.at,
        "datacontenttype": "application/json",
        "data": {"text": message.text, **message.data},
    }
    return _send(message.to, event, "webhook", context)


def run(context: Context[WebhookPayload]) -> Done:
    payload = context.payload
    event = _what_ended(context) if payload.event is None else payload.event
    return Done(_send(payload.url, event, payload.secret, context))


def _send(url: str, event: Mapping[str, Any], secret: str, context: Context[Any]) -> dict[str, int]:
    target = read_url(url)
    keys = _keys(secret)
    body = json.dumps(event, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    places = checked_places(target, allowed_networks(ALLOW), ALLOW.variable)
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "pagemill",
        **signed(context.idempotency_key, int(time.time()), body, keys),
    }
    status, after, told = _post(target, places, body, headers)
    context.log(f"{target.host} answered {status}")
    _refuse(target, status, after, told)
    return {"status": status}


def _what_ended(context: Context[Any]) -> dict[str, Any]:
    if context.document_id is not None:
        known = context.document or KnownDocument()
        data = {
            "document": context.document_id,
            "name": known.name,
            "owner": context.owner,
            "batch": known.batch_id,
            "generation": known.generation,
        }
        return {"type": f"document.{known.status or 'success'}", "data": data}
    if context.parent_id is not None:
        return {"type": "job.failed", "data": {"job": context.parent_id}}
    raise Permanent("PAYLOAD_INVALID", "`event` is missing", "a job that follows nothing has to say what it tells")


def signed(event_id: str, timestamp: int, body: bytes, keys: Sequence[bytes]) -> dict[str, str]:
    """The three headers. The receiver accepts the event if one of the signatures is right."""
    content = f"{event_id}.{timestamp}.".encode() + body
    signatures = [base64.b64encode(hmac.digest(key, content, "sha256")).decode() for key in keys]
    return {
        "webhook-id": event_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


webhook = Handler(
    "webhook",
    run,
    WebhookPayload,
    job_class="io",
    limits=Limits(cpu_seconds=60, wall_seconds=_WALL_SECONDS, network=True),
    environment=ENVIRONMENT,
    credentials=CREDENTIALS,
    reuse=100,
)


# --- the secret -------------------------------------------------------------------------------------


def _keys(name: str) -> list[bytes]:
    if not _SECRET.fullmatch(name):
        raise Permanent("PAYLOAD_INVALID", "`secret` is the name of a credential that begins with webhook")
    return [_key(line, name) for line in credential_lines(name)]


def _key(line: str, name: str) -> bytes:
    try:
        key = base64.b64decode(line.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        key = b""
    if len(key) < _KEY_BYTES_LEAST:
        # Not a word about what it is instead.
        raise Permanent("SECRET_INVALID", f"the credential {name} is not whsec_ and base64 of 24 bytes or more")
    return key


# --- the post ---------------------------------------------------------------------------------------


def _post(
    target: Target, places: Sequence[Place], body: bytes, headers: Mapping[str, str]
) -> tuple[int, float | None, str]:
    """The status, when to try again if it says so, and the beginning of what it says."""
    try:
        connection = connection_to(target, places, connect_seconds=_CONNECT_SECONDS, answer_seconds=_ANSWER_SECONDS)
        try:
            # One that has seen enough answers, and hangs up before it has read all.
            with suppress(BrokenPipeError):
                connection.request("POST", target.path, body, dict(headers))
            answer = connection.getresponse()
            after = retry_after(answer.getheader("Retry-After"))
            with suppress(OSError, http.client.HTTPException):
                return answer.status, after, answer.read(_TOLD_BYTES).decode("utf-8", "replace")
            return answer.status, after, ""
        finally:
            connection.close()
    except OSError as error:
        raise Retryable(f"{target.host} cannot be reached: {error}", code="CONNECTION_FAILED") from error
    except http.client.HTTPException as error:
        raise Retryable(
            f"{target.host} answered with something that is not HTTP: {type(error).__name__}", code="ANSWER_GARBLED"
        ) from error


def _refuse(target: Target, status: int, after: float | None, told: str) -> None:
    """What is no success."""
    if 200 <= status < 300:
        return
    message = f"{target.host} answered {status}{f': {told}' if told.strip() else ''}"
    if status in _TRY_AGAIN or status >= 500:
        after, more = bounded(after)
        raise Retryable(f"{message}{more}", after=after, code=f"HTTP_{status}")
    if 300 <= status < 400:
        message = f"{target.host} answered {status}: redirects are not followed; enqueue the event with its new URL"
    raise Permanent(f"HTTP_{status}", message)
