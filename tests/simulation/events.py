"""Random events of a history, such as crashes and users' requests. Each is a function that chooses its victim.

Events happen between two steps and in the middle of a verb. What daemons do by themselves is in `world`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tests.simulation import invariants
from tests.simulation.store_pool import ORPHAN_AFTER_SECONDS
from tests.store.kit import jobs_with_ids
from worker_service.base.errors import Refused
from worker_service.jobs.batches import BatchState
from worker_service.jobs.job import NewJob

if TYPE_CHECKING:
    from tests.simulation.daemons import Daemon
    from tests.simulation.world import World

HOSTS = ("here", "here", "there")
"""Hosts that should have daemons: two on one machine, one on another."""
BATCHES = {"ann": 7, "bob": 8}
"""Owner → batch."""
_JOBS_MOST = 14


def enqueue(world: World) -> None:
    if len(world.rows) >= _JOBS_MOST:
        return
    choice = world.chance.choice
    job = NewJob(
        choice(["work", "work", "work", "once", "leaf"]),
        priority=choice([1, 5, 5, 9]),
        owner=choice(["", "ann", "ann", "bob"]),
        concurrency_key=choice([None, None, "k", "l"]),
        max_retries=choice([0, 1, 2]),
        run_at=choice([None, None, world.wall() + timedelta(seconds=60)]),
    )
    # Of its owner's only batch, without a chance of its own: plans that were drawn before stay as they are.
    job = replace(job, batch_id=BATCHES.get(job.owner))
    world.acknowledged.append(world.people.intake.enqueue(job).job_id)


def orphans(world: World) -> None:
    """End the children of dead daemons, and start a new daemon."""
    for daemon in world.known.values():
        if daemon.is_dead and daemon.pool.living:
            daemon.pool.die()
    missing = [host for host in HOSTS if world.number_on(host) < HOSTS.count(host)]
    if missing:
        world.begin(world.chance.choice(missing))


def crash(world: World) -> None:
    if daemon := _random_daemon(world):
        world.end(daemon)


def stand_still(world: World) -> None:
    if daemon := _random_daemon(world):
        daemon.still_until = world.now + ORPHAN_AFTER_SECONDS * world.chance.choice([0.5, 0.9, 1.5])
        world.now += world.chance.choice([1.0, ORPHAN_AFTER_SECONDS])


def lose_the_voice(world: World) -> None:
    """Let its beats fail while everything else continues."""
    if daemon := _random_daemon(world):
        daemon.mute_until = world.now + ORPHAN_AFTER_SECONDS * world.chance.choice([0.9, 1.5])


def stop(world: World) -> None:
    if daemon := _random_daemon(world):
        daemon.loop.signals.stop_requests += 1


def reboot(world: World) -> None:
    host = world.chance.choice(HOSTS)
    world.boots[host] += 1
    for daemon in list(world.known.values()):
        if daemon.identity.host == host and not daemon.is_gone:
            world.end(daemon)
            daemon.pool.die()


def lose_the_fork_server(world: World) -> None:
    if daemon := _random_daemon(world):
        daemon.pool.die()


def have_trouble(world: World) -> None:
    """Do nothing here: `World.moment` raises the store's errors."""


def set_the_clock(world: World) -> None:
    world.step_of_wall = world.chance.choice([3600.0, -3600.0, 0.0])


def cancel(world: World) -> None:
    if job_id := _random_job(world, "running", "pending", "running"):
        world.people.job_control.cancel(jobs_with_ids(job_id), actor="ann")


def retry(world: World) -> None:
    if job_id := _random_job(world, "failed", "cancelled", "completed"):
        world.people.job_control.retry(jobs_with_ids(job_id), actor="ann")


def pause(world: World) -> None:
    if not world.people.job_control.unpause("all"):
        world.people.job_control.pause("all", until=world.wall() + timedelta(seconds=300))


def batch(world: World) -> None:
    """Stop an active batch, or resume one that is stopped or has ended."""
    found = world.people.batches.list(owners=[world.chance.choice(list(BATCHES))])
    if found and found[0].state in (BatchState.ACTIVE, BatchState.WAITING):
        world.people.batches.stop(found[0].id, actor="ann")
    elif found:
        with suppress(Refused):
            world.people.batches.resume(found[0].id, actor="ann")


def go_on(world: World) -> None:
    for found in world.people.batches.list(states=[BatchState.STOPPED]):
        world.people.batches.resume(found.id, actor="ann")


def check_gates(world: World) -> None:
    world.faults += invariants.gate_faults(world.people, list(world.known))


def _random_daemon(world: World) -> Daemon | None:
    return world.chance.choice(world.daemons) if world.daemons else None


def _random_job(world: World, *statuses: str) -> int | None:
    found = [row.id for row in world.rows.values() if row.status in statuses]
    return world.chance.choice(found) if found else None


Deed = Callable[["World"], None]

EVENTS: dict[str, Deed] = {
    "crash": crash,
    "still": stand_still,
    "stop": stop,
    "reboot": reboot,
    "lost-fork-server": lose_the_fork_server,
    "trouble": have_trouble,
    "clock": set_the_clock,
    "cancel": cancel,
    "retry": retry,
    "pause": pause,
    "look": check_gates,
    "voice": lose_the_voice,
    "batch": batch,
}
"""Name in a plan → event. The order is part of every plan that was ever drawn."""

ALL_EVENTS: dict[str, Deed] = {"enqueue": enqueue, "orphans": orphans, **EVENTS}
