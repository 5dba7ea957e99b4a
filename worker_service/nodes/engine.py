"""What is needed of an engine: which nodes there are, somebody on each who answers, and calls that may be lost.

Everything else is ours: order, acknowledgement, who may still live. So an engine is a page, and none is imported where
none is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Protocol

from worker_service.children.jail import Door
from worker_service.children.messages import GatewayBegin
from worker_service.errors import PagemillError


class Lost(Exception):
    """Nobody is there any more, or nobody can be reached. Whether the call was heard is not known."""


class EngineAbsent(PagemillError):
    """It is not installed, or does not answer."""

    code = "engine_absent"
    exit_code = 69


class Handle(Protocol):
    """Somebody on a node: an `Agent`, far away."""

    def call(self, body: bytes, *, timeout: float) -> bytes:
        """Raise `Lost` or TimeoutError; the same call may be made again. Called by several threads at once."""

    def holds_back(self) -> str:
        """What may keep it from its first answer, in words. '': it has answered, or nothing is known."""

    def close(self) -> None:
        """Nobody calls any more: what can be let go of is."""


class Engine(Protocol):
    def door(self) -> Door:
        """What this process needs beside the files of ours, once its jail is shut. Asked first; programs that have to
        be started are started by what begins here."""

    def connect(self) -> None:
        """Behind the shut door. Raise `EngineAbsent` where there is nobody; then it is asked again."""

    def nodes(self) -> Mapping[str, int | None]:
        """Those that are there, and their slots; None: as many as they say. Raises whatever it likes."""

    def ask_for(self, attempts: int) -> None:
        """Machines for so many attempts at once, of whoever starts some; until it is asked for another number."""

    def host(self, node: str) -> Handle:
        """A new agent on that node. Raise `Lost` where that cannot be."""

    def close(self) -> None:
        """What it has started here ends."""


def engine_of(begin: GatewayBegin, lock_fd: int | None) -> Engine:
    # ssh is such a command as well.
    name = {"ssh": "pipes", "pipe": "pipes"}.get(begin.engine, begin.engine)
    try:
        module = import_module(f"worker_service.nodes.{name}")
    except ImportError as error:
        raise EngineAbsent(
            f"the engine {begin.engine} is not installed: pip install 'pagemill[{begin.engine}]'"
        ) from error
    made: Engine = module.engine(begin, lock_fd)
    return made
