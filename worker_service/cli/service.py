"""`pagemill service`: install or remove the systemd units.

Every file and command is printed before the first one is executed. The files are those of `systemd/`, which the wheel
includes, with the path of this installation's Python.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote

import click
from msgspec import Struct

from worker_service.base.errors import PagemillError, ProgramAbsent, Refused
from worker_service.base.files import atomic_write
from worker_service.cli import VerbGroup, output
from worker_service.cli.context import Function, Invocation, verb
from worker_service.settings.config import SERVICE_CONFIGURATION, SERVICE_STATE, user_unit

_PACKAGE = Path(__file__).resolve().parents[1]
UNITS = ("pagemill.service", "pagemill-commands.service")
OFFLINE_UNIT, SCHEDULE_TIMER = "pagemill-offline@.service", "pagemill-schedule.timer"
WEB_UNIT, BACKUP_TIMER = "pagemill-web.service", "pagemill-backup.timer"
LEFT_UNITS = (
    OFFLINE_UNIT,
    "pagemill-schedule.service",
    SCHEDULE_TIMER,
    "pagemill-backup.service",
    BACKUP_TIMER,
    WEB_UNIT,
)
"""Written, but not enabled."""
USER_UNIT = "pagemill-user.service"
_NAMES = {
    "sysusers.d/pagemill.conf": "pagemill.sysusers.conf",
    "tmpfiles.d/pagemill.conf": "pagemill.tmpfiles.conf",
}
STATE, CONFIGURATION = str(SERVICE_STATE), str(SERVICE_CONFIGURATION)
COMMAND = "/usr/local/bin/pagemill"
_HINTS = (
    "to give a user access: usermod -aG pagemill {person}, and log in again; `pagemill` then uses "
    f"{STATE}/pagemill.db",
    f"for a Google Drive key, which only root may read: chmod 600 {CONFIGURATION}/drive.json && "
    f"systemctl edit pagemill, with [Service] LoadCredential=drive:{CONFIGURATION}/drive.json",
    "to run a job type without network access, such as ocr_pages: systemctl enable --now "
    "pagemill-offline@TYPE, and systemctl edit pagemill, with [Service] Environment=WORKER_TYPES=!@commands,!TYPE",
    f"for the web page and API at http://127.0.0.1:8470: systemctl enable --now {WEB_UNIT}",
    f"to run the schedules in the settings: systemctl enable --now {SCHEDULE_TIMER}",
    f"for a nightly copy of the database in /var/backups/pagemill: systemctl enable --now {BACKUP_TIMER}",
)
_USER_HINTS = ("to keep it running after you log out: loginctl enable-linger",)
# Directories that ProtectHome hides from the units.
_HIDDEN = ("/root", "/home", "/run/user")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class NeedsRoot(PagemillError):
    code = "not_allowed"
    exit_code = 77


class StepFailed(PagemillError):
    """A command failed. Earlier steps stay; repeating all of them is safe."""

    code = "step_failed"


class WriteFile(Struct, frozen=True):
    path: Path
    text: str
    is_kept: bool = False
    """Do not overwrite an existing file, which the administrator may have edited."""
    mode: int = 0o644

    def __str__(self) -> str:
        return f"keep   {self.path}" if self._is_left() else f"write  {self.path}"

    def do(self) -> None:
        if self._is_left():
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # systemd may read the file at any time, so replace it in one step, with its mode set.
        with atomic_write(self.path, mode=0o600) as file:
            file.write(self.text.encode())
            os.fchmod(file.fileno(), self.mode)

    def _is_left(self) -> bool:
        return self.is_kept and self.path.exists()


class Link(Struct, frozen=True):
    path: Path
    target: Path

    def __str__(self) -> str:
        return f"link   {self.path} to {self.target}"

    def do(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # A dangling link is left from an earlier installation.
        self.path.unlink(missing_ok=True)
        self.path.symlink_to(self.target)


class Remove(Struct, frozen=True):
    path: Path

    def __str__(self) -> str:
        return f"remove {self.path}"

    def do(self) -> None:
        self.path.unlink(missing_ok=True)


class RunCommand(Struct, frozen=True):
    argv: Sequence[str]

    def __str__(self) -> str:
        return f"run    {shlex.join(self.argv)}"

    def do(self) -> None:
        try:
            done = subprocess.run(
                self.argv, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
            )
        except FileNotFoundError as error:
            raise ProgramAbsent(f"{self.argv[0]} is not installed", "this needs a machine with systemd") from error
        if done.returncode:
            said = (done.stderr or done.stdout).strip()
            raise StepFailed(f"{shlex.join(self.argv)} ended with {done.returncode}: {said}")


Step = WriteFile | Link | Remove | RunCommand


# ── The verbs ───────────────────────────────────────────────────────────────────────────────────────────────────


def _target_options(function: Function) -> Function:
    root = click.Path(path_type=Path, file_okay=False, exists=True, resolve_path=True)
    click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")(function)
    click.option("--user", "for_user", is_flag=True, help="For your user only, with systemctl --user.")(function)
    return click.option("--root", type=root, help="In the file system of an image; start nothing.")(function)


@verb
@_target_options
@click.option("--web", "with_web", is_flag=True, help="Also start the web page and the API, on this machine only.")
@click.option("--python", metavar="PATH", help="Python that has pagemill. Default: this one.")
def install(
    call: Invocation, for_user: bool, dry_run: bool, root: Path | None, with_web: bool, python: str | None
) -> None:
    """\b
    sudo pagemill service install --dry-run
    sudo pagemill service install
    sudo pagemill service install --web
    pagemill service install --user

    Install the systemd units and start the daemon. Prints each file and command first. Repeating it updates the units
    and restarts the daemon; existing settings are kept. `pagemill` then works in every shell, with the service's
    database.

    There are two daemons: pagemill.service for documents, and the less hardened pagemill-commands.service for your own
    programs. --web adds pagemill-web.service, which is `pagemill serve`.
    """
    _check(for_user=for_user, dry_run=dry_run, root=root)
    if for_user and with_web:
        raise click.UsageError("--web and --user cannot be combined: for your user, start `pagemill serve`")
    if not for_user:
        _refuse_hidden(python)
    elif call.settings.is_of_the_service:
        raise Refused(
            f"this machine's service is installed, and your database is {call.settings.database}: for one of your own, "
            'write it into ~/.config/pagemill/pagemill.toml first, as database = "~/pagemill.db"'
        )
    python = python or sys.executable
    steps = _user_install(python) if for_user else _install(python, root, with_web=with_web)
    do_steps(call, [*steps], dry_run=dry_run)
    if call.as_json or root is not None:
        return
    if not dry_run:
        output.say(f"next: systemctl{' --user' if for_user else ''} status pagemill")
    for hint in _USER_HINTS if for_user else _HINTS:
        output.say(hint.format(person=os.environ.get("SUDO_USER") or "NAME"))


@verb
@_target_options
def uninstall(call: Invocation, for_user: bool, dry_run: bool, root: Path | None) -> None:
    """\b
    sudo pagemill service uninstall --dry-run
    sudo pagemill service uninstall
    pagemill service uninstall --user

    Stop the daemon and remove its units. The database, the settings and the user pagemill stay.

    Running jobs get the grace period to finish; the others return to the queue.
    """
    _check(for_user=for_user, dry_run=dry_run, root=root)
    steps = [*(_user_uninstall() if for_user else _uninstall(root))]
    do_steps(call, steps, dry_run=dry_run)
    if not steps and not call.as_json:
        output.say("the service is not installed")
    elif not call.as_json and not dry_run and not for_user and root is None:
        output.say(f"kept: {STATE}, {CONFIGURATION} and the user pagemill")


service = VerbGroup(
    "service",
    "\b\nsudo pagemill service install --dry-run\nsudo pagemill service install\n"
    "pagemill service install --user\nsudo pagemill service uninstall\n\n"
    "Install or remove the systemd units.",
    *(install, uninstall),
)


# ── Steps ──────────────────────────────────────────────────────────────────────────────────────────


def _install(python: str, root: Path | None, *, with_web: bool) -> Iterator[Step]:
    units = (*UNITS, WEB_UNIT) if with_web else UNITS

    def at(path: str) -> Path:
        return (root or Path("/")) / path.lstrip("/")

    below = [] if root is None else [f"--root={root}"]
    for unit in (*UNITS, *LEFT_UNITS):
        yield WriteFile(at(f"/etc/systemd/system/{unit}"), unit_text(unit, python))
    for name, shipped in _NAMES.items():
        yield WriteFile(at(f"/etc/{name}"), shipped_file(shipped))
    yield WriteFile(at(f"{CONFIGURATION}/pagemill.toml"), shipped_file("pagemill.toml"), is_kept=True)
    script = script_of(python)
    if at(str(script)).exists() and not at(COMMAND).exists():
        yield Link(at(COMMAND), script)
    yield RunCommand(["systemd-sysusers", *below, "pagemill.conf"])
    yield RunCommand(["systemd-tmpfiles", "--create", *below, "pagemill.conf"])
    if root is not None:
        yield RunCommand(["systemctl", *below, "enable", *units])
        return
    # Like the service: with its settings, its user, and a umask that lets the group write.
    own = [f"PATH={_PATH}", f"HOME={STATE}", f"STATE_DIRECTORY={STATE}", f"CONFIGURATION_DIRECTORY={CONFIGURATION}"]
    who = ["setpriv", "--reuid=pagemill", "--regid=pagemill", "--init-groups"]
    init = 'umask 0007 && exec "$0" -m worker_service.cli init'
    yield RunCommand(["env", "-i", *own, *who, "sh", "-c", init, python])
    yield RunCommand(["systemctl", "daemon-reload"])
    yield RunCommand(["systemctl", "enable", *units])
    # Not --now, which would leave the old version running.
    yield RunCommand(["systemctl", "restart", *units])
    if not with_web:
        # An administrator may have started the web unit by hand.
        yield RunCommand(["systemctl", "try-restart", WEB_UNIT])


def _uninstall(root: Path | None) -> Iterator[Step]:
    etc = (root or Path("/")) / "etc"
    units = [unit for unit in UNITS if (etc / "systemd/system" / unit).exists()]
    # systemctl refuses a unit that does not exist; then there is nothing to stop either.
    if units and root is None:
        yield RunCommand(["systemctl", "disable", "--now", *units])
        yield RunCommand(["systemctl", "disable", OFFLINE_UNIT])
        # Older installations have no such units.
        for unit in (SCHEDULE_TIMER, BACKUP_TIMER, WEB_UNIT):
            if (etc / "systemd/system" / unit).exists():
                yield RunCommand(["systemctl", "disable", "--now", unit])
        yield RunCommand(["systemctl", "stop", OFFLINE_UNIT.replace("@", "@*")])
    elif units:
        yield RunCommand(
            ["systemctl", f"--root={root}", "disable", *units, OFFLINE_UNIT, SCHEDULE_TIMER, BACKUP_TIMER, WEB_UNIT]
        )
    written = (*(f"systemd/system/{unit}" for unit in (*UNITS, *LEFT_UNITS)), *_NAMES)
    yield from (Remove(etc / name) for name in written if (etc / name).exists())
    link = etc.parent / COMMAND.lstrip("/")
    if link.is_symlink() and link.readlink() == script_of(sys.executable):
        yield Remove(link)
    if units and root is None:
        yield RunCommand(["systemctl", "daemon-reload"])


def _user_install(python: str) -> Iterator[Step]:
    yield WriteFile(user_unit(os.environ), unit_text(USER_UNIT, python))
    yield RunCommand([python, "-m", "worker_service.cli", "init"])
    yield RunCommand(["systemctl", "--user", "daemon-reload"])
    yield RunCommand(["systemctl", "--user", "enable", "pagemill.service"])
    yield RunCommand(["systemctl", "--user", "restart", "pagemill.service"])


def _user_uninstall() -> Iterator[Step]:
    if not user_unit(os.environ).exists():
        return
    yield RunCommand(["systemctl", "--user", "disable", "--now", "pagemill.service"])
    yield Remove(user_unit(os.environ))
    yield RunCommand(["systemctl", "--user", "daemon-reload"])


def script_of(python: str) -> Path:
    return Path(python).with_name("pagemill")


def unit_text(unit: str, python: str) -> str:
    # systemd expands % in a unit, and takes quoted words literally.
    word = python.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    quote = '"' if re.search(r"[\s\"\\]", python) else ""
    return re.sub(
        r"^ExecStart=/usr/bin/env python3",
        lambda _: f"ExecStart={quote}{word}{quote}",
        shipped_file(unit),
        flags=re.MULTILINE,
    )


def shipped_file(name: str) -> str:
    carried = _PACKAGE / "systemd" / name
    return (carried if carried.exists() else _PACKAGE.parent / "systemd" / name).read_text("utf-8")


# ── Checks and execution ────────────────────────────────────────────────────────────────────────────────────────────


def _check(*, for_user: bool, dry_run: bool, root: Path | None) -> None:
    context = click.get_current_context()
    if context.params.get("database") or (context.find_root().obj or {}).get("database"):
        raise click.UsageError(f"set the database in the settings: {CONFIGURATION}/pagemill.toml", context)
    if for_user and root is not None:
        raise click.UsageError("--user and --root cannot be combined", context)
    if not (for_user or dry_run or root is not None) and os.geteuid() != 0:
        raise NeedsRoot("only root can change the service", "use sudo, or --user for your user only")


def _refuse_hidden(python: str | None) -> None:
    """Raise `Refused` if Python or its packages are in a home directory, which the units cannot see."""
    ours: Sequence[str | Path] = (sys.executable, sys.prefix, sys.base_prefix, _PACKAGE)
    for path in [python] if python is not None else ours:
        if any(Path(os.path.abspath(path)).is_relative_to(hidden) for hidden in _HIDDEN):  # noqa: PTH100  do not resolve links
            raise Refused(
                f"{path} is in a home directory, which the service cannot see",
                f"/usr/bin/python3 -m venv /opt/pagemill && "
                f"/opt/pagemill/bin/pip install {shlex.quote(_origin())} && /opt/pagemill/bin/pagemill service install",
            )


def _origin() -> str:
    """Return what pip has to install to get this pagemill."""
    with suppress(PackageNotFoundError):
        given = distribution("pagemill").read_text("direct_url.json")
        if given is not None:
            url = str(json.loads(given)["url"])
            return unquote(url.removeprefix("file://"))
    return "pagemill"


def do_steps(call: Invocation, steps: Sequence[Step], *, dry_run: bool) -> None:
    if not call.printed_json({"dry_run": dry_run, "items": [_as_object(step) for step in steps]}):
        for step in steps:
            output.show(str(step))
    if dry_run:
        return
    for step in steps:
        step.do()


def _as_object(step: Step) -> dict[str, object]:
    if isinstance(step, RunCommand):
        return {"step": "run", "argv": step.argv}
    more = {"target": step.target} if isinstance(step, Link) else {}
    return {"step": str(step).split()[0], "path": step.path, **more}
