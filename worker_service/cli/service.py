"""`pagemill service`: put the daemon under systemd, and take it away again.

Prints every file and every command before it does the first of them. The files are those of `systemd/`, which the
wheel carries along; only the path of Python in them is this installation's own.
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
from worker_service.cli import group, output
from worker_service.cli.context import Function, Invocation, verb
from worker_service.settings.config import SERVICE_CONFIGURATION, SERVICE_STATE

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
"""Written, and left to the owner to enable."""
USER_UNIT = "pagemill-user.service"
_NAMES = {
    "sysusers.d/pagemill.conf": "pagemill.sysusers.conf",
    "tmpfiles.d/pagemill.conf": "pagemill.tmpfiles.conf",
}
STATE, CONFIGURATION = str(SERVICE_STATE), str(SERVICE_CONFIGURATION)
COMMAND = "/usr/local/bin/pagemill"
_HINTS = (
    "who uses it joins the group, and logs in again: usermod -aG pagemill {person}; then `pagemill` in any shell is "
    f"about {STATE}/pagemill.db",
    f"a key for Google Drive is root's own file, handed on by a drop-in: chmod 600 {CONFIGURATION}/drive.json && "
    f"systemctl edit pagemill, with [Service] LoadCredential=drive:{CONFIGURATION}/drive.json",
    "to run a job type without a network, such as the one that reads pages: systemctl enable --now "
    "pagemill-offline@TYPE, and systemctl edit pagemill, with [Service] Environment=WORKER_TYPES=!@commands,!TYPE",
    f"for browsers and programs of this machine, at http://127.0.0.1:8470: systemctl enable --now {WEB_UNIT}",
    f"to begin each [[schedule]] of the settings at its times: systemctl enable --now {SCHEDULE_TIMER}",
    f"to have a copy of the database in /var/backups/pagemill each night: systemctl enable --now {BACKUP_TIMER}",
)
_USER_HINTS = ("to have it run when you are not logged in: loginctl enable-linger",)
# What ProtectHome hides from the unit.
_HIDDEN = ("/root", "/home", "/run/user")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class NotAllowed(PagemillError):
    code = "not_allowed"
    exit_code = 77


class StepFailed(PagemillError):
    """A command of the plan ended badly. What was done before it stays, and doing it all again does no harm."""

    code = "step_failed"


class Write(Struct, frozen=True):
    path: Path
    text: str
    is_kept: bool = False
    """A file that is there already stays as it is: it is the owner's."""
    mode: int = 0o644

    def __str__(self) -> str:
        return f"keep   {self.path}" if self._is_left() else f"write  {self.path}"

    def do(self) -> None:
        if self._is_left():
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # systemd may read it at any time.
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
        # One that leads nowhere is left of an earlier place.
        self.path.unlink(missing_ok=True)
        self.path.symlink_to(self.target)


class Remove(Struct, frozen=True):
    path: Path

    def __str__(self) -> str:
        return f"remove {self.path}"

    def do(self) -> None:
        self.path.unlink(missing_ok=True)


class Run(Struct, frozen=True):
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


Step = Write | Link | Remove | Run


# ── The verbs ───────────────────────────────────────────────────────────────────────────────────────────────────


def _placing(function: Function) -> Function:
    root = click.Path(path_type=Path, file_okay=False, exists=True, resolve_path=True)
    click.option("--dry-run", is_flag=True, help="Only say what would be done.")(function)
    click.option("--user", "for_user", is_flag=True, help="For yourself alone, with systemctl --user.")(function)
    return click.option("--root", type=root, help="In the file system of an image; nothing is started.")(function)


@verb
@_placing
@click.option("--web", "with_web", is_flag=True, help="Start HTTP and the page as well, for this machine.")
@click.option("--python", metavar="PATH", help="The Python that has pagemill; by default this one.")
def install(
    call: Invocation, for_user: bool, dry_run: bool, root: Path | None, with_web: bool, python: str | None
) -> None:
    """\b
    sudo pagemill service install --dry-run
    sudo pagemill service install
    sudo pagemill service install --web
    pagemill service install --user

    Print every file and command that puts the daemon under systemd, then do it. Again does no harm: it takes newer
    units and restarts. Settings that are there are kept. From then on `pagemill` is found in every shell, and is about
    the service's database.

    Two daemons: pagemill.service for documents, and pagemill-commands.service for your own programs, which is
    hardened less. With --web also pagemill-web.service, which is `pagemill serve`.
    """
    _check(for_user=for_user, dry_run=dry_run, root=root)
    if for_user and with_web:
        raise click.UsageError("--web is for the whole machine: for yourself, start `pagemill serve`")
    if not for_user:
        refuse_hidden(python)
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
@_placing
def uninstall(call: Invocation, for_user: bool, dry_run: bool, root: Path | None) -> None:
    """\b
    sudo pagemill service uninstall --dry-run
    sudo pagemill service uninstall
    pagemill service uninstall --user

    Stop the daemon and take its units away. The database, the settings and the user pagemill stay.

    Running jobs get their time to end; what does not end in it goes back into the queue.
    """
    _check(for_user=for_user, dry_run=dry_run, root=root)
    steps = [*(_user_uninstall() if for_user else _uninstall(root))]
    do_steps(call, steps, dry_run=dry_run)
    if not steps and not call.as_json:
        output.say("nothing of it is installed")
    elif not call.as_json and not dry_run and not for_user and root is None:
        output.say(f"kept: {STATE}, {CONFIGURATION} and the user pagemill")


service = group(
    "service",
    "\b\nsudo pagemill service install --dry-run\nsudo pagemill service install\n"
    "pagemill service install --user\nsudo pagemill service uninstall\n\n"
    "Put the daemon under systemd, and take it away again.",
    *(install, uninstall),
)


# ── What is to be done ──────────────────────────────────────────────────────────────────────────────────────────


def _install(python: str, root: Path | None, *, with_web: bool) -> Iterator[Step]:
    units = (*UNITS, WEB_UNIT) if with_web else UNITS

    def at(path: str) -> Path:
        return (root or Path("/")) / path.lstrip("/")

    below = [] if root is None else [f"--root={root}"]
    for unit in (*UNITS, *LEFT_UNITS):
        yield Write(at(f"/etc/systemd/system/{unit}"), unit_text(unit, python))
    for name, shipped in _NAMES.items():
        yield Write(at(f"/etc/{name}"), shipped_file(shipped))
    yield Write(at(f"{CONFIGURATION}/pagemill.toml"), shipped_file("pagemill.toml"), is_kept=True)
    script = script_of(python)
    if at(str(script)).exists() and not at(COMMAND).exists():
        yield Link(at(COMMAND), script)
    yield Run(["systemd-sysusers", *below, "pagemill.conf"])
    yield Run(["systemd-tmpfiles", "--create", *below, "pagemill.conf"])
    if root is not None:
        yield Run(["systemctl", *below, "enable", *units])
        return
    # As the service would: with its settings, its user, and a umask that lets the group write.
    own = [f"PATH={_PATH}", f"HOME={STATE}", f"STATE_DIRECTORY={STATE}", f"CONFIGURATION_DIRECTORY={CONFIGURATION}"]
    who = ["setpriv", "--reuid=pagemill", "--regid=pagemill", "--init-groups"]
    init = 'umask 0007 && exec "$0" -m worker_service.cli init'
    yield Run(["env", "-i", *own, *who, "sh", "-c", init, python])
    yield Run(["systemctl", "daemon-reload"])
    yield Run(["systemctl", "enable", *units])
    # Not --now, which would leave the old version running.
    yield Run(["systemctl", "restart", *units])
    if not with_web:
        # Somebody may have started it by hand.
        yield Run(["systemctl", "try-restart", WEB_UNIT])


def _uninstall(root: Path | None) -> Iterator[Step]:
    etc = (root or Path("/")) / "etc"
    units = [unit for unit in UNITS if (etc / "systemd/system" / unit).exists()]
    # systemctl refuses a unit that is not there; then there is nothing to stop either.
    if units and root is None:
        yield Run(["systemctl", "disable", "--now", *units])
        yield Run(["systemctl", "disable", OFFLINE_UNIT])
        # Older ones had none.
        for unit in (SCHEDULE_TIMER, BACKUP_TIMER, WEB_UNIT):
            if (etc / "systemd/system" / unit).exists():
                yield Run(["systemctl", "disable", "--now", unit])
        yield Run(["systemctl", "stop", OFFLINE_UNIT.replace("@", "@*")])
    elif units:
        yield Run(
            ["systemctl", f"--root={root}", "disable", *units, OFFLINE_UNIT, SCHEDULE_TIMER, BACKUP_TIMER, WEB_UNIT]
        )
    written = (*(f"systemd/system/{unit}" for unit in (*UNITS, *LEFT_UNITS)), *_NAMES)
    yield from (Remove(etc / name) for name in written if (etc / name).exists())
    link = etc.parent / COMMAND.lstrip("/")
    if link.is_symlink() and link.readlink() == script_of(sys.executable):
        yield Remove(link)
    if units and root is None:
        yield Run(["systemctl", "daemon-reload"])


def _user_install(python: str) -> Iterator[Step]:
    yield Write(_user_unit(), unit_text(USER_UNIT, python))
    yield Run([python, "-m", "worker_service.cli", "init"])
    yield Run(["systemctl", "--user", "daemon-reload"])
    yield Run(["systemctl", "--user", "enable", "pagemill.service"])
    yield Run(["systemctl", "--user", "restart", "pagemill.service"])


def _user_uninstall() -> Iterator[Step]:
    if not _user_unit().exists():
        return
    yield Run(["systemctl", "--user", "disable", "--now", "pagemill.service"])
    yield Remove(_user_unit())
    yield Run(["systemctl", "--user", "daemon-reload"])


def script_of(python: str) -> Path:
    """The command as this installation has it."""
    return Path(python).with_name("pagemill")


def _user_unit() -> Path:
    given = os.environ.get("XDG_CONFIG_HOME", "")
    base = Path(given) if given.startswith("/") else Path.home() / ".config"
    return base / "systemd" / "user" / "pagemill.service"


def unit_text(unit: str, python: str) -> str:
    """A shipped unit with the Python of this installation."""
    # systemd reads % as the begin of a specifier and takes quoted words as they are.
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


# ── Whether, and how ────────────────────────────────────────────────────────────────────────────────────────────


def _check(*, for_user: bool, dry_run: bool, root: Path | None) -> None:
    context = click.get_current_context()
    if context.params.get("database") or (context.find_root().obj or {}).get("database"):
        raise click.UsageError(f"set the database in the settings: {CONFIGURATION}/pagemill.toml", context)
    if for_user and root is not None:
        raise click.UsageError("--user is for yourself on this machine, --root for an image: give one", context)
    if not (for_user or dry_run or root is not None) and os.geteuid() != 0:
        raise NotAllowed("only root can do this for the whole machine", "use sudo, or --user for yourself alone")


def refuse_hidden(python: str | None = None, *, extra: str = "", then: str = "service install") -> None:
    """The unit would not see a Python, or its packages, in somebody's home. `then`: what to do with one that it sees,
    `extra`: what has to be installed with it."""
    ours: Sequence[str | Path] = (sys.executable, sys.prefix, sys.base_prefix, _PACKAGE)
    for path in [python] if python is not None else ours:
        if any(Path(os.path.abspath(path)).is_relative_to(hidden) for hidden in _HIDDEN):  # noqa: PTH100  links stay
            raise Refused(
                f"{path} is hidden from the service, which sees no homes",
                f"/usr/bin/python3 -m venv /opt/pagemill && "
                f"/opt/pagemill/bin/pip install {shlex.quote(_origin() + extra)} && /opt/pagemill/bin/pagemill {then}",
            )


def _origin() -> str:
    """What this pagemill was installed from, as pip takes it."""
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
    if isinstance(step, Run):
        return {"step": "run", "argv": step.argv}
    more = {"target": step.target} if isinstance(step, Link) else {}
    return {"step": str(step).split()[0], "path": step.path, **more}
