"""Metrics for monitoring, computed from the database, so that no restart resets them.

In Prometheus text format, with base units. Labels have no job ids, and only the 100 busiest job types.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from worker_service import VERSION
from worker_service.base.clock import add_duration, as_text, from_text
from worker_service.services.overview import CheckedNode, Overview
from worker_service.services.session import Session

MEDIA_TYPE = "text/plain; version=0.0.4"
_FAILED_JOBS_PERIOD = timedelta(days=1)
_GROUPS_MAX = 100  # of jobs in a family, largest first

Sample = tuple[Mapping[str, object], float]  # labels, value
Family = tuple[str, str, Sequence[Sample]]  # name of the metric, help text, samples


def metrics_text(session: Session) -> str:
    return "".join(f"{line}\n" for family in _families(session) for line in _format_family(*family))


def _families(session: Session) -> Iterator[Family]:
    overview = Overview(session)
    counts = overview.counts
    yield "jobs", "Jobs by status.", [({"status": status}, number) for status, number in counts.by_status.items()]
    types = [*session.overview.live_by_type()]
    types.sort(key=lambda live: live.pending + live.held + live.running, reverse=True)
    yield (
        "live_jobs",
        "Live jobs by type; held ones wait for a time, a job, a key or their batch.",
        [
            ({"job_type": live.job_type, "state": state}, getattr(live, state))
            for live in types[:_GROUPS_MAX]
            for state in ("pending", "held", "running")
        ],
    )
    oldest = counts.oldest_pending_at
    waited = 0.0 if oldest is None else max(0.0, (overview.at - from_text(oldest)).total_seconds())
    yield "oldest_pending_age_seconds", "Waiting time of the oldest job that could start.", [({}, waited)]
    failed = session.overview.errors(since=as_text(add_duration(overview.at, -_FAILED_JOBS_PERIOD)))
    yield (
        "failed_jobs_last_day",
        "Jobs that failed in the last 24 hours.",
        [({"code": error.code, "job_type": error.job_type}, error.jobs) for error in failed[:_GROUPS_MAX]],
    )
    states = Counter(worker.state for worker in overview.workers)
    yield "workers", "Workers by state.", [({"state": state}, number) for state, number in states.items()]
    yield "worker_healthy", "1 if a worker is alive.", [({}, int(overview.has_recent_heartbeat))]
    alive = [worker for worker in overview.workers if worker.is_alive]
    yield (
        "worker_slots",
        "Slots for running jobs, by class.",
        [
            ({"class": "cpu"}, sum(worker.cpu_slots for worker in alive)),
            ({"class": "io"}, sum(worker.io_slots for worker in alive)),
            ({"class": "node"}, sum(worker.node_slots for worker in alive)),
        ],
    )
    yield from _node_families(overview.nodes)
    yield (
        "worker_heartbeat_timestamp_seconds",
        "Last heartbeat of a worker.",
        [({"worker": worker.id}, from_text(worker.heartbeat_at).timestamp()) for worker in overview.workers],
    )
    documents = session.library.counts_by_state()
    yield "documents", "Documents by status.", [({"status": status}, number) for status, number in documents.items()]
    yield "pauses", "Number of pauses.", [({}, len(overview.pauses))]
    settings = session.settings
    if settings.workspace.exists():
        free = shutil.disk_usage(settings.workspace).free
        yield "workspace_free_bytes", "Free space on the disk of the workspace.", [({}, free)]
    yield "database_bytes", "Size of the database file.", [({}, settings.database.stat().st_size)]
    yield "build_info", "Always 1.", [({"version": VERSION}, 1)]


def _node_families(nodes: Sequence[CheckedNode]) -> Iterator[Family]:
    if not nodes:
        return
    yield "node_up", "1 if a node accepts work.", [({"node": node.name}, int(node.state == "up")) for node in nodes]
    infos = [({"node": node.name, "state": node.state, "version": node.version}, 1) for node in nodes]
    yield "node_info", "Always 1; state and version of a node.", infos
    yield "node_slots", "Slots for running jobs on a node.", [({"node": node.name}, node.slots) for node in nodes]
    yield "node_running", "Jobs running on a node.", [({"node": node.name}, node.running) for node in nodes]


def _format_family(name: str, help_text: str, samples: Sequence[Sample]) -> Iterator[str]:
    yield f"# HELP pagemill_{name} {help_text}"
    yield f"# TYPE pagemill_{name} gauge"
    for labels, value in samples:
        label_text = ",".join(f'{label}="{_escape_label(str(text))}"' for label, text in labels.items())
        number = int(value) if float(value).is_integer() else value
        yield f"pagemill_{name}{{{label_text}}} {number}" if label_text else f"pagemill_{name} {number}"


def _escape_label(text: str) -> str:
    # UTF-8 has no lone surrogates, so replace them.
    plain = text.encode("utf-8", "replace").decode()
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
