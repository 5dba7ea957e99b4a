"""`pagemill cluster`: set up, test and drain the nodes of the Ray cluster."""

from __future__ import annotations

import os
import secrets
import select
import socket
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from worker_service.base.errors import ConfigError
from worker_service.base.humanize import counted
from worker_service.cli import DefaultVerbGroup, output
from worker_service.cli.context import Invocation, name_completer, verb
from worker_service.cli.output import NODE_COLUMNS, node_row
from worker_service.cluster import ray_settings
from worker_service.services.job_control import drain_node
from worker_service.services.overview import Overview
from worker_service.settings.config import Settings
from worker_service.settings.loading import SERVICE_CONFIGURATION, own_configuration

if TYPE_CHECKING:
    from worker_service.cluster.pool import RayPool
    from worker_service.jobs.workers import NodeState

_NO_CLUSTER = "there is no cluster; to set one up: pagemill cluster init ADDRESS"
_NO_NODE = "no node is known; check the daemon with pagemill status, and Ray with pagemill cluster test"
_PROBE_SECONDS_MAX = 120.0
_EVENT_SECONDS_MAX = 0.5
_HEAD_PORT = 6379  # Ray's own default
# The head runs no attempts, and pagemill uses neither the dashboard nor the log monitor.
_HEAD_OPTIONS = "--num-cpus=0 --include-dashboard=false --include-log-monitor=false --disable-usage-stats"

_node_argument = click.argument(
    "name", shell_complete=name_completer(lambda call, _: [node.name for node in Overview(call.session).nodes])
)


@verb
def ls(call: Invocation) -> None:
    """\b
    pagemill cluster ls
    pagemill cluster init 10.0.0.1      # prints the commands that start Ray
    pagemill cluster test
    pagemill cluster drain box2         # or: use box2

    List the nodes of the cluster, with their state, slots and running attempts.
    """
    note = _NO_CLUSTER if call.settings.cluster is None else _NO_NODE
    call.show_items(Overview(call.session).nodes, NODE_COLUMNS, node_row, note_if_empty=note)


@verb
@_node_argument
def drain(call: Invocation, name: str) -> None:
    """\b
    pagemill cluster drain box2

    Start no new attempts on a node. Running ones finish. To undo: pagemill cluster use box2
    """
    _set_draining(call, name, is_draining=True)


@verb
@_node_argument
def use(call: Invocation, name: str) -> None:
    """\b
    pagemill cluster use box2

    Start attempts on a node again after `drain`.
    """
    _set_draining(call, name, is_draining=False)


@verb
@click.argument("address", required=False)
@click.option("--port", default=_HEAD_PORT, show_default=True, help="Port of the Ray head.")
@click.option("--slots", type=click.IntRange(1, 1000), metavar="N", help="Number of concurrent attempts on each node.")
def init(call: Invocation, address: str | None, port: int, slots: int | None) -> None:
    """\b
    sudo pagemill cluster init 10.0.0.1
    pagemill cluster init 10.0.0.1 --slots 8

    Create a token, unless there is one, and print the commands that start Ray on this machine and on each node. The
    nodes reach this machine at ADDRESS. The token allows running programs on all machines of the cluster.
    """
    address = address or socket.gethostname()
    directory = SERVICE_CONFIGURATION if call.settings.is_of_the_service else own_configuration(os.environ)
    token_path = directory / ray_settings.TOKEN
    token = _read_or_create_token(token_path)
    health = " ".join(f"{name}={value}" for name, value in ray_settings.HEALTH_CHECKS.items())
    reconnect = " ".join(f"{name}={value}" for name, value in ray_settings.RECONNECT.items())
    cpus = f" --num-cpus={slots}" if slots else ""
    head_commands = [
        f"export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={token_path} {reconnect} {health}",
        f"ray start --head --node-ip-address={address} --port={port} {_HEAD_OPTIONS}",
    ]
    node_commands = [
        f"export RAY_AUTH_MODE=token RAY_AUTH_TOKEN={token} {reconnect}",
        f"ray start --address={address}:{port}{cpus} --disable-usage-stats",
    ]
    setting = f"ray:{address}:{port}"
    call.show_result(
        {"token": token_path, "setting": setting, "head": head_commands, "node": node_commands},
        "# On this machine, as the user of the daemon:",
        *head_commands,
        "",
        "# On each node, with the same versions of pagemill, Ray and Python:",
        *node_commands,
        "",
        "# In the settings of this machine; then restart the daemon:",
        f'cluster = "{setting}"',
    )
    if not call.as_json:
        output.note(
            "then: pagemill cluster test. Keep the token secret: it allows running programs on all these machines"
        )


@verb
def test(call: Invocation) -> int:
    """\b
    pagemill cluster test
    WORKER_CLUSTER=ray:10.0.0.1:6379 pagemill cluster test

    Connect to Ray like the daemon, and check the version, sandbox, handlers and OCR data of each node. Exit code 1 if a
    node cannot be used.
    """
    nodes = _probe_nodes(call.settings)
    usable = [node for node in nodes if node.state == "up"]
    if not call.print_if_json({"items": nodes}):
        rows = [(node.name, node.state, node.slots or None, node.version, node.reason) for node in nodes]
        output.show_table(("NODE", "STATE", "SLOTS", "VERSION", "REASON"), rows, never_cut=("REASON",))
        output.note(f"{len(usable)} of {counted(len(nodes), 'node')} can be used")
    return 0 if usable and len(usable) == len(nodes) else 1


cluster = DefaultVerbGroup("cluster", ls, drain, use, test, init)


def _set_draining(call: Invocation, name: str, *, is_draining: bool) -> None:
    sentence = drain_node(call.session, name, is_draining=is_draining)
    call.show_result({"node": name, "is_draining": is_draining}, sentence)


def _probe_nodes(settings: Settings) -> Sequence[NodeState]:
    """Start a driver like the daemon's, without a job, and return what it reports of each node."""
    # Only this verb needs these modules.
    from worker_service.cli.handlers import installed_handlers
    from worker_service.cluster.pool import RayPool, cluster_begin, cluster_types
    from worker_service.runner.messages import Begin

    cluster = settings.cluster
    if cluster is None:
        raise ConfigError("there is no cluster", "set WORKER_CLUSTER=ray:HOST:6379, or [cluster] in the settings")
    settings.export_handler_settings()
    handler_by_type = {handler.facts.job_type: handler for handler in installed_handlers(settings)}
    types = cluster_types(handler_by_type, cluster)
    with tempfile.TemporaryDirectory(prefix="pagemill-", ignore_cleanup_errors=True) as temporary:
        directory = Path(temporary)
        begin_message = Begin(
            directory / "staging",
            directory / "keep",
            sandbox=settings.sandbox,
            types=types,
            cluster=cluster_begin(cluster, handler_by_type, types, directory),
        )
        pool = RayPool(begin_message, variables_by_type={})
        try:
            pool.begin()
            return _await_probes(pool)
        finally:
            pool.close()


def _await_probes(pool: RayPool) -> Sequence[NodeState]:
    deadline = time.monotonic() + _PROBE_SECONDS_MAX
    while time.monotonic() < deadline and pool.is_alive:
        select.select([pool], [], [], _EVENT_SECONDS_MAX)
        pool.take_events()
        nodes = () if pool.nodes_seen is None else pool.nodes_seen.nodes
        if nodes and all(node.state != "starting" for node in nodes):
            return nodes
    if pool.nodes_seen is None:
        from worker_service.runner.pool import ChildError

        raise ChildError("the Ray driver saw no node before it ended or time was up", "pip install 'pagemill[ray]'")
    return pool.nodes_seen.nodes


def _read_or_create_token(path: Path) -> str:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    return path.read_text().strip()
