"""Addresses that HTTP requests may reach: the public internet, and networks of a setting."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from job_handlers.settings import value_of
from worker_service.handlers import Permanent, Setting

# Address family, and address with port as `socket.connect` takes them.
Endpoint = tuple[socket.AddressFamily, Any]

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# Services of clouds that have public addresses: metadata (Oracle), the wire server (Azure).
_CLOUD_SERVICES = frozenset(map(ipaddress.IPv4Address, ("192.0.0.192", "168.63.129.16")))


class Target(Struct, frozen=True):
    is_secure: bool
    host: str
    port: int
    path: str


def parse_url(url: str) -> Target:
    if not url.isascii() or not url.isprintable() or " " in url:
        raise Permanent("URL_INVALID", "the URL contains characters that have to be escaped")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        # Leave out the reason, which may quote the URL.
        raise Permanent("URL_INVALID", "the URL cannot be understood") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Permanent("URL_INVALID", "a URL begins with https:// or http:// and a host")
    if parts.username is not None or parts.password is not None:
        raise Permanent("URL_INVALID", "a URL with a password in it is refused", "it would be stored with the job")
    is_secure = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(is_secure, parts.hostname, port or (443 if is_secure else 80), path)


class AddressPolicy:
    """`setting` lists networks that are allowed besides the public internet."""

    def __init__(self, setting: Setting[tuple[str, ...]], *, allows_plain_http: bool = False) -> None:
        self._networks = [ipaddress.ip_network(network) for network in value_of(setting)]
        self._variable = setting.variable
        self._allows_plain_http = allows_plain_http

    def check(self, target: Target, endpoints: Sequence[Endpoint]) -> None:
        for _, (host, *_) in endpoints:
            address = ipaddress.ip_address(str(host))
            if any(address in network for network in self._networks):
                continue
            if not is_public(address):
                raise Permanent(
                    "ADDRESS_REFUSED",
                    f"{target.host} is {address}, which is not on the public internet",
                    f"to allow it, start the worker with {self._variable}={address}",
                )
            if not target.is_secure and not self._allows_plain_http:
                raise Permanent(
                    "URL_INSECURE",
                    f"http:// is only allowed to networks in {self._variable}",
                    "give the URL with https://",
                )


def is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        # An IPv6 address that contains an IPv4 address leads to that.
        _, teredo_client = address.teredo or (None, None)
        embedded = address.ipv4_mapped or address.sixtofour or teredo_client
        if address in _NAT64:
            embedded = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if embedded:
            return is_public(embedded)
        if address.is_site_local:
            return False
    return (
        address.is_global
        and address not in _CLOUD_SERVICES
        and not (
            address.is_private
            or address.is_loopback
            or address.is_link_local
            or address.is_multicast
            or address.is_reserved
            or address.is_unspecified
        )
    )
