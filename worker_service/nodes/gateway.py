"""In the nursery's place, with its words: attempts that run on nodes. Opens no database.

Started by the daemon as `python -m worker_service.nodes.gateway FD [LOCK]`, as a nursery is. It shuts its own jail
before it hears a node, for an engine may bring anything: what it can read is published files, what it can write its
staging. Which node gets an order is chosen here; what is between the head and one of them is `node`'s.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path

import msgspec

from worker_service.children import jail
from worker_service.children.messages import (
    RELAY_BYTES_MAX,
    Begin,
    Ended,
    GatewayBegin,
    Gone,
    Hello,
    How,
    Inbox,
    Key,
    Launch,
    NodesSeen,
    Order,
    Ping,
    Pong,
    Reply,
    Stop,
    Wishes,
    encoded,
    frame,
    text,
    to_nursery,
)
from worker_service.cluster import LOCAL
from worker_service.jobs.model import NodeState, Usage
from worker_service.nodes import scaling
from worker_service.nodes.engine import Engine, EngineAbsent, Handle, engine_of
from worker_service.nodes.files import digest_of, key_of
from worker_service.nodes.node import Node, Terms
from worker_service.nodes.placing import choose
from worker_service.nodes.portions import Cutter

_READ_BYTES = 1 << 16
_FULL_BYTES = 4 << 20
_TELL_SECONDS = 2.0
_LOOK_SECONDS = 0.5
_DESCRIPTORS_MOST = 1 << 16
"""A node takes four."""
_GATHER_SECONDS = 0.1
"""What nobody waits for: each part costs a turn here and one of the daemon's."""
_SOON_SECONDS, _SOON_SECONDS_MOST = 0.0002, 0.02
"""What somebody waits for, by the attempts that run: of many, several speak in this time."""
_LEAVING_SECONDS = 3.0
"""A node that does not answer is not waited for: its line closes with us."""
_IDLE_PART = 2.0
"""Of the patience: so long a node has had nothing to run that is let go."""
_ASKED = "its autoscaler was asked for machines, and none is there yet"


class Gateway:
    def __init__(self, control: socket.socket, lock_fd: int | None) -> None:
        self._control = control
        self._lock_fd = lock_fd
        self._inbox = Inbox(RELAY_BYTES_MAX)
        self._guard = threading.Lock()
        self._unsent = bytearray()
        self._flush_at = 0.0
        """When the first of it is to go."""
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_rung = False
        self._waiting: deque[Launch] = deque()
        """For a node with room."""
        self._nodes: dict[str, Node] = {}
        self._secret: set[Key] = set()
        """Of those that need a secret, which no other machine has."""
        self._wishes = Wishes()
        self._look_at = self._tell_at = 0.0
        self._give_up_at = math.inf
        """When a node may have been silent for too long."""
        self._told: tuple[NodeState, ...] = ()
        self._running = 0
        """On all nodes, when they were told of last."""
        self._engine_name = self._engine_fault = ""
        """What it is called, and why it can tell of no node."""
        self._cutter: Cutter | None = None
        """None: nothing is cut."""
        self._autoscale = 0
        self._there: Mapping[str, int | None] = {}
        """The nodes that the engine has told of last."""
        self._uses_all_until = 0.0
        """At first: whoever was here before us may have left something on any of them, which ends with a new agent."""
        self._leaves = threading.Event()
        self.terms: Terms
        self._engine: Engine

    def serve(self) -> None:
        begin, rest = self._hear_the_beginning()
        # Nobody waits for an engine.
        self._control.sendall(frame(Hello(1, ())))
        try:
            self._make_ready(begin, _gateway_begin(begin))
        except EngineAbsent as error:
            self._engine_fault = str(error)
            self._tell_of_nodes()
            self._flush()
            sys.exit(str(error))
        self._control.setblocking(False)
        looking = threading.Thread(target=self._look_for_nodes, name="engine", daemon=True)
        looking.start()
        for body in rest:
            self._obey(body)
        while self._turn():
            pass
        # The daemon is gone, or wants us to go: as with a nursery, nothing goes on.
        self._leaves.set()
        leaving = [node.close() for node in self._nodes.values()]
        if self._autoscale:
            leaving.append(looking)
        deadline = time.monotonic() + (_LEAVING_SECONDS if self._is_waited_for() else 0.0)
        for one in leaving:
            one.join(max(0.0, deadline - time.monotonic()))
        os._exit(0)

    def _is_waited_for(self) -> bool:
        """By a daemon that closes. One that was killed is replaced by another, which begins with our end."""
        self.tell(frame(Pong()))
        self._flush_at = 0.0
        return self._flush()

    # --- for nodes ---

    def host(self, node: str) -> Handle:
        return self._engine.host(node)

    def tell(self, said: bytes, *, is_waited_for: bool = True) -> None:
        with self._guard:
            is_first, before = not self._unsent, self._flush_at
            self._unsent += said
            soon = min(_SOON_SECONDS * self._running, _SOON_SECONDS_MOST) if is_waited_for else _GATHER_SECONDS
            flush_at = time.monotonic() + soon
            self._flush_at = flush_at if is_first else min(before, flush_at)
        if is_first or flush_at < before:
            self._wake()

    def ring(self) -> None:
        self._look_at = 0.0
        self._wake()

    def _wake(self) -> None:
        # Hundreds of threads speak: each system call of one of them lets another in.
        if not self._is_rung:
            self._is_rung = True
            os.eventfd_write(self._bell, 1)

    @property
    def is_full(self) -> bool:
        return len(self._unsent) > _FULL_BYTES

    def cuts(self, order: Order) -> bool:
        return self._cutter is not None and self._cutter.cuts(order)

    def cut(self, order: Order) -> Path | None:
        return None if self._cutter is None else self._cutter.cut(order)

    def keeps(self, launch: Launch) -> bool:
        local = self._nodes.get(LOCAL)
        if local is None or not local.state().slots:
            return False
        with self._guard:
            self._secret.add(launch.order.key)
            self._waiting.append(launch)
        self.ring()
        return True

    # --- the beginning ---

    def _hear_the_beginning(self) -> tuple[Begin, list[bytes]]:
        bodies: list[bytes] = []
        while not bodies:
            received = self._control.recv(_READ_BYTES)
            if not received:
                sys.exit(0)
            bodies = self._inbox.feed(received)
        begin = to_nursery(bodies[0])
        if not isinstance(begin, Begin):
            sys.exit("the daemon did not begin")
        return begin, bodies[1:]

    def _make_ready(self, begin: Begin, gateway: GatewayBegin) -> None:
        self._engine_name, self._autoscale = gateway.engine, gateway.autoscale
        own = [begin.staging_root, *([] if gateway.names is None else [gateway.names.parent])]
        for place in own:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.terms = Terms(
            house=gateway.house,
            sandbox=begin.sandbox,
            types=tuple(gateway.fit),
            grace_seconds=begin.grace_seconds,
            patience_seconds=gateway.patience_seconds,
            staging_root=begin.staging_root,
            objects=gateway.objects,
            fit=gateway.fit,
            is_shared=gateway.is_shared,
            seconds=gateway.seconds,
        )
        self._uses_all_until = time.monotonic() + self._idle_seconds
        if gateway.portions:
            self._cutter = Cutter(gateway.portions, begin.staging_root / "portions", begin.sandbox)
        self._engine = engine_of(gateway, self._lock_fd)
        # Not before: the commands that it has begun have their own.
        _allow_descriptors()
        door = self._engine.door()
        reads, writes = [*door.reads, gateway.objects], [*door.writes, *own]
        jail.shut(jail.Door(reads, writes, door.network, door.starts_programs), begin.sandbox)

    # --- one turn ---

    def _turn(self) -> bool:
        """False: the daemon has gone."""
        due_at = min(self._look_at, self._give_up_at)
        left = max(0.0, due_at - time.monotonic()) if self._told or self._nodes else _TELL_SECONDS
        with self._guard:
            wait = self._flush_at - time.monotonic() if self._unsent else left
        writing = [self._control] if wait <= 0 else []
        watched: list[socket.socket | int] = [self._control, self._bell]
        readable, _, _ = select.select(watched, writing, [], left if wait <= 0 else min(left, wait))
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        self._is_rung = False
        if self._control in readable and not self._listen():
            return False
        # Not in each turn: there may be hundreds of nodes, and one of them has always something to say.
        if (now := time.monotonic()) >= min(self._look_at, self._give_up_at):
            self._look_at = now + _LOOK_SECONDS
            self._give_up_at = now + min((node.look() for node in self._nodes.values()), default=math.inf)
            if self._autoscale:
                self._let_go()
            self._tell_of_nodes()
        if self._waiting:
            self._place()
        return self._flush()

    def _listen(self) -> bool:
        try:
            received = self._control.recv(_READ_BYTES)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        for body in self._inbox.feed(received):
            self._obey(body)
        return bool(received)

    def _obey(self, body: bytes) -> None:
        message = to_nursery(body)
        if isinstance(message, Launch):
            self._waiting.append(message)
        elif isinstance(message, Ping):
            self.tell(frame(Pong()))
        elif isinstance(message, Wishes):
            self._wishes = message
            self._heed_wishes()
            self._look_at = self._tell_at = 0.0
        elif isinstance(message, Stop | Reply):
            key = (message.job_id, message.fence)
            for one in [one for one in [*self._waiting] if one.order.key == key and isinstance(message, Stop)]:
                self._waiting.remove(one)
                self._refuse(one, How.STOPPED, "NOT_BEGUN", "it was not begun")
            for node in self._nodes.values():
                node.pass_on(message)

    def _place(self) -> None:
        rooms = {name: room for name, node in self._nodes.items() if (room := node.room()) is not None}
        with self._guard:
            waiting = list(self._waiting)
        for launch in waiting:
            is_here = launch.order.key in self._secret
            try:
                inputs = {} if is_here or self.terms.is_shared else self._inputs(launch)
            except OSError as error:
                self._waiting.remove(launch)
                message = f"its input cannot be read: {error.strerror}: {error.filename}"
                self._refuse(launch, How.RETRYABLE, "FILE_ABSENT", message)
                continue
            possible = [room for name, room in rooms.items() if name == LOCAL or not is_here]
            if not any(room.slots for room in possible):
                # Nodes go between a claim and this line; who comes next may have room. The daemon hears that they have
                # gone before it gets back what was meant for them.
                self._tell_of_nodes()
                self._waiting.remove(launch)
                self._refuse(launch, How.STOPPED, "NOT_BEGUN", "no node has room")
                continue
            name = choose(possible, inputs)
            if name is None:
                continue
            self._waiting.remove(launch)
            self._secret.discard(launch.order.key)
            node = self._nodes[name]
            node.place(launch, {} if node.is_trusted else inputs)
            if (room := node.room()) is not None:
                rooms[name] = room

    def _inputs(self, launch: Launch) -> Mapping[str, Path]:
        """By the name that each has on a node."""
        order = launch.order
        return {
            key_of(path, order.contents.get(role) or _digest(path, path.stat().st_mtime_ns)): path
            for role, path in order.inputs.items()
        }

    def _refuse(self, launch: Launch, how: How, code: str, message: str) -> None:
        ended = encoded(Ended(*launch.order.key, how, code=code, message=message))
        self.tell(frame(Gone(msgspec.Raw(ended), Usage())))

    def _tell_of_nodes(self) -> None:
        """At once where something has changed, else every second."""
        nodes = tuple(node.state() for node in self._nodes.values())
        if not nodes and (reason := self._engine_fault or (_ASKED if self._wanted else "")):
            nodes = (NodeState(self._engine_name, "down", reason=reason),)
        now = time.monotonic()
        self._running = sum(node.running for node in nodes)
        if now >= self._tell_at or _shape(nodes) != _shape(self._told):
            self._told, self._tell_at = nodes, now + _TELL_SECONDS
            with self._guard:
                self._unsent += frame(NodesSeen(nodes))
                self._flush_at = 0.0

    def _flush(self) -> bool:
        try:
            with self._guard:
                while self._unsent and time.monotonic() >= self._flush_at:
                    del self._unsent[: self._control.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            return False
        return True

    # --- which nodes there are ---

    def _look_for_nodes(self) -> None:
        is_connected = False
        while not self._leaves.is_set():
            try:
                if not is_connected:
                    self._engine.connect()
                    is_connected = True
                self._take_in(self._engine.nodes())
                if self._autoscale:
                    self._engine.ask_for(self._wanted)
                self._engine_fault = ""
            except EngineAbsent as error:
                self._engine_fault = text(str(error), 1000)
            except Exception as error:  # whatever an engine raises; or no note can be written of a new node
                self._engine_fault = text(f"the engine does not answer: {error}", 1000)
            self._heed_wishes()
            self.ring()
            self._leaves.wait(_LOOK_SECONDS)
        if self._autoscale and is_connected:
            # What was asked for is kept until somebody asks for less.
            with contextlib.suppress(Exception):
                self._engine.ask_for(0)

    def _heed_wishes(self) -> None:
        for name, node in self._nodes.items():
            node.wish = "remove" if name in self._wishes.removed else "drain" if name in self._wishes.draining else ""

    def _take_in(self, there: Mapping[str, int | None]) -> None:
        self._there = there
        needed = self._needed() if self._autoscale else there
        for name, slots in there.items():
            node = self._nodes.get(name)
            removed = name in self._wishes.removed
            if not removed and (name in needed if node is None else node.state().state == "removed"):
                one = Node(self, name, slots)
                with self._guard:
                    self._nodes = {**self._nodes, name: one}

    # --- where machines are started ---

    @property
    def _wanted(self) -> int:
        """So many attempts at once, beside those that this machine can take."""
        if not self._autoscale:
            return 0
        local = self._nodes.get(LOCAL)
        own = 0 if local is None else local.state().slots
        here = len(self._waiting) + sum(len(node.keys) for node in self._nodes.values())
        return max(0, min(max(self._wishes.attempts, here) - own, self._autoscale))

    def _needed(self) -> Collection[str]:
        """With those that are drained, whose rows say so."""
        possible = {name: slots for name, slots in self._started().items() if name not in self._wishes.removed}
        wanted = math.inf if time.monotonic() < self._uses_all_until else self._wanted
        return {LOCAL, *self._wishes.draining, *scaling.to_use(possible, self._used(), wanted)}

    def _started(self) -> dict[str, int]:
        return {name: slots or 1 for name, slots in self._there.items() if name != LOCAL}

    def _used(self) -> dict[str, scaling.Used]:
        nodes = {name: (node.state().state, node.idle_seconds) for name, node in self._nodes.items() if name != LOCAL}
        return {
            # One that nobody hears may be coming, or may come back; after a while others are used in its place.
            name: scaling.Used(state == "up" or (state in ("silent", "down") and idle < self._idle_seconds), idle)
            for name, (state, idle) in nodes.items()
        }

    @property
    def _idle_seconds(self) -> float:
        return self.terms.patience_seconds * _IDLE_PART

    def _let_go(self) -> None:
        for name in scaling.to_let_go(self._started(), self._used(), self._wanted, idle_most=self._idle_seconds):
            with self._guard:
                node = self._nodes[name]
                self._nodes = {other: one for other, one in self._nodes.items() if other != name}
            node.forget()


def _gateway_begin(begin: Begin) -> GatewayBegin:
    if begin.gateway is None:
        sys.exit("the daemon did not say what the gateway is to be")
    return begin.gateway


def _allow_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _DESCRIPTORS_MOST if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS_MOST)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def _shape(nodes: tuple[NodeState, ...]) -> list[tuple[object, ...]]:
    return [(node.name, node.state, node.slots, node.version, node.reason) for node in nodes]


@lru_cache(maxsize=10_000)
def _digest(path: Path, changed: int) -> str:
    return digest_of(path)


def main() -> None:
    descriptors = [int(word) for word in sys.argv[1:]]
    for one in descriptors:
        os.set_inheritable(one, False)
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    lock_fd = descriptors[1] if len(descriptors) > 1 else None
    Gateway(socket.socket(fileno=descriptors[0]), lock_fd).serve()


if __name__ == "__main__":
    main()
