"""The `cluster` setting: the address of the Ray head, and what may run on its nodes. Starts nothing, imports no Ray."""

from __future__ import annotations

import ipaddress
import re

import msgspec

from worker_service.base.errors import ConfigError
from worker_service.settings.value_types import parse_words, read_table, whole_number

AUTOSCALE_MAX = 1000
LOCAL = "local"
"""Name of this machine's own row in the `node` table."""
SLOTS_MAX = 1000
"""Upper limit for the slots of one node, also if Ray reports more."""

_KEYS = ("address", "types", "local", "autoscale")
_ADDRESS = re.compile(r"ray:([^\s/]+):(\d{1,5})")
_LOCAL_SLOTS = whole_number(f"a number of slots from 0 to {SLOTS_MAX}", 0, SLOTS_MAX)
_AUTOSCALE = whole_number(f"a number of attempts from 0 to {AUTOSCALE_MAX}", 0, AUTOSCALE_MAX)


class Cluster(msgspec.Struct, frozen=True):
    address: str
    """HOST:PORT of the Ray head."""
    types: tuple[str, ...] = ()
    """Job types that run on nodes. Empty: all types whose handlers declare `runs_on_cluster`."""
    local_slots: int | None = None
    """Attempts of these types that this machine runs itself. None: as many as `concurrency`."""
    autoscale: int = 0
    """Maximum number of attempts that may wait with Ray for machines that its autoscaler starts."""

    def written(self) -> str:
        return f"ray:{self.address}"


def read_cluster(raw: object, label: str) -> Cluster:
    """Read the setting: an address such as `ray:10.0.0.1:6379`, or a table. Raise `ConfigError` if it is neither."""
    table = {"address": raw} if isinstance(raw, str) else read_table(raw, label)
    for key in table:
        if key not in _KEYS:
            raise ConfigError(f"{label}: there is no setting {key!r}: the settings are {', '.join(_KEYS)}")
    address = table.get("address")
    found = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
    if found is None or not 1 <= int(found[2]) <= 65535:
        raise ConfigError(f"{label} is the address of a Ray head such as ray:10.0.0.1:6379, not {address!r}")
    try:
        types = parse_words(table.get("types", []))
    except ValueError as error:
        raise ConfigError(f"{label}: types is a list of job types, not {table['types']!r}") from error
    local = table.get("local")
    return Cluster(
        f"{found[1]}:{found[2]}",
        tuple(types),
        None if local is None else _LOCAL_SLOTS.read(local, f"{label}: local"),
        _AUTOSCALE.read(table.get("autoscale", 0), f"{label}: autoscale"),
    )


def is_loopback(address: str) -> bool:
    """Return whether HOST:PORT is an address of this machine that other machines cannot reach."""
    host = address.rpartition(":")[0].strip("[]") or address
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
