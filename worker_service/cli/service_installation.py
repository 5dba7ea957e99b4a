"""The systemd units, made from `systemd/` with the path of this Python, and the steps that install them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from worker_service.cli.system_steps import Link, Remove, RunCommand, Step, WriteFile
from worker_service.settings.loading import SERVICE_CONFIGURATION, SERVICE_STATE, user_unit

PACKAGE = Path(__file__).resolve().parents[1]
UNITS = ("pagemill.service", "pagemill-commands.service")
OFFLINE_UNIT, SCHEDULE_TIMER = "pagemill-offline@.service", "pagemill-schedule.timer"
WEB_UNIT, BACKUP_TIMER = "pagemill-web.service", "pagemill-backup.timer"
OPTIONAL_UNITS = (
    OFFLINE_UNIT,
    "pagemill-schedule.service",
    SCHEDULE_TIMER,
    "pagemill-backup.service",
    BACKUP_TIMER,
    WEB_UNIT,
)
"""Units that are written, but not enabled."""
USER_UNIT = "pagemill-user.service"
# {path below /etc: name in the package}
_CONFIGURATION_FILES = {
    "sysusers.d/pagemill.conf": "pagemill.sysusers.conf",
    "tmpfiles.d/pagemill.conf": "pagemill.tmpfiles.conf",
}
STATE, CONFIGURATION = str(SERVICE_STATE), str(SERVICE_CONFIGURATION)
COMMAND_LINK = "/usr/local/bin/pagemill"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def as_service(python: str, *words: str) -> RunCommand:
    """Return a pagemill command with the service's settings and user."""
    variables = [f"PATH={_PATH}", f"HOME={STATE}", f"STATE_DIRECTORY={STATE}"]
    variables.append(f"CONFIGURATION_DIRECTORY={CONFIGURATION}")
    as_user = ["setpriv", "--reuid=pagemill", "--regid=pagemill", "--init-groups"]
    script = 'umask 0007 && exec "$0" -m worker_service.cli "$@"'
    return RunCommand(["env", "-i", *variables, *as_user, "sh", "-c", script, python, *words])


def install_steps(python: str, root: Path | None, *, with_web: bool) -> Iterator[Step]:
    enabled_units = (*UNITS, WEB_UNIT) if with_web else UNITS

    def below_root(path: str) -> Path:
        return (root or Path("/")) / path.lstrip("/")

    root_option = [] if root is None else [f"--root={root}"]
    for unit in (*UNITS, *OPTIONAL_UNITS):
        yield WriteFile(below_root(f"/etc/systemd/system/{unit}"), unit_text(unit, python))
    for path, shipped_name in _CONFIGURATION_FILES.items():
        yield WriteFile(below_root(f"/etc/{path}"), shipped_file(shipped_name))
    yield WriteFile(below_root(f"{CONFIGURATION}/pagemill.toml"), shipped_file("pagemill.toml"), keeps_existing=True)
    script = script_of(python)
    if below_root(str(script)).exists() and not below_root(COMMAND_LINK).exists():
        yield Link(below_root(COMMAND_LINK), script)
    yield RunCommand(["systemd-sysusers", *root_option, "pagemill.conf"])
    yield RunCommand(["systemd-tmpfiles", "--create", *root_option, "pagemill.conf"])
    if root is not None:
        yield RunCommand(["systemctl", *root_option, "enable", *enabled_units])
        return
    yield as_service(python, "init")
    yield RunCommand(["systemctl", "daemon-reload"])
    yield RunCommand(["systemctl", "enable", *enabled_units])
    # Not --now, which would leave the old version running.
    yield RunCommand(["systemctl", "restart", *enabled_units])
    if not with_web:
        # An administrator may have started the web unit by hand.
        yield RunCommand(["systemctl", "try-restart", WEB_UNIT])


def uninstall_steps(root: Path | None) -> Iterator[Step]:
    etc = (root or Path("/")) / "etc"
    installed_units = [unit for unit in UNITS if (etc / "systemd/system" / unit).exists()]
    # systemctl refuses a unit that does not exist; then there is nothing to stop either.
    if installed_units and root is None:
        yield RunCommand(["systemctl", "disable", "--now", *installed_units])
        yield RunCommand(["systemctl", "disable", OFFLINE_UNIT])
        # Older installations have no such units.
        for unit in (SCHEDULE_TIMER, BACKUP_TIMER, WEB_UNIT):
            if (etc / "systemd/system" / unit).exists():
                yield RunCommand(["systemctl", "disable", "--now", unit])
        yield RunCommand(["systemctl", "stop", OFFLINE_UNIT.replace("@", "@*")])
    elif installed_units:
        optional_units = (OFFLINE_UNIT, SCHEDULE_TIMER, BACKUP_TIMER, WEB_UNIT)
        yield RunCommand(["systemctl", f"--root={root}", "disable", *installed_units, *optional_units])
    written = (*(f"systemd/system/{unit}" for unit in (*UNITS, *OPTIONAL_UNITS)), *_CONFIGURATION_FILES)
    yield from (Remove(etc / path) for path in written if (etc / path).exists())
    link = etc.parent / COMMAND_LINK.lstrip("/")
    if link.is_symlink() and link.readlink() == script_of(sys.executable):
        yield Remove(link)
    if installed_units and root is None:
        yield RunCommand(["systemctl", "daemon-reload"])


def user_install_steps(python: str) -> Iterator[Step]:
    yield WriteFile(user_unit(os.environ), unit_text(USER_UNIT, python))
    yield RunCommand([python, "-m", "worker_service.cli", "init"])
    yield RunCommand(["systemctl", "--user", "daemon-reload"])
    yield RunCommand(["systemctl", "--user", "enable", "pagemill.service"])
    yield RunCommand(["systemctl", "--user", "restart", "pagemill.service"])


def user_uninstall_steps() -> Iterator[Step]:
    if not user_unit(os.environ).exists():
        return
    yield RunCommand(["systemctl", "--user", "disable", "--now", "pagemill.service"])
    yield Remove(user_unit(os.environ))
    yield RunCommand(["systemctl", "--user", "daemon-reload"])


def script_of(python: str) -> Path:
    return Path(python).with_name("pagemill")


def unit_text(unit: str, python: str) -> str:
    # systemd expands % in a unit, and takes quoted words literally.
    escaped = python.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    quote = '"' if re.search(r"[\s\"\\]", python) else ""
    return re.sub(
        r"^ExecStart=/usr/bin/env python3",
        lambda _: f"ExecStart={quote}{escaped}{quote}",
        shipped_file(unit),
        flags=re.MULTILINE,
    )


def shipped_file(name: str) -> str:
    """Read a file of `systemd/`, which is in the installed package, or beside it in a checkout."""
    in_package = PACKAGE / "systemd" / name
    return (in_package if in_package.exists() else PACKAGE.parent / "systemd" / name).read_text("utf-8")
