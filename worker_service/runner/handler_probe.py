"""Find, probe and load the handlers, in the fork server before it accepts orders (`load_handlers`).

A probe is a process that imports entry points: an import may hang, crash or start threads. The shipped handlers are
imported without one; if that fails, the pool starts another fork server, which probes them, too.
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
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from worker_service.base.entry_points import EntryPoint
from worker_service.base.errors import Problem
from worker_service.base.forks import fork_process
from worker_service.handlers import registry
from worker_service.handlers.contract import Handler
from worker_service.jobs.job import CAPABILITY_MISSING
from worker_service.jobs.workers import HandlerFacts, allows_type
from worker_service.runner import processes, sandbox
from worker_service.runner.child import HandlerLoader
from worker_service.runner.messages import Begin, HandlerDeclaration, HandlerDescription
from worker_service.runner.protocol import Garbled, decode_as, encode_message

SHIPPED = "pagemill"
# Importing several handlers in one process may take this fraction of the time that each one has alone.
_SHARED_FRACTION = 0.25

Tables = Mapping[str, registry.Commands]
"""Tables of the settings from which handlers are made, by section."""


class LoadedHandler(Struct, frozen=True):
    described: HandlerDescription
    loader: HandlerLoader | None


class ProbeResult(Struct, frozen=True):
    handlers: Sequence[HandlerDescription] = ()
    threads: int = 1
    failure: str = ""

    @property
    def is_sound(self) -> bool:
        return self.threads == 1 and not self.failure


def load_handlers(begin: Begin, control_fd: int) -> dict[str, LoadedHandler]:
    tables: Tables = {"commands": begin.commands}
    entry_points = registry.find_entry_points(begin.extra_handlers, [] if begin.is_without_installed else None)
    if begin.handlers_dir is not None:
        entry_points += registry.find_in_directory(begin.handlers_dir)
    # If not all types are wanted, probe the shipped handlers, too: unwanted ones then stay out of the fork server.
    must_probe_all = begin.tries_all or bool(begin.types)
    unprobed = [] if must_probe_all else [point for point in entry_points if point.distribution == SHIPPED]
    results = _import_shipped(unprobed, tables, seconds=begin.import_seconds * _SHARED_FRACTION)
    probed = [point for point in entry_points if point not in results]
    results |= _probe_all(probed, tables, begin.import_seconds, control_fd)
    loaded: dict[str, LoadedHandler] = {}
    # Each job type with an entry point that provides it.
    claims: list[tuple[str, EntryPoint]] = []
    for entry_point in entry_points:
        result = results[entry_point]
        if result.failure:
            # The job types of its handlers are unknown; most likely the name of the entry point is one of them.
            refused = _set_aside(entry_point.name, result.failure, entry_point)
            loaded.setdefault(entry_point.name, LoadedHandler(refused, None))
        # Handlers that start threads are not loaded here, since a fork does not copy threads. Handlers that this worker
        # will not use are not loaded either: a larger fork server makes each fork slower.
        is_wanted = any(allows_type(begin.types, described.facts.job_type) for described in result.handlers)
        preloaded = _load(entry_point, tables) if result.threads == 1 and is_wanted else {}
        for described in result.handlers:
            job_type = described.facts.job_type
            claims.append((job_type, entry_point))
            loader = preloaded.get(job_type) or _make_loader(entry_point, tables, job_type)
            loaded[job_type] = LoadedHandler(described, loader if described.set_aside is None else None)
    for job_type, reason in registry.find_clashes(claims).items():
        loaded[job_type] = LoadedHandler(_set_aside(job_type, reason), None)
    return loaded


def _load(entry_point: EntryPoint, tables: Tables) -> dict[str, Handler[Any]]:
    try:
        return {handler.job_type: handler for handler in registry.load(entry_point, tables).handlers}
    except Exception as error:  # the probe could import it, so each child tries again
        print(f"fork server: {entry_point.spec} loaded in its probe and not here: {error}", file=sys.stderr)
        return {}


def _make_loader(entry_point: EntryPoint, tables: Tables, job_type: str) -> HandlerLoader:
    def load_in_child() -> Handler[Any]:
        for handler in registry.load(entry_point, tables).handlers:
            if handler.job_type == job_type:
                return handler
        raise LookupError(f"{entry_point.spec} no longer provides {job_type}")

    return load_in_child


# --- descriptions ---


def _describe_entry_point(entry_point: EntryPoint, tables: Tables) -> ProbeResult:
    try:
        offer = registry.load(entry_point, tables)
        handlers = [_describe_handler(handler, entry_point) for handler in offer.handlers]
        handlers += [_set_aside(job_type, reason, entry_point) for job_type, reason in offer.refused.items()]
        return ProbeResult(handlers, threads=len(os.listdir("/proc/self/task")))  # noqa: PTH208
    except BaseException as error:  # report any error of the import, sys.exit() included
        end_of_traceback = "".join(traceback.format_exception(error))[-2000:].strip()
        return ProbeResult(failure=f"cannot be imported:\n{end_of_traceback}")


def _describe_handler(handler: Handler[Any], entry_point: EntryPoint) -> HandlerDescription:
    missing = handler.missing() if handler.missing is not None else None
    if isinstance(missing, str):
        missing = Problem(CAPABILITY_MISSING, missing)
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
    declared = HandlerDeclaration(
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
    return HandlerDescription(
        facts,
        max(1, handler.reuse),
        distribution=entry_point.distribution,
        spec=entry_point.spec,
        declared=declared,
        identity=tuple(handler.identity()) if handler.identity is not None else (),
        runs_on_cluster=handler.runs_on_cluster,
        has_slicer=handler.slicer is not None,
    )


def _set_aside(job_type: str, reason: str, entry_point: EntryPoint | None = None) -> HandlerDescription:
    distribution, spec = (entry_point.distribution, entry_point.spec) if entry_point is not None else ("", "")
    return HandlerDescription(HandlerFacts(job_type), set_aside=reason, distribution=distribution, spec=spec)


def _schema(handler: Handler[Any]) -> str | None:
    try:
        return msgspec.json.encode(handler.schema or msgspec.json.schema(handler.payload)).decode()
    except TypeError:
        # The type can be decoded but has no JSON Schema.
        return None


# --- imports ---


def _import_shipped(
    entry_points: Iterable[EntryPoint], tables: Tables, *, seconds: float
) -> dict[EntryPoint, ProbeResult]:
    # If an import hangs, SIGALRM ends this process, also in C code. The pool then starts another fork server.
    signal.setitimer(signal.ITIMER_REAL, seconds)
    results = {entry_point: _describe_entry_point(entry_point, tables) for entry_point in entry_points}
    signal.setitimer(signal.ITIMER_REAL, 0)
    if not all(result.is_sound for result in results.values()):
        _kill_orphans()
        os._exit(1)
    return results


def _probe_all(
    entry_points: Sequence[EntryPoint], tables: Tables, seconds: float, control_fd: int
) -> dict[EntryPoint, ProbeResult]:
    sound: dict[EntryPoint, ProbeResult] = {}
    if len(entry_points) > 1:
        results = _run_probes([entry_points], tables, seconds * _SHARED_FRACTION, control_fd)
        sound = {entry_point: result for entry_point, result in results.items() if result.is_sound}
    alone = [[entry_point] for entry_point in entry_points if entry_point not in sound]
    return sound | _run_probes(alone, tables, seconds, control_fd)


def _run_probes(
    groups: Sequence[Sequence[EntryPoint]], tables: Tables, seconds: float, control_fd: int
) -> dict[EntryPoint, ProbeResult]:
    probes = [_Probe(group, tables) for group in groups]
    running = {probe.pipe: probe for probe in probes}
    poll = select.poll()
    for pipe in running:
        poll.register(pipe, select.POLLIN)
    # An event mask of 0 still reports a hang-up.
    poll.register(control_fd, 0)
    deadline = time.monotonic() + seconds
    has_daemon = True
    while running and has_daemon and time.monotonic() < deadline:
        milliseconds_left = max(0.0, deadline - time.monotonic()) * 1000
        for descriptor, _ in poll.poll(milliseconds_left):
            if descriptor == control_fd:
                has_daemon = False
            elif running[descriptor].is_complete():
                poll.unregister(descriptor)
                del running[descriptor]
    results: dict[EntryPoint, ProbeResult] = {}
    for probe in probes:
        is_late = probe.pipe in running
        results |= probe.end(f"was still being imported after {seconds:g} s" if is_late else "")
    _kill_orphans()
    if not has_daemon:
        os._exit(0)
    return results


class _Probe:
    def __init__(self, entry_points: Sequence[EntryPoint], tables: Tables) -> None:
        self._entry_points = entry_points
        self._received = b""
        self.pipe, output = os.pipe()
        self._pid = fork_process(lambda: _run_probe(entry_points, tables, output), keeps=[output])
        os.close(output)

    def is_complete(self) -> bool:
        received = os.read(self.pipe, 1 << 16)
        self._received += received
        # A process that the import has started may keep the pipe open.
        return not received or self._received.count(b"\n") >= len(self._entry_points)

    def end(self, failure: str) -> dict[EntryPoint, ProbeResult]:
        processes.signal_group(self._pid)
        _, status = os.waitpid(self._pid, 0)
        os.close(self.pipe)
        failure = failure or f"crashed its interpreter when it was imported: {_exit_reason(status)}"
        lines = map(_decode_result, self._received.split(b"\n")[:-1])
        results: dict[EntryPoint, ProbeResult] = {}
        for entry_point in self._entry_points:
            result = next(lines, ProbeResult(failure=failure))
            if result.failure:
                result = replace(result, failure=f"{entry_point.name} ({entry_point.spec}) {result.failure}")
            results[entry_point] = result
        return results


def _run_probe(entry_points: Iterable[EntryPoint], tables: Tables, pipe: int) -> None:
    # The process ends soon, so garbage collection costs more than it gains.
    gc.disable()
    os.setsid()
    sandbox.reset_signals()
    for entry_point in entry_points:
        os.write(pipe, encode_message(_describe_entry_point(entry_point, tables)) + b"\n")


def _decode_result(line: bytes) -> ProbeResult:
    try:
        return decode_as(ProbeResult, line)
    except Garbled:
        return ProbeResult(failure="sent invalid data while it was imported")


def _exit_reason(status: int) -> str:
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit code {os.WEXITSTATUS(status)}"


def _kill_orphans() -> None:
    while orphans := processes.children_of(os.getpid()):
        for orphan in orphans:
            processes.kill(orphan)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.001)
