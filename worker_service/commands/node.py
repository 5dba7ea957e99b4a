"""`pagemill node`: be a node, for whoever is at the other end of stdin and stdout."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from worker_service.commands.desk import Desk, verb
from worker_service.config import own_state


@verb
@click.option("--state", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Its own directory.")
@click.option("--slots", type=click.IntRange(0, 1000), help="Not more attempts at once than these.")
def node(desk: Desk, state: Path | None, slots: int | None) -> None:
    """\b
    pagemill node
    pagemill node --slots 8 --state /srv/pagemill-node

    Run attempts for a head that speaks to it by stdin and stdout: what `WORKER_CLUSTER=ssh:box2*8` starts on box2. It
    needs no database and no settings. What it ran ends when the head is gone, or has not been heard for too long; the
    node itself after ten minutes of that.

    In an authorized_keys of this machine: restrict,command="pagemill node" ssh-ed25519 …

    --state is $STATE_DIRECTORY unless given, else ~/.local/state/pagemill-node. Input files are kept there, each once,
    up to 20 GB. --slots is as many as the head says, or as there are cores.
    """
    if sys.stdin.isatty():
        raise click.UsageError("it is started by a head, by ssh or another command: WORKER_CLUSTER=ssh:box2 there")
    from worker_service.nodes.pipes import serve  # only where it is one

    serve((state or own_state(os.environ)).absolute(), slots)
