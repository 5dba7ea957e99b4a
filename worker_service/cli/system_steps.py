"""Steps by which `service` and `upgrade` change the system, printed before the first is completed."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from msgspec import Struct

from worker_service.base.errors import PagemillError, ProgramAbsent
from worker_service.base.files import atomic_write
from worker_service.cli.context import Invocation


class StepFailed(PagemillError, code="step_failed"):
    """Earlier steps stay; repeating all of them is safe."""


class WriteFile(Struct, frozen=True):
    path: Path
    text: str
    keeps_existing: bool = False
    """Keep an existing file, which the administrator may have edited."""

    @property
    def is_kept(self) -> bool:
        return self.keeps_existing and self.path.exists()

    @property
    def name(self) -> str:
        return "keep" if self.is_kept else "write"

    def __str__(self) -> str:
        return f"{self.name:6} {self.path}"

    def do(self) -> None:
        if self.is_kept:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # systemd may read the file at any time, so replace it in one step, with its mode set.
        with atomic_write(self.path, mode=0o600) as file:
            file.write(self.text.encode())
            # Unlike the mode at creation, this is not reduced by the umask, so that all users can read the file.
            os.fchmod(file.fileno(), 0o644)


class Link(Struct, frozen=True):
    path: Path
    target: Path
    name: ClassVar[str] = "link"

    def __str__(self) -> str:
        return f"link   {self.path} to {self.target}"

    def do(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # An earlier installation may have left a link to a file that is gone.
        self.path.unlink(missing_ok=True)
        self.path.symlink_to(self.target)


class Remove(Struct, frozen=True):
    path: Path
    name: ClassVar[str] = "remove"

    def __str__(self) -> str:
        return f"remove {self.path}"

    def do(self) -> None:
        self.path.unlink(missing_ok=True)


class RunCommand(Struct, frozen=True):
    argv: Sequence[str]
    name: ClassVar[str] = "run"

    def __str__(self) -> str:
        return f"run    {shlex.join(self.argv)}"

    def do(self) -> None:
        try:
            completed = subprocess.run(
                self.argv, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
            )
        except FileNotFoundError as error:
            # The steps run systemd's own programs, and some that each machine with systemd has, such as setpriv.
            remedy = "this needs a machine with systemd"
            raise ProgramAbsent(f"{self.argv[0]} is not installed", remedy) from error
        if completed.returncode:
            message = (completed.stderr or completed.stdout).strip()
            raise StepFailed(f"{shlex.join(self.argv)} ended with {completed.returncode}: {message}")


Step = WriteFile | Link | Remove | RunCommand


def do_steps(call: Invocation, steps: Sequence[Step], *, dry_run: bool) -> None:
    call.show_result({"dry_run": dry_run, "items": [step_as_object(step) for step in steps]}, *map(str, steps))
    if dry_run:
        return
    for step in steps:
        step.do()


def step_as_object(step: Step) -> dict[str, object]:
    if isinstance(step, RunCommand):
        return {"step": step.name, "argv": step.argv}
    target = {"target": step.target} if isinstance(step, Link) else {}
    return {"step": step.name, "path": step.path, **target}
