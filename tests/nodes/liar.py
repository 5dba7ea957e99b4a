"""A node that lies: an agent whose answers are other than what its nursery said. `liar HOW --state DIR`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from worker_service.nodes import calls, pipes
from worker_service.nodes.agent import Agent
from worker_service.nodes.calls import Happened, Heard, Kept, Piece

OUTSIDE = "../../../../outside"


def another_job(one: Happened) -> Happened:
    return _changed(one, job_id=1, fence=99)


def outside(one: Happened) -> Happened:
    """A file that is to lie elsewhere."""
    if not one.files:
        return one
    body = one.body.replace(b"page.txt", OUTSIDE.encode())
    return Happened(body, tuple(msgspec.structs.replace(file, path=OUTSIDE) for file in one.files))


def wrong_digest(one: Happened) -> Happened:
    return _kept(one, sha256="0" * 64)


def huge(one: Happened) -> Happened:
    return _kept(one, size=10 << 30)


def endless(one: Happened) -> Happened:
    """It says little, and what is asked for never ends."""
    return _kept(one, size=1 << 20)


def nonsense(one: Happened) -> Happened:
    return Happened(b"\x80\x04\x95nonsense")


LIES: dict[str, Callable[[Happened], Happened]] = {
    "another-job": another_job,
    "outside": outside,
    "wrong-digest": wrong_digest,
    "huge": huge,
    "endless": endless,
    "nonsense": nonsense,
}


class Liar(Agent):
    def __init__(self, root: Path, lie: Callable[[Happened], Happened]) -> None:
        super().__init__(root)
        self._lie = lie

    def answer(self, body: bytes) -> bytes:
        answer = calls.answer_from(super().answer(body))
        if isinstance(answer, Heard):
            answer = msgspec.structs.replace(answer, happened=tuple(map(self._lie, answer.happened)))
        elif isinstance(answer, Piece) and self._lie is endless:
            answer = Piece(b"x" * (5 << 20))
        return calls.encoded(answer)


def _kept(one: Happened, **changed: object) -> Happened:
    files: list[Kept] = [msgspec.structs.replace(file, **changed) for file in one.files]  # type: ignore[arg-type]
    return Happened(one.body, tuple(files))


def _changed(one: Happened, **fields: object) -> Happened:
    said = json.loads(one.body)
    inner = said.get("ended", said)
    inner.update(fields)
    return Happened(json.dumps(said).encode(), one.files)


if __name__ == "__main__":
    how, _, state = sys.argv[1:]
    agent = Liar(Path(state), LIES[how])
    pipes.Agent = lambda root, slots=None: agent  # type: ignore
    pipes.serve(Path(state), None)
