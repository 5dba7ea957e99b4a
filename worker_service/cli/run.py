"""`pagemill run`: the daemon, in the foreground."""

from __future__ import annotations

from dataclasses import replace

import click

from worker_service.base.memory import require_address_space
from worker_service.cli.context import Invocation, verb


@verb
@click.option("--drain", is_flag=True, help="End when nothing runs, and nothing will within a minute.")
def run(call: Invocation, drain: bool) -> int:
    """\b
    pagemill run
    pagemill run --drain
    WORKER_CONCURRENCY=4 WORKER_TYPES='!command' pagemill run

    Run jobs, until somebody asks it to stop. Ctrl-C lets the running ones finish; twice stops them at once.

    It is what `systemctl start pagemill` starts. Jobs that are stopped go back into the queue and lose no retry.

    --drain ends with exit code 0. It waits for retries, snoozes and starts that come within a minute, so that a folder
    that is watched more often than that keeps it going; what comes later, or waits for a person, is left.
    """
    require_address_space()
    from worker_service.daemon import start  # imports large libraries

    settings = call.settings
    if call.as_json:
        settings = replace(settings, values={**settings.values, "log_format": "json"})
    return start.run(settings, drain=drain)
