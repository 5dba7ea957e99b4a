"""One node as the head sees it: what it is told, what it is heard to say, and the files that go there and come back.

Three threads: one listens, one speaks, one carries files, so that no answer waits behind a file. What it says is looked
at as if it wanted us ill: of attempts that it does not have nothing is heard, files come into the staging of their
attempt alone, as large as was said, with the digest that was said.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
import os
import queue
import random
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from worker_service import VERSION
from worker_service.children.messages import (
    RELAY_BYTES_MAX,
    Asked,
    Checkpointed,
    Ended,
    Garbled,
    Gone,
    Hello,
    How,
    Key,
    Launch,
    Order,
    PagesRead,
    Placed,
    Reply,
    Said,
    Stop,
    encoded,
    frame,
    from_node,
    hello_from,
    name_of,
    text,
)
from worker_service.clock import boot_clock
from worker_service.cluster import FENCE_PART, LOCAL, SLOTS_MOST
from worker_service.jobs.model import NodeState, Usage
from worker_service.jobs.values import dataclass
from worker_service.nodes import calls
from worker_service.nodes.agent import INPUT_GONE, NODE_FULL
from worker_service.nodes.calls import Happened, Heard, Kept, Listen, Refused, Settle, Settled, Tell, There
from worker_service.nodes.engine import Handle, Lost
from worker_service.nodes.files import Brought, digest_of, key_of
from worker_service.nodes.heard import Note
from worker_service.nodes.placing import Room
from worker_service.nodes.portions import ORIGINAL, PORTION

RESULT_BYTES_MOST = 4 << 30
"""Of all that one attempt publishes."""
_DISK_PART = 1 / 2
"""Of what is free at the head: no more is taken at once, for the database is there as well."""
_LISTEN_PART = 1 / 5
"""Of the patience: so often a node is heard at least."""
_LISTEN_SECONDS = 2.0
_CALL_SECONDS = 5.0
_SETTLE_SECONDS = 60.0
_LEAVE_SECONDS = 3.0
_CARRY_SECONDS = 60.0
_AGAIN_SECONDS = (0.3, 15.0)
_AGAIN_PART = 1 / 10
"""Of the time for which a node has been away: so long it is left alone before it is tried again."""
_FULL_SECONDS = 0.2
_SILENT_PART = 1 / 2
_PIECE_SECONDS = 0.5
"""So long one piece of a file may take, that nothing else waits behind it for longer."""
_PIECE_BYTES_LEAST = 64 << 10
"""The first ones are not larger: nobody knows the line yet, and what is said waits behind them."""
_PORTIONS_MOST = 1.2
"""Of a file, to one node: what its pages share comes with each portion, and all of it comes once."""
_TOLD_AT_ONCE = 64
_ENVELOPE_BYTES = 1 << 12
_DISBELIEVED_SECONDS = 600.0
"""Else each of its attempts would be lost, and a job may be lost a few times only."""
_MARGIN_SECONDS = 30.0
"""For a node to end what has to end, beside the grace."""
_REST_SECONDS = 30.0
"""Of a node whose disk is full."""
_WRONG_MOST = 3
_QUESTIONS = ("KnownPages", "DocumentPages", "IsCurrent")
"""What a node may ask of the database: what its own job is about."""
_OF_SECRETS = ("CREDENTIAL_ABSENT", "SECRET_ABSENT")
_NODE_LOST = "NODE_LOST"


A = TypeVar("A", bound=calls.Answer)


class Unfit(Exception):
    """It answers, and cannot be one of ours: why."""


class NoRoom(Exception):
    """It cannot write what it is brought."""


class Changed(Exception):
    """A file of ours is not what it was when it was published."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for all nodes of a gateway."""

    house: str
    sandbox: str
    types: tuple[str, ...]
    grace_seconds: float
    patience_seconds: float
    staging_root: Path
    objects: Path
    fit: Mapping[str, Sequence[str]]
    is_shared: bool
    seconds: Mapping[str, int]
    """How long an attempt of each type may take, whose job does not say."""

    @property
    def fence_seconds(self) -> float:
        return self.patience_seconds * FENCE_PART

    @property
    def listen_seconds(self) -> float:
        return min(_LISTEN_SECONDS, self.patience_seconds * _LISTEN_PART)


@dataclass(slots=True)
class Errand:
    """An attempt that is this node's, from when it was placed until it has ended."""

    launch: Launch
    inputs: Mapping[str, Path]
    """By the name that each has there."""
    is_told: bool = False
    """The node may have heard of it."""
    refusal: Ended | None = None
    """How it ends, whatever it says."""
    has_ended: bool = False
    """There; what it publishes is on its way."""
    ends_by: float = math.inf
    """Else nobody ends there what has to end."""

    @property
    def order(self) -> Order:
        return self.launch.order


class Head(Protocol):
    """What a node needs of its gateway."""

    terms: Terms

    def host(self, node: str) -> Handle: ...

    def tell(self, said: bytes, *, is_waited_for: bool = True) -> None:
        """A frame, for the daemon; one that nobody waits for goes soon, with others."""

    def ring(self) -> None:
        """Something has changed."""

    def cuts(self, order: Order) -> bool:
        """Whether what it reads may be cut out of its original."""

    def cut(self, order: Order) -> Path | None:
        """That, in a file of its own, which is removed by whoever gets it. None: its whole inputs are to go."""

    def keeps(self, launch: Launch) -> bool:
        """It needs a secret: it runs on this machine. False: nothing does."""

    @property
    def is_full(self) -> bool:
        """The daemon does not listen."""


class Node:
    def __init__(self, head: Head, name: str, slots: int | None) -> None:
        self.name = name
        self.wish = ""
        self._head = head
        self._slots_said = slots
        self._slots = 0
        self._version = ""
        self._guard = threading.RLock()
        self._errands: dict[Key, Errand] = {}
        self._has = Brought()
        """Whole inputs that lie there, or are on their way."""
        self._in_portions = Brought()
        self._piece_bytes = _PIECE_BYTES_LEAST
        """So much goes there at once, as it went before; of this life of the node, or the last one."""
        self._handle: Handle | None = None
        self._begins: Handle | None = None
        """One that has not answered yet."""
        self._life = ""
        self._heard_at: float | None = None
        self._note = Note(head.terms.staging_root, name)
        self._away_since = boot_clock()
        self._reason = ""
        self._is_refused = False
        self._rests_until = self._refused_until = 0.0
        self._is_closed = False
        self._sent = self._received = 0
        self._pages: deque[tuple[float, int]] = deque()
        self._idle_since = boot_clock()
        self._outbox: queue.SimpleQueue[tuple[Launch | Stop | Reply, str] | None] = queue.SimpleQueue()
        """None: nobody says anything any more."""
        self._carried: queue.SimpleQueue[tuple[str, Callable[[], None]] | None] = queue.SimpleQueue()
        for work in (self._listen, self._speak, self._carry):
            threading.Thread(target=work, name=f"{name}: {work.__name__}", daemon=True).start()

    # --- what the gateway asks ---

    @property
    def is_trusted(self) -> bool:
        """It is this machine, and may say whatever a child may."""
        return self.name == LOCAL

    @property
    def keys(self) -> Sequence[Key]:
        with self._guard:
            return list(self._errands)

    @property
    def idle_seconds(self) -> float:
        """0: it runs something."""
        with self._guard:
            return 0.0 if self._errands else max(boot_clock() - self._idle_since, 1e-3)

    def room(self) -> Room | None:
        """None: nothing new is to go there."""
        with self._guard:
            if self._state() != "up" or boot_clock() < self._rests_until:
                return None
            return Room(self.name, self._slots, len(self._errands), self._has)

    def state(self) -> NodeState:
        with self._guard:
            now, state = boot_clock(), self._state()
            while self._pages and self._pages[0][0] < now - 60:
                self._pages.popleft()
            return NodeState(
                self.name,
                state,
                # Of one that gets nothing new, those that it has taken.
                self._slots if state == "up" and now >= self._rests_until else len(self._errands),
                len(self._errands),
                None if self._heard_at is None else round(now - self._heard_at, 3),
                self._version,
                self._why_not_up(state, now),
                self._sent,
                self._received,
                float(sum(pages for _, pages in self._pages)),
            )

    def _why_not_up(self, state: str, now: float) -> str:
        if state in ("draining", "removed") or (state == "up" and now >= self._rests_until):
            return ""
        begins = self._begins
        return (begins is not None and begins.holds_back()) or self._reason

    def _state(self) -> str:
        if self._is_closed:
            return "removed"
        if self._is_refused:
            return "refused"
        if self._handle is None or not self._life or self._heard_at is None:
            return "down"
        if boot_clock() - self._heard_at > self._head.terms.patience_seconds * _SILENT_PART:
            return "silent"
        return "draining" if self.wish else "up"

    def place(self, launch: Launch, inputs: Mapping[str, Path]) -> None:
        order = launch.order
        with self._guard:
            self._errands[order.key] = Errand(launch, inputs)
            # The daemon knows where it is before the node hears of it.
            self._head.tell(frame(Placed(*order.key, self.name)))
            if self._cut_of(self._errands[order.key]) is None:
                self._is_brought(inputs)
            self._carried.put((self._life, partial(self._bring, order.key)))

    def pass_on(self, message: Stop | Reply) -> None:
        key = (message.job_id, message.fence)
        # Each node is asked whose it is: without its guard, for most are not.
        if key not in self._errands:
            return
        with self._guard:
            errand = self._errands.get(key)
            if errand is None:
                return
            if errand.is_told:
                if isinstance(message, Stop):
                    self._must_end(errand, 0.0)
                self._outbox.put((message, self._life))
            elif isinstance(message, Stop):
                self._end(key, Ended(*key, How.STOPPED, code="NOT_BEGUN", message="it was not begun"))

    def look(self) -> float:
        """By our own clock, whatever calls are waiting for. In how many seconds it may have to be given up."""
        with self._guard:
            silent = 0.0 if self._heard_at is None else boot_clock() - self._heard_at
            left = self._head.terms.patience_seconds - silent
            if self._errands and left < 0:
                self._lose_all(f"node {self.name} was not heard for {silent:.1f} s")
            if self.wish == "remove" and not self._errands and not self._is_closed:
                self.close()
            return left if self._errands else math.inf

    def _must_end(self, errand: Errand, seconds: float) -> None:
        """Within so long, and what it takes to end it."""
        if not errand.has_ended:
            terms = self._head.terms
            margin = terms.grace_seconds + max(_MARGIN_SECONDS, terms.patience_seconds)
            errand.ends_by = min(errand.ends_by, boot_clock() + seconds + margin)

    def close(self) -> threading.Thread:
        """Whoever waits for what it returns knows that nothing of ours runs there any more, or that nobody answers."""
        with self._guard:
            self._is_closed = True
            handle, self._handle = self._handle, None
            self._life = ""
            self._outbox.put(None)
            self._carried.put(None)
        leaving = threading.Thread(target=_leave, args=(handle,), name=f"{self.name}: leaves", daemon=True)
        leaving.start()
        return leaving

    def forget(self) -> None:
        """It runs nothing, and nobody speaks of it any more."""
        self.close()
        self._note.forget()

    # --- the first thread: it listens ---

    def _listen(self) -> None:
        numbers = 0, 0
        while not self._is_closed:
            if (left := self._refused_until - boot_clock()) > 0:
                time.sleep(min(left, 1.0))
                continue
            try:
                if self._handle is None:
                    self._settle()
                    numbers = 0, 0
                numbers = self._hear(*numbers)
            except TimeoutError:
                self._miss("it does not answer")
            except Unfit as error:
                self._refuse(str(error), _AGAIN_SECONDS[1])
            except Garbled as error:
                self._disbelieve(error)
            except Lost as error:
                self._miss(str(error))
            except Exception as error:  # the outermost frame of this thread: whatever an engine raises
                self._miss(f"{type(error).__name__}: {error}"[:1000])
            else:
                continue
            self._head.ring()
            time.sleep(_until_again(boot_clock() - self._away_since))
        self._note.close()

    def _settle(self) -> None:
        terms = self._head.terms
        handle = self._begins = self._head.host(self.name)
        settle = Settle(
            calls.VERSION,
            VERSION,
            terms.house,
            self._slots_said,
            terms.sandbox,
            terms.types,
            terms.grace_seconds,
            terms.fence_seconds,
            str(terms.objects) if self._is_shared else None,
        )
        try:
            settled = self._ask(handle, settle, Settled, timeout=_SETTLE_SECONDS)
            hello = hello_from(settled.hello)
            if settled.version != VERSION:
                raise Unfit(f"it is pagemill {text(settled.version, 40)}, and the head {VERSION}: install the same")
            if settled.slots < 0:
                raise Garbled(f"{settled.slots} slots")
            if terms.sandbox == "strict" and not settled.landlock:
                raise Unfit("its kernel has no Landlock: children cannot be confined there")
            if fault := fault_of(hello, terms.fit):
                raise Unfit(fault)
        except BaseException:
            handle.close()
            raise
        finally:
            self._begins = None
        with self._guard:
            if self._is_closed:
                handle.close()
                raise Lost("we have left it")
            # Whoever says this holds the lock that everything before it held.
            self._lose_all(f"node {self.name} has begun anew")
            self._handle, self._life = handle, settled.life
            self._slots = min(settled.slots, SLOTS_MOST if self._slots_said is None else self._slots_said)
            self._version, self._reason, self._is_refused = settled.version, "", False
            self._is_heard()
        self._head.ring()

    def _hear(self, heard: int, beat: int) -> tuple[int, int]:
        handle, life = self._there(), self._life
        # While the daemon does not listen, its nodes wait with it.
        is_full, wait = self._head.is_full, self._head.terms.listen_seconds
        wait = min(wait, _FULL_SECONDS) if is_full else wait
        listen = Listen(life, heard, beat, wait, takes=not is_full)
        asked_at = time.monotonic()
        answer = self._ask(handle, listen, Heard, timeout=wait + self._patience)
        if answer.life != life:
            # It has ended everything, and begun anew.
            raise Lost("it has begun anew")
        if is_full and answer.happened:
            raise Garbled("it speaks although nobody listens")
        if not answer.happened and time.monotonic() - asked_at < wait / 2:
            # None of ours answers before there is something to say.
            time.sleep(min(wait, _FULL_SECONDS))
        self._is_heard()
        for number, one in enumerate(answer.happened, answer.first):
            if number == heard + 1:
                heard = number
                self._understand(one)
        with self._guard:
            now = boot_clock()
            for errand in self._errands.values():
                if is_full:
                    # It may have ended, and was not to say so.
                    errand.ends_by += time.monotonic() - asked_at
                elif now > errand.ends_by:
                    # It is given up, like one that is silent: it may have children yet.
                    raise Garbled(f"job {errand.order.job_id} does not end there, although it has to")
        return heard, answer.beat

    def _is_heard(self) -> None:
        now = boot_clock()
        # Before it is asked again, by which it knows.
        self._note.write(now)
        self._heard_at = self._away_since = now

    @property
    def _patience(self) -> float:
        return max(_CALL_SECONDS, self._head.terms.patience_seconds)

    @property
    def _is_shared(self) -> bool:
        return self.is_trusted or self._head.terms.is_shared

    def _hang_up(self) -> None:
        with self._guard:
            handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()

    def _miss(self, reason: str) -> None:
        # Where another thread has hung up on it, that was why.
        if boot_clock() >= self._refused_until:
            self._reason = reason
        self._hang_up()

    def _refuse(self, reason: str, seconds: float) -> None:
        self._refused_until = boot_clock() + seconds
        self._is_refused, self._reason = True, text(reason, 1000)
        self._hang_up()
        self._head.ring()

    def _rest(self, reason: str) -> None:
        self._reason, self._rests_until = reason, boot_clock() + _REST_SECONDS

    def _disbelieve(self, error: Exception) -> None:
        self._refuse(f"it says what no node of ours would: {error}", _DISBELIEVED_SECONDS)

    def _ask(self, handle: Handle, call: calls.Call, kind: type[A], *, timeout: float) -> A:
        body = calls.encoded(call)
        said = handle.call(body, timeout=timeout)
        answer = calls.answer_from(said)
        self._sent += len(body)
        self._received += len(said)
        if isinstance(answer, Refused):
            sentence = text(answer.message, 1000)
            if answer.code == "version":
                # It is not what it was.
                self._version = ""
                raise Unfit(sentence)
            if answer.code == "disk":
                raise NoRoom(sentence)
            if answer.code == "garbled":
                raise Garbled(sentence)
            raise Lost(sentence)
        if not isinstance(answer, kind):
            raise Garbled("an answer to something else")
        return answer

    # --- what it says ---

    def _understand(self, one: Happened) -> None:
        with self._guard:
            said, word = from_node(one.body, {key: errand.order for key, errand in self._errands.items()})
            errand = self._errands[word.key]
            if errand.has_ended:
                raise Garbled(f"job {word.job_id} has ended, and goes on")
            if not self.is_trusted and (fault := self._presumes(word)):
                self._stop_presuming(errand, word, fault)
                return
            if isinstance(word, PagesRead):
                self._pages.append((boot_clock(), len(word.pages)))
            if not isinstance(word, Ended) or not isinstance(said, Gone):
                self._head.tell(_passable(frame(word)), is_waited_for=isinstance(word, Asked))
                return
            usage = replace(said.usage, signal=None if said.usage.signal is None else text(said.usage.signal, 40))
            errand.has_ended, errand.ends_by = True, math.inf
            gone = Gone(msgspec.Raw(_passable(encoded(word))), usage, said.took_seconds)
            if errand.refusal is not None:
                self._end(word.key, errand.refusal, usage)
            elif word.code in _OF_SECRETS and not self.is_trusted and self._head.keeps(errand.launch):
                # Nothing has been read: it begins again where the secret is.
                del self._errands[word.key]
            elif word.code == INPUT_GONE:
                self._is_gone(errand.inputs)
                self._end(word.key, word)
            elif word.code == NODE_FULL and not self.is_trusted:
                self._rest(f"its disk is full: {text(word.message, 300)}")
                message = f"node {self.name}: {self._reason}"
                self._end(word.key, Ended(*word.key, How.CRASHED, code=_NODE_LOST, message=message), usage)
            elif word.published:
                self._carried.put((self._life, partial(self._fetch, word, gone, one.files)))
            else:
                self._end(word.key, word, usage, gone)

    def _presumes(self, word: Said) -> str:
        """What no attempt on a node may say, although a child at the head may."""
        if isinstance(word, Asked) and word.kind not in _QUESTIONS:
            return f"ask {text(word.kind, 40)}"
        follow_ups = word.follow_ups if isinstance(word, Ended | Checkpointed) else ()
        if others := sorted({job.job_type for job in follow_ups} - {*self._head.terms.fit}):
            return f"ask for jobs of {text(', '.join(others), 200)}, not among the types of [cluster]"
        if any(job.document is not None for job in follow_ups):
            return "ask for a document to be read"
        if isinstance(word, Checkpointed) and word.crawl is not None:
            return "crawl"
        if isinstance(word, Ended) and (word.publishes or word.document is not None or word.published_again):
            return "publish a document"
        return ""

    def _stop_presuming(self, errand: Errand, word: Said, fault: str) -> None:
        message = f"on a node it may not {fault}: leave {errand.order.job_type} out of the types of [cluster]"
        errand.refusal = errand.refusal or Ended(*word.key, How.PERMANENT, code="NOT_ON_NODES", message=message)
        if isinstance(word, Ended):
            self._end(word.key, errand.refusal)
        else:
            self._must_end(errand, 0.0)
            self._outbox.put((Stop(*word.key, now=True), self._life))

    def _end(self, key: Key, ended: Ended, usage: Usage = Usage(), gone: Gone | None = None) -> bool:  # noqa: B008  frozen
        """False: it has ended otherwise meanwhile."""
        with self._guard:
            if self._errands.pop(key, None) is None:
                return False
            self._idle_since = boot_clock()
            self._head.tell(frame(gone or Gone(msgspec.Raw(encoded(ended)), usage)))
        if self.wish or boot_clock() < self._rests_until:
            # It has fewer slots now.
            self._head.ring()
        return True

    def _lose_all(self, message: str) -> None:
        for key, errand in sorted(self._errands.items()):
            lost = Ended(*key, How.CRASHED, code=_NODE_LOST, message=message)
            # What nobody had told it yet it has not begun.
            begun = errand.is_told
            self._end(key, lost if begun else Ended(*key, How.STOPPED, code="NOT_BEGUN", message=message))
        self._has.clear()
        self._in_portions.clear()
        self._life = ""

    # --- the second thread: it speaks ---

    def _speak(self) -> None:
        number, of_life = 0, ""
        while (first := self._outbox.get()) is not None:
            several = [first]
            while len(several) < _TOLD_AT_ONCE and not self._outbox.empty():
                if (one := self._outbox.get()) is None:
                    return
                several.append(one)
            while mine := [frame(message) for message, life in several if life and life == self._life]:
                life = self._life
                if of_life != life:
                    number, of_life = 0, life
                # Said again after a call of which nothing is known: the numbers tell the node what it has heard.
                try:
                    told = self._ask(
                        self._there(), Tell(life, number + 1, tuple(mine)), calls.Told, timeout=_CALL_SECONDS
                    )
                except Exception:  # said again until its life is over: the first thread finds out why
                    time.sleep(_AGAIN_SECONDS[0])
                    continue
                if told.heard == number + len(mine):
                    number = told.heard
                    break
                time.sleep(_AGAIN_SECONDS[0])

    # --- the third thread: it carries files ---

    def _carry(self) -> None:
        while (carried := self._carried.get()) is not None:
            life, errand = carried
            while life and life == self._life:
                try:
                    errand()
                    break
                except (Lost, TimeoutError):
                    time.sleep(_AGAIN_SECONDS[0])
                except Exception as error:  # the outermost frame of this thread
                    self._disbelieve(error)
                    break

    def _bring(self, key: Key) -> None:
        """The inputs, each once however many attempts read it there; then the order."""
        errand = self._errands.get(key)
        if errand is None:
            return
        try:
            inputs = self._portion_there(errand) or self._inputs_there(errand)
        except NoRoom as error:
            self._rest(f"it takes no file: {error}")
            self._is_gone(errand.inputs)
            self._end(key, Ended(*key, How.STOPPED, code="NOT_BEGUN", message=self._reason))
            return
        except Changed as error:
            message = f"its input is not what was published any more: {error}"
            self._end(key, Ended(*key, How.RETRYABLE, code="FILE_CHANGED", message=message))
            return
        except TimeoutError:
            # It is an OSError, and says nothing of the file.
            raise
        except OSError as error:
            message = f"its input cannot be read: {error.strerror}: {error.filename}"
            self._end(key, Ended(*key, How.RETRYABLE, code="FILE_ABSENT", message=message))
            return
        launch = msgspec.structs.replace(errand.launch, order=replace(errand.order, inputs=inputs))
        with self._guard:
            if self._errands.get(key) is errand:
                errand.is_told = True
                usual = self._head.terms.seconds.get(launch.order.job_type, math.inf)
                self._must_end(errand, launch.order.timeout_seconds or usual)
                self._outbox.put((launch, self._life))

    def _inputs_there(self, errand: Errand) -> Mapping[str, Path]:
        names = {path: name for name, path in errand.inputs.items()}
        for path, name in names.items():
            self._put(name, path)
        self._is_brought(errand.inputs)
        return {role: Path(names.get(path, path)) for role, path in errand.order.inputs.items()}

    def _is_brought(self, inputs: Mapping[str, Path]) -> None:
        with self._guard:
            for name, path in inputs.items():
                # Whoever carries it tells why it cannot be read.
                with contextlib.suppress(OSError):
                    self._has.add(name, path.stat().st_size)

    def _is_gone(self, inputs: Mapping[str, Path]) -> None:
        with self._guard:
            for name in inputs:
                self._has.forget(name)

    def _portion_there(self, errand: Errand) -> Mapping[str, Path] | None:
        """None: the whole files are to go."""
        whole = self._cut_of(errand)
        path = None if whole is None else self._head.cut(errand.order)
        if whole is None or path is None:
            return None
        try:
            size = path.stat().st_size
            if self._in_portions.bytes(whole) + size > errand.inputs[whole].stat().st_size * _PORTIONS_MOST:
                return None
            with path.open("rb") as file:
                first = file.read(self._piece_bytes)
            name = key_of(path, hashlib.sha256(first).hexdigest() if len(first) == size else digest_of(path))
            self._put(name, path, first=first)
            self._in_portions.add(whole, self._in_portions.bytes(whole) + size)
        finally:
            path.unlink(missing_ok=True)
        return {PORTION: Path(name)}

    def _cut_of(self, errand: Errand) -> str | None:
        """The original of which a portion may do; None: there is none, or it lies there, or it is not cut."""
        original = errand.order.inputs.get(ORIGINAL)
        name = next((name for name, path in errand.inputs.items() if path == original), None)
        return None if name is None or name in self._has or not self._head.cuts(errand.order) else name

    def _put(self, name: str, path: Path, *, first: bytes = b"") -> None:
        """`first`: how it begins, if it was made just now, and nobody can have brought it."""
        handle, size = self._there(), path.stat().st_size
        at = 0 if first else self._ask(handle, calls.Has(name, size), There, timeout=_CARRY_SECONDS).bytes
        tries = 0
        if not size:
            # Of no bytes nobody can tell whether they are there.
            self._ask(handle, calls.Put(name, size, 0, b""), There, timeout=_CARRY_SECONDS)
        with path.open("rb") as file:
            while at < size:
                body = b"" if at else first
                if not body:
                    file.seek(at)
                    body = file.read(min(self._piece_bytes, size - at))
                if not body:
                    raise Changed(path)
                began = time.monotonic()
                try:
                    there = self._ask(handle, calls.Put(name, size, at, body), There, timeout=_CARRY_SECONDS).bytes
                finally:
                    self._went(len(body), time.monotonic() - began)
                tries = 0 if there == at + len(body) else tries + 1
                if not 0 <= there <= size or tries > _WRONG_MOST:
                    if key_of(path, digest_of(path)) != name:
                        raise Changed(path)
                    raise Garbled("a file that does not arrive as it was sent")
                at = there

    def _went(self, size: int, seconds: float) -> None:
        # Of a small one most of the time is the way there and back.
        if size >= self._piece_bytes or seconds > _PIECE_SECONDS:
            piece = size * _PIECE_SECONDS / max(seconds, 1e-3)
            self._piece_bytes = int(min(max(piece, _PIECE_BYTES_LEAST), calls.PIECE_BYTES_MAX))

    def _there(self) -> Handle:
        handle = self._handle
        if handle is None:
            raise Lost(self._reason)
        return handle

    def _fetch(self, ended: Ended, gone: Gone, kept: Sequence[Kept]) -> None:
        """What it publishes, into the staging of its attempt; then its end is told."""
        if ended.key not in self._errands:
            return
        place = self._head.terms.staging_root / name_of(ended.key)
        shutil.rmtree(place, ignore_errors=True)
        sizes = {Path(one.path): one for one in kept[: calls.FILES_MOST]}
        try:
            total = sum(one.size for one in sizes.values())
            if total > RESULT_BYTES_MOST or any(one.size < 0 for one in sizes.values()):
                raise Garbled(f"results of more than {RESULT_BYTES_MOST} bytes, or of less than none")
            if total > shutil.disk_usage(place.parent).free * _DISK_PART:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(place))
            for file in ended.published:
                one = sizes.get(file.path)
                if one is None or (file.sha256 and file.sha256 != one.sha256):
                    raise Garbled("a file of which it does not say what it is")
                self._get(ended.key, one, place / file.path)
        except Garbled as error:
            shutil.rmtree(place, ignore_errors=True)
            self._end(ended.key, Ended(*ended.key, How.CRASHED, code=_NODE_LOST, message=f"node {self.name}: {error}"))
            raise
        except NoRoom as error:
            shutil.rmtree(place, ignore_errors=True)
            self._rest(f"it cannot hand over what it has: {error}")
            self._end(ended.key, Ended(*ended.key, How.CRASHED, code=_NODE_LOST, message=self._reason))
            return
        except (Lost, TimeoutError):
            # It is begun anew, if at all.
            shutil.rmtree(place, ignore_errors=True)
            raise
        except OSError as error:
            # No fault of the node's: this machine's disk is full, as a rule.
            shutil.rmtree(place, ignore_errors=True)
            message = f"what it publishes cannot be kept at the head: {error.strerror}: {error.filename}"
            self._end(ended.key, Ended(*ended.key, How.RETRYABLE, code="FILES_NOT_KEPT", message=message))
            return
        handle = self._handle
        if not self._end(ended.key, ended, gone.usage, gone):
            shutil.rmtree(place, ignore_errors=True)
        elif handle is not None:
            with contextlib.suppress(Lost, TimeoutError):
                self._ask(handle, calls.Forget(*ended.key), calls.Told, timeout=_CALL_SECONDS)

    def _get(self, key: Key, one: Kept, to: Path) -> None:
        handle = self._there()
        to.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        hashed, at = hashlib.sha256(), 0
        with to.open("wb") as copy:
            while at < one.size:
                most = min(calls.PIECE_BYTES_MAX, one.size - at)
                body = self._ask(handle, calls.Get(*key, one.path, at, most), calls.Piece, timeout=_CARRY_SECONDS).body
                if len(body) != most:
                    raise Garbled("a file that is not as large as it said")
                copy.write(body)
                hashed.update(body)
                at += len(body)
            copy.flush()
            os.fsync(copy.fileno())
        if hashed.hexdigest() != one.sha256:
            raise Garbled("a file that is not what it said")


def _passable(said: bytes) -> bytes:
    """With its envelope, which is small."""
    if len(said) > RELAY_BYTES_MAX - _ENVELOPE_BYTES:
        raise Garbled(f"{len(said)} bytes at once")
    return said


def _until_again(away_seconds: float) -> float:
    """At once after a loss, then ever more seldom; and many nodes that went together do not come back in one moment."""
    least, most = _AGAIN_SECONDS
    return min(max(away_seconds * _AGAIN_PART, least), most) * random.uniform(0.75, 1.25)


def _leave(handle: Handle | None) -> None:
    if handle is not None:
        with contextlib.suppress(Lost, TimeoutError):
            handle.call(calls.encoded(calls.Leave()), timeout=_LEAVE_SECONDS)
        handle.close()


def fault_of(hello: Hello, fit: Mapping[str, Sequence[str]]) -> str:
    """Why a node cannot run all that is to run on nodes; '': it can."""
    known = {each.described.facts.job_type: each.described for each in hello.handlers}
    for job_type, identity in fit.items():
        found = known.get(job_type)
        if found is None:
            return f"it has no handler for {job_type}: install it there, or leave it out of the types of [cluster]"
        if found.set_aside is not None:
            return f"its handler for {job_type} cannot be used: {text(found.set_aside.strip().splitlines()[-1], 300)}"
        if found.facts.missing is not None:
            return f"{job_type}: {text(found.facts.missing, 300)}"
        if lacking := [one for one in identity if one not in found.identity]:
            return f"{job_type} would give other results, for this is here and not there: {', '.join(lacking)}"
    return ""
