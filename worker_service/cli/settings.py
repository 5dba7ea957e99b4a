"""`pagemill config`: the settings, and where each comes from."""

from __future__ import annotations

from typing import Any

from worker_service.cli import group, output
from worker_service.cli.context import Invocation, verb
from worker_service.settings.config import every_setting
from worker_service.settings.value_types import Setting


@verb
def show(call: Invocation) -> None:
    """\b
    pagemill config show
    WORKER_DATABASE=/tmp/try.db pagemill config show --json

    Each setting with its value and where it comes from: a flag, the environment, a file, or the default.
    """
    settings = list(call.settings.shown())
    items = [{"key": key, "value": value, "origin": origin} for key, value, origin in settings]
    if not call.printed_json({"items": items}):
        output.show_table(("KEY", "VALUE", "ORIGIN"), settings)


@verb
def docs(call: Invocation) -> None:
    """\b
    pagemill config docs

    Every setting that there is, those of the installed handlers included, as a table in Markdown.
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


config = group(
    "config",
    "\b\npagemill config show\npagemill config docs\n\nThe settings, and where each comes from.",
    *(show, docs),
)
