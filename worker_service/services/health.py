"""Health of the service in one word, for monitoring."""

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

FREE_SPACE = "free some space: `pagemill stats` shows what each owner keeps, `pagemill documents rm` removes documents"


class Level(IntEnum):
    """The values are the exit codes of monitoring plugins."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


class HealthReason(Struct, frozen=True):
    """A problem of the whole service.

    The codes are READ_ONLY, NO_WORKER, WORKERS_LOST, DISK_LOW, NODES_DOWN, OLDEST_WAITS, ALL_PAUSED and STANDSTILL.
    """

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
    """Does not change the level."""


def check_health(overview: Overview, *, oldest_most: timedelta | None = None) -> Health:
    found = health_reasons(overview, oldest_most=oldest_most)
    return Health(
        max((reason.level for reason in found), default=Level.OK),
        found,
        len(overview.live_workers),
        overview.counts.by_status,
        overview.batches_replaced,
        overview.failures,
    )


def health_reasons(overview: Overview, *, oldest_most: timedelta | None = None) -> Sequence[HealthReason]:
    found = [
        *_check_database(overview),
        *_check_workers(overview),
        *_check_nodes(overview),
        *_check_queue(overview, oldest_most),
    ]
    return sorted(found, key=lambda reason: -reason.level)


def _check_database(overview: Overview) -> Iterator[HealthReason]:
    if (fault := overview.database_fault) is not None:
        yield HealthReason(Level.CRITICAL, fault.code, fault.detail, fault.remedy)


def _check_workers(overview: Overview) -> Iterator[HealthReason]:
    alive = {one.state for one in overview.live_workers}
    others = Counter(one.state for one in overview.workers if not one.is_alive)
    states = f" ({', '.join(f'{number} {state}' for state, number in others.items())})" if others else ""
    if not alive:
        remedy = overview.settings.start_command
        yield HealthReason(Level.CRITICAL, "NO_WORKER", f"no worker is alive{states}", remedy)
    elif others:
        detail = f"{others.total()} of {counted(len(overview.workers), 'worker')} not alive{states}"
        yield HealthReason(Level.WARNING, "WORKERS_LOST", detail, "pagemill doctor")
    if "disk low" in alive:
        level = Level.CRITICAL if alive == {"disk low"} else Level.WARNING
        yield HealthReason(level, "DISK_LOW", "the disk is nearly full", FREE_SPACE)


def _check_nodes(overview: Overview) -> Iterator[HealthReason]:
    wanted = [one for one in overview.nodes if not one.is_draining]
    if away := [one for one in wanted if one.state != "up"]:
        up = len(wanted) - len(away)
        detail = f"{up or 'none'} of {counted(len(wanted), 'node')} up: {away[0].name} is {away[0].state}"
        yield HealthReason(Level.WARNING, "NODES_DOWN", detail, "pagemill cluster")


def _check_queue(overview: Overview, oldest_most: timedelta | None) -> Iterator[HealthReason]:
    oldest = None if oldest_most is None else overview.counts.oldest_pending_at
    if oldest_most is not None and oldest is not None and overview.at - from_text(oldest) > oldest_most:
        detail = f"the oldest job that could start has waited since {oldest[:19]}"
        yield HealthReason(Level.WARNING, "OLDEST_WAITS", detail, "pagemill why")
    if any(pause.scope == "all" for pause in overview.pauses):
        yield HealthReason(Level.WARNING, "ALL_PAUSED", "everything is paused", "pagemill unpause --all")
    elif overview.live_workers and (gates := overview.standstill):
        more = f", and {len(gates) - 1} more" if len(gates) > 1 else ""
        detail = f"no pending job can start: {gates[0].code}, {gates[0].detail}{more}"
        yield HealthReason(Level.WARNING, "STANDSTILL", detail, gates[0].remedy or "pagemill why")


def summary(health: Health) -> str:
    if health.reasons:
        return "; ".join(reason.detail for reason in health.reasons)
    running, pending = health.jobs[Status.RUNNING], health.jobs[Status.PENDING]
    return f"{counted(health.workers, 'worker')}, {running} running, {pending} pending"
