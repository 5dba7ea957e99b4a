"""Which other machines run attempts: what `WORKER_CLUSTER` or `[cluster]` says, read. Starts nothing.

An engine, a colon, and where: ``ssh:box2*8,box3*8``, ``ray:head.example:6379``, ``pipe:n1=COMMAND*2``. Behind the star
stands how many attempts a machine runs at once; without one it says so itself. `local*N` is this machine.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace

from worker_service.config_values import length_of_time, parse_words, read_table, whole_number
from worker_service.errors import ConfigError
from worker_service.jobs.values import dataclass

ENGINES = ("ssh", "ray", "pipe")
LOCAL = "local"
"""The node that is this machine."""
FENCE_PART = 2 / 3
"""Of the head's patience: after so long a node that nobody hears has ended what it ran."""

SLOTS_MOST = 1000
"""Of one node, whatever it says of itself."""
AUTOSCALE_MOST = 1000

_KEYS = ("engine", "types", "patience", "local", "shared", "autoscale")
_PATIENCE = replace(length_of_time(0.5, 3600), what="a length of time from 0.5s to 1h, such as 9s")
_SLOTS = whole_number(f"a number of slots from 0 to {SLOTS_MOST}", 0, SLOTS_MOST)
_AUTOSCALE = whole_number(f"a number of attempts at once from 0 to {AUTOSCALE_MOST}", 0, AUTOSCALE_MOST)
_SLOTS_BEHIND = re.compile(r"(.*?)\*(\d{1,18})", re.DOTALL)
_SUCH_AS = {"ssh": "ssh:box2*8", "ray": "ray:head.example:6379", "pipe": "pipe:n2=COMMAND*8"}
_SSH_ADDRESS = re.compile(r"[^\s*-][^\s*]*")
_RAY_ADDRESS = re.compile(r"[^\s*/]+:(\d{1,5})")
_NAME_MOST = 60
_NAME = re.compile(rf"[A-Za-z0-9_.-]{{1,{_NAME_MOST}}}")


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
    autoscale: int = 0
    """For so many attempts at once, at most, Ray's autoscaler is asked for machines; 0: nobody is asked."""

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
    for word in words:
        if (fault := _fault_of(engine, word)) is not None:
            raise ConfigError(f"{label}: {word!r}: {fault}")
    local = [place.slots for word in words if (place := place_of(word)).address == LOCAL]
    places = tuple(word for word in words if place_of(word).address != LOCAL)
    names = [place_of(word).name for word in places]
    if not places and engine != "pipe":
        raise ConfigError(f"{label} names no machine: write {_SUCH_AS[engine]}")
    if engine == "ray" and len(places) > 1:
        raise ConfigError(f"{label} names Ray's own head alone, which knows its nodes: write {_SUCH_AS[engine]}")
    if len({*names, LOCAL}) <= len(names):
        raise ConfigError(f"{label} names two nodes alike, or one {LOCAL}: give them names, such as n2=box2*8")
    slots = local[0] if local else table.get("local")
    types = table.get("types", [])
    shared = table.get("shared", False)
    if not isinstance(shared, bool):
        raise ConfigError(f"{label}: shared is true or false, not {shared!r}")
    autoscale = _AUTOSCALE.read(table.get("autoscale", 0), f"{label}: autoscale")
    if autoscale and engine != "ray":
        raise ConfigError(f"{label}: autoscale asks Ray for machines, and the engine is {engine}: leave it out")
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
        autoscale,
    )


def _fault_of(engine: str, word: str) -> str | None:
    """Why this is nothing that the engine could start."""
    if word.partition(":")[0] in ENGINES:
        return f"there is one engine, and it is named once: {engine}:a*1,b*2"
    place = place_of(word)
    least = 0 if place.address == LOCAL else 1
    if place.slots is not None and not least <= place.slots <= SLOTS_MOST:
        return f"a machine has {least} to {SLOTS_MOST} slots"
    if place.address == LOCAL:
        return None
    if not place.name:
        return "give it a name: n2=…"
    if engine == "ssh" and not _SSH_ADDRESS.fullmatch(place.address):
        return "this is no machine that ssh could call"
    if engine == "ray" and ((found := _RAY_ADDRESS.fullmatch(word)) is None or not 1 <= int(found[1]) <= 65535):
        return f"say where Ray's head is, with its port: {_SUCH_AS[engine]}"
    if engine == "pipe":
        try:
            if not shlex.split(place.address):
                return "this is no command"
        except ValueError:
            return "a quotation mark in it is not closed"
    return None


def place_of(word: str) -> Place:
    """``box2*8``, ``user@box2``, ``n2=box2``, ``n3=kubectl exec -i w3 -- pagemill node*4``"""
    found = _SLOTS_BEHIND.fullmatch(word)
    rest, slots = (found[1], int(found[2])) if found else (word, None)
    name, equals, address = rest.partition("=")
    if not equals or not _NAME.fullmatch(name):
        # A machine is called the same whoever calls there.
        name, address = plain_name(rest if " " in rest else rest.rpartition("@")[2]), rest
    return Place(name, address, slots)


def plain_name(said: str) -> str:
    """A name of a node, for rows, files and people. '': nothing is left of what was said."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", said).strip("-")[:_NAME_MOST]
