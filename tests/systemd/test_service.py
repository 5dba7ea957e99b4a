from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.kit.system import wait_until
from tests.systemd.conftest import SETTINGS, STATE, Service, booted


def is_completed(service: Service, job_id: int) -> bool:
    return service.status(job_id) == "completed"


def outcomes(service: Service, job_id: int) -> list[str]:
    return [attempt["outcome"] for attempt in service.job(job_id)["attempts"]]


def events(service: Service, name: str) -> list[dict[str, str]]:
    return service.journal(f"PAGEMILL_EVENT={name}")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The unit in a box. It also runs commands, which the shipped unit leaves to another."""
    with booted(tmp_path_factory.mktemp("service")) as box:
        yield Service(box, types="", shipped=["command"])


@pytest.fixture
def service(shared: Service) -> Iterator[Service]:
    """The service, not started. Drop-ins, settings and jobs of a test are removed after it."""
    before = shared.drop_ins()
    shared.systemctl("stop")
    yield shared
    shared.box.run("systemctl", "stop", shared.unit)
    shared.box.run("systemctl", "reset-failed", shared.unit)
    for file in shared.drop_ins() - before:
        file.unlink()
    shared.settings(SETTINGS)
    shared.box.check("systemctl", "daemon-reload")
    shared.pagemill_output("cancel", "--status", "pending", "--yes")
    shared.box.outside_path(f"{STATE}/naps").unlink(missing_ok=True)


@pytest.fixture
def started(shared: Service) -> Service:
    """Started, for tests that leave it as it is."""
    shared.systemctl("start")
    return shared


def test_start_returns_when_the_daemon_is_ready_and_status_shows_its_work(started: Service) -> None:
    service = started
    assert service.unit_property("ActiveState") == "active"
    assert service.unit_property("StatusText") == "0/1 cpu · 0/2 io · 0 pending"
    # It said that it had begun before it said that it was ready, which is what start waits for.
    [started_at] = events(service, "daemon.started")
    assert started_at["_SYSTEMD_UNIT"] == "pagemill.service"
    assert int(started_at["_PID"]) == service.main_pid


def test_the_journal_can_be_filtered_by_job(started: Service) -> None:
    service, before = started, started.words_in("touched")

    job = service.enqueue("touch")

    wait_until(lambda: is_completed(service, job), "the job is completed")
    assert service.words_in("touched") == [*before, "ran"]
    of_job = service.journal(f"PAGEMILL_JOB_ID={job}")
    assert [entry["PAGEMILL_EVENT"] for entry in of_job] == ["job.claimed", "job.started", "job.completed"]
    assert {entry["SYSLOG_IDENTIFIER"] for entry in of_job} == {"pagemill"}
    assert {entry["PRIORITY"] for entry in of_job} == {"6"}


def test_group_members_can_insert_jobs_and_others_cannot_read(started: Service) -> None:
    service = started
    insert = "INSERT INTO worker_job_queue (job_type, platform) VALUES ('touch', 'local') RETURNING id"

    output = service.run_as("nobody", "nogroup", "sqlite3", "-cmd", ".timeout 5000", f"{STATE}/pagemill.db", insert)

    wait_until(lambda: is_completed(service, int(output)), "the job is completed")
    listed = service.box.check("stat", "-c", "%a %U %G", STATE, f"{STATE}/pagemill.db")
    assert listed.splitlines() == ["2770 pagemill pagemill", "660 pagemill pagemill"]


def test_a_stopped_daemon_is_restarted_by_the_watchdog(service: Service) -> None:
    service.drop_in("watchdog", "WatchdogSec=2\nTimeoutAbortSec=1")
    service.systemctl("start")
    job = service.enqueue("nap", "--set", "seconds=4")
    wait_until(lambda: service.words_in("naps") == ["begun"], "the job has begun")
    wedged, started_at = service.main_pid, time.monotonic()

    service.systemctl("kill", "--signal=STOP", "--kill-whom=main")
    service.wait_for("NRestarts", "1")
    service.wait_for("ActiveState", "active")

    # Well before the unit's own WatchdogSec.
    assert time.monotonic() - started_at < 60
    assert service.main_pid != wedged
    assert any("Watchdog timeout" in entry["MESSAGE"] for entry in service.journal("UNIT=pagemill.service"))
    wait_until(lambda: is_completed(service, job), "the job is completed")
    assert service.words_in("naps").count("ended") == 1
    # The new one is healthy, and was left alone for twice that time.
    assert service.unit_property("NRestarts") == "1"


def test_a_stop_releases_jobs_that_exceed_the_grace_period(service: Service) -> None:
    service.drop_in("grace", "Environment=WORKER_GRACE_PERIOD=1s")
    service.systemctl("start")
    job = service.enqueue("nap", "--set", "seconds=3600")
    wait_until(lambda: service.words_in("naps") == ["begun"], "the job has begun")
    started_at = time.monotonic()

    service.systemctl("stop")

    # Well before TimeoutStopSec: it went by itself, and nothing was left for systemd to kill.
    assert time.monotonic() - started_at < 30
    assert service.unit_property("Result") == "success"
    found = service.job(job)
    assert (found["status"], found["retry_count"], found["requeue_count"]) == ("pending", 0, 0)
    assert outcomes(service, job) == ["released"]
    assert service.box.run("pgrep", "-u", "pagemill").stdout == ""


def test_a_daemon_with_invalid_settings_is_not_restarted(service: Service) -> None:
    service.settings("concurency = 2\n")

    service.box.run("systemctl", "start", service.unit)

    service.wait_for("ActiveState", "failed")
    # Above RestartSec: by now it would have been tried again.
    time.sleep(1.5)
    assert (service.unit_property("NRestarts"), service.unit_property("ExecMainStatus")) == ("0", "78")
    output = [entry["MESSAGE"] for entry in service.journal("_SYSTEMD_UNIT=pagemill.service")]
    assert any("did you mean concurrency?" in line for line in output)
