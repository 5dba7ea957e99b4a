"""The small parts: slots, systemd, signals, heartbeat, status line, chores, health."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.daemon.conftest import MakeAttempt, context_in
from tests.kit.system import wait_until
from tests.store.kit import START, MovableClock, ids, new_worker
from worker_service.base import events
from worker_service.base.clock import Clock
from worker_service.base.errors import BadInput, Refused
from worker_service.base.events import LIMITS_REPLACED
from worker_service.base.sd_notify import Notifier
from worker_service.cli.doctor import examine
from worker_service.daemon.chores import BeginScheduled, DiskSpace, Prune, adopt_slots, status_line
from worker_service.daemon.heartbeat import Heartbeat
from worker_service.daemon.loop import Signals
from worker_service.daemon.start import beat_seconds, write_limits
from worker_service.jobs.attempts import Count, Failure, Report
from worker_service.jobs.counts import Counts
from worker_service.jobs.history import LOG_LINES_MOST
from worker_service.jobs.job import Gate, NewJob, Pause, Status
from worker_service.jobs.selector import Selector
from worker_service.jobs.workers import Beat, allows_type
from worker_service.runner.log_lines import GAP
from worker_service.runner.messages import Progressed
from worker_service.runner.worker_identity import WorkerLock, boot_id, lock_path, own_host
from worker_service.services.health import Level, check_health
from worker_service.services.job_control import set_slots
from worker_service.services.overview import CheckedWorker, Overview
from worker_service.services.session import Session
from worker_service.settings.config import Settings
from worker_service.settings.loading import load_settings
from worker_service.store.opening import open_store
from worker_service.store.store import Store


def test_reports_are_merged_and_the_newest_lines_wait_in_their_order(attempt: MakeAttempt) -> None:
    one = attempt()
    for percent, message, count in ((10, "a", None), (50, "b", None), (20, "", Count(2, 10, "pages"))):
        one.add_progress(Progressed(*one.key, percent, message, count))
    one.add_lines(f"line {n}" for n in range(LOG_LINES_MOST + 5))

    report = one.pop_report(lines_most=1000)
    assert (report.percent, report.message, report.count) == (50, "b", Count(2, 10, "pages"))
    assert report.lines == [GAP, *(f"line {n}" for n in range(5, 1005))]
    assert one.has_news

    one.restore_report(report)
    again, rest = one.pop_report(lines_most=1000), one.pop_report(lines_most=LOG_LINES_MOST)
    assert (again.percent, again.lines) == (50, report.lines)
    assert (rest.percent, len(rest.lines), rest.lines[-1]) == (None, 2000, f"line {LOG_LINES_MOST + 4}")
    assert (one.has_news, one.lines.characters) == (False, 0)


@pytest.mark.parametrize(
    ("types", "wanted"),
    [((), True), (("a",), True), (("b",), False), (("!a",), False), (("!b",), True), (("a", "!a"), False)],
)
def test_which_types_a_worker_takes(types: tuple[str, ...], wanted: bool) -> None:
    assert allows_type(types, "a") is wanted


# ── systemd ──


def test_what_is_said_to_systemd_is_one_line(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(str(tmp_path / "notify"))
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})

    notifier.status("2 pending\nMAINPID=1\x1b[0m")
    notifier.status("2 pending\nMAINPID=1\x1b[0m")
    notifier.ready()

    assert listener.recv(100) == b"STATUS=2 pending MAINPID=1 [0m"
    assert listener.recv(100) == b"READY=1"
    listener.close()


def test_nobody_listening_is_no_trouble(tmp_path: Path) -> None:
    Notifier({}).ready()
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).alive()


def test_the_watchdog_counts_only_for_the_process_it_is_meant_for() -> None:
    assert Notifier({"WATCHDOG_USEC": "6000000"}).watchdog_seconds == 6
    assert Notifier({"WATCHDOG_USEC": "6000000", "WATCHDOG_PID": str(os.getpid())}).watchdog_seconds == 6
    assert Notifier({"WATCHDOG_USEC": "6000000", "WATCHDOG_PID": "1"}).watchdog_seconds is None
    assert beat_seconds(30, 6) == 2
    assert beat_seconds(30, None) == 30


def test_signals_are_counted_and_end_a_wait() -> None:
    signals = Signals()
    try:
        os.kill(os.getpid(), signal.SIGTERM)

        assert select.select([signals], [], [], 10)[0]
        signals.drain()
        assert not select.select([signals], [], [], 0)[0]
        assert signals.asked_to_stop == 1
    finally:
        signals.close()


# ── Heartbeat ──


def test_a_beat_tells_what_is_lost_and_what_is_to_stop(
    store: Store, database: Path, attempt: MakeAttempt, log: Any
) -> None:
    kept, stopped, lost = attempt(), attempt(), attempt()
    store.job_control.cancel(ids(stopped.job.id), actor="test")
    store.leases.release(lost.lease)
    heart = Heartbeat(lambda: open_store(database), "w1", log, 600)
    heart.leases = (kept.lease, stopped.lease, lost.lease)

    heart.start()
    assert select.select([heart], [], [], 10)[0]
    [beat] = heart.pop_results()
    heart.close()

    assert beat == Beat([lost.lease], [stopped.lease])
    assert heart.committed == 1


def test_a_worker_without_a_row_hears_that_it_owns_nothing(store: Store, database: Path, log: Any) -> None:
    store.leases.requeue("w1")
    heart = Heartbeat(lambda: open_store(database), "w1", log, 600)

    heart.start()
    assert select.select([heart], [], [], 10)[0]
    assert heart.pop_results() == [None]
    heart.close()

    assert heart.committed == 0


def test_a_beat_that_fails_is_no_sign_of_life(log: Any) -> None:
    def broken() -> Store:
        raise OSError("no disk")

    now = [0.0]
    heart = Heartbeat(broken, "w1", log, 0.001, lambda: now[0])
    heart.start()
    now[0] = 250.0
    wait_until(lambda: "beat.failed" in log.heard)
    heart.close()

    assert (heart.committed, heart.silent_seconds()) == (0, 250.0)


# ── Chores ──


def test_the_status_line_says_it_in_a_few_words() -> None:
    counts = Counts({Status.PENDING: 14}, None)

    line = status_line({"cpu": (2, 2), "io": (1, 4)}, counts, oldest_seconds=185)

    assert line == "2/2 cpu · 1/4 io · 14 pending · oldest 3 min"


def test_old_jobs_and_lines_are_pruned_each_at_its_age_and_told_once(
    store: Store, database: Path, clock: MovableClock, attempt: MakeAttempt, log: Any
) -> None:
    old, failed, living = attempt(), attempt(), attempt()
    store.leases.report([Report(living.lease, lines=["an old line"] * 600)])
    store.leases.complete(old.lease)
    store.leases.fail(failed.lease, Failure("X", "x"), retry_at=None)
    clock.advance(86400 * 31)
    store.leases.beat("w1", ())
    new = attempt()
    store.leases.report([Report(living.lease, lines=["a new line"])])
    store.leases.complete(new.lease)
    (database.parent / "pagemill.toml").write_text('[prune]\ncompleted = "30d"\nfailed = "never"\nlogs = "30d"\n')
    prune = Prune(context_in(database.parent, store, log, clock, config=database.parent / "pagemill.toml"))

    waits = [prune.run() for _ in range(3)]

    assert [job.id for job in store.job_queries.list(ids())] == [new.job.id, living.job.id, failed.job.id]
    assert [line.line for line in store.history.logs(living.job.id)] == ["a new line"]
    assert waits == [0.1, 600, 600]
    assert log.told == [{"completed": 1, "logs": 600}]


def test_a_disk_that_fills_up_is_said_once_and_so_is_its_relief(store: Store, tmp_path: Path, log: Any) -> None:
    said: list[bool] = []
    full = DiskSpace(context_in(tmp_path, store, log, workspace=tmp_path), said.append, free_bytes_least=1 << 60)

    full.run()
    full.run()

    assert said == [True]
    assert log.heard == ["disk.filled"]


# ── Health ──


def session(store: Store, database: Path, clock: Clock = lambda: START) -> Session:
    folder = database.parent
    settings = load_settings({"database": str(database)}, environ={"HOME": str(folder)}, directory=folder)
    return Session(store, settings, "somebody", clock)


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
def test_how_well_it_is(
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


def test_a_worker_has_a_state_in_a_word(store: Store, database: Path, clock: MovableClock) -> None:
    def state() -> list[str]:
        return [one.state for one in Overview(session(store, database, clock)).workers]

    here = replace(new_worker("w1"), host=own_host(), boot_id=boot_id(), pid=os.getpid())
    store.workers.register(here)
    lock = WorkerLock(lock_path(database, "w1"))
    assert state() == ["alive"]
    store.workers.set_worker_state("w1", draining=True, disk_low=False)
    assert state() == ["draining"]
    ended = subprocess.Popen(["true"])
    ended.wait()
    store.workers.register(replace(here, pid=ended.pid))
    assert state() == ["dying"]
    os.close(lock.fd)
    assert state() == ["dead"]
    lock.path.unlink()
    store.workers.register(replace(here, boot_id="before"))
    assert state() == ["dead"]
    store.workers.register(replace(here, host="elsewhere"))
    assert state() == ["alive"]
    clock.advance(300)
    assert state() == ["silent"]


def test_the_doctor_finds_what_is_dead_and_says_what_to_do(store: Store, database: Path) -> None:
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


def test_the_doctor_says_what_a_machine_lacks_and_what_puts_it_right(store: Store, database: Path) -> None:
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


# ── Limits ──


def test_a_commands_max_running_is_a_limit_of_its_type_unless_one_is_set(tmp_path: Path) -> None:
    file = tmp_path / "pagemill.toml"
    file.write_text(
        'payload_bytes_max = 4096\n[limits.type]\nfetch = 7\n[limits.owner]\n"*" = 2\n'
        '[commands.scrape]\nargv = ["/bin/true"]\nmax_running = 1\n'
        '[commands.fetch]\nargv = ["/bin/true"]\nmax_running = 3\n'
        '[commands.free]\nargv = ["/bin/true"]\n'
    )

    settings = load_settings(environ={"WORKER_CONFIG": str(file), "HOME": str(tmp_path)}, directory=tmp_path)
    found = settings.wanted_limits

    assert found == {
        "type": {"scrape": 1, "fetch": 7},
        "class": {},
        "owner": {"*": 2},
        "payload": {"bytes": 4096},
    }


def test_a_daemon_adopts_the_slots_that_a_user_gives_it(
    store: Store, clock: MovableClock, log: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = context_in(tmp_path, store, log, clock)
    store.workers.deregister("w1")
    store.workers.register(new_worker(context.identity.worker_id, cpu=context.slots.sizes["cpu"]))
    monkeypatch.setattr(Overview, "live_workers", property(lambda self: self.workers))
    session = Session(store, context.settings, "ann", clock)

    assert set_slots(session, 5) == context.identity.worker_id
    adopt_slots(context)

    assert context.slots.sizes["cpu"] == 5
    assert log.heard == [events.SLOTS_CHANGED]
    with pytest.raises(BadInput, match="pause"):
        set_slots(session, 0)
    with pytest.raises(Refused):
        set_slots(session, 3, "w2")


HOURLY = '[[schedule]]\nname = "{name}"\ncron = "0 * * * *"\n{what}\n'


@pytest.fixture
def chore(store: Store, clock: MovableClock, log: Any, tmp_path: Path) -> BeginScheduled:
    file = tmp_path / "own.toml"
    job = HOURLY.format(name="hourly", what='job = { type = "report" }')
    file.write_text(
        "schedule_in_daemon = true\n" + job + HOURLY.format(name="folder", what=f'crawl = "{tmp_path}/nowhere"')
    )
    return BeginScheduled(context_in(tmp_path, store, log, clock, config=file))


def test_each_slot_begins_its_job_and_what_cannot_be_begun_is_told_once(
    store: Store, clock: MovableClock, log: Any, chore: BeginScheduled
) -> None:
    chore.run()
    clock.advance(3600)
    for _ in range(3):
        chore.run()

    assert store.job_queries.count(Selector(job_types=("report",))) == 1
    assert log.heard == [events.SCHEDULE_BEGUN, events.SCHEDULE_FAILED]


def test_it_looks_again_when_the_next_slot_comes_and_not_much_later(clock: MovableClock, chore: BeginScheduled) -> None:
    assert chore.run() == 20
    clock.advance(3595)
    assert chore.run() == 5


def settings(tmp_path: Path, text: str) -> Settings:
    (tmp_path / "own.toml").write_text(text)
    environ = {"HOME": str(tmp_path), "WORKER_CONFIG": str(tmp_path / "own.toml")}
    return load_settings(environ=environ, directory=tmp_path)


def test_other_limits_than_a_daemon_wrote_that_lives_are_told(store: Store, tmp_path: Path, log: Any) -> None:
    first, second = settings(tmp_path, "[limits.owner]\nalice = 2"), settings(tmp_path, "[limits.owner]\nalice = 3")
    write_limits(store, first, log)
    del log.heard[:]

    write_limits(store, first, log)
    assert log.heard == []
    write_limits(store, second, log)

    assert log.heard == [LIMITS_REPLACED]
    assert store.overview.limits()["owner"] == {"alice": 3}


def test_where_nobody_else_is_there_nothing_is_told(store: Store, tmp_path: Path, log: Any) -> None:
    store.workers.deregister("w1")
    store.workers.set_limits("type", {"ocr_pages": 1})

    write_limits(store, settings(tmp_path, ""), log)

    assert log.heard == []
    assert "type" not in store.overview.limits()
