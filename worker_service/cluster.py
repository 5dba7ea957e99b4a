"""Which other machines run attempts: what `WORKER_CLUSTER` or `[cluster]` says, read. Starts nothing.

An engine, a colon, and where: ``ssh:box2*8,box3*8``, ``ray:head.example:6379``, ``pipe:n1=COMMAND*2``. Behind the star
stands how many attempts a machine runs at once; without one it says so itself. `local*N` is this machine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from worker_service.config_values import length_of_time, parse_words, read_table, whole_number
from worker_service.errors import ConfigError
from worker_service.jobs.values import dataclass

ENGINES = ("ssh", "ray", "pipe")
LOCAL = "local"
"""The node that is this machine."""
FENCE_PART = 2 / 3
"""Of the head's patience: after so long a node that nobody hears has ended what it ran."""

_KEYS = ("engine", "types", "patience", "local", "shared")
_PATIENCE = length_of_time(0.5, 3600)
_SLOTS = whole_number("a number of slots from 0 to 1000", 0, 1000)
_SLOTS_BEHIND = re.compile(r"(.*?)\*(\d{1,4})", re.DOTALL)
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,60}")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node is, as somebody wrote it."""

    name: str
    address: str
    slots: int | None
    """None: as many as it has."""


@dataclass(frozen=True, slots=True)
class Cluster:
    engine: str
    places: Sequence[str]
    local_slots: int | None = None
    """Of this machine itself; None: as many as `concurrency` says."""
    types: Sequence[str] = ()
    """Those that run on nodes; empty: those whose handlers may."""
    patience_seconds: float = 9.0
    """A node that was not heard for so long is given up, and what it ran begins elsewhere."""
    is_shared: bool = False
    """All nodes see the workspace by the same path."""

    def written(self) -> str:
        local = [] if self.local_slots is None else [f"{LOCAL}*{self.local_slots}"]
        return f"{self.engine}:{','.join([*self.places, *local])}"


def read_cluster(raw: object, label: str) -> Cluster:
    table = {"engine": raw} if isinstance(raw, str) else read_table(raw, label)
    for key in table:
        if key not in _KEYS:
            raise ConfigError(f"{label}: there is no setting {key!r}: the settings are {', '.join(_KEYS)}")
    said = table.get("engine")
    engine, colon, where = str(said).partition(":")
    if engine not in ENGINES or not colon:
        raise ConfigError(f"{label} is an engine and where, such as ssh:box2*8,box3*8, not {said!r}: the engines are "
                          f"{', '.join(ENGINES)}")  # fmt: skip
    words = [word.strip() for word in where.split(",") if word.strip()]
    local = [place.slots for word in words if (place := place_of(word)).address == LOCAL]
    places = tuple(word for word in words if place_of(word).address != LOCAL)
    names = [place_of(word).name for word in places]
    if not places and engine != "pipe":
        raise ConfigError(f"{label} names no machine: write {engine}:box2*8")
    if len({*names, LOCAL}) <= len(names):
        raise ConfigError(f"{label} names two nodes alike, or one {LOCAL}: give them names, such as n2=box2*8")
    slots = local[0] if local else table.get("local")
    types = table.get("types", [])
    shared = table.get("shared", False)
    if not isinstance(shared, bool):
        raise ConfigError(f"{label}: shared is true or false, not {shared!r}")
    try:
        types = parse_words(types)
    except ValueError as error:
        raise ConfigError(f"{label}: types is a list of job types, not {types!r}") from error
    return Cluster(
        engine,
        places,
        None if slots is None else _SLOTS.read(slots, f"{label}: local"),
        tuple(types),
        _PATIENCE.read(table.get("patience", "9s"), f"{label}: patience"),
        shared,
    )


def place_of(word: str) -> Place:
    """``box2*8``, ``n2=user@box2``, ``n3=kubectl exec -i w3 -- pagemill node*4``"""
    found = _SLOTS_BEHIND.fullmatch(word)
    rest, slots = (found[1], int(found[2])) if found else (word, None)
    name, equals, address = rest.partition("=")
    if not equals or not _NAME.fullmatch(name):
        name, address = re.sub(r"[^A-Za-z0-9_.-]+", "-", rest).strip("-")[:60], rest
    return Place(name, address, slots)
