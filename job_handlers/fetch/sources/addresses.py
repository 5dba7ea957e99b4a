"""Where a URL that somebody else chose may lead, and a connection to it.

Whoever may enqueue must not reach the machine's own network through us: a name is looked up once, every address is
checked, and the connection goes to the address that was checked. The networks that may be reached all the same are
listed in a setting that each handler names itself. What is said over the connection is left to the handler.
"""

from __future__ import annotations

import email.utils
import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from datetime import UTC
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from job_handlers.settings import value_of
from worker_service.handlers import Permanent, Retryable, Setting

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Place = tuple[socket.AddressFamily, Any]
"""An address family, and an address and port as its sockets take them."""

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_AFTER_SECONDS_MAX = 3600.0
_DAY = 86400.0


class Target(Struct, frozen=True):
    is_secure: bool
    host: str
    port: int
    path: str


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
        raise Permanent("URL_INVALID", "a URL with a password in it is refused", "it would be stored with the job")
    is_secure = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(is_secure, parts.hostname, port or (443 if is_secure else 80), path)


def allowed_networks(setting: Setting[tuple[str, ...]]) -> list[Network]:
    return [ipaddress.ip_network(word) for word in value_of(setting)]


def checked_places(target: Target, allowed: Sequence[Network], variable: str) -> list[Place]:
    """Where to connect to. One address that is refused is enough to refuse the name."""
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise Permanent("URL_INVALID", "the URL's host is no name") from error
    except OSError as error:
        raise Retryable(f"{target.host} cannot be looked up: {error.strerror}", code="HOST_UNKNOWN") from error
    for *_, place in found:
        address = ipaddress.ip_address(str(place[0]))
        if not is_public(address) and not is_within(place, allowed):
            raise Permanent(
                "ADDRESS_REFUSED",
                f"{target.host} is {address}, which is not on the public internet",
                f"to allow it, start the worker with {variable}={address}",
            )
    return [(family, place) for family, _, _, _, place in found]


def is_within(place: Any, networks: Sequence[Network]) -> bool:
    address = ipaddress.ip_address(str(place[0]))
    return any(address in network for network in networks)


_INTERIM_MAX = 10
_OF_CLOUDS = frozenset(map(ipaddress.IPv4Address, ("192.0.0.192", "168.63.129.16")))
"""Services of a cloud to its own machines, at public addresses: metadata (Oracle) and the wire server (Azure)."""


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
    return (
        address.is_global
        and address not in _OF_CLOUDS
        and not (
            address.is_private
            or address.is_loopback
            or address.is_link_local
            or address.is_multicast
            or address.is_reserved
            or address.is_unspecified
        )
    )


class _Response(http.client.HTTPResponse):
    """Ends with an error where the library would read interim answers (100 Continue) for ever."""

    _interim_left = _INTERIM_MAX

    def _read_status(self) -> tuple[str, int, str]:
        version, status, reason = super()._read_status()  # type: ignore[misc]
        if status == http.client.CONTINUE:
            self._interim_left -= 1
            if self._interim_left < 0:
                raise http.client.HTTPException(f"more than {_INTERIM_MAX} interim answers")
        return version, status, reason


def connection_to(
    target: Target,
    places: Sequence[Place],
    *,
    connect_seconds: float,
    answer_seconds: float,
    watched: Callable[[socket.socket], AbstractContextManager[object]] = nullcontext,
) -> http.client.HTTPConnection:
    """To the first of the places that answers. `watched` is about its socket while TLS begins."""
    with ExitStack() as unless_made:
        one = unless_made.enter_context(_connected(places, connect_seconds))
        one.settimeout(answer_seconds)
        connection = http.client.HTTPConnection(target.host, target.port)
        if target.is_secure:
            trust = ssl.create_default_context()
            connection = http.client.HTTPSConnection(target.host, target.port, context=trust)
            with watched(one):
                one = trust.wrap_socket(one, server_hostname=target.host)
        unless_made.pop_all()
    connection.response_class = _Response
    # It never connects by itself, to an address that nobody has checked.
    connection.auto_open = 0
    connection.sock = one
    return connection


def _connected(places: Sequence[Place], seconds: float) -> socket.socket:
    failure: OSError = ConnectionError("it has no address")
    for family, place in places:
        try:
            with ExitStack() as unless_connected:
                one = unless_connected.enter_context(socket.socket(family, socket.SOCK_STREAM))
                one.settimeout(seconds)
                one.connect(place)
                unless_connected.pop_all()
                return one
        except OSError as error:
            failure = error
    raise failure


def retry_after(written: str | None) -> float | None:
    """Retry-After: seconds, or a date. What makes no sense is as if it had not been said."""
    text = (written or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:12])
    try:
        until = email.utils.parsedate_to_datetime(text)
        # Without a zone, HTTP means this one.
        until = until if until.tzinfo is not None else until.replace(tzinfo=UTC)
        return max(until.timestamp() - time.time(), 0.0)
    except (TypeError, ValueError, OverflowError):
        return None


def bounded(after: float | None) -> tuple[float | None, str]:
    """How long a server is really waited for, which may ask for years; and what a person is told of it, if less."""
    if after is None or after <= _AFTER_SECONDS_MAX:
        return after, ""
    asked = f"{after / 3600:.1f} h" if after < 2 * _DAY else f"{after / _DAY:,.0f} days"
    return (
        _AFTER_SECONDS_MAX,
        f" (it asks for a wait of {asked}; no more than {_AFTER_SECONDS_MAX / 3600:.0f} h is waited)",
    )
