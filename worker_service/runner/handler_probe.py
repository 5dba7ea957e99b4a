"""Find, probe and load the handlers before the fork server accepts orders.

The shipped handlers are imported at once. If one hangs, fails or starts threads, the daemon starts another fork server,
which first imports every entry point in a process with a time limit, as it always does for handlers of others.
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


class LoadedHandler(Struct, frozen=True):
    described: HandlerDescription
    loader: HandlerLoader | None


class ProbeResult(Struct, frozen=True):
    handlers: Sequence[HandlerDescription] = ()
    threads: int = 1
    reason: str = ""

    @property
    def is_sound(self) -> bool:
        return self.threads == 1 and not self.reason


def load_handlers(begin: Begin, control: int) -> dict[str, LoadedHandler]:
    tables: Tables = {"commands": begin.commands}
    found = registry.find(begin.extra_handlers, [] if begin.is_without_installed else None)
    if begin.handlers_dir is not None:
        found += registry.find_in_directory(begin.handlers_dir)
    # If not all types are wanted, probe the shipped handlers, too: unwanted ones then stay out of the fork server.
    trusted = [] if begin.tries_all or begin.types else [one for one in found if one.distribution == SHIPPED]
    results = _import_shipped(trusted, tables, seconds=begin.import_seconds * _SHARED_FRACTION)
    results |= _probe_all([one for one in found if one not in results], tables, begin.import_seconds, control)
    loaded: dict[str, LoadedHandler] = {}
    claims: list[tuple[str, EntryPoint]] = []
    for entry_point in found:
        result = results[entry_point]
        if result.reason:
            # The job types of its handlers are unknown; most likely the name of the entry point is one of them.
            refused = _set_aside(entry_point.name, result.reason, entry_point)
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


def _count_threads() -> int:
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208


def _load(found: EntryPoint, tables: Tables) -> dict[str, Handler[Any]]:
    try:
        return {handler.job_type: handler for handler in registry.load(found, tables).handlers}
    except Exception as error:  # the probe could import it, so each child tries again
        print(f"fork server: {found.spec} loaded in its probe and not here: {error}", file=sys.stderr)
        return {}


def _make_loader(found: EntryPoint, tables: Tables, job_type: str) -> HandlerLoader:
    def loader() -> Handler[Any]:
        for handler in registry.load(found, tables).handlers:
            if handler.job_type == job_type:
                return handler
        raise LookupError(f"{found.spec} no longer provides {job_type}")

    return loader


# --- descriptions ---


def _describe_entry_point(found: EntryPoint, tables: Tables) -> ProbeResult:
    try:
        offer = registry.load(found, tables)
        handlers = [_describe_handler(handler, found) for handler in offer.handlers]
        handlers += [_set_aside(job_type, reason, found) for job_type, reason in offer.refused.items()]
        return ProbeResult(handlers, _count_threads())
    except BaseException as error:  # report any error of the import, sys.exit() included
        last = "".join(traceback.format_exception(error))[-2000:].strip()
        return ProbeResult(reason=f"cannot be imported:\n{last}")


def _describe_handler(handler: Handler[Any], found: EntryPoint) -> HandlerDescription:
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
        distribution=found.distribution,
        spec=found.spec,
        declared=declared,
        identity=tuple(handler.identity()) if handler.identity is not None else (),
        runs_on_cluster=handler.runs_on_cluster,
        has_slicer=handler.slicer is not None,
    )


def _set_aside(job_type: str, reason: str, found: EntryPoint | None = None) -> HandlerDescription:
    distribution, spec = (found.distribution, found.spec) if found is not None else ("", "")
    return HandlerDescription(HandlerFacts(job_type), set_aside=reason, distribution=distribution, spec=spec)


def _schema(handler: Handler[Any]) -> str | None:
    try:
        return msgspec.json.encode(handler.schema or msgspec.json.schema(handler.payload)).decode()
    except TypeError:
        # The type can be decoded but has no JSON Schema.
        return None


# --- imports ---


def _import_shipped(found: Iterable[EntryPoint], tables: Tables, *, seconds: float) -> dict[EntryPoint, ProbeResult]:
    # SIGALRM also ends an import that hangs in C code.
    signal.setitimer(signal.ITIMER_REAL, seconds)
    results = {one: _describe_entry_point(one, tables) for one in found}
    signal.setitimer(signal.ITIMER_REAL, 0)
    if not all(one.is_sound for one in results.values()):
        _kill_orphans()
        os._exit(1)
    return results


def _probe_all(
    found: Sequence[EntryPoint], tables: Tables, seconds: float, control: int
) -> dict[EntryPoint, ProbeResult]:
    shared = _run_probes([found], tables, seconds * _SHARED_FRACTION, control) if len(found) > 1 else {}
    sound = {one: result for one, result in shared.items() if result.is_sound}
    return sound | _run_probes([[one] for one in found if one not in sound], tables, seconds, control)


def _run_probes(
    groups: Sequence[Sequence[EntryPoint]], tables: Tables, seconds: float, control: int
) -> dict[EntryPoint, ProbeResult]:
    probes = [_Probe(group, tables) for group in groups]
    running = {probe.pipe: probe for probe in probes}
    poll = select.poll()
    for pipe in running:
        poll.register(pipe, select.POLLIN)
    # An event mask of 0 still reports a hang-up.
    poll.register(control, 0)
    deadline = time.monotonic() + seconds
    has_daemon = True
    while running and has_daemon and (left := deadline - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(left * 1000):
            if descriptor == control:
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
    def __init__(self, found: Sequence[EntryPoint], tables: Tables) -> None:
        self._found = found
        self._received = b""
        self.pipe, output = os.pipe()
        self._pid = fork_process(lambda: _run_probe(found, tables, output), keeps=[output])
        os.close(output)

    def is_complete(self) -> bool:
        received = os.read(self.pipe, 1 << 16)
        self._received += received
        # A process that the import has started may keep the pipe open.
        return not received or self._received.count(b"\n") >= len(self._found)

    def end(self, reason: str) -> dict[EntryPoint, ProbeResult]:
        processes.signal_group(self._pid)
        _, status = os.waitpid(self._pid, 0)
        os.close(self.pipe)
        reason = reason or f"crashed its interpreter when it was imported: {_exit_reason(status)}"
        lines = map(_decode_result, self._received.split(b"\n")[:-1])
        results = {one: next(lines, ProbeResult(reason=reason)) for one in self._found}
        return {
            one: replace(result, reason=f"{one.name} ({one.spec}) {result.reason}") if result.reason else result
            for one, result in results.items()
        }


def _run_probe(found: Iterable[EntryPoint], tables: Tables, pipe: int) -> None:
    # The process ends soon, so garbage collection costs more than it gains.
    gc.disable()
    os.setsid()
    sandbox.reset_signals()
    for one in found:
        os.write(pipe, encode_message(_describe_entry_point(one, tables)) + b"\n")


def _decode_result(line: bytes) -> ProbeResult:
    try:
        return decode_as(ProbeResult, line)
    except Garbled:
        return ProbeResult(reason="sent invalid data while it was imported")


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
