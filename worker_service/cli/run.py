"""`pagemill run`: run the daemon in the foreground."""

from __future__ import annotations

from dataclasses import replace

import click

from worker_service.base.address_space import require_address_space
from worker_service.cli.context import Invocation, verb


@verb
@click.option("--drain", is_flag=True, help="Exit when no job is running, and none will start within a minute.")
def run(call: Invocation, drain: bool) -> int:
    """\b
    pagemill run
    pagemill run --drain
    WORKER_CONCURRENCY=4 WORKER_TYPES='!command' pagemill run

    Run the daemon, which runs jobs until it is stopped. Ctrl-C lets running jobs finish; a second Ctrl-C stops them.

    `systemctl start pagemill` starts the same daemon. Stopped jobs return to the queue and lose no retry.

    --drain waits for jobs that start within a minute, such as retries, and then exits with code 0. Later jobs stay in
    the queue.
    """
    require_address_space()
    from worker_service.daemon import start  # imports large libraries

    settings = call.settings
    if call.as_json:
        settings = replace(settings, values={**settings.values, "log_format": "json"})
    return start.run(settings, drain=drain)
