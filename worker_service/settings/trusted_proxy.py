"""The `proxy` setting: a proxy that signs users in and names them in a header."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, cast, get_args

from msgspec import Meta, Struct

from worker_service.base.errors import ConfigError
from worker_service.settings.value_types import ValueType, parse_words, read_struct, read_table

SOCKET = "socket"
_OTHER_USERS = "*"
_NAME_OF_USER = "{user}"

Role = Literal["read", "operate", "admin"]


class ProxyUser(Struct, frozen=True):
    role: Role
    owner: str | None
    """The only owner whose data the user sees; None for all owners."""


def _parse_addresses(raw: object, _: str, __: Path) -> tuple[str, ...]:
    words = parse_words(raw)
    if not words:
        raise ValueError
    return tuple(word if word == SOCKET else str(ipaddress.ip_address(word)) for word in words)


def _parse_users(raw: object, label: str, _: Path) -> Mapping[str, ProxyUser]:
    return {name: _parse_user(rights, f"{label}.{name}") for name, rights in read_table(raw, label).items()}


def _parse_user(raw: object, label: str) -> ProxyUser:
    """Parse `ROLE` or `ROLE OWNER`."""
    role, _, owner = raw.partition(" ") if isinstance(raw, str) else ("", "", "")
    if role not in get_args(Role):
        raise ConfigError(f"{label} is read, operate or admin, perhaps with an owner as in 'operate ann', not {raw!r}")
    return ProxyUser(cast(Role, role), owner.strip() or None)


_ADDRESSES = ValueType("a list of IP addresses, or socket for the Unix socket", _parse_addresses)
_HEADER = Meta(pattern=r"\A[A-Za-z0-9-]{1,100}\Z", description="the name of a header")
_USERS: ValueType[Mapping[str, ProxyUser]] = ValueType("a table of users", _parse_users)


class TrustedProxy(Struct, frozen=True):
    address: Annotated[tuple[str, ...], _ADDRESSES]
    """A process that can connect from there can claim to be any user."""
    users: Annotated[Mapping[str, ProxyUser], _USERS]
    header: Annotated[str, _HEADER] = "X-Forwarded-User"

    def find_user(self, name: str) -> ProxyUser | None:
        # With the owner {user}, each user sees only their own data.
        user = self.users.get(name) or self.users.get(_OTHER_USERS)
        return ProxyUser(user.role, name) if user is not None and user.owner == _NAME_OF_USER else user


PROXY = ValueType(
    "a proxy that signs users in",
    lambda raw, label, _: read_struct(TrustedProxy, raw, label),
    lambda proxy: f"{proxy.header} from {', '.join(proxy.address)}",
)
