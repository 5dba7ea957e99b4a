"""`pagemill config` and `reload`: show the settings, and make the daemons read them again."""

from __future__ import annotations

import os
import signal
from typing import Any

from worker_service.base.errors import Refused
from worker_service.cli import VerbGroup, output
from worker_service.cli.context import Invocation, verb
from worker_service.runner.worker_identity import own_host
from worker_service.services.overview import Overview
from worker_service.settings.config import RELOADABLE, every_setting
from worker_service.settings.value_types import Setting


@verb
def show(call: Invocation) -> None:
    """\b
    pagemill config show
    WORKER_DATABASE=/tmp/try.db pagemill config show --json

    Show each setting with its value and origin: a flag, the environment, a file, or the default.
    """
    described = list(call.settings.describe_values())
    items = [{"key": key, "value": value, "origin": origin} for key, value, origin in described]
    if not call.print_if_json({"items": items}):
        output.show_table(("KEY", "VALUE", "ORIGIN"), described)


@verb
def docs(call: Invocation) -> None:
    """\b
    pagemill config docs

    Describe every setting, including those of the installed handlers, in a Markdown table.
    """
    settings = every_setting().values()
    if call.print_if_json({"items": [_as_object(setting) for setting in settings]}):
        return
    output.show("| in TOML | environment | default | |")
    output.show("|---|---|---|---|")
    for setting in settings:
        names = [setting.variable, setting.flag] if setting.has_flag else [setting.variable]
        environment = "" if setting.table else ", ".join(f"`{name}`" for name in names)
        default = setting.otherwise or (f"`{setting.default}`" if setting.default else "none")
        output.show(f"| `{setting.table or setting.key}` | {environment} | {default} | {setting.help} |")
    output.show()
    output.show(
        f"A running daemon reads these again on `pagemill reload`: {', '.join(f'`{key}`' for key in RELOADABLE)}."
    )


def _as_object(setting: Setting[Any]) -> dict[str, object]:
    return {
        "key": setting.key,
        "table": setting.table or None,
        "variable": None if setting.table else setting.variable,
        "flag": setting.flag if setting.has_flag else None,
        "default": setting.default,
        "help": setting.help,
    }


config = VerbGroup(
    "config",
    "\b\npagemill config show\npagemill config docs\n\nShow the settings and their origin.",
    *(show, docs),
)


@verb
def reload(call: Invocation) -> int:
    """\b
    pagemill reload
    sudo systemctl reload pagemill pagemill-commands

    Make the running daemons read the settings file again; nothing is stopped. Schedules, notifications, limits, the age
    at which jobs are deleted and a few intervals change at once; the command lists them. Other settings, such as your
    own programs, need a restart, which returns running jobs to the queue: `systemctl restart pagemill
    pagemill-commands`. The daemon's log names both.

    The web page reads its settings when it starts: `systemctl restart pagemill-web` disturbs no job.
    """
    # A file that cannot be read is refused here, before any daemon is asked.
    settings = call.settings
    workers = [worker for worker in Overview(call.session).live_workers if worker.host == own_host()]
    for worker in workers:
        try:
            os.kill(worker.pid, signal.SIGHUP)
        except PermissionError as error:
            raise Refused(
                f"worker {worker.id} belongs to another user", "sudo systemctl reload pagemill pagemill-commands"
            ) from error
    exit_code = 0 if workers else 1
    if call.print_if_json({"items": [worker.id for worker in workers], "reloadable": RELOADABLE}):
        return exit_code
    for worker in workers:
        output.show(f"asked worker {worker.id} to read the settings again")
    output.note(f"these change at once: {', '.join(RELOADABLE)}; all others need a restart: {settings.restart_command}")
    if not workers:
        output.note("no daemon runs on this machine; the next one reads the settings when it starts")
    return exit_code
