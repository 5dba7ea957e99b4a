"""`pagemill service`: install or remove the systemd units."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote

import click

from worker_service.base.errors import PagemillError, Refused
from worker_service.cli import EXIT_NOT_ALLOWED, VerbGroup, output
from worker_service.cli.context import Function, Invocation, add_options, dry_run_option, verb
from worker_service.cli.service_installation import (
    BACKUP_TIMER,
    CONFIGURATION,
    PACKAGE,
    SCHEDULE_TIMER,
    STATE,
    WEB_UNIT,
    install_steps,
    uninstall_steps,
    user_install_steps,
    user_uninstall_steps,
)
from worker_service.cli.system_steps import do_steps

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
_HIDDEN_FROM_UNITS = ("/root", "/home", "/run/user")  # by ProtectHome=


class NeedsRoot(PagemillError, code="not_allowed", exit_code=EXIT_NOT_ALLOWED): ...


def _target_options(function: Function) -> Function:
    directory = click.Path(path_type=Path, file_okay=False, exists=True, resolve_path=True)
    return add_options(
        function,
        click.option("--root", type=directory, help="In the file system of an image; start nothing."),
        click.option("--user", "for_user", is_flag=True, help="For your user only, with systemctl --user."),
        dry_run_option,
    )


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
    _check_options(for_user=for_user, dry_run=dry_run, root=root)
    if for_user and with_web:
        raise click.UsageError("--web and --user cannot be combined: for your user, start `pagemill serve`")
    if not for_user:
        _refuse_python_at_home(python)
    elif call.settings.is_of_the_service:
        raise Refused(
            f"this machine's service is installed, and your database is {call.settings.database}: for one of your own, "
            'write it into ~/.config/pagemill/pagemill.toml first, as database = "~/pagemill.db"'
        )
    python = python or sys.executable
    steps = user_install_steps(python) if for_user else install_steps(python, root, with_web=with_web)
    do_steps(call, list(steps), dry_run=dry_run)
    if call.as_json or root is not None:
        return
    if not dry_run:
        output.note(f"next: systemctl{' --user' if for_user else ''} status pagemill")
    for hint in _USER_HINTS if for_user else _HINTS:
        output.note(hint.format(person=os.environ.get("SUDO_USER") or "NAME"))


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
    _check_options(for_user=for_user, dry_run=dry_run, root=root)
    steps = list(user_uninstall_steps() if for_user else uninstall_steps(root))
    do_steps(call, steps, dry_run=dry_run)
    if not steps and not call.as_json:
        output.note("the service is not installed")
    elif not call.as_json and not dry_run and not for_user and root is None:
        output.note(f"kept: {STATE}, {CONFIGURATION} and the user pagemill")


service = VerbGroup(
    "service",
    "\b\nsudo pagemill service install --dry-run\nsudo pagemill service install\n"
    "pagemill service install --user\nsudo pagemill service uninstall\n\n"
    "Install or remove the systemd units.",
    *(install, uninstall),
)


# ── Checks ──


def _check_options(*, for_user: bool, dry_run: bool, root: Path | None) -> None:
    context = click.get_current_context()
    if context.params.get("database") or (context.find_root().obj or {}).get("database"):
        raise click.UsageError(f"set the database in the settings: {CONFIGURATION}/pagemill.toml", context)
    if for_user and root is not None:
        raise click.UsageError("--user and --root cannot be combined", context)
    is_changing_system = not for_user and not dry_run and root is None
    if is_changing_system and os.geteuid() != 0:
        raise NeedsRoot("only root can change the service", "use sudo, or --user for your user only")


def _refuse_python_at_home(python: str | None) -> None:
    """Refuse a Python in a home directory, which the units cannot see."""
    paths: Sequence[str | Path] = [python] if python else (sys.executable, sys.prefix, sys.base_prefix, PACKAGE)
    for path in paths:
        absolute = Path(os.path.abspath(path))  # noqa: PTH100  do not resolve links
        if any(absolute.is_relative_to(directory) for directory in _HIDDEN_FROM_UNITS):
            raise Refused(
                f"{path} is in a home directory, which the service cannot see",
                f"/usr/bin/python3 -m venv /opt/pagemill && /opt/pagemill/bin/pip install "
                f"{shlex.quote(installed_from())} && /opt/pagemill/bin/pagemill service install",
            )


def installed_from() -> str:
    """Return the directory, URL or name that pip installed pagemill from."""
    with suppress(PackageNotFoundError):
        direct_url = distribution("pagemill").read_text("direct_url.json")
        if direct_url is not None:
            url = str(json.loads(direct_url)["url"])
            return unquote(url.removeprefix("file://"))
    return "pagemill"
