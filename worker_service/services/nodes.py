"""The nodes of the cluster: their state and jobs, and draining one."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from worker_service.base.errors import NodeNotFound, did_you_mean
from worker_service.jobs.workers import NodeRow, NodeWork
from worker_service.services.database import Session


class CheckedNode(NodeRow, frozen=True):
    """A node and its jobs. Its state is `down` if its daemon is dead, regardless of its row."""

    jobs: Sequence[int] = ()
    """Ids of the jobs that run on the node."""

    @property
    def running(self) -> int:
        return len(self.jobs)


def checked_nodes(rows: Sequence[NodeRow], work: Sequence[NodeWork], alive: Sequence[str]) -> list[CheckedNode]:
    """Combine rows and jobs of the nodes. `alive`: the ids of the live workers."""
    found = []
    for row in rows:
        jobs = [one.job_id for one in work if one.node == row.name]
        node = CheckedNode(**{name: getattr(row, name) for name in NodeRow.__struct_fields__}, jobs=jobs)
        if row.worker_id not in alive:
            node = replace(node, state="down", slots=0, reason="its daemon is dead")
        found.append(node)
    return found


def drain(session: Session, name: str, *, is_draining: bool) -> str:
    """Stop giving a node new attempts, or start again. Return what happens in one sentence."""
    if not session.store.steering.drain_node(name, is_draining=is_draining):
        known = [row.name for row in session.store.reading.nodes()]
        hint = did_you_mean(name, known, f"the nodes are {', '.join(known) or 'none yet'}", 0.5)
        raise NodeNotFound(f"there is no node {name!r}", hint)
    if not is_draining:
        return f"{name} gets new attempts again"
    running = sum(one.node == name for one in session.store.reading.on_nodes())
    return f"{name} gets no new attempts" + (f"; it finishes the {running} that run there" if running else "")
