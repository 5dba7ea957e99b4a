"""How things stand: what the scheduler's page asks, health, numbers, errors, workers, pauses, schedules, actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from worker_service.operations import health, overview
from worker_service.operations.health import Health
from worker_service.operations.overview import SchedulerStatus
from worker_service.web.api.endpoint import Call, Endpoint, endpoint


@endpoint(
    "GET",
    "/api/scheduler/status",
    "What runs, in the order in which it began; how many wait, by platform; whether a worker lives.",
    answer=SchedulerStatus,
    is_of_the_moment=True,
)
def scheduler_status(call: Call) -> SchedulerStatus:
    return overview.scheduler_status(call.session, call.visitor.owner)


@endpoint(
    "GET",
    "/api/status",
    "Whether all is well, for monitoring: level is ok, warning, critical or unknown.",
    answer=Health,
    is_of_the_moment=True,
    is_of_all=True,
)
def status(call: Call) -> Any:
    return health.health(call.session)


ENDPOINTS: Sequence[Endpoint] = (scheduler_status, status)
routes = [one.route for one in ENDPOINTS]
