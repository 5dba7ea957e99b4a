"""How Ray is started and reached: with TLS and a token, and so that it notices within seconds who is gone.

Ray takes all this from its environment, in each of its processes. The keys are files that `pagemill cluster init` and
`cluster join` wrote; under a unit they come as credentials. Without them Ray listens to anybody, so only this machine
may be named then. Imports no Ray.
"""

from __future__ import annotations

import ipaddress
import os
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import msgspec

from worker_service.cluster import LOCAL, SLOTS_MOST, plain_name
from worker_service.config import SERVICE_CONFIGURATION
from worker_service.files import whole

KEYS = ("cluster.ca", "cluster.cert", "cluster.key", "cluster.token")
KEYS_DIRECTORY = SERVICE_CONFIGURATION / "cluster"
PORT = 6379
DIRECTORY = Path("/run/pagemill-ray")
"""Where the sockets of this machine's Ray are, if its unit has started it."""
_NAME_MOST, _DIGITS = 50, (6, 56)
RESOURCE = "pagemill"
"""A node of Ray that has it is one of ours; how much of it: its slots."""

# A node that is gone is noticed after 8 s instead of 64, a head that is gone after 10 instead of 60.
_NOTICES_SOON = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
}
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
_WRITES_NOTHING = {
    # Into Ray's own directory, where another user may not.
    "RAY_LOG_TO_STDERR": "1",
    "RAY_BACKEND_LOG_LEVEL": "error",
    "RAY_event_log_reporter_enabled": "0",
}


def keys_in(environ: Mapping[str, str], *places: Path) -> Path | None:
    """The directory with this machine's keys: the credentials of its unit, or the first of the places that has them."""
    given = environ.get("CREDENTIALS_DIRECTORY")
    for place in ([Path(given)] if given else []) + list(places):
        if all(os.access(place / name, os.R_OK) for name in KEYS):
            return place
    return None


def surroundings(keys: Path | None) -> dict[str, str]:
    """What Ray's processes find in their environment."""
    if keys is None:
        return {**_NOTICES_SOON, **_QUIET}
    ca, cert, key, token = (str(keys / name) for name in KEYS)
    return {
        **_NOTICES_SOON,
        **_QUIET,
        "RAY_USE_TLS": "1",
        "RAY_TLS_CA_CERT": ca,
        "RAY_TLS_SERVER_CERT": cert,
        "RAY_TLS_SERVER_KEY": key,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": token,
    }


def take(environ: MutableMapping[str, str]) -> Path | None:
    """Put into the environment of one who talks to Ray what is not said there already; return where the keys are."""
    keys = keys_in(environ, KEYS_DIRECTORY)
    for name, value in (surroundings(keys) | _WRITES_NOTHING).items():
        environ.setdefault(name, value)
    return keys


def fault_of(address: str, environ: Mapping[str, str]) -> str | None:
    """Why nobody may talk to Ray there: in a sentence that says what to do. None: all is well."""
    needed = ("RAY_TLS_CA_CERT", "RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_AUTH_TOKEN_PATH")
    absent = [name for name in needed if not os.access(environ.get(name, ""), os.R_OK)]
    is_safe = environ.get("RAY_USE_TLS") == "1" and environ.get("RAY_AUTH_MODE") == "token"
    if is_safe and absent:
        # Ray itself would wait for ever.
        return f"{absent[0]} names no file that can be read: {environ.get(absent[0]) or 'nothing'}"
    if is_safe or is_loopback(address):
        return None
    return (
        f"Ray at {address} would be talked to without TLS and token, where anybody could listen and join: make keys "
        "with `pagemill cluster init ray`, on the head"
    )


class Names:
    """Nodes of Ray by a name. A machine says itself what it is called: one that says it were this one is not, and none
    takes the name of another. A node keeps its name for as long as it lives, whoever comes beside it, and after that
    only its own machine can have it again: what is called alike is taken to have begun anew, and to run nothing else.
    So whose a name is outlives the gateway.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._given: dict[str, str] = {}
        """By the number of a node that lives."""
        self._machines: dict[str, str] = _read(file)
        """By each name that was given: the address of whose it is."""
        self._guard = threading.Lock()

    def ours(self, told: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, int]]:
        """Of the nodes that Ray tells of: the number of each and its slots."""
        alive = {str(one["NodeID"]): one for one in told if one["Alive"] and RESOURCE in one["Resources"]}
        with self._guard:
            known = dict(self._machines)
            self._given = {number: name for number, name in self._given.items() if number in alive}
            called = {number: plain_name(str(one["NodeManagerHostname"])) for number, one in alive.items()}
            new = [number for number in alive if number not in self._given]
            often = Counter(called[number] for number in new)
            for number in new:
                own, address = called[number], str(alive[number]["NodeManagerAddress"])
                taken = ("", LOCAL, *self._given.values())
                possible = [own] if often[own] == 1 else []
                possible += [f"{own[:_NAME_MOST]}-{number[:digits]}".strip("-") for digits in _DIGITS]
                free = [one for one in possible if one not in taken and self._machines.get(one, address) == address]
                if free:
                    self._given[number], self._machines[free[0]] = free[0], address
            if self._machines != known and self._file is not None:
                # Before anything runs there.
                with whole(self._file) as file:
                    file.write(msgspec.json.encode(self._machines))
            return {name: (number, _slots_of(alive[number])) for number, name in self._given.items()}


def _read(file: Path | None) -> dict[str, str]:
    if file is None or not file.is_file():
        return {}
    return msgspec.json.decode(file.read_bytes(), type=dict[str, str])


def _slots_of(one: Mapping[str, Any]) -> int:
    return max(1, min(int(one["Resources"][RESOURCE]), SLOTS_MOST))


def is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]") or address
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
