"""`pagemill cluster test`: connects to Ray as the daemon would, and checks each node without running a job."""

from __future__ import annotations

import select
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from worker_service.base.errors import ConfigError
from worker_service.cluster.pool import RayPool, cluster_begin, cluster_types
from worker_service.jobs.workers import NodeState
from worker_service.runner.messages import Begin
from worker_service.runner.pool import ChildError, describe
from worker_service.settings.config import Settings

_SECONDS_MAX = 120.0


def try_nodes(settings: Settings) -> Sequence[NodeState]:
    """Return the state of all nodes once the driver has checked each of them."""
    cluster = settings.cluster
    if cluster is None:
        raise ConfigError("there is no cluster", "set WORKER_CLUSTER=ray:HOST:6379, or [cluster] in the settings")
    settings.hand_to_handlers()
    handlers = describe(settings.commands, settings.sandbox, settings.handlers_dir)
    described = {one.facts.job_type: one for one in handlers}
    types = cluster_types(described, cluster)
    with tempfile.TemporaryDirectory(prefix="pagemill-", ignore_cleanup_errors=True) as place:
        begin = Begin(
            Path(place) / "staging",
            Path(place) / "keep",
            sandbox=settings.sandbox,
            types=types,
            cluster=cluster_begin(cluster, described, types, Path(place)),
        )
        pool = RayPool(begin, {})
        try:
            pool.begin()
            return _checked(pool)
        finally:
            pool.close()


def _checked(pool: RayPool) -> Sequence[NodeState]:
    deadline = time.monotonic() + _SECONDS_MAX
    while time.monotonic() < deadline and pool.is_alive:
        select.select([pool], [], [], 0.5)
        pool.take_events()
        nodes = () if pool.seen is None else pool.seen.nodes
        if nodes and all(node.state != "starting" for node in nodes):
            return nodes
    if pool.seen is None:
        raise ChildError("the Ray driver has ended before it has seen a node", "pip install 'pagemill[ray]'")
    return pool.seen.nodes
