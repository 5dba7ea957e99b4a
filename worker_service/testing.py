"""What a handler's author tests with: the handler in a real child, with its limits and its sandbox, and no database.

    def test_it_reads_a_page(tmp_path):
        run = run_handler(handler, {"page": 1}, directory=tmp_path)

        assert run.result == {"words": 12}

The handler is a module's attribute, so that the child can find it. Whatever the attempt does, `Run` tells it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import msgspec

from worker_service.children.alone import heard, nursery_in
from worker_service.children.model import Checkpointed, Ended, Happening, How, Logged, Order, Progressed
from worker_service.handlers.contract import Handler

__all__ = ["How", "Run", "run_handler", "run_stopped_and_again"]

_PATIENCE_SECONDS = 60.0
_WRAPPER = "pagemill_stopped_handler"


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt: everything that was heard of it, and its end."""

    happenings: Sequence[Happening]
    ended: Ended

    @property
    def how(self) -> How:
        return self.ended.how

    @property
    def result(self) -> Any:
        return None if self.ended.result is None else json.loads(self.ended.result)

    @property
    def files(self) -> Sequence[Path]:
        return self.ended.files

    @property
    def lines(self) -> list[str]:
        return [one.line for one in self.happenings if isinstance(one, Logged)]

    @property
    def progress(self) -> list[tuple[float, str]]:
        """As the daemon would hear it: at most ten in a second."""
        return [(one.percent, one.message) for one in self.happenings if isinstance(one, Progressed)]

    @property
    def state(self) -> str | None:
        """The last checkpoint, JSON."""
        states = [one.state for one in self.happenings if isinstance(one, Checkpointed)]
        return states[-1] if states else None


def run_handler(
    handler: Handler[Any] | str,
    payload: object = None,
    *,
    directory: Path,
    account: str | None = None,
    platform: str = "local",
    state: str | None = None,
    timeout_seconds: int | None = None,
    commands: Mapping[str, Mapping[str, object]] | None = None,
    sandbox: str = "strict",
    job_id: int = 1,
    fence: int = 1,
) -> Run:
    """One attempt. `handler` is a Handler, or the job type of an installed one; `payload` is JSON text, or what JSON
    can be made of. Staging, kept files and what is to be published lie in `directory`."""
    spec = None if isinstance(handler, str) else _spec_of(handler)
    job_type = handler if isinstance(handler, str) else handler.job_type
    order = Order(job_id, fence, job_type, platform, account, _text(payload), timeout_seconds, state)
    return _run(order, directory, spec, commands, sandbox)


def run_stopped_and_again(
    handler: Handler[Any],
    payload: object = None,
    *,
    directory: Path,
    step: int,
    sandbox: str = "strict",
) -> tuple[Run, Run]:
    """SIGKILL it at its nth word (progress, log or checkpoint; the word itself is heard), then let the job run again
    with its last checkpoint, as the daemon would. A good handler's second run ends as if there had been no first."""
    wrapper = directory / "path" / f"{_WRAPPER}.py"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    spec = _spec_of(handler)
    job_type = handler.job_type
    wrapper.write_text(
        f"from worker_service.testing import stopped_at\nhandler = stopped_at({spec!r}, {job_type!r}, {step})\n"
    )
    order = Order(1, 1, job_type, "local", None, _text(payload), None)
    first = _run(order, directory, f"{_WRAPPER}:handler", None, sandbox, [wrapper.parent])
    again = replace(order, fence=2, state=first.state)
    return first, _run(again, directory, spec, None, sandbox)


def stopped_at(spec: str, job_type: str, step: int) -> Handler[Any]:
    """The same handler, whose process is killed at its nth word. For `run_stopped_and_again`."""
    offered = EntryPoint("handler", spec, "").load()
    handlers = [offered] if isinstance(offered, Handler) else list(offered)
    handler: Handler[Any] = next(one for one in handlers if one.job_type == job_type)

    def run(context: Any) -> Any:
        return handler.run(_Counting(context, step))

    return replace(handler, run=run)


class _Counting:
    def __init__(self, context: Any, step: int) -> None:
        self._context = context
        self._left = step

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._context, name)
        if name not in ("progress", "log", "checkpoint"):
            return found

        def say(*values: Any, **named: Any) -> None:
            found(*values, **named)
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        return say


def _run(
    order: Order,
    directory: Path,
    spec: str | None,
    commands: Mapping[str, Mapping[str, object]] | None,
    sandbox: str,
    path: Sequence[Path] = (),
) -> Run:
    with nursery_in(
        directory,
        commands=commands or {},
        sandbox=sandbox,
        extra_path=[*path, *_path_of_tests()],
        extra_handlers=[] if spec is None else [spec],
        is_without_installed=spec is not None,
    ) as (nursery, _):
        nursery.launch(order)
        happenings = list(heard(nursery, seconds=(order.timeout_seconds or 0) + _PATIENCE_SECONDS))
    return Run(happenings, next(one for one in happenings if isinstance(one, Ended)))


def _spec_of(handler: Handler[Any]) -> str:
    module = sys.modules.get(getattr(handler.run, "__module__", ""))
    for name, value in vars(module).items() if module is not None else ():
        if value is handler or (isinstance(value, list | tuple) and any(one is handler for one in value)):
            return f"{getattr(module, '__name__', '')}:{name}"
    raise LookupError(f"no attribute of the module of {handler.job_type}'s run is this handler: give it a name there")


def _path_of_tests() -> list[Path]:
    """What the test runner has put on the path, so that the nursery finds the same modules."""
    return [
        Path(entry).absolute() for entry in sys.path if entry and not entry.startswith((sys.prefix, sys.base_prefix))
    ]


def _text(payload: object) -> str | None:
    if payload is None or isinstance(payload, str):
        return payload
    return msgspec.json.encode(payload).decode()
