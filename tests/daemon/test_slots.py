"""The number of slots is changed while the daemon runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.daemon.conftest import context_in
from tests.store.kit import MovableClock, new_worker
from worker_service.base import events
from worker_service.base.errors import BadInput, Refused
from worker_service.daemon.chores import adopt_slots
from worker_service.services.database import Session
from worker_service.services.job_control import set_slots
from worker_service.services.overview import Overview
from worker_service.store.store import Store


def test_a_daemon_adopts_the_slots_that_a_user_gives_it(
    store: Store, clock: MovableClock, log: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = context_in(tmp_path, store, log, clock)
    store.workers.deregister("w1")
    store.workers.register(new_worker(context.identity.worker_id, cpu=context.slots.sizes["cpu"]))
    monkeypatch.setattr(Overview, "live_workers", property(lambda self: self.workers))
    session = Session(store, context.settings, "ann", clock)

    assert set_slots(session, 5) == context.identity.worker_id
    adopt_slots(context)

    assert context.slots.sizes["cpu"] == 5
    assert log.heard == [events.SLOTS_CHANGED]
    with pytest.raises(BadInput, match="pause"):
        set_slots(session, 0)
    with pytest.raises(Refused):
        set_slots(session, 3, "w2")
