"""Handlers with a slicer, and some whose slicer misbehaves."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from worker_service.handlers import Context, Done, Handler
from worker_service.handlers.contract import MIB, Limits

Cut = Callable[[dict[str, int], Path], bool]


def report_inputs(context: Context[dict[str, Any]]) -> Done:
    return Done({role: path.stat().st_size for role, path in context.inputs.items()})


def tenth(original: Path) -> Cut:
    opened = original.open("rb")

    def cut(payload: dict[str, int], target: Path) -> bool:
        size = original.stat().st_size // 10
        opened.seek(size * payload["part"])
        return bool(target.write_bytes(opened.read(size)))

    return cut


def most(original: Path) -> Cut:
    return lambda payload, target: bool(target.write_bytes(original.read_bytes()[: original.stat().st_size * 7 // 10]))


def misbehaving(does: Callable[[Path, Path], object]) -> Callable[[Path], Cut]:
    return lambda original: lambda payload, target: bool(does(original, target)) or True


def hang(original: Path, target: Path) -> None:
    time.sleep(60)


def die(original: Path, target: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def eat(original: Path, target: Path) -> None:
    target.write_bytes(b"x" * (1 << 30))


def swell(original: Path, target: Path) -> None:
    target.write_bytes(b"x" * (2 * original.stat().st_size))


def point_elsewhere(original: Path, target: Path) -> None:
    target.symlink_to("/etc/passwd")


def look_elsewhere(original: Path, target: Path) -> None:
    target.write_bytes(original.with_name("other").read_bytes())


def write_elsewhere(original: Path, target: Path) -> None:
    target.write_bytes(b"x")
    (target.parent.parent / "1.bin").write_bytes(b"x")


def start_another(original: Path, target: Path) -> None:
    target.write_bytes(b"x")
    os.fork()


SABOTEURS = (hang, die, eat, swell, point_elsewhere, look_elsewhere, write_elsewhere, start_another)
handlers = [
    Handler(name, report_inputs, dict, slicer=slicer, limits=Limits(memory_bytes=512 * MIB))
    for name, slicer in {"tenth": tenth, "most": most, **{one.__name__: misbehaving(one) for one in SABOTEURS}}.items()
]
