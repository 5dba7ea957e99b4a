"""Nodes of a Ray cluster that have the resource `pagemill`: on each an actor, which hosts the agent.

Ray knows which machines there are, starts the actor, and carries calls, encrypted. All else is ours: an actor that is
gone, or a call that is lost, is a node that was not heard. What Ray brings is unpickled by Ray: so nobody is spoken to
before the jail is shut.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from worker_service.children import jail
from worker_service.children.messages import GatewayBegin
from worker_service.nodes import ray_settings
from worker_service.nodes.agent import Agent
from worker_service.nodes.engine import EngineAbsent, Handle, Lost
from worker_service.nodes.pipes import Pipes

# Ray reads its environment when it is imported.
KEYS = ray_settings.take(os.environ)
import ray  # noqa: E402
from ray.autoscaler.sdk import request_resources  # noqa: E402
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: E402

_CALLS_AT_ONCE = 8
_READABLE = ("/proc", "/sys", "/etc", "/dev")
_WRITABLE = ("/dev/shm", "/dev/null")


class Host:
    """On the node. Ray ends it, and with it all that it runs, when the head's gateway is gone."""

    def __init__(self, slots: int) -> None:
        self._agent = Agent(node_root(), slots=slots)

    def answer(self, body: bytes) -> bytes:
        return self._agent.answer(body)


class Actor:
    """The head's end."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def call(self, body: bytes, *, timeout: float) -> bytes:
        try:
            answer: bytes = ray.get(self._actor.answer.remote(body), timeout=timeout)
        except ray.exceptions.GetTimeoutError as error:
            raise TimeoutError from error
        except ray.exceptions.RayError as error:
            raise Lost(f"Ray says {type(error).__name__}") from error
        return answer

    def holds_back(self) -> str:
        return ""

    def close(self) -> None:
        ray.kill(self._actor)


class OverRay:
    """The engine."""

    def __init__(self, begin: GatewayBegin, lock_fd: int | None) -> None:
        [self._address] = begin.places
        self._names = ray_settings.Names(begin.names)
        self._asked: int | None = None
        """What the gateway before us has asked for is asked for until we ask."""
        # This machine itself takes part by a pipe.
        self._own = Pipes(msgspec.structs.replace(begin, engine="pipe", places=()), lock_fd)
        if (fault := ray_settings.fault_of(self._address, os.environ)) is not None:
            raise EngineAbsent(fault)

    def door(self) -> jail.Door:
        reads = [*map(Path, _READABLE), *([] if KEYS is None else [KEYS])]
        return jail.Door(reads, [*map(Path, _WRITABLE)], network=True, starts_programs=False)

    def connect(self) -> None:
        try:
            ray.init(
                address=self._address,
                _node_ip_address=_own_address(self._address),
                log_to_driver=False,
                logging_level="ERROR",
                configure_logging=False,
            )
        except (OSError, RuntimeError, ValueError) as error:
            raise EngineAbsent(f"there is no Ray at {self._address} that lets us in: {error}") from error

    def nodes(self) -> Mapping[str, int | None]:
        return {**self._own.nodes(), **{name: slots for name, (_, slots) in self._found().items()}}

    def ask_for(self, attempts: int) -> None:
        if attempts != self._asked:
            request_resources(bundles=[{ray_settings.RESOURCE: 1}] * attempts)
            self._asked = attempts

    def host(self, node: str) -> Handle:
        if node in self._own.nodes():
            return self._own.host(node)
        found = self._found().get(node)
        if found is None:
            raise Lost("Ray has no such node")
        node_id, slots = found
        where = NodeAffinitySchedulingStrategy(node_id, soft=False)
        options = {"num_cpus": 0, "max_restarts": 0, "max_concurrency": _CALLS_AT_ONCE, "scheduling_strategy": where}
        return Actor(ray.remote(Host).options(**options).remote(slots))

    def close(self) -> None:
        self._own.close()
        ray.shutdown()

    def _found(self) -> dict[str, tuple[str, int]]:
        return self._names.ours(ray.nodes())


def _own_address(head: str) -> str:
    """Of this machine, as seen from Ray's head: Ray itself would ask how the way to the internet begins, and take the
    part of it that runs there for the one of this machine."""
    host, _, port = head.rpartition(":")
    family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as asked:
        # Nothing is sent.
        asked.connect(address)
        return str(asked.getsockname()[0])


def node_root() -> Path:
    """Where a node keeps what it needs."""
    given = os.environ.get("STATE_DIRECTORY")
    return Path(given) if given else Path.home() / ".local" / "state" / "pagemill-node"


def engine(begin: GatewayBegin, lock_fd: int | None) -> OverRay:
    return OverRay(begin, lock_fd)
