"""What the unit promises, under a real systemd: ready, killed, wedged, stopped, misconfigured."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator, Sequence

import pytest

from tests.kit.system import wait_until
from tests.store.test_migrations import ORIGINAL
from tests.systemd.booted_systemd import PYTHON, PYTHONPATH, ROOT, Box
from tests.systemd.conftest import STATE, Service, booted, chosen

PROGRAM = "/opt/pagemill/bin/python"


def is_completed(service: Service, job_id: int) -> bool:
    return service.status(job_id) == "completed"


def outcomes(service: Service, job_id: int) -> list[str]:
    return [attempt["outcome"] for attempt in service.job(job_id)["attempts"]]


def events(service: Service, name: str) -> list[dict[str, str]]:
    return service.journal(f"PAGEMILL_EVENT={name}")


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One that has been started, for those who do it no harm."""
    with booted(tmp_path_factory.mktemp("started")) as box:
        service = Service(box, types="", shipped=["command"])
        service.systemctl("start")
        yield service


def test_start_returns_when_it_is_ready_and_the_status_says_what_it_does(started: Service) -> None:
    service = started
    assert service.shown("ActiveState") == "active"
    assert service.shown("StatusText") == "0/1 cpu · 0/2 io · 0 pending"
    # It said that it had begun before it said that it was ready, which is what start waits for.
    [begun] = events(service, "daemon.started")
    assert begun["_SYSTEMD_UNIT"] == "pagemill.service"
    assert int(begun["_PID"]) == service.main_pid


def test_a_job_runs_and_the_journal_can_be_asked_for_it(started: Service) -> None:
    service, before = started, started.lines("touched")

    job = service.enqueue("touch")

    wait_until(lambda: is_completed(service, job), "the job is completed")
    assert service.lines("touched") == [*before, "ran"]
    of_job = service.journal(f"PAGEMILL_JOB_ID={job}")
    assert [entry["PAGEMILL_EVENT"] for entry in of_job] == ["job.claimed", "job.started", "job.completed"]
    assert {entry["SYSLOG_IDENTIFIER"] for entry in of_job} == {"pagemill"}
    assert {entry["PRIORITY"] for entry in of_job} == {"6"}


def test_start_fails_where_the_daemon_never_becomes_ready(service: Service) -> None:
    service.drop_in("never", "ExecStart=\nExecStart=/bin/sleep 60\nTimeoutStartSec=1\nRestart=no")

    assert service.box.run("systemctl", "start", service.unit).returncode == 1

    assert service.shown("Result") == "timeout"


def test_after_kill_9_the_job_runs_again_and_ends_once(service: Service) -> None:
    service.systemctl("start")
    job = service.enqueue("nap", "--set", "seconds=2")
    wait_until(lambda: service.lines("naps") == ["begun"], "the job has begun")
    killed = service.main_pid

    service.systemctl("kill", "--signal=KILL", "--kill-whom=main")
    service.wait_for("NRestarts", "1")
    service.wait_for("ActiveState", "active")

    wait_until(lambda: is_completed(service, job), "the job is completed")
    assert service.main_pid != killed
    # The first one went with its daemon: it never got to its end.
    assert service.lines("naps") == ["begun", "begun", "ended"]
    found = service.job(job)
    assert (found["fence"], found["requeue_count"], found["retry_count"]) == (2, 1, 0)
    assert outcomes(service, job)[-1] == "completed"


def test_a_stopped_daemon_is_restarted_by_the_watchdog(service: Service) -> None:
    service.drop_in("watchdog", "WatchdogSec=2\nTimeoutAbortSec=1")
    service.systemctl("start")
    job = service.enqueue("nap", "--set", "seconds=4")
    wait_until(lambda: service.lines("naps") == ["begun"], "the job has begun")
    wedged, begun = service.main_pid, time.monotonic()

    service.systemctl("kill", "--signal=STOP", "--kill-whom=main")
    service.wait_for("NRestarts", "1")
    service.wait_for("ActiveState", "active")

    # Well before the unit's own WatchdogSec.
    assert time.monotonic() - begun < 60
    assert service.main_pid != wedged
    assert any("Watchdog timeout" in entry["MESSAGE"] for entry in service.journal("UNIT=pagemill.service"))
    wait_until(lambda: is_completed(service, job), "the job is completed")
    assert service.lines("naps").count("ended") == 1
    # The new one is healthy, and was left alone for twice that time.
    assert service.shown("NRestarts") == "1"


def test_a_stop_releases_what_does_not_end_in_time_and_spends_no_retry(service: Service) -> None:
    service.drop_in("grace", "Environment=WORKER_GRACE_PERIOD=1s")
    service.systemctl("start")
    job = service.enqueue("nap", "--set", "seconds=3600")
    wait_until(lambda: service.lines("naps") == ["begun"], "the job has begun")
    begun = time.monotonic()

    service.systemctl("stop")

    # Well before TimeoutStopSec: it went by itself, and nothing was left for systemd to kill.
    assert time.monotonic() - begun < 30
    assert service.shown("Result") == "success"
    found = service.job(job)
    assert (found["status"], found["retry_count"], found["requeue_count"]) == ("pending", 0, 0)
    assert outcomes(service, job) == ["released"]
    assert service.box.run("pgrep", "-u", "pagemill").stdout == ""


def test_wrong_settings_are_not_tried_again(service: Service) -> None:
    service.settings("concurency = 2\n")

    service.box.run("systemctl", "start", service.unit)

    service.wait_for("ActiveState", "failed")
    # Above RestartSec: by now it would have been tried again.
    time.sleep(1.5)
    assert (service.shown("NRestarts"), service.shown("ExecMainStatus")) == ("0", "78")
    told = [entry["MESSAGE"] for entry in service.journal("_SYSTEMD_UNIT=pagemill.service")]
    assert any("did you mean concurrency?" in line for line in told)


def test_who_is_in_the_group_enqueues_by_sqlite3_and_others_see_nothing(started: Service) -> None:
    service = started
    insert = "INSERT INTO worker_job_queue (job_type, platform) VALUES ('touch', 'local') RETURNING id"

    told = service.by("nobody", "nogroup", "sqlite3", "-cmd", ".timeout 5000", f"{STATE}/pagemill.db", insert)

    wait_until(lambda: is_completed(service, int(told)), "the job is completed")
    listed = service.box.must("stat", "-c", "%a %U %G", STATE, f"{STATE}/pagemill.db")
    assert listed.splitlines() == ["2770 pagemill pagemill", "660 pagemill pagemill"]


def test_commands_are_run_by_a_worker_of_their_own(box: Box) -> None:
    few = ["command", "webhook"]
    documents, commands = Service(box, shipped=few), Service(box, "pagemill-commands.service", shipped=few)
    documents.systemctl("start")
    job = documents.enqueue("touch")
    # Only the other one may start it.
    assert documents.job(job)["status"] == "pending"

    commands.systemctl("start")

    wait_until(lambda: is_completed(documents, job), "the job is completed")
    [claimed] = events(documents, "job.claimed")
    assert (claimed["_SYSTEMD_UNIT"], int(claimed["_PID"])) == ("pagemill-commands.service", commands.main_pid)
    [begun] = [e for e in events(documents, "daemon.started") if e["_SYSTEMD_UNIT"] == "pagemill-commands.service"]
    assert json.loads(begun["PAGEMILL_TYPES"]) == ["nap", "touch"]


def test_an_offline_worker_runs_what_it_is_named_after_and_has_no_network(box: Box) -> None:
    offline = Service(box, "pagemill-offline@.service", instance="touch", shipped=["command"])
    offline.systemctl("start")
    other, job = offline.enqueue("nap", "--set", "seconds=0"), offline.enqueue("touch")

    wait_until(lambda: is_completed(offline, job), "the job is completed")

    assert offline.job(other)["status"] == "pending"
    own, outside = (box.must("readlink", f"/proc/{pid}/ns/net") for pid in (offline.main_pid, 1))
    assert own != outside


def as_if_installed(box: Box, shipped: Sequence[str] = ("command",)) -> None:
    """What `python3 -m venv /opt/pagemill && /opt/pagemill/bin/pip install .` leaves."""
    path = f"{chosen(box, shipped)}:{PYTHONPATH}"
    box.write(PROGRAM, f'#!/bin/sh\nPYTHONPATH={path} exec {PYTHON} "$@"\n')
    box.write("/opt/pagemill/bin/pagemill", f'#!/bin/sh\nexec {PROGRAM} -m worker_service.cli "$@"\n')
    box.must("chmod", "755", PROGRAM, "/opt/pagemill/bin/pagemill")


def test_after_install_every_shell_of_a_member_of_the_group_is_about_the_services_database(box: Box) -> None:
    as_if_installed(box)
    box.must("/opt/pagemill/bin/pagemill", "service", "install", "--python", PROGRAM)
    for name in ("ann", "ben", "eve"):
        box.must("useradd", "--create-home", name)
    box.must("usermod", "-aG", "pagemill", "ann")

    def by(name: str, *words: str, code: int = 0) -> str:
        who = f"setpriv --reuid={name} --regid={name} --init-groups env HOME=/home/{name}"
        done = box.run("sh", "-c", 'cd "$1"; shift; exec "$@"', "sh", f"/home/{name}", *who.split(), "pagemill", *words)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    # A member, and root: nothing was set, and no path was typed.
    assert by("ann").splitlines()[:2] == [f"database  {STATE}/pagemill.db (the service)", "workers   2 alive"]
    assert f"{STATE}/pagemill.db  the service" in by("ann", "config", "show")
    assert by("ann", "enqueue", "nap", "--run-at", "+1h").splitlines()[0] == "1"
    assert "1 pending" in box.must("pagemill")
    assert by("ann", "status").startswith("OK: 2 workers")

    # Who is not in the group hears how to join it, and afterwards that a new session is needed.
    assert "join the group pagemill by `sudo usermod -aG pagemill ben`, then log in again" in by("ben", "ls", code=77)
    box.must("usermod", "-aG", "pagemill", "ben")
    late = "setpriv --reuid=ben --regid=ben --clear-groups pagemill ls"
    assert "you joined the group pagemill after you had logged in" in box.run(*late.split()).stderr
    assert by("ben", "ls").splitlines()[1].split()[:3] == ["1", "scheduled", "nap"]

    # A daemon of their own is not to work on it, and a queue of their own is theirs.
    assert "systemctl start pagemill" in by("ann", "run", code=78)
    by("eve", "init", "--database", "/home/eve/.local/share/pagemill/pagemill.db")
    assert by("eve").startswith("database  /home/eve/.local/share/pagemill/pagemill.db (default)")


@pytest.mark.skipif(not shutil.which("setfacl"), reason="needs setfacl")
def test_a_monitor_is_let_in_to_look_and_can_change_nothing(box: Box) -> None:
    as_if_installed(box)
    box.must("/opt/pagemill/bin/pagemill", "service", "install", "--python", PROGRAM)
    box.must("useradd", "nagios")
    box.must(*f"setfacl -R -m u:nagios:rX,d:u:nagios:rX {STATE}".split())
    monitor = "setpriv --reuid=nagios --regid=nagios --init-groups env HOME=/nonexistent pagemill"
    assert box.run(*monitor.split(), "status").stdout.startswith("OK: 2 workers")

    # Also while the daemons are down: then that is what it has to tell.
    box.must("systemctl", "stop", "pagemill", "pagemill-commands")
    down = box.run(*monitor.split(), "status")
    assert (down.returncode, down.stdout.split(" | ")[0]) == (2, "CRITICAL: no worker is alive")
    box.must("systemctl", "start", "pagemill", "pagemill-commands")
    assert box.run(*monitor.split(), "status").stdout.startswith("OK: 2 workers")
    assert box.run(*monitor.split(), "pause", "--all").returncode == 77


def test_install_makes_it_run_and_uninstall_takes_it_away_again(box: Box) -> None:
    as_if_installed(box)
    words = [PROGRAM, "-m", "worker_service.cli", "service"]
    insert = "INSERT INTO worker_job_queue (job_type, platform) VALUES ('touch', 'local')"
    settings = "[commands.touch]\nargv = ['/bin/touch', '/var/lib/pagemill/touched']\n"

    box.write("/etc/pagemill/pagemill.toml", settings)
    said = box.must(*words, "install", "--python", PROGRAM)

    assert "keep   /etc/pagemill/pagemill.toml" in said.splitlines()
    units = ["pagemill.service", "pagemill-commands.service"]
    for unit in units:
        box.must("systemctl", "is-active", unit)
        box.must("systemctl", "is-enabled", unit)
    who = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--groups=pagemill"]
    box.must(*who, "sqlite3", "-cmd", ".timeout 5000", f"{STATE}/pagemill.db", insert)
    wait_until(lambda: box.run("test", "-e", f"{STATE}/touched").returncode == 0, "the job has run")

    # Again: the newer version is the one that runs.
    before = box.must("systemctl", "show", "-p", "MainPID", units[0])
    box.must(*words, "install", "--python", PROGRAM)
    assert box.must("systemctl", "show", "-p", "MainPID", units[0]) != before

    box.must(*words, "uninstall")

    for unit in units:
        assert box.run("systemctl", "cat", unit).returncode != 0
    assert box.run("pgrep", "-u", "pagemill").stdout == ""
    box.must("test", "-e", f"{STATE}/pagemill.db")
    assert "the service is not installed" in box.run(*words, "uninstall").stderr


def test_the_timers_begin_what_is_scheduled_and_copies_as_the_services_user_and_go_with_the_rest(box: Box) -> None:
    as_if_installed(box)
    words = [PROGRAM, "-m", "worker_service.cli", "service"]
    folder = '[[schedule]]\nname = "folder"\ncron = "0 0 1 1 *"\ncrawl = "/nowhere"\n'
    job = '[[schedule]]\nname = "job"\ncron = "0 0 1 1 *"\njob = { type = "touch" }\n'
    box.write("/etc/pagemill/pagemill.toml", folder + job)
    box.must(*words, "install", "--python", PROGRAM)
    database = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--groups=pagemill", "sqlite3", f"{STATE}/pagemill.db"]
    past = "strftime('%Y-%m-%d %H:%M:%f', 'now', '-1 year')"
    plans = f"('folder', '0 0 1 1 * UTC', {past}), ('job', '0 0 1 1 * UTC', {past})"
    box.must(*database, f"INSERT INTO schedule_plan VALUES {plans}")

    # It says what it could not begin, and the unit shows it as failed.
    assert box.run("systemctl", "start", "pagemill-schedule.service").returncode == 1

    assert box.must(*database, "SELECT job_type FROM worker_job_queue") == "touch\n"
    wait_until(
        lambda: "there is no directory /nowhere" in box.run("journalctl", "-u", "pagemill-schedule").stdout,
        "it is told",
    )
    box.must("systemctl", "start", "pagemill-backup.service")
    copy = box.must("sh", "-c", "ls /var/backups/pagemill/pagemill-*.db").strip()
    restore = [PROGRAM, "-m", "worker_service.cli", "db", "restore", copy, "--yes"]
    assert "systemctl stop pagemill" in box.run(*restore).stderr
    box.must("systemctl", "stop", "pagemill", "pagemill-commands")
    box.must(*restore)
    box.must("systemctl", "start", "pagemill")
    assert box.must("stat", "-c", "%U:%G %a", f"{STATE}/pagemill.db") == "pagemill:pagemill 660\n"
    assert box.must(*database, "SELECT count(*) FROM worker_job_queue") == "1\n"

    box.must("systemctl", "enable", "--now", "pagemill-schedule.timer")
    box.must("systemctl", "is-active", "pagemill-schedule.timer")
    box.must(*words, "uninstall")
    for unit in ("pagemill-schedule.timer", "pagemill-schedule.service"):
        assert box.run("systemctl", "cat", unit).returncode != 0
    assert box.run("systemctl", "is-active", "pagemill-schedule.timer").stdout == "inactive\n"


def test_the_web_lets_in_who_has_a_token_and_goes_on_whatever_becomes_of_it(box: Box) -> None:
    as_if_installed(box)
    words = [PROGRAM, "-m", "worker_service.cli", "service"]
    box.write("/etc/pagemill/pagemill.toml", "[commands.nap]\nargv = ['/bin/sleep', '{payload.seconds}']\n")
    box.must(*words, "install", "--web", "--python", PROGRAM)
    box.must("useradd", "ann")
    box.must("usermod", "-aG", "pagemill", "ann")
    as_ann = ["setpriv", "--reuid=ann", "--regid=ann", "--init-groups"]
    token = box.must(*as_ann, "pagemill", "token", "make", "ann", "--scope", "operate").strip()

    def asked(path: str, data: str | None = None, *, word: str = token) -> str:
        """Ask as ann; return the answer, or the status of the refusal."""
        ask = "import sys, urllib.request as u, urllib.error\n"
        ask += "r = u.Request('http://127.0.0.1:8470' + sys.argv[1], sys.argv[2].encode() or None, "
        ask += "{'Content-Type': 'application/json', 'Authorization': 'Bearer ' + sys.argv[3]})\n"
        ask += "try: print(u.urlopen(r).read().decode())\nexcept urllib.error.HTTPError as e: print(e.code)"
        return box.must(*as_ann, PROGRAM, "-c", ask, path, data or "", word)

    # The unit is ready when it can be asked. To be in the group is not enough.
    assert json.loads(asked("/api/scheduler/status"))["worker_healthy"] is True
    assert asked("/api/jobs", word="") == "401\n"
    made = json.loads(asked("/api/jobs", '{"job_type": "nap", "payload": {"seconds": 4}}'))

    # It is ended without warning while a job runs, and comes back; the job has noticed nothing.
    of_job = f"/api/jobs/{made['id']}"
    status = ["sqlite3", "-cmd", ".timeout 5000", f"{STATE}/pagemill.db", "SELECT status FROM worker_job_queue"]
    wait_until(lambda: box.must(*status) == "running\n", "the job runs")
    box.must("systemctl", "kill", "--signal=KILL", "pagemill-web")
    wait_until(
        lambda: box.must("systemctl", "show", "-p", "NRestarts", "pagemill-web") == "NRestarts=1\n", "it is begun again"
    )
    wait_until(lambda: box.run("systemctl", "is-active", "pagemill-web").stdout == "active\n", "it is there again")
    wait_until(lambda: box.must(*status) == "completed\n", "the job has ended")
    assert json.loads(asked(of_job))["fence"] == 1

    said = box.run("journalctl", "-u", "pagemill-web").stdout
    assert "web.started" in said
    assert "pm_" not in said

    box.must(*words, "uninstall")
    assert box.run("systemctl", "cat", "pagemill-web").returncode != 0


def test_an_older_database_is_upgraded_in_the_order_that_the_docs_tell(box: Box) -> None:
    as_if_installed(box)
    box.must("/opt/pagemill/bin/pagemill", "service", "install", "--python", PROGRAM)
    box.must("systemctl", "stop", "pagemill", "pagemill-commands")
    row = "INSERT INTO worker_job_queue (job_type, platform) VALUES ('touch', 'local')"
    box.write("/etc/pagemill/plain.sql", ORIGINAL)
    older = f"sqlite3 {STATE}/pagemill.db </etc/pagemill/plain.sql && sqlite3 {STATE}/pagemill.db"
    box.must("sh", "-c", f"rm -r {STATE}/pagemill.db* {STATE}/workspace")
    service = "setpriv --reuid=pagemill --regid=pagemill --clear-groups sh -c".split()
    box.must(*service, f'umask 7; {older} "{row}"')
    box.write("/etc/pagemill/pagemill.toml", "[commands.touch]\nargv = ['/bin/touch', '/var/lib/pagemill/touched']\n")
    # The new version refuses it, and says what to do.
    refused = box.run("pagemill", "status")
    assert "pagemill db migrate" in refused.stdout + refused.stderr

    page = (ROOT / "docs/upgrade.md").read_text("utf-8").partition("## By hand")[2]
    [steps] = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    typed = [line.partition("#")[0].removeprefix("sudo ").strip() for line in steps.splitlines()]
    for line in typed:
        if "pip install" not in line:
            box.must("sh", "-c", line.replace("service install", f"service install --python {PROGRAM}"))

    assert any("pip install" in line for line in typed)
    wait_until(lambda: box.run("test", "-e", f"{STATE}/touched").returncode == 0, "the job has run")
    assert box.must("pagemill", "status").startswith("OK: 2 workers")


PIP = """import pathlib, sys
assert sys.argv[1:3] == ["install", "--upgrade"]
if sys.argv[3] == "./broken":
    [path] = pathlib.Path(sys.prefix).glob("lib/python*/site-packages/where.pth")
    path.write_text("")
"""


def test_an_upgrade_that_does_not_run_returns_to_the_earlier_version_and_a_reload_stops_nothing(box: Box) -> None:
    path = f"{chosen(box, ('command',))}:{PYTHONPATH}".split(":")
    box.must(PYTHON, "-m", "venv", "--without-pip", "/opt/pagemill")
    packages = box.must("sh", "-c", "echo /opt/pagemill/lib/python*/site-packages").strip()
    box.write(f"{packages}/where.pth", "".join(f"{one}\n" for one in path))
    box.write(f"{packages}/pip.py", PIP)
    box.write("/opt/pagemill/bin/pagemill", f'#!/bin/sh\nexec {PROGRAM} -m worker_service.cli "$@"\n')
    box.must("chmod", "755", "/opt/pagemill/bin/pagemill")
    box.must("/opt/pagemill/bin/pagemill", "service", "install")
    first = box.must("systemctl", "show", "-P", "MainPID", "pagemill")

    box.must("systemctl", "reload", "pagemill")
    assert box.must("systemctl", "show", "-P", "MainPID", "pagemill") == first
    box.must("pagemill", "upgrade", "./good")
    second = box.must("systemctl", "show", "-P", "MainPID", "pagemill")
    broken = box.run("pagemill", "upgrade", "./broken")

    assert first != second
    assert broken.returncode == 1
    assert "runs again" in broken.stderr
    assert box.must("pagemill", "status").startswith("OK: 2 workers")
