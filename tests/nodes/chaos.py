"""The storm over machines: power, network, disks, agents, gateway and daemons fail at random while jobs come in.

`./run chaos --nodes --minutes 10 --seed 7`, as root: six machines behind a real ssh, see `lab`, and two daemons on a
file, of which one has the nodes at a time. The books are those of `tests.system.chaos`, and two more: what was lost on
a node was gone there before the head gave it up, so that no job ever ran twice at once; and when the head has gone
nothing of it is left on any machine.

With `--one-by-one` each fault waits until all machines work again after the one before, so that what it costs is its
own; `--one-by-one gateway daemon` are these alone. `--in-pairs` loses a machine, and hits the head within the patience.
`--machines 2` leaves more to each of them: they all begin on this one.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median

from tests.nodes.lab import DISK, Lab, Machine, reason_against
from tests.system.chaos import Producers, Storm, _children_of, _send, _within, _words_of, main
from tests.system.conftest import System
from worker_service.children.processes import started_at
from worker_service.clock import as_text, from_text

PATIENCE_SECONDS = 9.0
"""Unless somebody says otherwise."""
LONG_SECONDS = (12.0, 20.0)
"""Beyond the patience."""
SHORT_SECONDS = (0.5, 5.0)
_LOOK_SECONDS = 0.05
_LEFT_SECONDS = 20.0
_THAW_SECONDS = 3.0
"""Who was frozen cannot have ended anything, and does so as soon as it goes on."""

OF_MACHINES: dict[str, tuple[float, float]] = {
    "power cut": LONG_SECONDS,
    "power dip": SHORT_SECONDS,
    "cut": LONG_SECONDS,
    "short cut": SHORT_SECONDS,
    "one-way cut": LONG_SECONDS,
    "bad wire": (5.0, 15.0),
    "frozen machine": LONG_SECONDS,
    "frozen agent": LONG_SECONDS,
    "full disk": (5.0, 15.0),
}
"""And for how long."""
OF_PROCESSES = ("agent", "child", "gateway", "daemon", "all")

OF_THE_HEAD = ("gateway", "daemon", "all")
_BY_TIME = "was not heard for"
"""So says an attempt that patience alone has proven gone."""

Process = tuple[str, int, int]
"""The machine, the number that it has there, and when it began, in ticks of the kernel: as the attempt's row has it."""


@dataclass(slots=True)
class Blow:
    at: float
    kind: str
    machine: str | None = None
    running: Sequence[Process] = ()
    """What worked there."""
    until: float = math.inf
    """When it was over."""


class NodeStorm(Storm):
    kinds = (*OF_MACHINES, *OF_PROCESSES)
    lengths = (0.02, 0.6, 2.0, 4.0)
    machines = 6
    shipped = ("command",)
    slots = 1
    """Of each machine."""
    types: Sequence[str] = ("chaos", "fetch")
    """That run on nodes."""
    disk: Sequence[str] = (f"mount -t tmpfs -o size=64m tmpfs {DISK}/state",)
    """How a machine gets one that can be filled."""

    def __init__(self, system: System, seed: int, *, daemons: int = 2) -> None:
        super().__init__(system, seed, daemons=daemons)
        self._lab = Lab(system.place)
        system.before = self._lab.head
        names = [f"n{number + 1}" for number in range(self.machines)]
        config = Path(str(self._settings["config"]))
        engine = f"ssh:{','.join(f'{name}*{self.slots}' for name in names)},local*0"
        config.write_text(f'{config.read_text()}[cluster]\nengine = "{engine}"\ntypes = {[*self.types]}\n')
        for name in names:
            self._lab.add(name, wire=True, more=self.disk)
        self._undo: dict[str, tuple[float, Callable[[], None]]] = {}
        """By machine: when its fault ends, and how."""
        self._blows: list[Blow] = []
        self._watch = Watch(self._lab.machines.values())

    def run(self, seconds: float, *, at_least: int, most_seconds: float) -> None:
        with self._watch:
            super().run(seconds, at_least=at_least, most_seconds=most_seconds)

    def close(self) -> None:
        self._lab.close()

    # ── Blows ──

    def _hit(self) -> None:
        self._deal(self._choose())

    def _deal(self, kind: str) -> None:
        if kind in OF_MACHINES:
            self._strike(kind)
        elif kind in ("agent", "child"):
            self._kill_on_a_machine(kind)
        elif kind == "all":
            self.landed[kind] += self._kill_all()
        else:
            found = self._living_daemons() if kind == "daemon" else self._gateways()
            if found:
                self._note(kind)
                self.landed[kind] += _send([self._random.choice(found)], signal.SIGKILL)

    def _strike(self, kind: str) -> None:
        well = [machine for name, machine in self._lab.machines.items() if name not in self._undo]
        # One stays well more often than not: else nothing would ever get done.
        if not well or (len(well) == 1 and self._random.random() < 0.8):
            return
        machine = self._random.choice(well)
        self._note(kind, machine)
        undo: Callable[[], None] = machine.good_wire
        if kind.startswith("power"):
            machine.power_off()
            undo = machine.power_on
        elif kind.endswith("cut") and "way" not in kind:
            machine.cut()
            undo = machine.heal
        elif kind == "one-way cut":
            machine.is_bad(**{self._random.choice(["loss_in", "loss_out"]): 1.0})
        elif kind == "bad wire":
            loss = self._random.choice([0.01, 0.1, 0.3])
            machine.is_bad(delay=self._random.choice([0.0, 0.1]), loss_in=loss, loss_out=loss)
        elif kind.startswith("frozen"):
            pids = machine.agents() if "agent" in kind else machine.pids()
            if not pids:
                self._blows.pop()
                return
            self._watch.is_frozen(machine)
            machine.signal(signal.SIGSTOP, pids)
            undo = machine.resume
        else:
            full = Path(f"/proc/{machine.init}/root{DISK}/state/full")
            with suppress(OSError), full.open("wb") as file:
                while True:
                    file.write(bytes(1 << 20))
            undo = _Remove(full)
        self.landed[kind] += 1
        self._undo[machine.name] = (time.monotonic() + self._random.uniform(*OF_MACHINES[kind]), undo)

    def _kill_on_a_machine(self, kind: str) -> None:
        found = {
            pid: machine
            for name, machine in self._lab.machines.items()
            if name not in self._undo
            for pid in (machine.agents() if kind == "agent" else machine.children())
        }
        if found:
            pid = self._random.choice(sorted(found))
            self._note(kind, found[pid])
            self.landed[kind] += _send([pid], signal.SIGKILL)

    def _kill_all(self) -> bool:
        # The last one ends the storm.
        self._note("all")
        return super()._kill_all()

    def _gateways(self) -> list[int]:
        of_daemons = [pid for daemon in self._living_daemons() for pid in _children_of(daemon)]
        return [pid for pid in of_daemons if "nodes.gateway" in _words_of(pid)]

    def _note(self, kind: str, machine: Machine | None = None) -> None:
        running = () if machine is None else tuple(children_on(machine))
        at = _now()
        until = math.inf if kind in OF_MACHINES else at
        self._blows.append(Blow(at, kind, None if machine is None else machine.name, running, until))

    def _wake(self, *, everything: bool = False) -> None:
        super()._wake(everything=everything)
        now = time.monotonic()
        for name, (due_at, undo) in list(self._undo.items()):
            if everything or now >= due_at:
                del self._undo[name]
                undo()
                self._watch.goes_on(self._lab.machines[name])
                for blow in self._blows:
                    if blow.machine == name:
                        blow.until = min(blow.until, _now())

    def _wait(self, seconds: float) -> None:
        super()._wait(seconds * 4)

    # ── The books ──

    def _examine(self, producers: Producers) -> Iterator[str]:
        yield from super()._examine(producers)
        yield from self._examine_nodes()

    def _examine_nodes(self) -> Iterator[str]:
        self._ends: dict[Process, float] = {}
        self._margins: dict[bool, list[float]] = {True: [], False: []}
        """How long before its end each was gone; True: of those that time alone has ended."""
        lost = [a for job in self._jobs() for a in self.system.store.reading.attempts(job.id) if a.node is not None]
        for attempt in lost:
            about = f"attempt {attempt.job_id}-{attempt.fence} ({attempt.outcome} {attempt.error_code}, {attempt.node})"
            if attempt.ended_at is None:
                yield f"{about} has no end"
                continue
            if attempt.pid is None or attempt.pid_started is None:
                continue
            child = str(attempt.node), attempt.pid, attempt.pid_started
            self._ends[child] = from_text(attempt.ended_at).timestamp()
            if attempt.outcome != "completed" and child in self._watch.seen:
                margin = self._ends[child] - self._watch.seen[child]
                self._margins[_BY_TIME in (attempt.error_message or "")].append(margin)
                if margin < 0:
                    yield f"{about} lived {-margin:.3f} s longer than the head thought"
        self._starts = sorted(from_text(attempt.started_at).timestamp() for attempt in lost)
        for machine in self._lab.machines.values():
            if not _within(_LEFT_SECONDS, partial(_is_clear, machine)):
                left = [_words_of(pid) for pid in machine.pids()]
                yield f"left on {machine.name}: {left}"

    def _living(self) -> list[int]:
        # What is on the machines is theirs, and looked at above.
        there = {pid for machine in self._lab.machines.values() for pid in machine.pids()}
        return [pid for pid in super()._living() if pid not in there]

    def summary(self) -> str:
        lines = [f"{sum(self.landed.values())} faults over {self.machines} machines", super().summary()]
        for kind in dict.fromkeys((*self.kinds, *(blow.kind for blow in self._blows))):
            after = self.works_again if kind in OF_THE_HEAD else self.moved
            alone, others = after([blow for blow in self._blows if blow.kind == kind])
            what = "works again" if kind in OF_THE_HEAD else "what ran there had ended"
            lines.append(f"{kind}: {what} after {_spread(alone)}; where more came meanwhile, {_spread(others)}")
        for how, margins in (("by time", self._margins[True]), ("by a proof", self._margins[False])):
            lines.append(f"gone on the node before the head gave it up, {how}: {_spread(margins)}")
        return "\n".join(lines)

    def moved(self, blows: Iterable[Blow]) -> tuple[list[float], list[float]]:
        """After how long what ran there had ended, as the head sees it; and where the head was hit meanwhile. What was
        frozen may have ended before."""
        found = [(blow, self._ends[one]) for blow in blows for one in blow.running if one in self._ends]
        return _parted([(blow.at, at, not self._is_head_hit(blow, at)) for blow, at in found if at > blow.at])

    def works_again(self, blows: Iterable[Blow]) -> tuple[list[float], list[float]]:
        """After how long the next attempt began on a node; and where the head was hit again before, or no machine was
        well all the time, so that none could."""
        found = [(blow, next((start for start in self._starts if start > blow.at), None)) for blow in blows]
        return _parted([(blow.at, at, self._is_alone(blow, at)) for blow, at in found if at is not None])

    def _is_alone(self, blow: Blow, after: float) -> bool:
        hit = {one.machine for one in self._blows if one.at < after and one.until > blow.at}
        return not self._is_head_hit(blow, after) and not hit >= {*self._lab.machines}

    def _is_head_hit(self, blow: Blow, after: float) -> bool:
        return any(one.kind in OF_THE_HEAD and blow.at < one.at < after for one in self._blows)


class OneByOne(NodeStorm):
    """Each fault begins when all machines work again after the one before."""

    def _hit(self) -> None:
        if self._is_calm():
            super()._hit()

    def _is_calm(self) -> bool:
        if self._undo or len(self._living_daemons()) < self._number:
            return False
        last = max((max(one.at, one.until) for one in self._blows), default=0.0)
        since = as_text(datetime.fromtimestamp(last, UTC))
        begun = f"SELECT count(DISTINCT node) FROM worker_job_attempt WHERE started_at > '{since}'"
        return self.system.sqlite3(begun).stdout.strip() == str(self.machines)

    def _wait(self, seconds: float) -> None:
        # What has died is replaced at once.
        time.sleep(seconds / 4)


class InPairs(OneByOne):
    """A machine is lost, and within the patience the head is hit as well."""

    kinds = tuple(kind for kind, seconds in OF_MACHINES.items() if seconds == LONG_SECONDS)
    _again_at = math.inf

    def _hit(self) -> None:
        if time.monotonic() >= self._again_at:
            self._again_at = math.inf
            self._deal(self._random.choice(OF_THE_HEAD))
        elif self._again_at == math.inf and self._is_calm():
            self._deal(self._choose())
            self._again_at = time.monotonic() + self._random.uniform(0.0, PATIENCE_SECONDS)


def _parted(found: Iterable[tuple[float, float, bool]]) -> tuple[list[float], list[float]]:
    alone, others = list[float](), list[float]()
    for begin, end, is_alone in found:
        (alone if is_alone else others).append(end - begin)
    return alone, others


def _is_clear(machine: Machine) -> bool:
    return not machine.agents() and not machine.children()


class _Remove:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self) -> None:
        with suppress(OSError):
            self._path.unlink()


class Watch:
    """Who works where, looked at all the time."""

    def __init__(self, machines: Iterable[Machine]) -> None:
        self._machines = list(machines)
        self._frozen: dict[str, float] = {}
        """Until when what is there does not count."""
        self.seen: dict[Process, float] = {}
        """When each was seen last."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watch")

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def is_frozen(self, machine: Machine) -> None:
        self._frozen[machine.name] = float("inf")

    def goes_on(self, machine: Machine) -> None:
        if machine.name in self._frozen:
            self._frozen[machine.name] = time.monotonic() + _THAW_SECONDS

    def _look(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            for machine in self._machines:
                at = _now()
                found = children_on(machine)
                if time.monotonic() >= self._frozen.get(machine.name, 0.0):
                    self.seen.update(dict.fromkeys(found, at))


def children_on(machine: Machine) -> list[Process]:
    found = []
    for pid in machine.children():
        with suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            found.append((machine.name, int(status.partition("NSpid:")[2].split("\n")[0].split()[-1]), started_at(pid)))
    return found


def _now() -> float:
    return datetime.now(UTC).timestamp()


def _spread(figures: Sequence[float]) -> str:
    if not figures:
        return "never"
    return f"{median(figures):.2f} ({min(figures):.2f}–{max(figures):.2f}) s, {len(figures)} times"


if __name__ == "__main__":
    if (reason := reason_against()) is not None:
        sys.exit(f"no lab of machines here: {reason}")
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--one-by-one", nargs="*", choices=NodeStorm.kinds, metavar="KIND")
    parser.add_argument("--in-pairs", action="store_true")
    parser.add_argument("--machines", type=int, default=NodeStorm.machines)
    given, rest = parser.parse_known_args()
    storm = InPairs if given.in_pairs else NodeStorm if given.one_by_one is None else OneByOne
    NodeStorm.machines = given.machines
    OneByOne.kinds = given.one_by_one or OneByOne.kinds
    sys.exit(main(rest, kind_of_storm=storm))
