"""Finds, tries and loads the handlers, once, before the fork server accepts orders.

The shipped handlers are loaded at once. If one of them fails, hangs or starts threads, the fork server ends, and the
daemon starts another one, which tries all handlers.

Each other entry point is imported in a trial child first, with a time limit, so that hangs, crashes and threads at
import happen there. The entry points of one distribution share a trial, since they share libraries; only if something
goes wrong does each get its own.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn

import msgspec
from msgspec import Struct

from worker_service.base.entry_points import EntryPoint
from worker_service.base.errors import Problem
from worker_service.base.forks import close_all_but, die_with
from worker_service.handlers import registry
from worker_service.handlers.contract import Handler
from worker_service.jobs.job import CAPABILITY_MISSING
from worker_service.jobs.workers import HandlerFacts, wants
from worker_service.runner import processes, sandbox
from worker_service.runner.child import HandlerLoader
from worker_service.runner.protocol import (
    FRAME_BYTES_MAX,
    Begin,
    Declared,
    Described,
    Garbled,
    Inbox,
    Introduced,
    Tried,
    decode_trial,
    encode_frame,
)

SHIPPED = "pagemill"
"""The distribution whose handlers need no trial unless one of them fails."""
_EXIT_SECONDS = 2.0
_SHARED_TRIAL_FRACTION = 0.25
"""The share of the import time for several entry points together, since each may be tried again alone."""

Verdict = Tried | str
"""The handlers of an entry point, or the reason why it cannot be used."""


class LoadedHandler(Struct, frozen=True):
    described: Described
    loader: HandlerLoader | None
    """None if the handler is set aside."""


def load_handlers(begin: Begin, control: int) -> tuple[dict[str, LoadedHandler], list[Introduced]]:
    settings: dict[str, registry.Commands] = {"commands": begin.commands}
    found = registry.find(begin.extra_handlers, [] if begin.is_without_installed else None)
    if begin.handlers_dir is not None:
        found += registry.find_dropped(begin.handlers_dir)
    # If not all types are wanted, try the shipped handlers in a child, too: unwanted ones then stay out of the fork
    # server.
    trusted = [] if begin.tries_all or begin.types else [one for one in found if one.distribution == SHIPPED]
    verdicts: dict[EntryPoint, Verdict] = {
        **_load_shipped(trusted, settings, seconds=begin.import_seconds * _SHARED_TRIAL_FRACTION)
    }
    others = [one for one in found if one not in verdicts]
    verdicts |= _try_all(others, settings, seconds=begin.import_seconds, control=control)
    introduced: dict[str, Introduced] = {}
    loaders: dict[str, HandlerLoader] = {}
    claims: list[tuple[str, EntryPoint]] = []
    for one in found:
        verdict = verdicts[one]
        if isinstance(verdict, str):
            # Its job types are unknown; most likely its name is one of them.
            introduced.setdefault(one.name, _set_aside(one.name, verdict, one))
            continue
        # Handlers that start threads are not loaded here, since a fork does not copy threads. Handlers that this worker
        # will not use are not loaded either: a larger fork server makes each fork slower.
        is_wanted = any(wants(begin.types, each.described.facts.job_type) for each in verdict.handlers)
        warm = _load(one, settings) if verdict.threads == 1 and is_wanted else {}
        for each in verdict.handlers:
            job_type = each.described.facts.job_type
            claims.append((job_type, one))
            introduced[job_type] = each
            loaders[job_type] = warm.get(job_type) or _make_loader(one, settings, job_type)
    for job_type, reason in registry.find_clashes(claims).items():
        introduced[job_type] = _set_aside(job_type, reason)
    known = {
        job_type: LoadedHandler(each.described, loaders.get(job_type) if each.described.set_aside is None else None)
        for job_type, each in introduced.items()
    }
    return known, list(introduced.values())


def _load_shipped(
    found: Sequence[EntryPoint], settings: Mapping[str, registry.Commands], *, seconds: float
) -> dict[EntryPoint, Tried]:
    """Import and describe the entry points in this process. End the fork server unless all are sound."""
    # SIGALRM also ends an import that hangs in C code.
    signal.setitimer(signal.ITIMER_REAL, seconds)
    tried = {one: _describe_entry_point(one, settings) for one in found}
    signal.setitimer(signal.ITIMER_REAL, 0)
    if not all(one.threads == 1 and not one.reason for one in tried.values()):
        _kill_orphans()
        os._exit(1)
    return tried


def _try_all(
    found: Sequence[EntryPoint], settings: Mapping[str, registry.Commands], *, seconds: float, control: int
) -> dict[EntryPoint, Verdict]:
    by_distribution: defaultdict[str, list[EntryPoint]] = defaultdict(list)
    for one in found:
        by_distribution[one.distribution].append(one)
    several = [group for group in by_distribution.values() if len(group) > 1]
    tried_together = _run_trials(several, settings, seconds=seconds * _SHARED_TRIAL_FRACTION, control=control)
    good = {
        one: tried_together[one]
        for group in several
        if all(map(_is_good, map(tried_together.get, group)))
        for one in group
    }
    tried_alone = _run_trials([[one] for one in found if one not in good], settings, seconds=seconds, control=control)
    return good | tried_alone


def _is_good(verdict: Verdict | None) -> bool:
    return isinstance(verdict, Tried) and verdict.threads == 1


def _run_trials(
    groups: Sequence[Sequence[EntryPoint]],
    settings: Mapping[str, registry.Commands],
    *,
    seconds: float,
    control: int,
) -> dict[EntryPoint, Verdict]:
    """Try all groups at the same time. End the fork server if the daemon closes its socket meanwhile."""
    trials = [_Trial(group, settings) for group in groups]
    poll = select.poll()
    # An event mask of 0 still reports a hang-up.
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
            if running[descriptor].is_complete():
                poll.unregister(descriptor)
                del running[descriptor]
    late = set(running.values())
    _end_all(trials, late)
    return {one: trial.verdict(one, seconds if trial in late else None) for trial in trials for one in trial.found}


def _load(found: EntryPoint, settings: dict[str, registry.Commands]) -> dict[str, Handler[Any]]:
    try:
        return {handler.job_type: handler for handler in registry.load(found, settings).handlers}
    except Exception as error:  # it passed its trial; each child will import it again
        print(f"fork server: {found.spec} loaded in its trial and not here: {error}", file=sys.stderr)
        return {}


def _make_loader(found: EntryPoint, settings: dict[str, registry.Commands], job_type: str) -> HandlerLoader:
    def loader() -> Handler[Any]:
        for handler in registry.load(found, settings).handlers:
            if handler.job_type == job_type:
                return handler
        raise LookupError(f"{found.spec} no longer provides {job_type}")

    return loader


def _describe_handler(handler: Handler[Any], found: EntryPoint) -> Introduced:
    lacks = handler.missing() if handler.missing is not None else None
    missing = Problem(CAPABILITY_MISSING, lacks) if isinstance(lacks, str) else lacks
    facts = HandlerFacts(
        handler.job_type,
        handler.job_class,
        missing.detail if missing else None,
        missing.remedy if missing else "",
        handler.at_most_once,
        _schema(handler),
        handler.limits.wall_seconds,
        None if handler.choices is None else msgspec.json.encode(handler.choices()).decode(),
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
        max(1, handler.reuse),
        distribution=found.distribution,
        spec=found.spec,
        declared=declared,
        identity=tuple(handler.identity()) if handler.identity is not None else (),
        runs_on_cluster=handler.runs_on_cluster,
        has_slicer=handler.slicer is not None,
    )
    return Introduced(described, tuple(handler.environment))


def _set_aside(job_type: str, reason: str, found: EntryPoint | None = None) -> Introduced:
    distribution, spec = (found.distribution, found.spec) if found is not None else ("", "")
    return Introduced(Described(HandlerFacts(job_type), set_aside=reason, distribution=distribution, spec=spec))


def threads() -> int:
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208


def _schema(handler: Handler[Any]) -> str | None:
    try:
        return msgspec.json.encode(handler.schema or msgspec.json.schema(handler.payload)).decode()
    except TypeError:
        # The type can be decoded but has no JSON Schema.
        return None


class _Trial:
    """A child that imports one entry point, or several in turn."""

    def __init__(self, found: Sequence[EntryPoint], settings: Mapping[str, registry.Commands]) -> None:
        self.found = found
        self.pipe, write_end = os.pipe()
        self._inbox = Inbox(FRAME_BYTES_MAX)
        self._results: list[Tried] = []
        self._garbled = ""
        self.status: int | None = None
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _run_trial(found, settings, parent, write_end)
        os.close(write_end)

    def is_complete(self) -> bool:
        received = os.read(self.pipe, 1 << 16)
        try:
            for body in self._inbox.feed(received):
                self._results.append(decode_trial(body))
        except Garbled as error:
            self._garbled = str(error)
        return not received or len(self._results) >= len(self.found) or bool(self._garbled)

    def verdict(self, one: EntryPoint, late_after: float | None) -> Verdict:
        name = f"{one.name} ({one.spec})"
        if late_after is not None:
            return f"{name} was still being imported after {late_after:g} s"
        if self._garbled:
            return f"{name} wrote nonsense while it was imported"
        number = self.found.index(one)
        if number >= len(self._results):
            return f"{name} crashed its interpreter when it was imported{_exit_suffix(self.status)}"
        return self._results[number].reason or self._results[number]


def _run_trial(
    found: Sequence[EntryPoint], settings: Mapping[str, registry.Commands], parent: int, pipe: int
) -> NoReturn:
    code = 1
    try:
        # The process ends soon, so garbage collection costs more than it gains.
        gc.disable()
        os.setsid()
        die_with(parent)
        sandbox.reset_signals()
        close_all_but({0, 1, 2, pipe})
        for one in found:
            os.write(pipe, encode_frame(_describe_entry_point(one, settings)))
        code = 0
    except BaseException:  # the outermost frame of a process
        traceback.print_exc()
    finally:
        os._exit(code)


def _describe_entry_point(found: EntryPoint, settings: Mapping[str, registry.Commands]) -> Tried:
    try:
        offer = registry.load(found, settings)
        introduced = [_describe_handler(handler, found) for handler in offer.handlers]
        introduced += [_set_aside(job_type, reason, found) for job_type, reason in offer.refused.items()]
        return Tried(tuple(introduced), threads())
    except BaseException as error:  # report any error of the import, sys.exit() included
        last = "".join(traceback.format_exception(error))[-2000:].strip()
        return Tried((), 0, f"{found.name} ({found.spec}) cannot be imported:\n{last}")


def _end_all(trials: Sequence[_Trial], late: Collection[_Trial] = ()) -> None:
    """End the trials and all processes that they started."""
    for trial in late:
        _kill_group(trial)
    deadline = time.monotonic() + _EXIT_SECONDS
    for trial in trials:
        while not _has_exited(trial):
            if time.monotonic() > deadline:
                _kill_group(trial)
            time.sleep(0.001)
        os.close(trial.pipe)
    _kill_orphans()


def _kill_orphans() -> None:
    """Kill the orphans of trials, which became children of this process."""
    while orphans := processes.children_of(os.getpid()):
        for orphan in orphans:
            processes.kill(orphan)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.001)


def _kill_group(trial: _Trial) -> None:
    processes.signal_group(trial.pid)


def _has_exited(trial: _Trial) -> bool:
    pid, status = os.waitpid(trial.pid, os.WNOHANG)
    if pid:
        trial.status = status
    return pid != 0


def _exit_suffix(status: int | None) -> str:
    if status is None:
        return ""
    if os.WIFSIGNALED(status):
        return f": {signal.Signals(os.WTERMSIG(status)).name}"
    return f": exit code {os.WEXITSTATUS(status)}"
