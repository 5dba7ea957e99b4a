"""`pagemill cluster`: the machines that run attempts for this one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import click

from worker_service.commands import output
from worker_service.commands.desk import Desk, completions, leading, verb
from worker_service.commands.joining import init, invite, join, start
from worker_service.commands.output import NODE_COLUMNS, node_row
from worker_service.config import Settings
from worker_service.operations import machines, overview
from worker_service.plurals import counted, size

_ALONE = "this machine runs all by itself: WORKER_CLUSTER=ssh:box2*8, or [cluster] in the settings, names others"

_NONE_YET = "no node is known yet: `pagemill status` tells whether a daemon is up"
_NONE_IS_NEEDED = "no node is used: machines are asked for when something waits, if a daemon is up: `pagemill status`"


def _complete(ctx: click.Context, _: click.Parameter, begun: str) -> list[Any]:
    names = completions(ctx, lambda desk: [one.name for one in overview.nodes(desk.session)])
    return [name for name in names if name.startswith(begun)]


_name = click.argument("name", shell_complete=_complete)


def _ls(desk: Desk) -> None:
    found = overview.nodes(desk.session)
    if desk.answered({"items": found}):
        return
    if not found:
        cluster = desk.settings.cluster
        output.say(_ALONE if cluster is None else _NONE_IS_NEEDED if cluster.autoscale else _NONE_YET)
        return
    now = desk.session.clock()
    output.show_table(NODE_COLUMNS, [node_row(one, now) for one in found])


@verb
def ls(desk: Desk) -> None:
    """\b
    pagemill cluster ls
    pagemill cluster ls --json

    The machines that run attempts, as `pagemill cluster` alone shows them.
    """
    _ls(desk)


@verb
@_name
def drain(desk: Desk, name: str) -> None:
    """\b
    pagemill cluster drain box2

    Give a node nothing new. What it runs it finishes. `pagemill cluster use box2` takes that back.
    """
    _wish(desk, "drain", name)


@verb
@_name
def remove(desk: Desk, name: str) -> None:
    """\b
    pagemill cluster remove box2

    Give a node nothing new, and leave it alone once it has finished what it runs. `pagemill cluster use box2`
    takes that back; and forgets the node, if it was taken out of the settings.
    """
    _wish(desk, "remove", name)


@verb
@_name
def use(desk: Desk, name: str) -> None:
    """\b
    pagemill cluster use box2

    Take back what `drain` or `remove` has wished.
    """
    _wish(desk, "use", name)


@verb
def test(desk: Desk) -> int:
    """\b
    pagemill cluster test
    WORKER_CLUSTER=ssh:box2 pagemill cluster test

    Start a node on each machine as the daemon would, beside the one that it has, and see whether it could be used: its
    version, Landlock, handlers and trained data, how long an answer takes, and how fast a file goes there. For the
    service say sudo: then it is tried as the service's user, with its key. Exit code 1 if one cannot.
    """
    _as_the_daemon(desk.settings)
    found: Sequence[machines.NodeTrial] = list(machines.try_nodes(desk.settings))
    if not desk.answered({"items": found}):
        rows = [
            (
                one.name, "good" if one.is_good else "refused", one.slots or None, one.version,
                None if one.round_trip_seconds is None else f"{1000 * one.round_trip_seconds:.1f} ms",
                None if one.bytes_per_second is None else f"{size(int(one.bytes_per_second))}/s", one.reason,
            )
            for one in found
        ]  # fmt: skip
        output.show_table(("NODE", "ANSWER", "SLOTS", "VERSION", "ROUND TRIP", "RATE", "WHY"), rows, whole=("WHY",))
        output.say(f"{sum(one.is_good for one in found)} of {counted(len(found), 'node')} can be used")
    return 0 if all(one.is_good for one in found) else 1


def _as_the_daemon(settings: Settings) -> None:
    """The key, and whom it knows, are in the home of the service's user. Ray's keys are root's."""
    if not settings.is_of_the_service or settings.cluster is None or settings.cluster.engine == "ray":
        return
    import pwd  # only where there is a service

    try:
        own = pwd.getpwuid(settings.database.stat().st_uid)
    except (OSError, KeyError):
        return
    if os.geteuid() == 0:
        os.initgroups(own.pw_name, own.pw_gid)
        os.setgid(own.pw_gid)
        os.setuid(own.pw_uid)
        os.environ["HOME"] = own.pw_dir
    elif os.geteuid() != own.pw_uid:
        output.say(f"tried as you are, not as the daemon, who is {own.pw_name}: say sudo")


def _wish(desk: Desk, verb_name: str, name: str) -> None:
    sentence = machines.wish(desk.session, verb_name, name)
    if not desk.answered({"node": name, "wish": machines.WISHES[verb_name]}):
        output.show(sentence)


@verb
def shown(desk: Desk) -> None:
    """\b
    pagemill cluster
    pagemill cluster --json
    pagemill cluster init ssh           # on the head; or: init ray 10.0.0.1
    pagemill cluster join               # on a node: is it fit? With a file of `invite`: join a cluster of Ray
    pagemill cluster test
    pagemill cluster drain box2         # remove box2, use box2

    The machines that run attempts for this one: how each is, what it runs, and when it was heard last. RATE is in pages
    a minute, SENT what went there since its gateway began.
    """
    _ls(desk)


cluster = leading("cluster", shown, ls, drain, remove, use, test, init, invite, join, start)
