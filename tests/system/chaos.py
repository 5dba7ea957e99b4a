"""A storm: kill and pause processes at random while three producers add jobs; then check that nothing is lost.

`./run chaos --minutes 10 --seed 7` runs it for as long as you like; `test_chaos.py` runs a short one. Real daemons on a
real file. A kind of blow counts when it hit a living process that this run started, looked at through a descriptor of
that process, so that no number that was given anew is ever hit. The seed repeats the choices, though not what the
kernel does in between.

Documents come, change and go meanwhile (chaos_library.py). Two kinds of jobs: `chaos` publishes a file and asks for a
follow-up. `chaos_command` is a program that appends its idempotency key to a file and may do so twice; it takes effect
once in the database.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from tests import fake_distributions as installed
from tests.full_length import short
from tests.kit.system import Daemon, System
from tests.system import chaos_library
from worker_service.base.errors import PagemillError
from worker_service.jobs.job import Job, NewJob, Status
from worker_service.jobs.library import DocumentSelector
from worker_service.jobs.selector import Selector
from worker_service.runner.processes import ATTEMPT, marks_of, pool_id_of, pool_mark
from worker_service.runner.worker_identity import staging_root
from worker_service.store.opening import open_store

KILLS = ("daemon", "child", "fork-server", "all")
PAUSES = ("pause daemon", "pause fork-server", "pause child")
KINDS = (*KILLS, *PAUSES)

ORPHAN_AFTER_SECONDS = 3
SETTINGS: dict[str, object] = {
    "orphan_after": ORPHAN_AFTER_SECONDS,
    "heartbeat_interval": 0.3,
    "recovery_interval": 0.5,
    "concurrency": 3,
    "io_concurrency": 3,
    "grace_period": 5,
}
_LONGEST_PAUSE_SECONDS = ORPHAN_AFTER_SECONDS * 1.5
_WRITE_LOCK_WAIT_MS = int(3 * _LONGEST_PAUSE_SECONDS * 1000)
"""Patience of sqlite3: several paused daemons may hold the write lock one after the other."""
_CALM_SECONDS = 120.0
_JOB_SECONDS = (0, 0.02, 0.2, 0.6)
_RETRIES = 1000
_WAITING_MOST = short(20, full=60)
"""Producers pause while more jobs wait: more would only take longer."""
_PAUSE_SECONDS_MOST = short(1.0, full=0.4)
"""Pause of a producer between two jobs."""
_EXPECTED_FAILURE = "REQUEUED_TOO_OFTEN"

_PROGRAM = """#!/bin/sh
echo "progress: 10 begun"
sleep "$1"
printf '%s\\n' "$PAGEMILL_IDEMPOTENCY_KEY" >>"{keys}"
sleep "$1"
"""


class Storm:
    def __init__(self, system: System, seed: int, *, daemons: int = 2, has_library: bool = False) -> None:
        self.system = system
        self.seed = seed
        self.landed: Counter[str] = Counter()
        self.revived: Counter[str] = Counter()
        """Failed jobs that were retried by hand, by error code."""
        self.faults: list[str] = []
        self.unswept = 0
        """Directories of published files whose attempt never completed."""
        self._exits: Counter[int] = Counter()
        self._random = random.Random(seed)
        self._number = daemons
        self._daemons: list[Daemon] = []
        self._started = 0
        self._pool_ids: set[str] = set()
        self._paused: list[tuple[float, int]] = []
        """Time to resume a process, and its descriptor."""
        self._keys = system.place / "keys"
        self._settings: dict[str, object] = {**SETTINGS, "config": _write_settings(system.place, self._keys)}
        self._library = chaos_library.Library(system, seed) if has_library else None
        if has_library:
            self._settings |= chaos_library.SETTINGS

    def run(self, seconds: float, *, at_least: int, most_seconds: float) -> None:
        """Run for `seconds`, and on until each kind has hit `at_least` times, but no longer than `most_seconds`."""
        began = time.monotonic()
        producers = Producers(self.system, self._settings, self.seed)
        with ExitStack() as stack:
            # Called in the reverse order: a paused daemon may hold the write lock that producers wait for.
            stack.callback(producers.stop)
            stack.callback(self._wake, everything=True)
            producers.start()
            if self._library:
                stack.callback(self._library.stop)
                self._library.start()
            while (passed := time.monotonic() - began) < most_seconds:
                if passed >= seconds and all(self.landed[kind] >= at_least for kind in KINDS):
                    break
                self._replace_dead_daemons()
                self._wake()
                self._hit()
                self._end_waits()
                self._wait(self._random.uniform(0.05, 0.5))
        # The last blow takes all; then there is calm, and one healthy daemon.
        self._kill_all()
        self._settle()
        self.faults += [*producers.faults, *self._examine(producers)]
        if self._library:
            self.faults += self._library.examine()

    # ── Daemons ──

    def _replace_dead_daemons(self) -> None:
        for daemon in list(self._daemons):
            if (code := daemon.process.poll()) is not None:
                self._daemons.remove(daemon)
                self._exits[code] += 1
        while len(self._daemons) < self._number:
            self._begin()
        self._note_pool_ids()

    def _begin(self) -> Daemon:
        daemon = self.system.begin(**self._settings)
        self._daemons.append(daemon)
        self._started += 1
        return daemon

    def _note_pool_ids(self) -> None:
        # By the directories: a daemon that is killed before it could register has one, too.
        with suppress(FileNotFoundError):
            for name in os.listdir(self.system.workspace / "staging"):  # noqa: PTH208  names are all that is needed
                self._pool_ids.add(pool_id_of(staging_root(self.system.workspace, name)))

    # ── Blows ──

    def _hit(self) -> None:
        """Kill or pause a process in one of the ways that have happened least, if there is such a process."""
        kind = self._choose()
        if kind == "all":
            # Seldom while all of them are still starting: else a single daemon would never get to work.
            if self._living_daemons() or self._random.random() < 0.1:
                self.landed[kind] += self._kill_all()
            return
        victims = {"daemon": self._living_daemons, "fork-server": self._fork_servers, "child": self._children}
        found = victims[kind.rpartition(" ")[2]]()
        if not found:
            return
        victim = self._random.choice(found)
        if kind in KILLS:
            self.landed[kind] += _send([victim], signal.SIGKILL) == 1
        else:
            self.landed[kind] += self._pause(victim)

    def _choose(self) -> str:
        rarest = min(self.landed[kind] for kind in KINDS)
        return self._random.choice([kind for kind in KINDS if self.landed[kind] == rarest])

    def _living_daemons(self) -> list[int]:
        # Registered, so that it may own something.
        return [d.pid for d in self._daemons if d.process.poll() is None and "daemon.started" in d.log.read_text()]

    def _fork_servers(self) -> list[int]:
        return [pid for daemon in self._daemons if daemon.process.poll() is None for pid in _children_of(daemon.pid)]

    def _children(self) -> list[int]:
        return [
            pid
            for fork_server in self._fork_servers()
            for pid in _children_of(fork_server)
            if _is_child(pid, self._pool_ids)
        ]

    def _kill_all(self) -> bool:
        """Kill all daemons with their processes. Processes that have left the tree are found by their marks."""
        self._note_pool_ids()
        daemons = [daemon.pid for daemon in self._daemons if daemon.process.poll() is None]
        trees = [pid for daemon in daemons for pid in (daemon, *_tree(daemon))]
        marked = [pid for pid in _pids() if _is_child(pid, self._pool_ids)]
        landed = _send(list(dict.fromkeys([*trees, *marked])), signal.SIGKILL)
        for daemon in self._daemons:
            daemon.process.wait(10)
        return bool(daemons) and landed > len(daemons)

    def _pause(self, victim: int) -> bool:
        seconds = self._random.choice([0.05, 0.3, 1.0, _LONGEST_PAUSE_SECONDS])
        with suppress(OSError):
            fd = os.pidfd_open(victim)
            self._paused.append((time.monotonic() + seconds, fd))
            signal.pidfd_send_signal(fd, signal.SIGSTOP)
            return True
        return False

    def _wake(self, *, everything: bool = False) -> None:
        now = time.monotonic()
        for due_at, fd in list(self._paused):
            if everything or now >= due_at:
                self._paused.remove((due_at, fd))
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, signal.SIGCONT)
                os.close(fd)

    def _wait(self, seconds: float) -> None:
        # A storm has gusts: this length is chosen at random, and nothing depends on it.
        time.sleep(seconds)

    # ── A person at the shell, who makes due what waits for its next attempt ──

    def _end_waits(self) -> None:
        self.system.sqlite3(
            "UPDATE worker_job_queue SET run_at = '2020-01-01' WHERE status = 'pending' AND run_at > '2020-01-02'"
        )

    # ── Calm ──

    def _settle(self) -> None:
        healthy = self._begin()

        def is_quiet() -> bool:
            self._end_waits()
            failed = self._failed()
            for job in failed:
                # Capped, as promised (P6). A person's wish brings it back, and then it must complete.
                self.revived[str(job.error_code)] += 1
                if job.error_code != _EXPECTED_FAILURE:
                    self.faults.append(f"job {job.id} ({job.job_type}) failed: {job.error_code}: {job.error_message}")
            self.system.store.job_control.retry(Selector(statuses=(Status.FAILED,)), actor="chaos")
            counts = self.system.store.overview.counts().by_status
            has_live = failed or any(counts.get(status) for status in (Status.PENDING, Status.RUNNING))
            return not has_live and (self._library is None or self._library.is_embedded())

        if not _within(_CALM_SECONDS, is_quiet):
            counts = self.system.store.overview.counts().by_status
            self.faults.append(f"not all jobs have ended {_CALM_SECONDS:g} s after the storm: {counts}")
            self.faults += [f"why job {job.id} waits: {self._why(job)}" for job in self._jobs(Status.PENDING)[:5]]
        self._note_pool_ids()
        healthy.wait_for("daemon.started")
        healthy.signal(signal.SIGTERM)
        code = healthy.wait_for_exit()
        if code != 0:
            self.faults.append(f"the healthy daemon ended with exit code {code}")

    def _failed(self) -> list[Job]:
        """Return failed jobs, without readings of documents that were removed or are read again since."""
        documents = self.system.store.library.documents(DocumentSelector(), most=1000)
        newest = {document.id: document.index_generation for document in documents}
        return [
            job
            for job in self._jobs(Status.FAILED)
            if job.document_id is None or newest.get(job.document_id) == job.generation
        ]

    def _why(self, job: Job) -> str:
        gates = "; ".join(f"{gate.code} {gate.detail}" for gate in self.system.store.gates.explain(job.id))
        return gates or "no gate"

    def _jobs(self, *statuses: Status) -> list[Job]:
        return list(self.system.store.job_queries.list(Selector(statuses=statuses), most=1_000_000))

    # ── The final check ──

    def _examine(self, producers: Producers) -> Iterator[str]:
        jobs = {job.id: job for job in self._jobs()}
        acknowledged = producers.acknowledged
        yield from (f"job {job_id} was acknowledged and is lost" for job_id in acknowledged if job_id not in jobs)
        if len(acknowledged) != len(set(acknowledged)):
            yield "an id was acknowledged twice"
        followers = Counter(job.parent_id for job in jobs.values() if job.parent_id is not None)
        keys = Counter(self._keys.read_text().splitlines() if self._keys.exists() else [])
        yield from (f"the program ran for {key}, which is no job" for key in keys if not _is_command(jobs, key))
        # The library's jobs are judged by its documents: a newer reading cancels an older one.
        for job in jobs.values():
            if job.job_type.startswith("chaos"):
                yield from self._examine_one(job, followers[job.id], keys[str(job.id)])
        yield from map(str, self.system.store.integrity.audit())
        for log in sorted(self.system.place.glob("daemon-*.log")):
            lines = [line for line in log.read_text().splitlines() if '"daemon.failed"' in line]
            yield from (f"{log.name}: {line[:2000]}" for line in lines[:3])
        yield from (
            f"{check.name}: {check.detail}"
            for check in self.system.store.integrity.check()
            if check.name == "integrity" and not check.is_good
        )
        yield from (f"process {pid} was left behind: {_words_of(pid)}" for pid in self._left())

    def _examine_one(self, job: Job, followers: int, runs: int) -> Iterator[str]:
        about = f"job {job.id} ({job.job_type}, fence {job.fence})"
        outcomes = [attempt.outcome for attempt in self.system.store.history.attempts(job.id)]
        if job.status is not Status.COMPLETED:
            yield f"{about} is {job.status}: {job.error_code}: {outcomes}"
            return
        if outcomes.count("completed") != 1 or outcomes[-1] != "completed":
            yield f"{about} has the outcomes {outcomes}"
        if followers != (job.job_type == "chaos"):
            yield f"{about} has {followers} follow-ups"
        if job.job_type == "chaos":
            published = self.system.workspace / "objects" / f"{job.id}-{job.fence}" / "page.txt"
            if not published.exists() or published.read_text() != str(job.id):
                yield f"{about} has not published its file"
            superseded = {path.name for path in published.parent.parent.glob(f"{job.id}-*")} - {published.parent.name}
            # Read by nobody: moved just before the kill that kept the completion from landing. A chore's to sweep.
            self.unswept += len(superseded)
        if job.job_type == "chaos_command":
            if not runs:
                yield f"{about} is completed, and its program never came to its end"
            if json.loads(job.result or "null") != {"exit_code": 0}:
                yield f"{about} has the result {job.result}"

    def _left(self) -> list[int]:
        """Return processes that belong to an attempt of this run or work in its directories."""
        # What was just stopped may take a moment to go.
        _within(5.0, lambda: not self._living())
        return self._living()

    def _living(self) -> list[int]:
        place = os.fsencode(self.system.place.resolve())
        return [
            pid
            for pid in _pids()
            if _is_child(pid, self._pool_ids)
            or (place in _read(pid, "environ") and f"{ATTEMPT}=".encode() in _read(pid, "environ"))
            or _works_in(pid, self.system.workspace)
        ]

    def summary(self) -> str:
        landed = ", ".join(f"{kind} {self.landed[kind]}" for kind in KINDS)
        counts = {
            str(status): number for status, number in self.system.store.overview.counts().by_status.items() if number
        }
        attempts = sum(job.fence for job in self._jobs())
        return (
            f"landed: {landed}\n"
            f"daemons started: {self._started}, exit codes: {dict(self._exits)}\n"
            f"jobs: {counts}, {attempts} attempts, brought back by hand: {dict(self.revived)},"
            f" directories to sweep: {self.unswept}" + (f"\nlibrary: {self._library.counts}" if self._library else "")
        )


class Producers:
    """Threads that add jobs by the Python API, the command line, and the sqlite3 program."""

    def __init__(self, system: System, settings: dict[str, object], seed: int) -> None:
        self._system = system
        self._environment = system.environment(**settings)
        self._stopping = threading.Event()
        self._job_ids: dict[str, list[int]] = {"api": [], "cli": [], "sqlite3": []}
        self._refused: list[str] = []
        makers = {"api": self._by_api, "cli": self._by_cli, "sqlite3": self._by_sqlite3}
        self._threads = [
            threading.Thread(target=self._produce, args=(name, make, random.Random(f"{seed} {name}")), name=name)
            for name, make in makers.items()
        ]

    @property
    def acknowledged(self) -> list[int]:
        return [job_id for ids in self._job_ids.values() for job_id in ids]

    @property
    def faults(self) -> list[str]:
        silent = [f"no job came in by {name}" for name, ids in self._job_ids.items() if not ids]
        return [*self._refused, *silent]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _produce(self, name: str, make: Callable[[str, str], int], generator: random.Random) -> None:
        while not self._stopping.wait(generator.uniform(0.02, _PAUSE_SECONDS_MOST)):
            payload = json.dumps({"seconds": generator.choice(_JOB_SECONDS)})
            try:
                if self._waiting() <= _WAITING_MOST:
                    self._job_ids[name].append(make(generator.choice(["chaos", "chaos_command"]), payload))
            except (PagemillError, subprocess.SubprocessError, ValueError) as error:
                self._refused.append(f"{name} was refused: {error}")

    def _waiting(self) -> int:
        with closing(open_store(self._system.database)) as store:
            return store.job_queries.count(Selector(statuses=(Status.PENDING,)))

    def _by_api(self, job_type: str, payload: str) -> int:
        with closing(open_store(self._system.database)) as store:
            return store.intake.enqueue(NewJob(job_type, payload=payload, max_retries=_RETRIES)).job_id

    def _by_cli(self, job_type: str, payload: str) -> int:
        words = ["enqueue", job_type, "--payload", payload, "--max-retries", str(_RETRIES)]
        done = subprocess.run(
            [sys.executable, "-m", "worker_service.cli", *words],
            cwd=self._system.place,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode != 0:
            raise ValueError(f"exit code {done.returncode}: {done.stderr.strip()}")
        return int(done.stdout)

    def _by_sqlite3(self, job_type: str, payload: str) -> int:
        done = self._system.sqlite3(
            "INSERT INTO worker_job_queue (job_type, platform, payload, max_retries)"
            f" VALUES ('{job_type}', 'local', '{payload}', {_RETRIES}); SELECT last_insert_rowid()",
            timeout=_WRITE_LOCK_WAIT_MS,
        )
        if done.returncode != 0:
            raise ValueError(f"exit code {done.returncode}: {done.stderr.strip()}")
        return int(done.stdout)


# ── Processes ──


def _send(pids: Sequence[int], number: signal.Signals) -> int:
    """Return how many processes got the signal. Open all descriptors first, so that the signals are close together."""
    held: list[int] = []
    for pid in pids:
        with suppress(OSError):
            held.append(os.pidfd_open(pid))
    landed = 0
    for fd in held:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, number)
            landed += 1
        os.close(fd)
    return landed


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208  names are all that is needed


def _children_of(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _tree(pid: int) -> list[int]:
    return [descendant for child in _children_of(pid) for descendant in (child, *_tree(child))]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _is_child(pid: int, pool_ids: set[str]) -> bool:
    """Whether this process is marked as one that works for an attempt of this run."""
    return marks_of(pid).pool in map(pool_mark, pool_ids)


def _works_in(pid: int, folder: Path) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/cwd").startswith(f"{folder.resolve()}/")  # noqa: PTH115  it may be gone
    except OSError:
        return False


def _words_of(pid: int) -> str:
    return _read(pid, "cmdline").replace(b"\0", b" ").decode("utf-8", "replace").strip()


def _is_command(jobs: dict[int, Job], key: str) -> bool:
    return key.isdigit() and int(key) in jobs and jobs[int(key)].job_type == "chaos_command"


def _within(seconds: float, is_so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            return False
        # Seldom: some conditions start a program or read all of /proc.
        time.sleep(0.1)
    return True


def _write_settings(place: Path, keys: Path) -> Path:
    program = place / "append"
    program.write_text(_PROGRAM.format(keys=keys))
    program.chmod(0o755)
    settings = place / "chaos.toml"
    argv = json.dumps([str(program), "{payload.seconds}"])
    settings.write_text(f'[commands.chaos_command]\nargv = {argv}\ntimeout = "60s"\n')
    return settings


# ── ./run chaos ──


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./run chaos", description="Kill everything at random; then check that nothing is lost."
    )
    parser.add_argument("--minutes", type=float, default=2.0, help="how long to rage; 2 unless given")
    parser.add_argument("--seed", type=int, default=None, help="repeat the choices of an earlier run")
    parser.add_argument("--daemons", type=int, default=2, choices=(1, 2), help="that share the file; 2 unless given")
    parser.add_argument("--at-least", type=int, default=20, help="how often each kind must land; 20 unless given")
    given = parser.parse_args()
    seed = random.randrange(1 << 32) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        # Whoever stops it early leaves no daemons behind either.
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    place = Path(tempfile.mkdtemp(prefix="pagemill-chaos-"))
    system = System(place, shipped=installed.shipped())
    storm = Storm(system, seed, daemons=given.daemons, has_library=True)
    try:
        began, seconds = time.monotonic(), given.minutes * 60
        storm.run(seconds, at_least=given.at_least, most_seconds=seconds)
        print(f"{storm.summary()}, {time.monotonic() - began:.0f} s")
        seldom = [kind for kind in KINDS if storm.landed[kind] < given.at_least]
        faults = [*storm.faults, *(f"{kind} landed {storm.landed[kind]} times only" for kind in seldom)]
    finally:
        system.close()
    for fault in faults:
        print(f"FAULT: {fault}")
    if faults:
        print(f"the database and the logs are kept in {place}")
        return 1
    shutil.rmtree(place)
    print("every acknowledged job took effect once; no promise is broken; nothing is left behind")
    return 0


if __name__ == "__main__":
    sys.exit(main())
