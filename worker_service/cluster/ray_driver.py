"""The Ray driver: runs attempts as Ray tasks. It speaks to the daemon in the protocol of a fork server.

Everything runs in one asyncio thread, except calls of Ray and of the slicer that block.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import sys
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from worker_service import VERSION
from worker_service.base.sanitize import safe_text
from worker_service.cluster import ray_settings, ray_task
from worker_service.cluster.node_server import Terms
from worker_service.cluster.slicer import SLICE, Slicer
from worker_service.jobs.attempts import Usage
from worker_service.jobs.workers import NodeState
from worker_service.runner import sandbox
from worker_service.runner.messages import (
    Assigned,
    AttemptOver,
    ClusterBegin,
    Drain,
    Ended,
    Hello,
    How,
    Key,
    Launch,
    Logged,
    NodesSeen,
    Order,
    Ping,
    Pong,
    Progressed,
    Started,
    Stop,
    attempt_name,
)
from worker_service.runner.protocol import (
    RELAY_BYTES_MAX,
    Garbled,
    Inbox,
    decode_daemon_message,
    decode_node_message,
    encode_frame,
    encode_message,
    receive_begin,
    take_control_socket,
    wrap_frame,
)
from worker_service.settings.cluster import SLOTS_MAX

# Ray reads a part of its environment when it is imported.
TOKEN_FILE = ray_settings.prepare(os.environ)
import ray  # noqa: E402
from ray import exceptions as ray_errors  # noqa: E402
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: E402

CONNECT_SECONDS = 5.0
WATCH_INTERVAL_SECONDS = 0.5
# A working task yields every `ray_task.ALIVE_SECONDS` (5 s), so a stream that is silent for longer than this is broken.
SILENCE_SECONDS = 30.0
# A refused node is checked again after this time: an administrator may have mended it.
REPROBE_AFTER_SECONDS = 300.0
PROBE_TIMEOUT_SECONDS = 120.0
REPORT_WAITING_AFTER_SECONDS = 2.0
_DEAD_NODES_MAX = 20
# Of inputs in the object store of Ray, kept for later attempts that read the same file.
_STORED_BYTES_MAX = 256 << 20
_READ_BYTES = 1 << 20
_REASON_CHARACTERS_MAX = 1000
_READABLE, _WRITABLE = ("/proc", "/sys", "/etc", "/dev"), ("/dev/shm", "/dev/null")


@dataclass(slots=True)
class _Attempt:
    order: Order
    report_waiting_at: float | None
    task: asyncio.Task[None] = field(init=False)
    stream: Any = None
    node_id: str = ""
    heard_at: float = 0.0
    is_stopped: bool = False


@dataclass(slots=True)
class _Node:
    node_id: str
    name: str
    slots: int
    is_fit: bool = False
    reason: str = "it is being checked"
    refused_at: float | None = None
    probe: asyncio.Task[None] | None = None


class RayDriver:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._inbox = Inbox(RELAY_BYTES_MAX)
        self._writer: asyncio.StreamWriter
        self._attempts: dict[Key, _Attempt] = {}
        self._nodes: dict[str, _Node] = {}
        self._draining: Collection[str] = ()
        self._dead_nodes: deque[str] = deque(maxlen=_DEAD_NODES_MAX)
        self._nodes_reported: tuple[NodeState, ...] | None = None

    def serve(self) -> None:
        begin, further_bodies = receive_begin(self._control, self._inbox)
        cluster = begin.cluster
        assert cluster is not None
        self._control.sendall(encode_frame(Hello(handlers=())))
        begin.staging_root.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Each node starts its fork server with these terms, which are the daemon's own.
        self._terms = encode_message(Terms(VERSION, begin.sandbox, cluster.identity))
        self._inputs = _TaskInputs(cluster.slicers, begin.staging_root / "slices", begin.sandbox)
        # Ray unpickles data from nodes, so apply the sandbox before Ray connects.
        reads = [*map(Path, _READABLE), cluster.objects, *([] if TOKEN_FILE is None else [TOKEN_FILE])]
        writes = [*map(Path, _WRITABLE), begin.staging_root]
        sandbox.apply(sandbox.SandboxRules(reads, writes, network=True, starts_programs=False), begin.sandbox)
        if fault := _connect(cluster):
            down = NodeState("ray", "down", reason=safe_text(fault, _REASON_CHARACTERS_MAX))
            self._control.sendall(encode_frame(NodesSeen((down,))))
            sys.exit(fault)
        self._task = ray.remote(
            num_cpus=1, max_retries=0, num_returns="streaming", _generator_backpressure_num_objects=ray_task.ITEMS_AHEAD
        )(ray_task.run_attempt)
        self._probe_task = ray.remote(num_cpus=0, max_retries=0)(ray_task.probe)
        asyncio.run(self._serve(further_bodies))

    async def _serve(self, bodies: list[bytes]) -> None:
        reader, self._writer = await asyncio.open_unix_connection(sock=self._control)
        self._watching = asyncio.create_task(self._watch_nodes())
        with contextlib.suppress(ConnectionError):
            for body in bodies:
                self._handle_message(body)
            while received := await reader.read(_READ_BYTES):
                for body in self._inbox.feed(received):
                    self._handle_message(body)
        # The daemon is gone or has asked the driver to end. Ray ends the tasks of a driver whose process is gone.
        os._exit(0)

    def _handle_message(self, body: bytes) -> None:
        message = decode_daemon_message(body)
        if isinstance(message, Launch):
            attempt = _Attempt(message.order, time.monotonic() + REPORT_WAITING_AFTER_SECONDS)
            self._attempts[attempt.order.key] = attempt
            attempt.task = asyncio.create_task(self._run_attempt(attempt, message))
        elif isinstance(message, Ping):
            self._send(Pong())
        elif isinstance(message, Drain):
            self._draining = message.nodes
        elif isinstance(message, Stop) and message.key in self._attempts:
            stopped = self._attempts[message.key]
            stopped.is_stopped = True
            _cancel(stopped, force=message.now)

    def _send(self, message: msgspec.Struct) -> None:
        self._writer.write(encode_frame(message))

    async def _run_attempt(self, attempt: _Attempt, launch: Launch) -> None:
        try:
            order, references = await asyncio.to_thread(self._inputs.put_inputs, attempt.order)
            attempt.stream = self._task.options(name=attempt_name(attempt.order.key), **self._placement()).remote(
                encode_message(msgspec.structs.replace(launch, order=order)), self._terms, *references
            )
            if attempt.is_stopped:
                # The stop came while the inputs were stored, when there was no task to cancel.
                _cancel(attempt, force=False)
            # Ray may end the stream of a cancelled task early and without an error.
            if not await self._relay(attempt):
                self._send_end(attempt, How.STOPPED, "STOPPED", "it was asked to stop")
        except asyncio.CancelledError:
            pass  # `_abandon` has sent the end of the attempt
        except Exception as error:
            # The outermost frame: each attempt gets an end.
            self._end_after_error(attempt, error)
        finally:
            self._attempts.pop(attempt.order.key, None)

    async def _relay(self, attempt: _Attempt) -> bool:
        """Pass on the messages of the node. Return whether the end of the attempt was among them."""
        has_ended = False
        async for reference in attempt.stream:
            messages = await reference
            attempt.heard_at = time.monotonic()
            if not attempt.node_id:
                # The first item of a stream is the id of its node.
                attempt.node_id = messages[0].decode()
                self._send(Assigned(*attempt.order.key, self._name_of(attempt.node_id)))
                continue
            for kind_and_body in messages:
                body = kind_and_body[1:]
                # The node may be broken or hostile: a message that no honest node would send raises `Garbled`.
                decoded = decode_node_message(body, attempt.order)
                # Decoding sanitises `Logged` and `Started`, so encode those again. Pass other messages on unchanged.
                is_sanitised = isinstance(decoded, Logged | Started)
                self._writer.write(encode_frame(decoded) if is_sanitised else wrap_frame(body))
                has_ended |= isinstance(decoded, AttemptOver)
        return has_ended

    def _end_after_error(self, attempt: _Attempt, error: Exception) -> None:
        # An exception in a Ray task arrives as a `RayTaskError` that is also an instance of the exception's own type,
        # so the branch for `RayError` comes before those for `Garbled` and `OSError`, which mean errors of the driver.
        where = self._name_of(attempt.node_id) if attempt.node_id else "the node"
        cause = error.cause if isinstance(error, ray_errors.RayTaskError) else None
        if attempt.is_stopped or isinstance(error, ray_errors.TaskCancelledError):
            self._send_end(attempt, How.STOPPED, "STOPPED", "it was asked to stop")
        elif isinstance(cause, ray_task.NodeUnfit):
            self._refuse(attempt.node_id, str(cause))
            self._send_end(attempt, How.STOPPED, "NOT_BEGUN", f"{where} cannot run it: {cause}")
        elif isinstance(error, ray_errors.RayError):
            self._send_end(attempt, How.CRASHED, "NODE_LOST", f"{where} was lost: {cause or type(error).__name__}")
        elif isinstance(error, Garbled):
            _cancel(attempt, force=True)
            self._send_end(attempt, How.GARBLED, "GARBLED", str(error))
        elif isinstance(error, OSError):
            self._send_end(attempt, How.RETRYABLE, "FILE_ABSENT", f"its input cannot be read: {error}")
        else:
            self._send_end(attempt, How.CRASHED, "NODE_LOST", f"the Ray driver failed: {error!r}")

    def _abandon(self, attempt: _Attempt, how: How, code: str, message: str) -> None:
        self._send_end(attempt, how, code, message)
        _cancel(attempt, force=True)
        attempt.task.cancel()

    def _send_end(self, attempt: _Attempt, how: How, code: str, message: str) -> None:
        ended = Ended(*attempt.order.key, how, code=code, message=safe_text(message, _REASON_CHARACTERS_MAX))
        self._send(AttemptOver(msgspec.Raw(encode_message(ended)), Usage()))

    def _placement(self) -> Mapping[str, Any]:
        # Ray has a queue of tasks for each combination of options, the label selector included. Requests of a queue for
        # workers may wait for a frozen node. Once that is known to be dead, its id in the selector makes a new queue.
        avoided = [node.node_id for node in self._nodes.values() if not node.is_fit or node.name in self._draining]
        avoided += self._dead_nodes
        return {"label_selector": {"ray.io/node-id": f"!in({','.join(sorted(avoided))})"}} if avoided else {}

    async def _watch_nodes(self) -> None:
        while True:
            with contextlib.suppress(ray_errors.RayError, RuntimeError, OSError):
                nodes = await asyncio.to_thread(ray.nodes)
                alive = {str(node["NodeID"]): node for node in nodes if node["Alive"] and node["Resources"].get("CPU")}
                self._abandon_lost_and_report_waiting_attempts(alive)
                self._drop_dead_nodes(alive)
                self._add_new_nodes(alive)
                self._report_nodes()
            await asyncio.sleep(WATCH_INTERVAL_SECONDS)

    def _abandon_lost_and_report_waiting_attempts(self, alive: Collection[str]) -> None:
        now = time.monotonic()
        has_dead_node = any(node_id not in alive for node_id in self._nodes)
        for attempt in self._attempts.values():
            where = self._name_of(attempt.node_id)
            if attempt.node_id and attempt.node_id not in alive:
                self._abandon(attempt, How.CRASHED, "NODE_LOST", f"{where} was lost: Ray has given it up")
            elif attempt.node_id and now > attempt.heard_at + SILENCE_SECONDS:
                message = f"{where} was lost: nothing was heard from it for {SILENCE_SECONDS:g} s"
                self._abandon(attempt, How.CRASHED, "NODE_LOST", message)
            elif has_dead_node and not attempt.node_id and attempt.stream is not None:
                # Ray may have sent the attempt to the dead node. It has not begun, so it goes back to the queue.
                self._abandon(attempt, How.STOPPED, "NOT_BEGUN", "a node was lost before it began")
            elif not attempt.node_id and attempt.report_waiting_at is not None and now > attempt.report_waiting_at:
                attempt.report_waiting_at = None
                self._send(Progressed(*attempt.order.key, 0.0, "waits for a machine of the Ray cluster"))

    def _drop_dead_nodes(self, alive: Collection[str]) -> None:
        for node_id in self._nodes.keys() - alive:
            node = self._nodes.pop(node_id)
            self._dead_nodes.append(node_id)
            if node.probe is not None:
                node.probe.cancel()

    def _add_new_nodes(self, alive: Mapping[str, Mapping[str, Any]]) -> None:
        now = time.monotonic()
        names = {node.name for node in self._nodes.values()}
        for node_id, facts in alive.items():
            if node_id not in self._nodes:
                name = re.sub(r"[^A-Za-z0-9_.-]+", "-", facts["NodeManagerHostname"]).strip("-")[:60] or node_id[:8]
                if name in names:
                    name = f"{name[:50]}-{node_id[:6]}"
                names.add(name)
                self._nodes[node_id] = _Node(node_id, name, min(int(facts["Resources"]["CPU"]), SLOTS_MAX))
            node = self._nodes[node_id]
            is_due = node.refused_at is None or now > node.refused_at + REPROBE_AFTER_SECONDS
            if not node.is_fit and node.probe is None and is_due:
                node.probe = asyncio.create_task(self._probe(node))

    async def _probe(self, node: _Node) -> None:
        affinity = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
        reference = self._probe_task.options(scheduling_strategy=affinity).remote(self._terms)
        try:
            await asyncio.wait_for(asyncio.wrap_future(reference.future()), PROBE_TIMEOUT_SECONDS)
        except ray_errors.RayTaskError as error:
            self._refuse(node.node_id, str(error.cause) or type(error.cause).__name__)
        except (ray_errors.RayError, TimeoutError) as error:
            self._refuse(node.node_id, f"Ray cannot run a task there: {type(error).__name__}")
        else:
            node.is_fit, node.reason, node.refused_at = True, "", None
        finally:
            node.probe = None
        self._report_nodes()

    def _refuse(self, node_id: str, reason: str) -> None:
        if node_id in self._nodes:
            node = self._nodes[node_id]
            node.is_fit, node.reason, node.refused_at = False, reason, time.monotonic()

    def _report_nodes(self) -> None:
        nodes = tuple(self._state_of(node) for node in self._nodes.values())
        if nodes != self._nodes_reported:
            self._nodes_reported = nodes
            self._send(NodesSeen(nodes))

    def _state_of(self, node: _Node) -> NodeState:
        if not node.is_fit:
            reason = safe_text(node.reason, _REASON_CHARACTERS_MAX)
            return NodeState(node.name, "starting" if node.refused_at is None else "refused", reason=reason)
        if node.name in self._draining:
            running = Counter(attempt.node_id for attempt in self._attempts.values())[node.node_id]
            return NodeState(node.name, "draining", slots=running, version=VERSION)
        return NodeState(node.name, "up", slots=node.slots, version=VERSION)

    def _name_of(self, node_id: str) -> str:
        return self._nodes[node_id].name if node_id in self._nodes else node_id[:8]


class _TaskInputs:
    def __init__(self, slicers: Mapping[str, str], directory: Path, sandbox: str) -> None:
        # The slicer cuts out the pages an attempt needs. It forks, so start it before Ray's threads and the sandbox.
        self._slicer = Slicer(slicers, directory, sandbox) if slicers else None
        self._lock = threading.Lock()
        # By digest: reference and size. The least recently used one comes first.
        self._stored: OrderedDict[str, tuple[Any, int]] = OrderedDict()

    def put_inputs(self, order: Order) -> tuple[Order, Sequence[Any]]:
        path = self._slicer.slice(order) if self._slicer is not None and self._slicer.can_slice(order) else None
        if path is not None:
            content = path.read_bytes()
            path.unlink()
            # The node uses only the suffix of the path: Ray sends the content.
            return msgspec.structs.replace(order, inputs={SLICE: path}), [ray.put(content)]
        with self._lock:
            references = [self._stored_reference(path, order.contents.get(role)) for role, path in order.inputs.items()]
            while sum(size for _, size in self._stored.values()) > _STORED_BYTES_MAX:
                self._stored.popitem(last=False)
        return order, references

    def _stored_reference(self, path: Path, digest: str | None) -> Any:
        name = digest or f"{path} {path.stat().st_mtime_ns}"
        if name not in self._stored:
            content = path.read_bytes()
            self._stored[name] = ray.put(content), len(content)
        self._stored.move_to_end(name)
        reference, _ = self._stored[name]
        return reference


def _connect(cluster: ClusterBegin) -> str:
    if fault := ray_settings.fault(cluster.address, os.environ):
        return str(fault)
    host, _, port = cluster.address.rpartition(":")
    try:
        # Try to connect first: `ray.init` tries an address without a server 20 times, a second apart.
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR", configure_logging=False)
    except Exception as error:
        return f"Ray at {cluster.address} cannot be reached: {error}"
    return ""


def _cancel(attempt: _Attempt, *, force: bool) -> None:
    if attempt.stream is not None:
        # `cancel` raises ValueError or TypeError for any status but OK, such as that of a task that has ended.
        with contextlib.suppress(ray_errors.RayError, ValueError, TypeError):
            ray.cancel(attempt.stream, force=force)


if __name__ == "__main__":
    RayDriver(take_control_socket()).serve()
