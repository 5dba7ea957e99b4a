"""The daemon is ended between any two statements of its verbs, once at each point; nothing is lost or done twice.

The points are found by a run that notes them, not written down here. All of them belong to a few chains: in a chain
each daemon takes up what the one before it left, and ends at a point of its own; so each start is a restart as well.
After each end the books are looked at, and at the end of a chain a healthy daemon brings everything to its end.

PAGEMILL_FULL=1 ends one at every point; without it every third point is taken, beginning at a random one.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.length import IS_FULL
from tests.system.conftest import Daemon, System
from worker_service.jobs.model import Job, NewJob, Status
from worker_service.jobs.selector import Selector
from worker_service.liveness import holders, is_free, lock_path

VERBS = ("claim", "beat", "report", "complete", "requeue", "fail", "release", "confirm_cancel")
CHAINS = 6 if IS_FULL else 4
SETTINGS: dict[str, object] = {
    "concurrency": 6, "io_concurrency": 2, "heartbeat_interval": 0.1, "orphan_after": 20, "grace_period": 0,
    "recovery_interval": 1,
}  # fmt: skip
SECONDS_MOST = 60.0
"""For one daemon to come to its point."""
LIVES_MOST = 8
"""For one point: which statements follow each other is partly chance, as it is which of two commits comes first."""
ENDED = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)
EXPECTED = {"NO_SUCH_FILE", "REQUEUED_TOO_OFTEN"}


class Chain:
    """One database, and one daemon after another on it."""

    def __init__(self, place: Path) -> None:
        place.mkdir()
        self.system = System(place)
        self._daemons: list[Daemon] = []

    def begin(self, **environment: str) -> Daemon:
        """The daemon that can be ended between two statements."""
        log = self.system.place / f"stopped-{len(self._daemons)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.system.stopping"],
                cwd=self.system.place,
                env=self.system.environment(**SETTINGS) | environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        daemon = Daemon(process, log)
        self._daemons.append(daemon)
        return daemon

    def close(self) -> None:
        """In whatever way it went."""
        for daemon in self._daemons:
            if daemon.process.poll() is None:
                daemon.signal(signal.SIGKILL)
                daemon.process.wait()
        self.system.close()

    def fill(self) -> None:
        """A job for each way in which an attempt may end; what runs is to be taken back, or cancelled, by the next."""
        self.system.enqueue("chaos")
        for how in ("permanent", "retryable"):
            self.system.enqueue("fail", how=how, max_retries=1)
        live = self._jobs(Status.PENDING, Status.RUNNING)
        for _ in range(3 - sum(job.account == "long" for job in live)):
            self.system.store.intake.enqueue(NewJob("sleep", payload='{"seconds": 600}', account="long"))

    def live_through(self, daemon: Daemon, *, is_ended_early: bool = False) -> int:
        """Ask running jobs to stop, make due what waits, then ask the daemon itself to stop; its exit code."""
        until = time.monotonic() + SECONDS_MOST
        asked_at, is_stopping = 0.0, False
        while (code := daemon.process.poll()) is None:
            assert time.monotonic() < until, self._state(daemon)
            self._hurry()
            time.sleep(0.03)
            if not asked_at and self._is_at_rest(daemon):
                if is_ended_early:
                    daemon.signal(signal.SIGKILL)
                    daemon.process.wait()
                self._cancel_one()
                asked_at = time.monotonic()
            elif asked_at and not is_stopping and time.monotonic() - asked_at > 0.4:
                # Everything else has been: what is still running is given back.
                is_stopping = True
                daemon.signal(signal.SIGTERM)
        return code

    def _jobs(self, *statuses: Status) -> list[Job]:
        return list(self.system.store.reading.list(Selector(statuses=statuses), most=10_000))

    def leave_orphans(self) -> None:
        """Unless they are there: running jobs whose daemon is dead, the oldest asked to stop."""
        asked = {job.cancel_requested_at is not None for job in self._jobs(Status.RUNNING)}
        if asked != {True, False}:
            self.fill()
            self.live_through(self.begin(), is_ended_early=True)

    def _hurry(self) -> None:
        if any(job.held & 2 for job in self._jobs(Status.PENDING)):
            self.system.sqlite3("UPDATE worker_job_queue SET run_at = '2020-01-01' WHERE held & 2")

    def _is_at_rest(self, daemon: Daemon) -> bool:
        """Only the long jobs are left, and this daemon runs two of them."""
        if not daemon.events("daemon.started"):
            return False
        live = self._jobs(Status.PENDING, Status.RUNNING)
        long = [job for job in live if job.account == "long"]
        return len(long) == len(live) and sum(self._says_so(job, daemon) for job in long) >= min(2, len(long))

    def _says_so(self, job: Job, daemon: Daemon) -> bool:
        is_its = f"-{daemon.pid}-" in (job.worker_id or "")
        lines = self.system.store.reading.logs(job.id) if is_its and job.status is Status.RUNNING else ()
        return any(line.fence == job.fence for line in lines)

    def _cancel_one(self) -> None:
        if running := self._jobs(Status.RUNNING):
            self.system.store.steering.cancel(Selector(ids=(running[-1].id,)), actor="test")

    def _state(self, daemon: Daemon) -> str:
        """For whoever has to find out why it does not go on."""
        store = self.system.store
        live = [(job.id, job.status, job.worker_id, job.account) for job in self._jobs(Status.PENDING, Status.RUNNING)]
        locks = {worker.id: lock_path(self.system.database, worker.id) for worker in store.reading.workers()}
        workers = {name: (is_free(lock), holders(lock)) for name, lock in locks.items()}
        return f"jobs: {live}\nworkers: {workers}\n{daemon.log.read_text()[-3000:]}"

    # ── The books ──

    def look(self, point: str) -> None:
        broken = self.system.store.upkeep.audit()
        assert broken == [], f"after the end at {point}"

    def bring_to_an_end(self) -> None:
        """A healthy daemon: all that is left ends, once in effect."""
        self.system.store.steering.cancel(
            Selector(statuses=(Status.PENDING, Status.RUNNING), job_types=("sleep",)), actor="test"
        )
        daemon = self.system.start(**SETTINGS)
        until = time.monotonic() + SECONDS_MOST
        while self._jobs(Status.PENDING, Status.RUNNING):
            assert time.monotonic() < until, daemon.log.read_text()[-3000:]
            self._hurry()
            time.sleep(0.02)
        daemon.signal(signal.SIGTERM)
        assert daemon.ends() == 0
        self.system.assert_sound()
        assert list(self._wrong()) == []

    def _wrong(self) -> Iterator[str]:
        jobs = self._jobs(*ENDED)
        parents = [job.parent_id for job in jobs]
        for job in jobs:
            outcomes = self.system.outcomes(job.id)
            if outcomes.count("completed") != (job.status is Status.COMPLETED):
                yield f"job {job.id} is {job.status} after {outcomes}"
            if job.status is Status.FAILED and job.job_type != "fail" and job.error_code not in EXPECTED:
                yield f"job {job.id} ({job.job_type}) failed: {job.error_code} {job.error_message}"
            if job.job_type == "chaos" and job.status is Status.COMPLETED:
                page = self.system.workspace / "objects" / f"{job.id}-{job.fence}" / "page.txt"
                if parents.count(job.id) != 1 or not page.exists():
                    yield f"job {job.id} has {parents.count(job.id)} follow-ups, and its file is there: {page.exists()}"


def find_points(place: Path) -> list[str]:
    """A few lives: the first is ended from outside while jobs run, for the next to take them back."""
    chain = Chain(place)
    try:
        noted = place / "points"
        for is_ended_early in (True, False, False):
            chain.fill()
            daemon = chain.begin(PAGEMILL_POINTS=str(noted))
            code = chain.live_through(daemon, is_ended_early=is_ended_early)
            assert code == (-signal.SIGKILL if is_ended_early else 0), daemon.log.read_text()[-3000:]
    finally:
        chain.close()
    points = dict.fromkeys(noted.read_text().splitlines())
    return [point for point in points if point.split()[0] in VERBS]


def walk(place: Path, points: Sequence[str]) -> list[str]:
    """End one daemon after another at these points; return those that none came to, though several tried."""
    chain = Chain(place)
    try:
        missed = [point for point in points if not _ends_at(chain, point)]
        chain.bring_to_an_end()
    finally:
        chain.close()
    return missed


def _ends_at(chain: Chain, point: str) -> bool:
    for _ in range(LIVES_MOST):
        if point.startswith("requeue"):
            chain.leave_orphans()
        else:
            chain.fill()
        code = chain.live_through(chain.begin(PAGEMILL_STOP=point))
        chain.look(point)
        if code == -signal.SIGKILL:
            return True
    return False


@pytest.mark.timeout(600)
def test_the_daemon_may_end_between_any_two_statements_of_its_verbs(tmp_path: Path) -> None:
    points = find_points(tmp_path / "finding")
    assert {point.split()[0] for point in points} == set(VERBS)
    assert len(points) > 40

    first = 0 if IS_FULL else random.randrange(3)
    points = points if IS_FULL else points[first::3]
    print(f"{len(points)} points, from {first} on")
    with ThreadPoolExecutor(CHAINS) as pool:
        walks = [pool.submit(walk, tmp_path / f"chain-{n}", points[n::CHAINS]) for n in range(CHAINS)]
        missed = [point for walked in walks for point in walked.result()]

    assert missed == []
