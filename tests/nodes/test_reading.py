"""A document read over nodes: spread over them, and none of its pages read twice because one of them has left."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.nodes.conftest import Nodes
from tests.system import readers
from tests.system.conftest import wait_until
from tests.system.test_reading import Desk, leaf, slips
from worker_service.jobs.documents import IndexStatus

PAGES = 16
PATIENCE_SECONDS = 60.0


def test_a_document_is_read_over_two_nodes_and_a_node_that_dies_costs_only_the_pages_in_flight(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    nodes = Nodes(desk.system, {"n1": 1, "n2": 1}, patience_seconds=4.0)
    nodes.write(types=["ocr_pages"])
    nodes.start()
    paper = slips(desk.papers / "long.pdf", PAGES)
    try:
        desk.run("ingest", paper)
        wait_until(lambda: len(desk.stored().get((1, 1), ())) > PAGES // 4, "some pages", seconds=PATIENCE_SECONDS)
        stored = desk.stored()[1, 1]
        nodes.switch_off("n1")

        document = desk.ended(1)

        assert (document.status, document.pages, document.error_message) == (IndexStatus.SUCCESS, PAGES, None)
        assert desk.texts(1) == [leaf(number, "climate") for number in range(1, PAGES + 1)]
        recognised = sum(map(readers.given_to_the_engine, map(nodes.house, ("n1", "n2"))), Counter[int]())
        assert {number: recognised[number] for number in stored} == dict.fromkeys(stored, 1)
        attempts = [a for job in desk.jobs(1, "ocr_pages") for a in desk.system.store.reading.attempts(job.id)]
        assert {attempt.node for attempt in attempts} == {"n1", "n2"}
        carried = [one.stat().st_size for name in ("n1", "n2") for one in (nodes.house(name) / "inputs").iterdir()]
        assert max(carried) < paper.stat().st_size
        desk.system.assert_sound()
        assert desk.system.store.upkeep.audit() == []
    finally:
        desk.system.close()
        nodes.close()
