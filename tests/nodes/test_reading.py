"""A document read over nodes: spread over them, and none of its pages read twice because some of them have left."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

from tests.length import short
from tests.nodes.conftest import Nodes, gateway_of
from tests.nodes.pages import Readings, paper
from tests.system.conftest import wait_until
from tests.system.test_reading import Desk

PAGES = short(120, full=200)
# How much is read when a node leaves; at the second of these the gateway goes with it.
LEAVE_AT = short((0.2, 0.6), full=(0.2, 0.4, 0.6, 0.8))
PATIENCE_SECONDS = 60.0
NAMES = ("n1", "n2", "n3")


def test_a_document_is_read_over_nodes_that_leave_and_come_and_no_stored_page_is_read_again(tmp_path: Path) -> None:
    chance = random.Random(7)
    desk = Desk(tmp_path)
    nodes = Nodes(desk.system, dict.fromkeys(NAMES, 1), patience_seconds=3.0)
    nodes.write(types=["ocr_pages"])
    daemon = nodes.start()
    readings = Readings(desk.system, lambda: [*map(nodes.house, NAMES)])
    original = paper(desk.papers / "noise.pdf", PAGES)

    def waits_for(share: float) -> None:
        wait_until(lambda: readings.look() > PAGES * share, f"{share:.0%} of the pages", seconds=PATIENCE_SECONDS)

    try:
        for name in NAMES:
            nodes.wait_for(name)
        desk.run("ingest", original)
        for share in LEAVE_AT:
            waits_for(share)
            name = chance.choice(NAMES)
            nodes.switch_off(name)
            if share == LEAVE_AT[1]:
                os.kill(gateway_of(daemon), signal.SIGKILL)
            waits_for(share + 0.1)
            nodes.switch_on(name)

        desk.ended(1)

        assert list(readings.faults(PAGES)) == []
        attempts = [a for job in desk.jobs(1, "ocr_pages") for a in desk.system.store.reading.attempts(job.id)]
        assert {attempt.node for attempt in attempts} == {*NAMES}
        # By the node, or with the gateway.
        assert {attempt.outcome for attempt in attempts} & {"requeued", "released"}
        assert sum(job.retry_count for job in desk.jobs(1, "ocr_pages")) == 0
        carried = [one.stat().st_size for name in NAMES for one in (nodes.house(name) / "inputs").iterdir()]
        assert max(carried) < original.stat().st_size
        assert desk.system.store.upkeep.audit() == []
        desk.system.assert_sound()
    finally:
        desk.system.close()
        nodes.close()


def test_where_all_see_the_workspace_no_input_is_carried(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    nodes = Nodes(desk.system, {"n1": 1})
    nodes.write(types=["ocr_pages"], shared=True)
    nodes.start()
    original = paper(desk.papers / "noise.pdf", 8)

    try:
        desk.run("ingest", original)
        wait_until(desk.stored, "some pages", seconds=PATIENCE_SECONDS)
        desk.ended(1)

        attempts = [a for job in desk.jobs(1, "ocr_pages") for a in desk.system.store.reading.attempts(job.id)]
        assert {(attempt.node, attempt.outcome) for attempt in attempts} == {("n1", "completed")}
        assert list((nodes.house("n1") / "inputs").iterdir()) == []
        assert 0 < nodes.rows()["n1"].bytes_sent < original.stat().st_size
        desk.system.assert_sound()
    finally:
        desk.system.close()
        nodes.close()
