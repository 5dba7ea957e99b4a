"""What befalls a history from outside: each deed is one function, and whom it hits is the history's own chance.

Deeds come between two steps, and in the middle of a verb as well; what daemons do by themselves is `world`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tests.simulation import books
from tests.simulation.room import ORPHAN_AFTER_SECONDS
from tests.store.kit import ids
from worker_service.base.errors import Refused
from worker_service.jobs.batches import BatchState
from worker_service.jobs.job import NewJob

if TYPE_CHECKING:
    from tests.simulation.daemons import Daemon
    from tests.simulation.world import World

HOSTS = ("here", "here", "there")
"""Where daemons are wanted: two on one machine, one on another."""
BATCHES = {"ann": 7, "bob": 8}
"""The batch of each owner who has one."""
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
    """Children whose daemon is dead follow it; and somebody starts a new one."""
    for daemon in world.known.values():
        if daemon.is_dead and daemon.pool.living:
            daemon.pool.die()
    missing = [host for host in HOSTS if world.number_on(host) < HOSTS.count(host)]
    if missing:
        world.begin(world.chance.choice(missing))


def crash(world: World) -> None:
    if daemon := _any(world):
        world.end(daemon)


def stand_still(world: World) -> None:
    if daemon := _any(world):
        daemon.still_until = world.now + ORPHAN_AFTER_SECONDS * world.chance.choice([0.5, 0.9, 1.5])
        world.now += world.chance.choice([1.0, ORPHAN_AFTER_SECONDS])


def lose_the_voice(world: World) -> None:
    """Its beats do not commit, and all else of it goes on."""
    if daemon := _any(world):
        daemon.mute_until = world.now + ORPHAN_AFTER_SECONDS * world.chance.choice([0.9, 1.5])


def stop(world: World) -> None:
    if daemon := _any(world):
        daemon.loop.signals.asked_to_stop += 1


def reboot(world: World) -> None:
    host = world.chance.choice(HOSTS)
    world.boots[host] += 1
    for daemon in list(world.known.values()):
        if daemon.identity.host == host and not daemon.is_gone:
            world.end(daemon)
            daemon.pool.die()


def lose_the_fork_server(world: World) -> None:
    if daemon := _any(world):
        daemon.pool.die()


def have_trouble(world: World) -> None:
    """The store's troubles come at moments."""


def set_the_clock(world: World) -> None:
    world.step_of_wall = world.chance.choice([3600.0, -3600.0, 0.0])


def cancel(world: World) -> None:
    if job_id := _one(world, "running", "pending", "running"):
        world.people.steering.cancel(ids(job_id), actor="ann")


def retry(world: World) -> None:
    if job_id := _one(world, "failed", "cancelled", "completed"):
        world.people.steering.retry(ids(job_id), actor="ann")


def pause(world: World) -> None:
    if not world.people.steering.unpause("all"):
        world.people.steering.pause("all", until=world.wall() + timedelta(seconds=300))


def batch(world: World) -> None:
    """Stop one, or go on with one that is stopped or has ended."""
    found = world.people.batches.list(owners=[world.chance.choice(list(BATCHES))])
    if found and found[0].state in (BatchState.ACTIVE, BatchState.WAITING):
        world.people.batches.stop(found[0].id, actor="ann")
    elif found:
        with suppress(Refused):
            world.people.batches.resume(found[0].id, actor="ann")


def go_on(world: World) -> None:
    for found in world.people.batches.list(states=[BatchState.STOPPED]):
        world.people.batches.resume(found.id, actor="ann")


def look(world: World) -> None:
    world.faults += books.gates(world.people, list(world.known))


def _any(world: World) -> Daemon | None:
    return world.chance.choice(world.daemons) if world.daemons else None


def _one(world: World, *statuses: str) -> int | None:
    found = [row.id for row in world.rows.values() if row.status in statuses]
    return world.chance.choice(found) if found else None


Deed = Callable[["World"], None]

BEFALLING: dict[str, Deed] = {
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
    "look": look,
    "voice": lose_the_voice,
    "batch": batch,
}
"""By the name that a plan gives it. Their order is a part of every plan that was ever drawn."""

ANY: dict[str, Deed] = {"enqueue": enqueue, "orphans": orphans, **BEFALLING}
