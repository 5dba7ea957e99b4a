"""Import each entry point in a child of its own first, with a limit of time.

What hangs, crashes, or starts threads at import does so there. Runs in the nursery, before it serves anybody.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
import traceback
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from worker_service.children import gone, limits
from worker_service.children.model import Declared, Described
from worker_service.children.wire import FRAME_BYTES_MAX, Garbled, Inbox, Introduced, Tried, frame, from_trial
from worker_service.handlers import registry
from worker_service.handlers.contract import Handler
from worker_service.handlers.registry import Found
from worker_service.jobs.model import HandlerFacts

_LEAVING_SECONDS = 2.0

Verdict = Tried | str
"""What an entry point holds, or the sentence about why it cannot be used."""


def try_all(
    found: Sequence[Found], settings: Mapping[str, registry.Commands], *, seconds: float, control: int
) -> dict[Found, Verdict]:
    """All at once. Ends the nursery when the daemon hangs up meanwhile."""
    trials = [_Trial(one, settings) for one in found]
    poll = select.poll()
    # Asking for nothing still tells of a hang-up.
    poll.register(control, 0)
    for trial in trials:
        poll.register(trial.pipe, select.POLLIN)
    running = {trial.pipe: trial for trial in trials}
    deadline = time.monotonic() + seconds
    while running and (left := deadline - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(left * 1000):
            if descriptor == control:
                _end_all(trials, trials)
                os._exit(0)
            if running[descriptor].has_said_all():
                poll.unregister(descriptor)
                del running[descriptor]
    late = set(running.values())
    _end_all(trials, late)
    return {trial.found: trial.verdict(seconds if trial in late else None) for trial in trials}


def introduce(handler: Handler[Any], found: Found) -> Introduced:
    missing = handler.missing() if handler.missing is not None else None
    facts = HandlerFacts(
        handler.job_type,
        handler.job_class,
        missing,
        handler.at_most_once,
        _schema(handler),
        handler.limits.wall_seconds,
    )
    declared = Declared(
        limits=handler.limits,
        sandbox=handler.sandbox,
        has_keep=handler.keep_key is not None,
        environment=tuple(handler.environment),
        credentials=tuple(handler.credentials),
        reads=tuple(handler.reads),
        writes=tuple(handler.writes),
        about=dict(handler.about),
        offers=handler.offers() if handler.offers is not None else None,
    )
    described = Described(
        facts,
        handler.reuse,
        distribution=found.distribution,
        spec=found.spec,
        declared=declared,
    )
    return Introduced(described, tuple(handler.environment))


def set_aside(job_type: str, reason: str, found: Found | None = None) -> Introduced:
    distribution, spec = (found.distribution, found.spec) if found is not None else ("", "")
    return Introduced(Described(HandlerFacts(job_type), set_aside=reason, distribution=distribution, spec=spec))


def threads() -> int:
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208


def _schema(handler: Handler[Any]) -> str | None:
    try:
        return msgspec.json.encode(msgspec.json.schema(handler.payload)).decode()
    except TypeError:
        # It can be decoded and not described.
        return None


class _Trial:
    def __init__(self, found: Found, settings: Mapping[str, registry.Commands]) -> None:
        self.found = found
        self.pipe, far_end = os.pipe()
        self._inbox = Inbox(FRAME_BYTES_MAX)
        self._tried: Tried | None = None
        self._garbled = ""
        self.status: int | None = None
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _live(found, settings, parent, far_end)
        os.close(far_end)

    def has_said_all(self) -> bool:
        received = os.read(self.pipe, 1 << 16)
        try:
            for body in self._inbox.feed(received):
                self._tried = from_trial(body)
        except Garbled as error:
            self._garbled = str(error)
        return not received or self._tried is not None or bool(self._garbled)

    def verdict(self, late_after: float | None) -> Verdict:
        name = f"{self.found.name} ({self.found.spec})"
        if late_after is not None:
            return f"{name} was still being imported after {late_after:g} s"
        if self._garbled:
            return f"{name} wrote nonsense while it was imported"
        if self._tried is None:
            return f"{name} crashed its interpreter when it was imported{_how(self.status)}"
        return self._tried.reason or self._tried


def _live(found: Found, settings: Mapping[str, registry.Commands], parent: int, pipe: int) -> NoReturn:
    code = 1
    try:
        os.setsid()
        limits.die_with(parent)
        limits.calm_signals()
        limits.close_all_but({0, 1, 2, pipe})
        try:
            offer = registry.load(found, settings)
            introduced = [introduce(handler, found) for handler in offer.handlers]
            introduced += [set_aside(job_type, reason, found) for job_type, reason in offer.refused.items()]
            said = Tried(tuple(introduced), threads())
        except BaseException as error:  # whatever a module does at its import is told, sys.exit() included
            last = "".join(traceback.format_exception(error))[-2000:].strip()
            said = Tried((), 0, f"{found.name} ({found.spec}) cannot be imported:\n{last}")
        os.write(pipe, frame(said))
        code = 0
    except BaseException:  # the outermost frame of a process
        traceback.print_exc()
    finally:
        os._exit(code)


def _end_all(trials: Sequence[_Trial], late: Collection[_Trial] = ()) -> None:
    """Until nothing of them is left, whatever they started."""
    for trial in late:
        _stop(trial)
    deadline = time.monotonic() + _LEAVING_SECONDS
    for trial in trials:
        while not _has_left(trial):
            if time.monotonic() > deadline:
                _stop(trial)
            time.sleep(0.001)
        os.close(trial.pipe)
    # What they left behind came to us.
    while strangers := gone.children_of(os.getpid()):
        for stranger in strangers:
            gone.stop_at_once(stranger)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.001)


def _stop(trial: _Trial) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(trial.pid, signal.SIGKILL)
    gone.stop_at_once(trial.pid)


def _has_left(trial: _Trial) -> bool:
    pid, status = os.waitpid(trial.pid, os.WNOHANG)
    if pid:
        trial.status = status
    return pid != 0


def _how(status: int | None) -> str:
    if status is None:
        return ""
    if os.WIFSIGNALED(status):
        return f": {signal.Signals(os.WTERMSIG(status)).name}"
    return f": exit code {os.WEXITSTATUS(status)}"
