"""Checks of the Host header; the site's own origin, as browsers send it."""

from __future__ import annotations

import re
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address

from starlette.requests import HTTPConnection

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::\d{1,5})?", re.IGNORECASE)


def is_own_host(host: str, request: HTTPConnection) -> bool:
    """Return whether the Host is an IP address, localhost or one of `web_urls`. Another may be DNS rebinding."""
    name = _host_name(host)
    if name is None:
        return False
    return is_loopback(host) or _ip_address(name) is not None or host.lower() in _url_by_host(request)


def is_loopback(host: str) -> bool:
    name = _host_name(host)
    if name is None:
        return False
    address = _ip_address(name)
    return name.lower() == "localhost" if address is None else address.is_loopback


def origin_of(request: HTTPConnection) -> str:
    host = request.headers.get("host", "").lower()
    return _url_by_host(request).get(host, f"http://{host}")


def _host_name(host: str) -> str | None:
    match = _HOST.fullmatch(host)
    return None if match is None else match[1]


def _url_by_host(request: HTTPConnection) -> dict[str, str]:
    return {url.partition("://")[2]: url for url in request.app.state.settings.web_urls}


def _ip_address(name: str) -> IPv4Address | IPv6Address | None:
    with suppress(ValueError):
        return ip_address(name.removeprefix("[").removesuffix("]"))
    return None
