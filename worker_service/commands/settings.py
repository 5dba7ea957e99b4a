"""`pagemill config`: the settings, and where each comes from."""

from __future__ import annotations

import click

from worker_service.commands import Verbs, output
from worker_service.commands.desk import Desk, verb


@click.group(cls=Verbs, help="\b\npagemill config show\n\nThe settings, and where each comes from.")
def config() -> None:
    pass


@verb
def show(desk: Desk) -> None:
    """\b
    pagemill config show
    WORKER_DATABASE=/tmp/try.db pagemill config show --json

    Each setting with its value and where it comes from: a flag, the environment, a file, or the default.
    """
    settings = desk.settings.shown()
    if desk.as_json:
        output.show_json({"items": [{"key": key, "value": value, "origin": origin} for key, value, origin in settings]})
    else:
        output.show_table(("KEY", "VALUE", "ORIGIN"), settings)


config.add_command(show)
