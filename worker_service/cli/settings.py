"""`pagemill config`: the settings."""

from __future__ import annotations

from typing import Any

from worker_service.cli import VerbGroup, output
from worker_service.cli.context import Invocation, verb
from worker_service.settings.config import every_setting
from worker_service.settings.value_types import Setting


@verb
def show(call: Invocation) -> None:
    """\b
    pagemill config show
    WORKER_DATABASE=/tmp/try.db pagemill config show --json

    Show each setting with its value and origin: a flag, the environment, a file, or the default.
    """
    settings = list(call.settings.describe_values())
    items = [{"key": key, "value": value, "origin": origin} for key, value, origin in settings]
    if not call.printed_json({"items": items}):
        output.show_table(("KEY", "VALUE", "ORIGIN"), settings)


@verb
def docs(call: Invocation) -> None:
    """\b
    pagemill config docs

    Describe every setting, including those of the installed handlers, in a Markdown table.
    """
    settings = every_setting().values()
    if call.printed_json({"items": [_as_object(setting) for setting in settings]}):
        return
    output.show("| in TOML | environment | default | |")
    output.show("|---|---|---|---|")
    for setting in settings:
        names = [] if setting.table else [setting.variable, *([setting.flag] if setting.has_flag else [])]
        environment = ", ".join(f"`{name}`" for name in names)
        default = setting.otherwise or (f"`{setting.default}`" if setting.default else "none")
        output.show(f"| `{setting.table or setting.key}` | {environment} | {default} | {setting.help} |")


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
