"""Health of the service as a level, with reasons, for monitoring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from enum import IntEnum

from msgspec import Struct

from worker_service.base.clock import from_text
from worker_service.base.humanize import counted
from worker_service.jobs.job import Status
from worker_service.services.overview import Overview

HOW_TO_FREE_SPACE = (
    "free some space: `pagemill stats` shows what each owner keeps, `pagemill documents rm` removes documents"
)


class Level(IntEnum):
    """The values are the exit codes of monitoring plugins."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


class HealthReason(Struct, frozen=True):
    level: Level
    code: str
    detail: str
    remedy: str = ""


class Health(Struct, frozen=True):
    level: Level
    reasons: Sequence[HealthReason]
    workers: int
    jobs: Mapping[Status, int]
    batches_replaced: int = 0
    failures: int = 0
    """Neither failures nor replaced batches change the level."""


def check_health(overview: Overview, *, oldest_wait_max: timedelta | None = None) -> Health:
    reasons = health_reasons(overview, oldest_wait_max=oldest_wait_max)
    return Health(
        max((reason.level for reason in reasons), default=Level.OK),
        reasons,
        len(overview.live_workers),
        overview.counts.by_status,
        overview.batches_replaced,
        overview.failures,
    )


def health_reasons(overview: Overview, *, oldest_wait_max: timedelta | None = None) -> Sequence[HealthReason]:
    reasons = [
        *_check_database(overview),
        *_check_workers(overview),
        *_check_nodes(overview),
        *_check_queue(overview, oldest_wait_max),
    ]
    return sorted(reasons, key=lambda reason: -reason.level)


def _check_database(overview: Overview) -> Iterator[HealthReason]:
    if (fault := overview.database_fault) is not None:
        yield HealthReason(Level.CRITICAL, fault.code, fault.detail, fault.remedy)


def _check_workers(overview: Overview) -> Iterator[HealthReason]:
    live_states = {worker.state for worker in overview.live_workers}
    lost_by_state = Counter(worker.state for worker in overview.lost_workers)
    states = ", ".join(f"{number} {state}" for state, number in lost_by_state.items())
    lost_states = f" ({states})" if states else ""
    if not live_states:
        remedy = overview.settings.start_command
        yield HealthReason(Level.CRITICAL, "NO_WORKER", f"no worker is alive{lost_states}", remedy)
    elif overview.lost_workers:
        detail = f"{lost_by_state.total()} of {counted(len(overview.workers), 'worker')} not alive{lost_states}"
        yield HealthReason(Level.WARNING, "WORKERS_LOST", detail, "pagemill doctor")
    if "disk low" in live_states:
        level = Level.CRITICAL if live_states == {"disk low"} else Level.WARNING
        yield HealthReason(level, "DISK_LOW", "the disk is nearly full", HOW_TO_FREE_SPACE)


def _check_nodes(overview: Overview) -> Iterator[HealthReason]:
    # The user has taken a draining node out of use.
    used_nodes = [node for node in overview.nodes if not node.is_draining]
    if nodes_not_up := [node for node in used_nodes if node.state != "up"]:
        up_count, first = len(used_nodes) - len(nodes_not_up), nodes_not_up[0]
        detail = f"{up_count or 'none'} of {counted(len(used_nodes), 'node')} up: {first.name} is {first.state}"
        yield HealthReason(Level.WARNING, "NODES_DOWN", detail, "pagemill cluster")


def _check_queue(overview: Overview, oldest_wait_max: timedelta | None) -> Iterator[HealthReason]:
    if oldest_wait_max is not None:
        oldest = overview.counts.oldest_pending_at
        if oldest is not None and overview.at - from_text(oldest) > oldest_wait_max:
            detail = f"the oldest job that could start has waited since {oldest[:19]}"
            yield HealthReason(Level.WARNING, "OLDEST_WAITS", detail, "pagemill why")
    if any(pause.scope == "all" for pause in overview.pauses):
        yield HealthReason(Level.WARNING, "ALL_PAUSED", "everything is paused", "pagemill unpause --all")
    elif overview.live_workers and (gates := overview.standstill):
        more = f", and {len(gates) - 1} more" if len(gates) > 1 else ""
        detail = f"no pending job can start: {gates[0].code}, {gates[0].detail}{more}"
        yield HealthReason(Level.WARNING, "STANDSTILL", detail, gates[0].remedy or "pagemill why")
