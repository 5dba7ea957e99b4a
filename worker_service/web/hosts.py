"""By which names we are asked, and how a page of ours is called by a browser."""

from __future__ import annotations

import re
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address

from starlette.requests import HTTPConnection

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::\d{1,5})?", re.IGNORECASE)


def is_ours(host: str, request: HTTPConnection) -> bool:
    """A name can be made to lead to us by whoever owns it, an address cannot. A tunnel has a port of its own."""
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    return is_loopback(host) or _address(found[1]) is not None or host.lower() in _urls(request)


def is_loopback(host: str) -> bool:
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    address = _address(found[1])
    return found[1].lower() == "localhost" if address is None else address.is_loopback


def origin_of(request: HTTPConnection) -> str:
    """As a browser that looks at a page of ours names it."""
    host = request.headers.get("host", "").lower()
    return _urls(request).get(host, f"http://{host}")


def _urls(request: HTTPConnection) -> dict[str, str]:
    """By host, those that people come by from elsewhere."""
    return {url.partition("://")[2]: url for url in request.app.state.settings.web_urls}


def _address(name: str) -> IPv4Address | IPv6Address | None:
    with suppress(ValueError):
        return ip_address(name.removeprefix("[").removesuffix("]"))
    return None
