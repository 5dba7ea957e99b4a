"""The `cluster` setting: the address of the Ray head, and which attempts may run on its nodes. Imports no Ray."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated

from msgspec import Struct, field

from worker_service.settings.value_types import SLOTS, ValueType, parse_words, read_struct, whole_number

LOCAL = "local"
SLOTS_MAX = 1000

_ADDRESS = re.compile(r"ray:([^\s/]+):(\d{1,5})")


def _parse_address(raw: object, _: str, __: Path) -> str:
    match = _ADDRESS.fullmatch(raw) if isinstance(raw, str) else None
    if match is None or not 1 <= int(match[2]) <= 65535:
        raise ValueError
    return f"{match[1]}:{match[2]}"


_TYPES = ValueType("a list of job types", lambda raw, _, __: tuple(parse_words(raw)))


class Cluster(Struct, frozen=True):
    address: Annotated[str, ValueType("the address of a Ray head such as ray:10.0.0.1:6379", _parse_address)]
    types: Annotated[tuple[str, ...], _TYPES] = ()
    """Empty: all types whose handlers declare `runs_on_cluster`."""
    local_slots: Annotated[int | None, SLOTS] = field(default=None, name="local")
    """Slots of this machine for attempts of these types. None: `concurrency`."""
    autoscale: Annotated[int, whole_number("a number of attempts from 0 to 1000", 0, 1000)] = 0
    """Attempts that may wait for machines that Ray's autoscaler starts."""


def _parse_cluster(raw: object, label: str, _: Path) -> Cluster:
    return read_struct(Cluster, {"address": raw} if isinstance(raw, str) else raw, label)


CLUSTER = ValueType("a cluster", _parse_cluster, lambda cluster: f"ray:{cluster.address}")


def is_loopback(address: str) -> bool:
    """Return True if other machines cannot reach HOST:PORT."""
    host = address.rpartition(":")[0].strip("[]") or address
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
