"""A node: the real nursery, and what it says kept until the head has heard it. Knows no engine; bytes in, bytes out.

Calls may be made twice, and answers may be lost: commands and happenings are numbered, and heard once. What proves that
an attempt is gone although nobody can be asked is time: a node ends everything `fence_seconds` after the moment at
which it said the last thing that the head is known to have heard, and the head waits for longer than that. Its nursery
is held on a leash of the same length, for this process may stand still. A new agent first takes the lock of its house,
which everything that the one before has started holds as well: who hears from it knows that all of that is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import select
import shutil
import signal
import sys
import threading
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

import msgspec

from worker_service import VERSION
from worker_service.children import jail
from worker_service.children.messages import (
    RELAY_BYTES_MAX,
    Asked,
    Begin,
    ChildError,
    Ended,
    Garbled,
    Gone,
    Happening,
    Hello,
    How,
    Inbox,
    Introduced,
    Key,
    Launch,
    Reply,
    Stop,
    encoded,
    name_of,
    to_nursery,
)
from worker_service.children.nursery import Nursery
from worker_service.clock import boot_clock
from worker_service.liveness import holders
from worker_service.nodes import calls
from worker_service.nodes.calls import Get, Happened, Kept, Listen, Refused, Settle, Tell
from worker_service.nodes.files import Inputs, digest_of
from worker_service.plurals import counted

_KEPT_BYTES_MOST = 8 << 20
"""Of what was not heard yet; beyond that nobody listens to the nursery."""
_GATHER_SECONDS = 0.2
"""Less than passes until a daemon writes what was said."""
_LOCK_SECONDS = 10.0
_AGAIN_SECONDS = 0.5
_LEAVE_SECONDS = 30.0
_ENDING = Refused("ending", "nobody was heard for too long: it ends what it runs")
_FAILED = (How.RETRYABLE, How.PERMANENT, How.CRASHED)
INPUT_GONE = "INPUT_GONE"
"""Code of an attempt that was not begun."""
NODE_FULL = "NODE_FULL"
"""Code of one that failed where there is no room to write."""
_HOUSE_LETTERS = frozenset("0123456789abcdef")
_FENCE_SECONDS = (0.2, 3600.0)
_HELD_AGAIN = 1 / 12
"""Of the fence: a leash is not moved for less."""


class Agent:
    def __init__(self, root: Path, *, slots: int | None = None) -> None:
        """`root` is the node's own directory; `slots`: not more than these."""
        self._root = root
        self._slots_most = slots
        self._settling = threading.Lock()
        self._house: _House | None = None

    def answer(self, body: bytes) -> bytes:
        """To any call. Never raises: whatever goes wrong, the head hears of it."""
        try:
            return calls.encoded(self._answer(calls.call_from(body)))
        except Garbled as error:
            return calls.encoded(Refused("garbled", str(error)))
        except ChildError as error:
            return calls.encoded(Refused("nursery_failed", str(error)))
        except OSError as error:
            return calls.encoded(Refused("disk", f"{error.strerror or error}: {error.filename or ''}".strip(": ")))

    @property
    def fence_seconds(self) -> float:
        """So long after whoever has settled was heard last all is over; nobody has: 0."""
        house = self._house
        return 0.0 if house is None else house.fence_seconds

    def leave(self) -> None:
        """Nothing goes on. Returns when it is gone."""
        house, self._house = self._house, None
        if house is not None:
            house.close()

    def _answer(self, call: calls.Call) -> calls.Answer:
        if isinstance(call, Settle):
            return self._settle(call)
        if isinstance(call, calls.Leave):
            self.leave()
            return calls.Told(0)
        house = self._house
        if house is None:
            return Refused("not_settled", "nobody has settled here yet")
        if isinstance(call, Tell):
            return house.tell(call)
        if isinstance(call, Listen):
            return house.listen(call)
        if isinstance(call, calls.Has):
            return calls.There(house.inputs.has(call.key, call.size))
        if isinstance(call, calls.Put):
            return calls.There(house.inputs.put(call.key, call.size, call.at, call.body))
        if isinstance(call, Get):
            return calls.Piece(house.piece(call))
        house.forget((call.job_id, call.fence))
        return calls.Told(0)

    def _settle(self, call: Settle) -> calls.Answer:
        if call.words != calls.VERSION or call.version != VERSION:
            return Refused("version", f"this node is pagemill {VERSION} and the head {call.version}: install the same")
        if not call.house or not set(call.house) <= _HOUSE_LETTERS or len(call.house) > 64:
            raise Garbled("the name of a house that is none")
        if not _FENCE_SECONDS[0] <= call.fence_seconds <= _FENCE_SECONDS[1]:
            raise Garbled(f"a fence of {call.fence_seconds} s")
        with self._settling:
            if self._house is None:
                own = len(os.sched_getaffinity(0)) if self._slots_most is None else self._slots_most
                slots = own if call.slots is None else call.slots
                slots = slots if self._slots_most is None else min(slots, self._slots_most)
                self._house = _House(self._root / call.house, call, slots)
            elif not self._house.is_of(call):
                return Refused("settled", "somebody else has settled here")
            return self._house.settled()


class _House:
    """One head's place on this node."""

    def __init__(self, root: Path, settle: Settle, slots: int) -> None:
        self._settle = settle
        self._slots = slots
        self._root = root
        for folder in (root, root / "keep"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.inputs = Inputs(root / "inputs")
        self._staging = root / "staging"
        self._lock = _take(root / "lock")
        self._guard = threading.Condition()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_closed = False
        self._used: dict[Key, list[str]] = {}
        """The inputs of each attempt that runs."""
        self._held_until = 0.0
        self._begin()
        self.fence_seconds = settle.fence_seconds
        self._pump_thread = threading.Thread(target=self._pump, name="pump", daemon=True)
        self._pump_thread.start()

    def _begin(self) -> None:
        """Another life: nothing of the one before is left, and nothing that was said to it counts."""
        shutil.rmtree(self._staging, ignore_errors=True)
        self._staging.mkdir(mode=0o700)
        for keys in self._used.values():
            for key in keys:
                self.inputs.leave(key)
        self._used = {}
        self._nursery = Nursery(
            Begin(
                self._staging,
                self._root / "keep",
                self._lock,
                sandbox=self._settle.sandbox,
                slots={"cpu": self._slots, "io": self._slots},
                types=self._settle.types,
                grace_seconds=self._settle.grace_seconds,
            )
        )
        described = self._nursery.start()
        self._hello = encoded(Hello(1, tuple(Introduced(one) for one in described)))
        self._renew()

    def _renew(self) -> None:
        self.life = secrets.token_hex(8)
        self._commands: deque[bytes] = deque()
        self._heard = 0
        self._happened: deque[tuple[int, Happened]] = deque()
        self._kept_bytes = 0
        self._number = 0
        self._waited_for = 0
        """The newest that somebody waits for: a question, or an end."""
        self._beat = 0
        self._said_at: dict[int, float] = {}
        self._known_at = boot_clock()
        """When it said the last thing that the head is known to have heard."""

    # --- what the head calls ---

    def is_of(self, settle: Settle) -> bool:
        return self._root.name == settle.house

    def settled(self) -> calls.Settled:
        with self._guard:
            return calls.Settled(self.life, VERSION, self._slots, jail.landlock_version(), self._hello)

    def tell(self, call: Tell) -> calls.Answer:
        with self._guard:
            if not self._is_settled():
                return _ENDING
            if call.life != self.life:
                return calls.Told(0)
            for number, one in enumerate(call.frames, call.first):
                if number == self._heard + 1:
                    self._heard = number
                    self._commands.append(one)
            self._ring()
            return calls.Told(self._heard)

    def listen(self, call: Listen) -> calls.Answer:
        with self._guard:
            if call.life == self.life and self._is_settled():
                self._know(call.beat)
                while self._happened and self._happened[0][0] <= call.heard:
                    self._kept_bytes -= len(self._happened.popleft()[1].body)
                self._ring()
                self._guard.wait_for(
                    lambda: (call.takes and self._happened) or call.life != self.life, min(call.wait_seconds, 60.0)
                )
                if call.takes and self._happened:
                    # What nobody waits for goes with what comes soon: each answer wakes four threads at the head.
                    self._guard.wait_for(
                        lambda: self._waited_for > call.heard or call.life != self.life,
                        min(_GATHER_SECONDS, call.wait_seconds),
                    )
            if not self._is_settled():
                return _ENDING
            if call.life != self.life:
                return calls.Heard(self.life, 0, 0, ())
            self._beat += 1
            self._said_at[self._beat] = boot_clock()
            some: list[Happened] = []
            size = 0
            for _, one in self._happened if call.takes else ():
                if some and size + len(one.body) > calls.LISTEN_BYTES_MAX:
                    break
                some.append(one)
                size += len(one.body)
            first = self._happened[0][0] if some else 0
            return calls.Heard(self.life, self._beat, first, tuple(some))

    def piece(self, call: Get) -> bytes:
        place = self._staging / name_of((call.job_id, call.fence))
        file = (place / call.path).resolve()
        if not file.is_relative_to(place.resolve()):
            raise Garbled("a path that leaves its directory")
        with file.open("rb") as opened:
            opened.seek(call.at)
            return opened.read(min(call.most, calls.PIECE_BYTES_MAX))

    def forget(self, key: Key) -> None:
        shutil.rmtree(self._staging / name_of(key), ignore_errors=True)

    def close(self) -> None:
        self._is_closed = True
        self._ring()
        self._pump_thread.join(_LEAVE_SECONDS)
        if not self._pump_thread.is_alive():
            # Else what is left holds the lock with us.
            os.close(self._lock)

    # --- how long it may go on ---

    def _fence_at(self) -> float:
        return self._known_at + self._settle.fence_seconds

    def _is_fenced(self) -> bool:
        return boot_clock() >= self._fence_at()

    def _is_settled(self) -> bool:
        """Not between two lives. That the one is over is said only when nothing of it is left; and what comes late is
        of one that is over, although nobody has noticed yet."""
        if self._is_fenced():
            self._ring()
            self._guard.wait_for(lambda: not self._is_fenced(), 1.0)
        return not self._is_fenced()

    def _know(self, beat: int) -> None:
        """The head has this answer of ours."""
        self._known_at = max(self._known_at, self._said_at.get(beat, 0.0))
        for old in [one for one in self._said_at if one <= beat]:
            del self._said_at[old]

    def _ring(self) -> None:
        os.eventfd_write(self._bell, 1)

    # --- the one thread that touches the nursery ---

    def _pump(self) -> None:
        while not self._is_closed:
            try:
                self._turn()
            except (ChildError, OSError, Garbled) as error:
                # Of a head that says nonsense nothing is done; a nursery that cannot begin is tried again.
                print(f"node: {error}", file=sys.stderr, flush=True)
                time.sleep(_AGAIN_SECONDS)
        with contextlib.suppress(ChildError):
            self._nursery.close()

    def _turn(self) -> None:
        with self._guard:
            left = self._fence_at() - boot_clock()
            is_full = self._kept_bytes > _KEPT_BYTES_MOST
        if left <= 0:
            self._fence()
            return
        watched = [self._bell] if is_full or not self._nursery.is_alive else [self._bell, self._nursery.fileno()]
        select.select(watched, [], [], min(left, 1.0))
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        with self._guard:
            commands, self._commands = self._commands, deque()
            is_over, until = self._is_fenced(), self._fence_at()
        if is_over:
            return
        if (
            commands or not self._nursery.is_idle
        ) and until - self._held_until > self._settle.fence_seconds * _HELD_AGAIN:
            self._nursery.hold(until)
            self._held_until = until
        for one in commands:
            self._obey(one)
        if not is_full:
            self._keep(self._nursery.happened())
        if not self._nursery.is_alive:
            self._nursery.restart()
            self._held_until = 0.0

    def _obey(self, one: bytes) -> None:
        [body] = Inbox(RELAY_BYTES_MAX).feed(one)
        message = to_nursery(body)
        if isinstance(message, Launch):
            self._launch(message)
        elif isinstance(message, Stop):
            self._nursery.stop(message.job_id, message.fence, now=message.now)
        elif isinstance(message, Reply):
            self._nursery.pass_on(message)

    def _launch(self, launch: Launch) -> None:
        order = launch.order
        inputs = {}
        for role, path in order.inputs.items():
            if path.is_absolute():
                if self._settle.shared is None or not path.is_relative_to(self._settle.shared) or ".." in path.parts:
                    raise Garbled("an input that is elsewhere")
                inputs[role] = path
            else:
                self._used.setdefault(order.key, []).append(str(path))
                inputs[role] = self.inputs.use(str(path))
                if not inputs[role].is_file():
                    message = "its input is not here any more"
                    self._keep([Ended(*order.key, How.STOPPED, code=INPUT_GONE, message=message)])
                    return
        self._nursery.pass_launch(msgspec.structs.replace(launch, order=replace(order, inputs=inputs)))

    def _keep(self, happenings: list[Happening]) -> None:
        if not happenings:
            return
        told = [self._told(one) for one in happenings]
        with self._guard:
            for one in told:
                self._number += 1
                self._happened.append((self._number, one))
                self._kept_bytes += len(one.body)
            if any(isinstance(one, Asked | Ended) for one in happenings):
                self._waited_for = self._number
            self._guard.notify_all()

    def _told(self, one: Happening) -> Happened:
        if not isinstance(one, Ended):
            return Happened(encoded(one))
        if one.how in _FAILED and self.inputs.is_disk_full:
            one = msgspec.structs.replace(
                one, how=How.CRASHED, code=NODE_FULL, message=f"no room: {one.message}"[:1000]
            )
        for key in self._used.pop(one.key, ()):
            self.inputs.leave(key)
        # What it publishes stays until the head has taken it.
        place = self._staging / name_of(one.key)
        own = [file.path.relative_to(place) for file in one.published]
        try:
            kept = tuple(Kept(str(path), (place / path).stat().st_size, digest_of(place / path)) for path in own)
        except OSError as error:
            lost = Ended(*one.key, How.RETRYABLE, code="FILES_VANISHED", message=str(error), usage=one.usage)
            return self._told(lost)
        published = [replace(file, path=path) for file, path in zip(one.published, own, strict=True)]
        ended = msgspec.structs.replace(one, published=published)
        return Happened(encoded(Gone(msgspec.Raw(encoded(ended)), one.usage, one.took_seconds)), kept)

    def _fence(self) -> None:
        """The head may have given us up: nothing of ours goes on. It may come back, and finds another life."""
        if self._nursery.is_idle and self._nursery.is_alive:
            # Nothing runs; what was said, and not heard yet, is not begun.
            with self._guard:
                self._renew()
                self._guard.notify_all()
            return
        self._nursery.close()
        with self._guard:
            self._begin()
            self._held_until = 0.0
            self._guard.notify_all()


def _take(path: Path) -> int:
    """The lock of the house: whoever has it knows that everything of the one before is gone. It is made to go."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            left = [pid for pid in holders(path) if pid != os.getpid()]
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                os.close(lock)
                raise ChildError(
                    f"{counted(len(left), 'process')} of an earlier node cannot be ended: {left}"
                ) from None
            time.sleep(0.02)
        else:
            return lock
