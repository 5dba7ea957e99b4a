"""Post an event to a URL, signed as Standard Webhooks has it (https://www.standardwebhooks.com).

    {"url": "https://example.com/hooks", "event": {"type": "report.ready", "data": {"id": 42}}, "secret": "webhook"}

`secret` names a file in $CREDENTIALS_DIRECTORY; each of its lines is a key, `whsec_` and base64, and signs. While a key
is exchanged there are two. The receiver sees one event once: `webhook-id` is the same for every attempt.

Whoever may enqueue must not reach the machine's own network through us: a name is looked up once, every address is
checked, and the connection goes to the address that was checked. WORKER_WEBHOOK_ALLOW lists the networks that may be
reached all the same. No redirect is followed. A URL may hold a secret, so no more than its host is ever told.
"""

from __future__ import annotations

import base64
import binascii
import email.utils
import hmac
import http.client
import ipaddress
import json
import os
import re
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from worker_service.handlers import Context, Done, Handler, Limits, Permanent, Retryable

ALLOW = "WORKER_WEBHOOK_ALLOW"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Place = tuple[socket.AddressFamily, Any]
"""An address family, and an address and port as its sockets take them."""

_CONNECT_SECONDS = 10.0
_ANSWER_SECONDS = 30.0
_WALL_SECONDS = 120
_AFTER_SECONDS_MAX = 86400.0
_KEY_BYTES_LEAST = 24
_TOLD_BYTES = 200
_TRY_AGAIN = (408, 425, 429)
_SECRET = re.compile(r"webhook[\w.-]*", re.ASCII)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Payload:
    url: str
    event: dict[str, Any]
    """The body, as JSON."""
    secret: str = "webhook"
    """The credential that signs it. Its name begins with webhook, so that no other secret can be asked for."""


@dataclass(frozen=True, slots=True)
class Target:
    is_secure: bool
    host: str
    port: int
    path: str


def run(context: Context[Payload]) -> Done:
    payload = context.payload
    target = read_url(payload.url)
    keys = _keys(payload.secret)
    body = json.dumps(payload.event, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    places = _checked_places(target, _allowed_networks(os.environ.get(ALLOW, "")))
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "pagemill",
        **signed(context.idempotency_key, int(time.time()), body, keys),
    }
    status, after, told = _post(target, places, body, headers)
    context.log(f"{target.host} answered {status}")
    return _verdict(target, status, after, told)


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
    Payload,
    job_class="io",
    limits=Limits(cpu_seconds=60, wall_seconds=_WALL_SECONDS, network=True),
    environment=[ALLOW],
    credentials=["webhook*"],
)


# --- the URL ----------------------------------------------------------------------------------------


def read_url(url: str) -> Target:
    if not url.isascii() or not url.isprintable() or " " in url:
        raise Permanent("URL_INVALID", "the URL holds characters that have to be escaped")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        # The reason may quote the URL.
        raise Permanent("URL_INVALID", "the URL cannot be understood") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Permanent("URL_INVALID", "a URL begins with https:// or http:// and a host")
    if parts.username is not None or parts.password is not None:
        raise Permanent("URL_INVALID", "a URL with a password is refused: the signature proves who sends")
    is_secure = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(is_secure, parts.hostname, port or (443 if is_secure else 80), path)


def _checked_places(target: Target, allowed: Sequence[Network]) -> list[Place]:
    """Where to connect to. One address that is refused is enough to refuse the name."""
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise Permanent("URL_INVALID", "the URL's host is no name") from error
    except OSError as error:
        raise Retryable(f"{target.host} cannot be looked up: {error.strerror}", code="HOST_UNKNOWN") from error
    for *_, place in found:
        address = ipaddress.ip_address(str(place[0]))
        if not is_public(address) and not any(address in network for network in allowed):
            raise Permanent(
                "ADDRESS_REFUSED",
                f"{target.host} is {address}, which is not on the public internet: "
                f"to allow it, start the worker with {ALLOW}={address}",
            )
    return [(family, place) for family, _, _, _, place in found]


def is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        # An IPv4 address in disguise is judged as what it is.
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo and address.teredo[1])
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner:
            return is_public(inner)
        if address.is_site_local:
            return False
    return address.is_global and not (
        address.is_private
        or address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_reserved
        or address.is_unspecified
    )


def _allowed_networks(written: str) -> list[Network]:
    try:
        return [ipaddress.ip_network(word.strip(), strict=False) for word in written.split(",") if word.strip()]
    except ValueError as error:
        raise Permanent(
            "SETTING_INVALID", f"{ALLOW} lists networks, such as 10.0.0.0/8,192.168.1.7: {error}"
        ) from error


# --- the secret -------------------------------------------------------------------------------------


def _keys(name: str) -> list[bytes]:
    if not _SECRET.fullmatch(name):
        raise Permanent("PAYLOAD_INVALID", "`secret` is the name of a credential that begins with webhook")
    directory = os.environ.get("CREDENTIALS_DIRECTORY", "")
    try:
        # Without a directory the name would be looked for among our own files.
        text = (Path(directory or os.devnull) / name).read_text("ascii")
    except (OSError, ValueError) as error:
        raise Permanent(
            "SECRET_ABSENT", f"there is no credential {name}: give the service LoadCredential={name}:/path/of/the/file"
        ) from error
    keys = [_key(line.strip(), name) for line in text.splitlines() if line.strip()]
    if not keys:
        raise Permanent("SECRET_INVALID", f"the credential {name} is empty")
    return keys


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
        connection = _connect(target, places)
        try:
            # One that has seen enough answers, and hangs up before it has read all.
            with suppress(BrokenPipeError):
                connection.request("POST", target.path, body, dict(headers))
            answer = connection.getresponse()
            after = _after(answer.getheader("Retry-After"))
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


def _connect(target: Target, places: Sequence[Place]) -> http.client.HTTPConnection:
    """To the first of the addresses that answers."""
    context = ssl.create_default_context() if target.is_secure else None
    connected = _socket(places)
    try:
        connected.settimeout(_ANSWER_SECONDS)
        if context is None:
            connection = http.client.HTTPConnection(target.host, target.port)
        else:
            connection = http.client.HTTPSConnection(target.host, target.port, context=context)
            connected = context.wrap_socket(connected, server_hostname=target.host)
    except BaseException:
        connected.close()
        raise
    # With a socket of its own it never looks the name up again.
    connection.sock = connected
    return connection


def _socket(places: Sequence[Place]) -> socket.socket:
    failure: OSError = ConnectionError("it has no address")
    for family, place in places:
        try:
            one = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            failure = error
            continue
        try:
            one.settimeout(_CONNECT_SECONDS)
            one.connect(place)
        except OSError as error:
            one.close()
            failure = error
        except BaseException:
            one.close()
            raise
        else:
            return one
    raise failure


def _after(written: str | None) -> float | None:
    """Retry-After: seconds, or a date. What makes no sense is as if it had not been said."""
    text = (written or "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:12]), _AFTER_SECONDS_MAX)
    try:
        until = email.utils.parsedate_to_datetime(text)
        # Without a zone, HTTP means this one.
        until = until if until.tzinfo is not None else until.replace(tzinfo=UTC)
        return min(max(until.timestamp() - time.time(), 0.0), _AFTER_SECONDS_MAX)
    except (TypeError, ValueError, OverflowError):
        return None


def _verdict(target: Target, status: int, after: float | None, told: str) -> Done:
    if 200 <= status < 300:
        return Done({"status": status})
    message = f"{target.host} answered {status}{f': {told}' if told.strip() else ''}"
    if status in _TRY_AGAIN or status >= 500:
        raise Retryable(message, after=after, code=f"HTTP_{status}")
    if 300 <= status < 400:
        message = f"{target.host} answered {status}: redirects are not followed; enqueue the event with its new URL"
    raise Permanent(f"HTTP_{status}", message)
