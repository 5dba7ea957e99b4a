"""`pagemill upgrade`: install another version, with a way back."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click

from worker_service import VERSION
from worker_service.base.errors import PagemillError, Refused
from worker_service.cli import output
from worker_service.cli.context import Invocation, dry_run_option, verb
from worker_service.cli.service import NeedsRoot, installed_from
from worker_service.cli.service_installation import OFFLINE_UNIT, UNITS, WEB_UNIT, as_service
from worker_service.cli.system_steps import RunCommand, step_as_object
from worker_service.settings.loading import user_unit

_SYSTEM_UNIT = Path("/etc/systemd/system/pagemill.service")
# A daemon that cannot work with the new version ends at once, and systemd starts it again and again. So wait up to
# 30 seconds until the command that lists the daemons shows a living one.
_AWAIT_DAEMON = 'for n in $(seq 30); do sleep 1; "$@" | grep -q \'"state": *"alive"\' && exit 0; done; exit 1'


class UpgradeFailed(PagemillError, code="upgrade_failed", exit_code=1):
    """The earlier version runs again, unless the message says otherwise."""


@verb
@click.argument("source", metavar="[WHAT]", required=False)
@click.option("--back", "is_back", is_flag=True, help="Return to the version and the database before the last upgrade.")
@dry_run_option
def upgrade(call: Invocation, source: str | None, is_back: bool, dry_run: bool) -> None:
    """\b
    sudo pagemill upgrade --dry-run
    sudo pagemill upgrade
    sudo pagemill upgrade ./pagemill-2.0
    sudo pagemill upgrade --back

    Stop the daemon, back up the database, install the new version with pip, update the database and the units, start
    the daemon, and check both. If a step fails, the earlier version and the backup are put back.

    WHAT is a checkout, a file or a name as for pip; by default, what this version was installed from. Every command is
    printed before it runs. For a service of your own (`service install --user`), leave out sudo.

    The earlier version and the backup stay until the next upgrade. --back returns to both: jobs added since are lost,
    and the newer database is kept under another name.
    """
    is_for_user = not _SYSTEM_UNIT.exists()
    if is_for_user and not user_unit(os.environ).exists():
        raise Refused(
            "no service is installed: stop pagemill run, and upgrade by hand",
            "pagemill db backup before.db, pip install --upgrade, pagemill db migrate; see docs/upgrade.md",
        )
    if not is_for_user and os.geteuid() != 0 and not dry_run:
        raise NeedsRoot("only root can upgrade the service", "sudo pagemill upgrade")
    if sys.prefix == sys.base_prefix:
        raise Refused(f"{sys.prefix} is not a virtual environment of pagemill's own", "see docs/upgrade.md")
    plan = UpgradePlan(call.settings.database, is_for_user=is_for_user)
    if source and Path(source).exists():
        source = str(Path(source).absolute())  # the steps run in another directory
    steps = plan.back() if is_back else plan.forward(source or installed_from())
    steps_on_failure = [] if is_back else plan.back()
    items = [step_as_object(step) for step in [*steps, *steps_on_failure]]
    lines_on_failure = ["if one of these fails:", *map(str, steps_on_failure)] if steps_on_failure else []
    call.show_result({"dry_run": dry_run, "items": items}, *map(str, steps), *lines_on_failure)
    if dry_run:
        return
    if is_back and not plan.earlier_version.exists():
        raise Refused(f"there is no earlier version in {plan.earlier_version}", "it is kept by pagemill upgrade")
    _do_steps(plan, steps, is_back=is_back)
    output.note("done" if is_back else "done; the earlier version is kept: pagemill upgrade --back")


class UpgradePlan:
    def __init__(self, database: Path, *, is_for_user: bool) -> None:
        self._is_for_user = is_for_user
        environment = Path(sys.prefix)
        self.earlier_version = environment.with_name(f"{environment.name}.before-upgrade")
        """A copy of the virtual environment."""
        # $0 and $1 of the shell commands
        self._environments = (str(environment), str(self.earlier_version))
        self._backup = database.with_name("before-upgrade.db")
        self._optional_units = () if is_for_user else _active_units(WEB_UNIT, OFFLINE_UNIT.replace("@", "@*"))

    def forward(self, source: str) -> Sequence[RunCommand]:
        # The copy appears under its name only when it is complete. A failure before that has nothing to put back.
        copy = 'cp -a --reflink=auto "$0" "$1.part" && mv "$1.part" "$1"'
        return [
            self._stop(),
            RunCommand(["rm", "-rf", str(self._backup), str(self.earlier_version), f"{self.earlier_version}.part"]),
            self._pagemill("db", "backup", str(self._backup)),
            RunCommand(["sh", "-c", copy, *self._environments]),
            RunCommand([sys.executable, "-m", "pip", "install", "--upgrade", source]),
            self._pagemill("db", "migrate"),
            *self._start(),
        ]

    def back(self) -> Sequence[RunCommand]:
        replace = 'rm -rf "$0" && mv "$1" "$0"'
        return [
            self._stop(),
            RunCommand(["sh", "-c", replace, *self._environments]),
            self._pagemill("db", "restore", str(self._backup), "--yes"),
            *self._start(),
        ]

    def back_after_failure(self) -> Sequence[RunCommand]:
        """Return only what the failed upgrade made necessary."""
        return self.back() if self.earlier_version.exists() else [self._stop(), *self._start()]

    def _stop(self) -> RunCommand:
        if self._is_for_user:
            return RunCommand(["systemctl", "--user", "stop", "pagemill.service"])
        return RunCommand(["systemctl", "stop", *UNITS, *self._optional_units])

    def _start(self) -> Sequence[RunCommand]:
        """Install the units of the version in place, which starts the daemon, and check it."""
        install = ["service", "install", *(["--user"] if self._is_for_user else [])]
        return [
            RunCommand([sys.executable, "-m", "worker_service.cli", *install]),
            *([RunCommand(["systemctl", "start", *self._optional_units])] if self._optional_units else []),
            RunCommand(["sh", "-c", _AWAIT_DAEMON, "sh", *self._pagemill("workers", "--json").argv]),
            self._pagemill("db", "check"),
        ]

    def _pagemill(self, *words: str) -> RunCommand:
        if self._is_for_user:
            return RunCommand([sys.executable, "-m", "worker_service.cli", *words])
        return as_service(sys.executable, *words)


def _active_units(*patterns: str) -> Sequence[str]:
    listing = ["systemctl", "list-units", "--state=active", "--plain", "--no-legend", *patterns]
    with suppress(FileNotFoundError):
        listed = subprocess.run(listing, capture_output=True, text=True, check=False)
        return [line.split()[0] for line in listed.stdout.splitlines() if line.strip()]
    return []


def _do_steps(plan: UpgradePlan, steps: Sequence[RunCommand], *, is_back: bool) -> None:
    """Go back and raise `UpgradeFailed` if a step of an upgrade fails."""
    for step in steps:
        try:
            step.do()
        except PagemillError as error:
            if is_back:
                raise
            output.note(f"failed: {error}")
            _go_back(plan.back_after_failure())
            raise UpgradeFailed(f"the upgrade failed, and version {VERSION} runs again: {error}") from error


def _go_back(steps: Sequence[RunCommand]) -> None:
    for step in steps:
        try:
            step.do()
        except PagemillError as error:
            raise UpgradeFailed(f"the way back failed, too, at: {step}: {error}", "docs/upgrade.md") from error
