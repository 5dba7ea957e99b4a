"""Random stops and kills of children and fork servers."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from tests.full_length import short
from tests.runner.conftest import MakeClient
from worker_service.runner import processes
from worker_service.runner.messages import Ended, Order, Started

KINDS = """
    clean silent raises exits segfaults floods_log
    talks_nonsense waits stops_when_asked ignores_sigterm leaves_a_runaway
""".split()
ENDLESS = {"talks_nonsense", "waits", "stops_when_asked", "ignores_sigterm"}
ORDERS = short(120, full=1200)
AT_ONCE = 6


@pytest.mark.parametrize("seed", range(short(1, full=3)))
def test_each_order_ends_once_whatever_is_killed(make_client: MakeClient, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    client = make_client(grace_seconds=0.05)
    orders: list[Order] = []
    running: dict[int, Order] = {}
    fork_servers_killed = 0
    seen = 0

    def apply_new_events() -> bool:
        nonlocal seen
        new, seen = client.events[seen:], len(client.events)
        for event in new:
            if isinstance(event, Ended):
                del running[event.job_id]
            elif isinstance(event, Started) and dice.random() < 0.2:
                _kill_child(event)
        return bool(new)

    while len(orders) < ORDERS or running:
        if not client.pool.is_alive:
            client.pool.restart()
        while len(orders) < ORDERS and len(running) < AT_ONCE:
            order = client.launch(dice.choice(KINDS))
            orders.append(order)
            running[order.job_id] = order
        for order in list(running.values()):
            if order.job_type in ENDLESS or dice.random() < 0.1:
                client.pool.stop(order.job_id, order.fence, now=dice.random() < 0.5)
        if dice.random() < 0.03 and fork_servers_killed < 4 and client.pool.pid:
            os.kill(client.pool.pid, signal.SIGKILL)
            fork_servers_killed += 1
        client.wait_until(apply_new_events)

    ended = [event.key for event in client.events if isinstance(event, Ended)]
    assert sorted(ended) == sorted(order.key for order in orders)
    assert processes.sweep(processes.pool_id_of(tmp_path / "staging")) == []


def _kill_child(started: Started) -> None:
    # Still the same process: pids are used again.
    if processes.started_at(started.pid) == started.pid_started:
        processes.kill(started.pid)
