"""`pagemill run`: the daemon, in the foreground."""

from __future__ import annotations

from dataclasses import replace

import click

from worker_service.commands.desk import Desk, verb


@verb
@click.option("--drain", is_flag=True, help="End with exit code 0 when nothing is left that could run.")
def run(desk: Desk, drain: bool) -> int:
    """\b
    pagemill run
    pagemill run --drain
    WORKER_CONCURRENCY=4 WORKER_TYPES='!command' pagemill run

    Run jobs, until somebody asks it to stop. Ctrl-C lets the running ones finish; twice stops them at once.

    It is what `systemctl start pagemill` starts. Jobs that are stopped go back into the queue and lose no retry.
    """
    from worker_service.daemon import start

    settings = desk.settings
    return start.run(replace(settings, log_format="json") if desk.as_json else settings, drain=drain)
