"""Post an event to a URL, signed according to Standard Webhooks (https://www.standardwebhooks.com).

    {"url": "https://example.com/hooks", "event": {"type": "report.ready", "data": {"id": 42}}, "secret": "webhook"}

As a follow-up (`--then`, `--on-failure`), `event` may be left out: it then describes the document or the failed job.
Each line of the credential `secret` is a key, `whsec_` and base64, and adds a signature, so two keys may overlap.
`webhook-id` is the same for every attempt, so that the receiver can ignore repetitions. Redirects are not followed.
Messages and logs only name the host of a URL.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

from msgspec import Struct

from job_handlers.channels import credential_lines
from job_handlers.fetch.address_policy import AddressPolicy, parse_url
from job_handlers.fetch.error_rules import FetchError, Timeouts, limit_wait
from job_handlers.fetch.http_client import HttpClient, seconds_in_retry_after
from job_handlers.settings import HandlersSettings
from worker_service.handlers import Context, Done, Handler, KnownDocument, Limits, Message, Permanent, Retryable

ALLOW = HandlersSettings.webhook_allow
ENVIRONMENT = [ALLOW.variable]
CREDENTIALS = ["webhook*"]

_TIMEOUTS = Timeouts(connect_seconds=10.0, idle_seconds=30.0, chunk_seconds=30.0)
_WALL_SECONDS = 120
_KEY_BYTES_MIN = 24  # Required by Standard Webhooks.
_QUOTED_BYTES_MAX = 200
_RETRYABLE_STATUSES = (408, 425, 429)  # Beside those from 500.
_SECRET_NAME = re.compile(r"webhook[\w.-]*", re.ASCII)


class WebhookPayload(Struct, frozen=True):
    url: str
    """The URL that receives the event."""
    event: dict[str, Any] | None = None
    """The body. If left out, it describes the document or job that this job follows."""
    secret: str = "webhook"
    """The credential that signs the event. Its name must begin with webhook."""


def send(message: Message, context: Context[Any]) -> object:
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
    return _post(message.to, event, "webhook", context)


def run(context: Context[WebhookPayload]) -> Done:
    payload = context.payload
    event = _event_of_context(context) if payload.event is None else payload.event
    return Done(_post(payload.url, event, payload.secret, context))


def signature_headers(event_id: str, timestamp: int, body: bytes, keys: Sequence[bytes]) -> dict[str, str]:
    # One signature for each key: a receiver accepts the event if one of them is right.
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


def _event_of_context(context: Context[Any]) -> dict[str, Any]:
    if context.document_id is not None:
        document = context.document or KnownDocument()
        data = {
            "document": context.document_id,
            "name": document.name,
            "owner": context.owner,
            "batch": document.batch_id,
            "generation": document.generation,
        }
        return {"type": f"document.{document.status or 'success'}", "data": data}
    if context.parent_id is not None:
        return {"type": "job.failed", "data": {"job": context.parent_id}}
    raise Permanent("PAYLOAD_INVALID", "`event` is missing", "give one: this job follows no document and no job")


def _keys(name: str) -> list[bytes]:
    if not _SECRET_NAME.fullmatch(name):
        raise Permanent("PAYLOAD_INVALID", "`secret` must be the name of a credential that begins with webhook")
    return [_key(line, name) for line in credential_lines(name)]


def _key(line: str, name: str) -> bytes:
    try:
        key = base64.b64decode(line.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        key = b""
    if len(key) < _KEY_BYTES_MIN:
        # Do not quote the line, which may be a secret.
        raise Permanent(
            "SECRET_INVALID", f"the credential {name} is not whsec_ and base64 of {_KEY_BYTES_MIN} bytes or more"
        )
    return key


def _post(url: str, event: Mapping[str, Any], secret: str, context: Context[Any]) -> dict[str, int]:
    host = parse_url(url).host
    keys = _keys(secret)
    body = json.dumps(event, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    headers = {
        "Content-Type": "application/json",
        **signature_headers(context.idempotency_key, int(time.time()), body, keys),
    }
    policy = AddressPolicy(ALLOW, allows_plain_http=True)
    answer_beginning = b""
    try:
        with (
            closing(HttpClient(host, _TIMEOUTS, context.cancelled, policy)) as client,
            client.request("POST", url, headers, body) as answer,
        ):
            status, wait_seconds = answer.status, seconds_in_retry_after(answer.headers.get("Retry-After", ""))
            # The status decides, even if the connection is lost after it.
            with suppress(FetchError):
                answer_beginning = answer.read(_QUOTED_BYTES_MAX)
    except FetchError as error:
        code = error.code if error.code in ("HOST_UNKNOWN", "ANSWER_GARBLED") else "CONNECTION_FAILED"
        raise Retryable(error.detail, error.remedy, code=code) from error
    context.log(f"{host} answered {status}")
    _raise_unless_accepted(host, status, wait_seconds, answer_beginning.decode("utf-8", "replace"))
    return {"status": status}


def _raise_unless_accepted(host: str, status: int, wait_seconds: float | None, answer_beginning: str) -> None:
    if 200 <= status < 300:
        return
    message = f"{host} answered {status}"
    if answer_beginning.strip():
        message += f": {answer_beginning}"
    if status in _RETRYABLE_STATUSES or status >= 500:
        after, note = limit_wait(wait_seconds)
        raise Retryable(f"{message}{note}", after=after, code=f"HTTP_{status}")
    if 300 <= status < 400:
        message = f"{host} answered {status}: redirects are not followed; enqueue the event with its new URL"
    raise Permanent(f"HTTP_{status}", message)
