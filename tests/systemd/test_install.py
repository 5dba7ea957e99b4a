from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator

import pytest

from tests.kit.system import wait_until
from tests.store.test_migrations import ORIGINAL
from tests.systemd.booted_systemd import PYTHON, PYTHONPATH, ROOT, Box
from tests.systemd.conftest import DATABASE, STATE, booted, install_handlers

ENVIRONMENT = "/opt/pagemill"
PROGRAM = f"{ENVIRONMENT}/bin/python"
SERVICE = (f"{ENVIRONMENT}/bin/pagemill", "service")
DAEMONS = ("pagemill", "pagemill-commands")
SETTINGS = """\
[commands.touch]
argv = ["/bin/touch", "/var/lib/pagemill/touched"]
[commands.nap]
argv = ["/bin/sleep", "{payload.seconds}"]
[[schedule]]
name = "folder"
cron = "0 0 1 1 *"
crawl = "/nowhere"
[[schedule]]
name = "job"
cron = "0 0 1 1 *"
job = { type = "yearly" }
"""
PIP = """import pathlib, sys
assert sys.argv[1:3] == ["install", "--upgrade"]
if sys.argv[3] == "./broken":
    [path] = pathlib.Path(sys.prefix).glob("lib/python*/site-packages/where.pth")
    path.write_text("")
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """A box with an installed pagemill, settings, and ann, a member of the group. Its pip can only break things."""
    with booted(tmp_path_factory.mktemp("installed")) as box:
        box.check(PYTHON, "-m", "venv", "--without-pip", ENVIRONMENT)
        packages = box.check("sh", "-c", f"echo {ENVIRONMENT}/lib/python*/site-packages").strip()
        path = f"{install_handlers(box, ['command'])}:{PYTHONPATH}".split(":")
        box.write(f"{packages}/where.pth", "".join(f"{directory}\n" for directory in path))
        box.write(f"{packages}/pip.py", PIP)
        box.write(SERVICE[0], f'#!/bin/sh\nexec {PROGRAM} -m worker_service.cli "$@"\n')
        box.check("chmod", "755", SERVICE[0])
        box.write("/etc/pagemill/pagemill.toml", SETTINGS)
        box.check(*SERVICE, "install")
        box.check("useradd", "--create-home", "--groups", "pagemill", "ann")
        yield box


@pytest.fixture
def installed(prepared: Box) -> Box:
    if prepared.run("systemctl", "is-active", *DAEMONS).returncode:
        prepared.check(*SERVICE, "install")
    return prepared


def as_user(box: Box, name: str, *words: str, code: int = 0) -> str:
    who = f"setpriv --reuid={name} --regid={name} --init-groups env HOME=/home/{name}"
    done = box.run("sh", "-c", 'cd "$1"; shift; exec "$@"', "sh", f"/home/{name}", *who.split(), *words)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def sqlite3(box: Box, statement: str) -> str:
    """Run a statement as a user whose only right is the group."""
    who = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--groups=pagemill"]
    return box.check(*who, "sqlite3", "-cmd", ".timeout 5000", DATABASE, statement)


def main_pid(box: Box, unit: str = "pagemill") -> str:
    return box.check("systemctl", "show", "-P", "MainPID", unit)


def touches(box: Box) -> None:
    """Wait until a job has run, and forget that it has."""
    wait_until(lambda: box.run("rm", f"{STATE}/touched").returncode == 0, "the job has run")


def test_install_enables_the_units_and_restarts_them_when_repeated(installed: Box) -> None:
    box = installed
    before = main_pid(box)

    output = box.check(*SERVICE, "install")

    assert "keep   /etc/pagemill/pagemill.toml" in output.splitlines()
    box.check("systemctl", "is-active", *DAEMONS)
    box.check("systemctl", "is-enabled", *DAEMONS)
    assert main_pid(box) != before
    sqlite3(box, "INSERT INTO worker_job_queue (job_type, platform) VALUES ('touch', 'local')")
    touches(box)
    claims = box.check("journalctl", "--no-pager", "-o", "json", "PAGEMILL_EVENT=job.claimed").splitlines()
    # Programs of the settings are left to the unit for commands.
    assert {json.loads(claim)["_SYSTEMD_UNIT"] for claim in claims} == {"pagemill-commands.service"}


def test_group_members_use_the_database_of_the_service(installed: Box) -> None:
    box = installed
    for name in ("ben", "eve"):
        box.check("useradd", "--create-home", name)

    # A member, and root: nothing was set, and no path was typed.
    assert as_user(box, "ann", "pagemill").splitlines()[:2] == [
        f"database  {DATABASE} (the service)",
        "workers   2 alive",
    ]
    shown = as_user(box, "ann", "pagemill", "config", "show")
    assert re.search(rf"^database +{DATABASE} +the service$", shown, re.MULTILINE)
    job = as_user(box, "ann", "pagemill", "enqueue", "touch", "--run-at", "+1h").splitlines()[0]
    assert "1 pending" in box.check("pagemill")
    assert as_user(box, "ann", "pagemill", "status").startswith("OK: 2 workers")

    # Others learn how to join the group, and afterwards that a new session is needed.
    refused = as_user(box, "ben", "pagemill", "ls", code=77)
    assert "join the group pagemill by `sudo usermod -aG pagemill ben`, then log in again" in refused
    box.check("usermod", "-aG", "pagemill", "ben")
    late = "setpriv --reuid=ben --regid=ben --clear-groups pagemill ls"
    assert "you joined the group pagemill after you had logged in" in box.run(*late.split()).stderr
    assert as_user(box, "ben", "pagemill", "ls").splitlines()[1].split()[:3] == [job, "scheduled", "touch"]

    # A daemon of their own is not to work on it, and a queue of their own is theirs.
    assert "systemctl start pagemill" in as_user(box, "ann", "pagemill", "run", code=78)
    own = "/home/eve/.local/share/pagemill/pagemill.db"
    as_user(box, "eve", "pagemill", "init", "--database", own)
    assert as_user(box, "eve", "pagemill").startswith(f"database  {own} (default)")


@pytest.mark.skipif(not shutil.which("setfacl"), reason="needs setfacl")
def test_a_monitoring_user_can_read_and_change_nothing(installed: Box) -> None:
    box = installed
    box.check("useradd", "--create-home", "nagios")
    box.check(*f"setfacl -R -m u:nagios:rX,d:u:nagios:rX {STATE}".split())
    assert as_user(box, "nagios", "pagemill", "status").startswith("OK: 2 workers")

    # Also while the daemons are down: then that is what it has to tell.
    box.check("systemctl", "stop", *DAEMONS)
    down = as_user(box, "nagios", "pagemill", "status", code=2)
    assert down.split(" | ")[0] == "CRITICAL: no worker is alive"
    box.check("systemctl", "start", *DAEMONS)
    assert as_user(box, "nagios", "pagemill", "status").startswith("OK: 2 workers")
    as_user(box, "nagios", "pagemill", "pause", "--all", code=77)


def test_the_timers_start_schedules_and_backups_as_the_service_user(installed: Box) -> None:
    box = installed
    past = "strftime('%Y-%m-%d %H:%M:%f', 'now', '-1 year')"
    plans = f"('folder', '0 0 1 1 * UTC', {past}), ('job', '0 0 1 1 * UTC', {past})"
    sqlite3(box, f"INSERT INTO schedule_plan VALUES {plans}")
    yearly = "SELECT count(*) FROM worker_job_queue WHERE job_type = 'yearly'"

    # It says what it could not start, and the unit shows it as failed.
    assert box.run("systemctl", "start", "pagemill-schedule.service").returncode == 1

    assert sqlite3(box, yearly) == "1\n"
    journal = ("journalctl", "-u", "pagemill-schedule")
    wait_until(lambda: "there is no directory /nowhere" in box.run(*journal).stdout, "it is in the journal")
    box.check("systemctl", "start", "pagemill-backup.service")
    copy = box.check("sh", "-c", "ls /var/backups/pagemill/pagemill-*.db").strip()
    restore = ["pagemill", "db", "restore", copy, "--yes"]
    assert "systemctl stop pagemill" in box.run(*restore).stderr
    box.check("systemctl", "stop", *DAEMONS)
    box.check(*restore)
    box.check("systemctl", "start", *DAEMONS)
    assert box.check("stat", "-c", "%U:%G %a", DATABASE) == "pagemill:pagemill 660\n"
    assert sqlite3(box, yearly) == "1\n"
    sqlite3(box, "UPDATE worker_job_queue SET status = 'cancelled' WHERE job_type = 'yearly'")


def test_the_documented_upgrade_steps_work(installed: Box) -> None:
    box = installed
    box.check("systemctl", "stop", *DAEMONS)
    row = "INSERT INTO worker_job_queue (job_type, platform) VALUES ('touch', 'local')"
    box.write("/etc/pagemill/plain.sql", ORIGINAL)
    box.check("sh", "-c", f"rm -r {DATABASE}* {STATE}/workspace")
    service = "setpriv --reuid=pagemill --regid=pagemill --clear-groups sh -c".split()
    box.check(
        *service, f'sqlite3 {DATABASE} </etc/pagemill/plain.sql; sqlite3 {DATABASE} "{row}"; chmod 660 {DATABASE}'
    )
    # The new version refuses it, and says what to do.
    refused = box.run("pagemill", "status")
    assert "pagemill db migrate" in refused.stdout + refused.stderr

    page = (ROOT / "docs/upgrade.md").read_text("utf-8").partition("## By hand")[2]
    [steps] = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    typed = [line.partition("#")[0].removeprefix("sudo ").strip() for line in steps.splitlines()]
    for line in typed:
        if "pip install" not in line:
            box.check("sh", "-c", line)

    assert any("pip install" in line for line in typed)
    touches(box)
    assert box.check("pagemill", "status").startswith("OK: 2 workers")


def test_a_broken_upgrade_is_rolled_back_and_a_reload_restarts_nothing(installed: Box) -> None:
    box = installed
    first = main_pid(box)

    box.check("systemctl", "reload", "pagemill")
    assert main_pid(box) == first
    box.check("pagemill", "upgrade", "./good")
    second = main_pid(box)
    broken = box.run("pagemill", "upgrade", "./broken")

    assert first != second
    assert broken.returncode == 1
    assert "runs again" in broken.stderr
    assert box.check("pagemill", "status").startswith("OK: 2 workers")


def test_the_web_service_requires_a_token_and_is_restarted(installed: Box) -> None:
    box = installed
    box.check(*SERVICE, "install", "--web")
    token = as_user(box, "ann", "pagemill", "token", "make", "ann", "--scope", "operate").splitlines()[0]

    def asked(path: str, data: str | None = None, *, word: str = token) -> str:
        """Ask as ann; return the answer, or the status of the refusal."""
        ask = "import sys, urllib.request as u, urllib.error\n"
        ask += "r = u.Request('http://127.0.0.1:8470' + sys.argv[1], sys.argv[2].encode() or None, "
        ask += "{'Content-Type': 'application/json', 'Authorization': 'Bearer ' + sys.argv[3]})\n"
        ask += "try: print(u.urlopen(r).read().decode())\nexcept urllib.error.HTTPError as e: print(e.code)"
        return as_user(box, "ann", PROGRAM, "-c", ask, path, data or "", word)

    # The unit is ready when it can be asked. To be in the group is not enough.
    assert json.loads(asked("/api/scheduler/status"))["worker_healthy"] is True
    assert asked("/api/jobs", word="") == "401\n"
    made = json.loads(asked("/api/jobs", '{"job_type": "nap", "payload": {"seconds": 2}}'))

    # It is killed while a job runs, and comes back; the job has noticed nothing.
    of_job = f"SELECT status FROM worker_job_queue WHERE id = {made['id']}"
    web = ("systemctl", "show", "-P", "NRestarts", "-P", "ActiveState", "pagemill-web")
    wait_until(lambda: sqlite3(box, of_job) == "running\n", "the job runs")
    box.check("systemctl", "kill", "--signal=KILL", "pagemill-web")
    wait_until(lambda: set(box.check(*web).split()) == {"1", "active"}, "it is started again")
    wait_until(lambda: sqlite3(box, of_job) == "completed\n", "the job has ended")
    assert sqlite3(box, f"SELECT count(*) FROM worker_job_attempt WHERE job_id = {made['id']}") == "1\n"

    output = box.run("journalctl", "-u", "pagemill-web").stdout
    assert "web.started" in output
    assert "pm_" not in output


def test_uninstall_removes_units_and_timers_and_keeps_the_database(installed: Box) -> None:
    box = installed
    box.check("systemctl", "enable", "--now", "pagemill-schedule.timer")
    box.check("systemctl", "is-active", "pagemill-schedule.timer")

    box.check(*SERVICE, "uninstall")

    for unit in (*DAEMONS, "pagemill-web", "pagemill-schedule.timer", "pagemill-schedule.service"):
        assert box.run("systemctl", "cat", unit).returncode != 0
    assert box.run("systemctl", "is-active", "pagemill-schedule.timer").stdout == "inactive\n"
    assert box.run("pgrep", "-u", "pagemill").stdout == ""
    box.check("test", "-e", DATABASE)
    assert "the service is not installed" in box.run(*SERVICE, "uninstall").stderr
