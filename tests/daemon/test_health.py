"""The health of the service, the states of its workers, and what `doctor` finds."""

from __future__ import annotations

import os
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.store.kit import START, MovableClock, new_worker
from worker_service.base.clock import Clock
from worker_service.cli.doctor import examine
from worker_service.jobs.attempts import Failure
from worker_service.jobs.counts import Counts
from worker_service.jobs.job import Gate, NewJob, Pause
from worker_service.runner.worker_identity import WorkerLock, boot_id, lock_path, own_host
from worker_service.services.health import Level, check_health
from worker_service.services.overview import CheckedWorker, Overview
from worker_service.services.session import Session
from worker_service.settings.loading import load_settings
from worker_service.store.store import Store


def session(store: Store, database: Path, clock: Clock = lambda: START) -> Session:
    folder = database.parent
    settings = load_settings({"database": str(database)}, environ={"HOME": str(folder)}, directory=folder)
    return Session(store, settings, "ann", clock)


def worker(state: str = "alive") -> CheckedWorker:
    at = "2026-11-18 09:59:50.000"
    return CheckedWorker("w1", "here", "boot", 1, "0", 2, 4, False, False, at, at, 1, state=state)


@pytest.mark.parametrize(
    ("states", "pending_at", "pauses", "standstill", "level"),
    [
        (["alive"], None, [], [], Level.OK),
        ([], None, [], [], Level.CRITICAL),
        (["silent"], None, [], [], Level.CRITICAL),
        (["dead"], None, [], [], Level.CRITICAL),
        (["alive", "silent"], None, [], [], Level.WARNING),
        (["alive", "dead"], None, [], [], Level.WARNING),
        (["alive", "no row"], None, [], [], Level.WARNING),
        (["disk low"], None, [], [], Level.CRITICAL),
        (["disk low", "alive"], None, [], [], Level.WARNING),
        (["draining"], None, [], [], Level.OK),
        (["alive"], "2026-11-18 08:30:00.000", [], [], Level.WARNING),
        (["alive"], "2026-11-18 09:30:00.000", [], [], Level.OK),
        (["alive"], None, [Pause("all", "", "2026-11-18 09:00:00.000", None, None)], [], Level.WARNING),
        (["alive"], None, [], [Gate("UNKNOWN_TYPE", "worker w1 has no handler for x")], Level.WARNING),
    ],
)
def test_each_state_of_the_queue_has_its_health_level(
    store: Store,
    database: Path,
    clock: MovableClock,
    states: list[str],
    pending_at: str | None,
    pauses: list[Pause],
    standstill: list[Gate],
    level: Level,
) -> None:
    overview = Overview(session(store, database, clock))
    overview.counts, overview.workers = Counts({}, pending_at), list(map(worker, states))
    overview.pauses, overview.standstill = pauses, standstill

    found = check_health(overview, oldest_wait_max=timedelta(hours=1))

    assert found.level is level
    assert bool(found.reasons) is bool(level)


def test_a_worker_is_alive_draining_dying_silent_or_dead(store: Store, database: Path, clock: MovableClock) -> None:
    def state() -> list[str]:
        return [worker.state for worker in Overview(session(store, database, clock)).workers]

    own_worker = replace(new_worker("w1"), host=own_host(), boot_id=boot_id(), pid=os.getpid())
    store.workers.register(own_worker)
    lock = WorkerLock(lock_path(database, "w1"))
    assert state() == ["alive"]
    store.workers.set_worker_state("w1", draining=True, disk_low=False)
    assert state() == ["draining"]
    ended = subprocess.Popen(["true"])
    ended.wait()
    store.workers.register(replace(own_worker, pid=ended.pid))
    assert state() == ["dying"]
    os.close(lock.fd)
    assert state() == ["dead"]
    lock.path.unlink()
    store.workers.register(replace(own_worker, boot_id="before"))
    assert state() == ["dead"]
    store.workers.register(replace(own_worker, host="elsewhere"))
    assert state() == ["alive"]
    clock.advance(300)
    assert state() == ["silent"]


def test_the_doctor_finds_dead_workers_and_names_the_remedy(store: Store, database: Path) -> None:
    os.close(WorkerLock(lock_path(database, "w1")).fd)
    store.workers.register(new_worker("w2"))
    store.intake.enqueue(NewJob("ocr_pages"))

    findings = {finding.name: finding for finding in examine(session(store, database))}

    assert findings["integrity"].level is Level.OK
    assert (findings["worker w1"].level, findings["worker w2"].level) == (Level.CRITICAL, Level.OK)
    assert "pagemill run" in findings["worker w1"].fix


def test_the_doctor_reports_a_standstill_as_status_does(store: Store, database: Path) -> None:
    own = replace(new_worker("w1"), host=own_host(), boot_id=boot_id(), pid=os.getpid())
    store.workers.register(own)
    lock = WorkerLock(lock_path(database, "w1"))
    store.intake.enqueue(NewJob("scrape"))

    findings = {finding.name: finding for finding in examine(session(store, database))}

    assert findings["queue"].level is Level.WARNING
    assert "UNKNOWN_TYPE" in findings["queue"].detail
    assert findings["queue"].detail in {
        reason.detail for reason in check_health(Overview(session(store, database))).reasons
    }
    os.close(lock.fd)


def test_the_doctor_names_what_handlers_lack_and_the_remedy(store: Store, database: Path) -> None:
    store.workers.register(
        new_worker("w1", types=["ocr_pages"], missing="there is no trained data", missing_remedy="apt-get install data")
    )
    store.workers.register(new_worker("w2", types=["scrape"], missing="/opt/scrape is not there"))
    store.workers.register(new_worker("w3", types=["ingest"]))
    store.intake.enqueue_many([NewJob("ingest") for _ in range(2)])
    no_secret = Failure("SECRET_ABSENT", "there is no credential hook", remedy="give it")
    for job in store.leases.claim("w3", 2):
        store.leases.fail(job.lease, no_secret, retry_at=None)
    waiting = store.intake.enqueue(NewJob("ingest")).job_id
    [job] = store.leases.claim("w3", 1)
    no_data = Failure(
        "CAPABILITY_MISSING", "there is no trained data for deu", remedy="apt-get install tesseract-ocr-deu"
    )
    store.leases.snooze(job.lease, START + timedelta(seconds=60), no_data)

    found = {finding.name: finding for finding in examine(session(store, database))}

    lacking = found["handler ocr_pages"]
    assert (lacking.level, lacking.detail) == (Level.WARNING, "it starts no jobs: there is no trained data")
    assert lacking.fix == "apt-get install data, then: stop and start pagemill run"
    assert found["handler scrape"].fix == "when it is installed: stop and start pagemill run"
    failed = found["2 jobs ingest"]
    assert failed.detail == "SECRET_ABSENT: there is no credential hook"
    assert failed.fix == "give it, then: stop and start pagemill run, pagemill retry --error SECRET_ABSENT"
    waits = found["ingest"]
    assert (waits.level, waits.detail) == (Level.WARNING, "1 job waiting: there is no trained data for deu")
    assert waits.fix == "apt-get install tesseract-ocr-deu; the jobs check again by themselves"
    [gate] = [gate for gate in store.gates.explain(waiting) if gate.code == "CAPABILITY_MISSING"]
    assert gate.detail.endswith("there is no trained data for deu")
    assert gate.remedy == "apt-get install tesseract-ocr-deu"
    assert not any(name.endswith("ingest") for name in found if name.startswith("handler"))
