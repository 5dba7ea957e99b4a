"""Random faults of a Ray cluster while jobs run: `./run chaos --cluster --minutes 10 --seed 7`, as root.

Two machines with a network namespace each, Ray's head and a daemon. Each fault hits something that runs; what it
broke is healed or started again. At the end every job has taken effect once, without a retry spent, and no process of
an attempt is left on any machine.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median

from tests.cluster.conftest import ClusterSystem, made_lab
from tests.cluster.ray_lab import HEAD, NetworkLab, is_alive, parent_of, reason_against
from tests.kit.system import Daemon, System, wait_until
from worker_service.jobs.job import Job, Status
from worker_service.jobs.selector import Selector

LONG_SECONDS, SHORT_SECONDS = 12.0, 3.0
_SETTLE_SECONDS = 180.0
_WAITING_MAX = 8
_EXPECTED_FAILURE = "REQUEUED_TOO_OFTEN"


class ClusterStorm:
    def __init__(self, cluster: ClusterSystem, lab: NetworkLab, seed: int) -> None:
        self._cluster, self._system, self._lab = cluster, cluster.system, lab
        self._random = random.Random(seed)
        self._daemon: Daemon = cluster.start()
        self._jobs: list[int] = []
        self.hits: Counter[str] = Counter()
        self.revived = 0
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)
        self.kinds: dict[str, Callable[[int, str], None]] = {
            "Ray worker": lambda pid, machine: self._kill(parents=2, pid=pid),
            "fork server": lambda pid, machine: self._kill(parents=1, pid=pid),
            "child": lambda pid, machine: self._kill(parents=0, pid=pid),
            "raylet": self._kill_raylet,
            "machine": self._restart_machine,
            "frozen machine": self._freeze,
            "cut": lambda pid, machine: self._cut(machine, LONG_SECONDS),
            "short cut": lambda pid, machine: self._cut(machine, SHORT_SECONDS),
            "GCS": self._kill_gcs,
            "driver": self._kill_driver,
            "daemon": self._kill_daemon,
        }

    def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until or not self.hits:
            self._refill()
            kind = self._random.choice([*self.kinds])
            attempt = self._running()
            if attempt is None:
                time.sleep(0.1)
                continue
            job, attempts, pid, machine = attempt
            begun = time.monotonic()
            self.kinds[kind](pid, machine)
            self.hits[kind] += 1
            self._wait_until_it_runs_again(kind, job, attempts, begun)
        self._settle()

    def faults(self) -> Iterator[str]:
        """Yield what is wrong after the storm."""
        for job in self._jobs:
            outcomes = self._system.outcomes(job)
            if outcomes.count("completed") != 1:
                yield f"job {job} ended {outcomes}"
        yield from map(str, self._system.store.integrity.audit())
        with suppress(Exception):
            wait_until(lambda: not self._cluster.attempt_processes(), "no process is left", seconds=60)
        yield from (f"process {pid} is left" for pid in self._cluster.attempt_processes())

    def summary(self) -> str:
        lines = [f"{self.hits.total()} faults, {len(self._jobs)} jobs, {self.revived} failed {_EXPECTED_FAILURE}"]
        for kind, figures in self._seconds.items():
            spread = f"{median(figures):.1f} ({min(figures):.1f}-{max(figures):.1f}) s"
            lines.append(f"{kind}: {self.hits[kind]} times; the job runs again after {spread}")
        return "\n".join(lines)

    # ── Jobs ──

    def _refill(self) -> None:
        while self._system.store.job_queries.count(Selector(statuses=(Status.PENDING, Status.RUNNING))) < _WAITING_MAX:
            self._jobs.append(self._system.enqueue("sleep", seconds=self._random.choice((0.1, 3, 20))))
        for job in self._with_status(Status.FAILED):
            if job.error_code == _EXPECTED_FAILURE:
                self.revived += 1
            self._system.store.job_control.retry(Selector(ids=(job.id,)), actor="chaos")

    def _with_status(self, status: Status) -> list[Job]:
        return list(self._system.store.job_queries.list(Selector(statuses=(status,)), most=1000))

    def _running(self) -> tuple[int, int, int, str] | None:
        """Return a running job, how many attempts it has had, its child and its machine."""
        running = [job.id for job in self._with_status(Status.RUNNING)]
        self._random.shuffle(running)
        for job in running:
            attempts = self._system.store.history.attempts(job)
            pid = attempts[-1].pid
            if pid is not None and is_alive(pid):
                machine = next((name for name in self._lab.machines if pid in self._lab.pids(name)), "")
                if machine:
                    return job, len(attempts), pid, machine
        return None

    def _wait_until_it_runs_again(self, kind: str, job: int, attempts_before: int, begun: float) -> None:
        def ran() -> bool:
            history = self._system.store.history.attempts(job)
            has_ended = self._system.status(job) in (Status.COMPLETED, Status.FAILED)
            return has_ended or any(attempt.pid for attempt in history[attempts_before:])

        wait_until(ran, f"job {job} runs again after: {kind}", seconds=120)
        took = time.monotonic() - begun
        if any(attempt.pid for attempt in self._system.store.history.attempts(job)[attempts_before:]):
            self._seconds[kind].append(took)
        print(f"{kind}: {took:.1f} s", file=sys.stderr, flush=True)

    def _settle(self) -> None:
        deadline = time.monotonic() + _SETTLE_SECONDS
        while time.monotonic() < deadline:
            if not self._system.store.job_queries.count(
                Selector(statuses=(Status.PENDING, Status.RUNNING, Status.FAILED))
            ):
                return
            for job in self._with_status(Status.FAILED):
                self._system.store.job_control.retry(Selector(ids=(job.id,)), actor="chaos")
            time.sleep(0.5)

    # ── Faults ──

    def _kill(self, *, parents: int, pid: int) -> None:
        with suppress(OSError, StopIteration):
            if parents == 2:
                job = next(job for job in self._jobs if self._system.store.history.attempts(job)[-1].pid == pid)
                machine = next(name for name in self._lab.machines if pid in self._lab.pids(name))
                pid = self._cluster.ray_worker_of(machine, job)
            elif parents == 1:
                pid = parent_of(pid)
            os.kill(pid, signal.SIGKILL)

    def _kill_raylet(self, pid: int, machine: str) -> None:
        for process in self._lab.pids_with(machine, "raylet/raylet"):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def _restart_machine(self, pid: int, machine: str) -> None:
        self._lab.cut(machine)
        self._lab.kill(machine)
        self._lab.heal(machine)
        self._lab.start_nodes(machine, slots=2)

    def _freeze(self, pid: int, machine: str) -> None:
        frozen = self._lab.freeze(machine)
        time.sleep(LONG_SECONDS)
        self._lab.thaw(frozen)

    def _cut(self, machine: str, seconds: float) -> None:
        self._lab.cut(machine)
        time.sleep(seconds)
        self._lab.heal(machine)

    def _kill_gcs(self, pid: int, machine: str) -> None:
        for process in self._lab.pids_with(HEAD, "gcs_server"):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def _kill_driver(self, pid: int, machine: str) -> None:
        with suppress(ValueError, ProcessLookupError):
            os.kill(self._cluster.driver(self._daemon), signal.SIGKILL)

    def _kill_daemon(self, pid: int, machine: str) -> None:
        self._daemon.signal(signal.SIGKILL)
        self._daemon.wait_for_exit()
        self._daemon = self._system.start(config=self._cluster.config)


def main() -> int:
    if (reason := reason_against()) is not None:
        sys.exit(f"no Ray cluster here: {reason}")
    parser = argparse.ArgumentParser(prog="./run chaos --cluster")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1000))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pagemill-chaos-", ignore_cleanup_errors=True) as place:
        (Path(place) / "ray").mkdir()
        (Path(place) / "head").mkdir()
        lab = made_lab(NetworkLab, Path(place) / "ray", slots=2)
        cluster = ClusterSystem(lab, System(Path(place) / "head"))
        try:
            storm = ClusterStorm(cluster, lab, arguments.seed)
            storm.run(60 * arguments.minutes)
            faults = list(storm.faults())
        finally:
            cluster.system.close()
            lab.close()
    print(f"seed {arguments.seed}\n{storm.summary()}")
    print("\n".join(faults) or "no fault was found")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
