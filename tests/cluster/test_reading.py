"""Real pages read by real nodes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from job_handlers.reading import ocr
from tests.cluster.conftest import NODES, READERS, ClusterSystem
from tests.cluster.ray_lab import RayLab, needs_ray
from tests.job_handlers.reading.documents import picture, prose, scan
from tests.kit.system import System

pytestmark = [
    needs_ray,
    pytest.mark.skipif(ocr.missing() is not None, reason=f"{ocr.missing()}"),
    pytest.mark.timeout(240),
]

PAGES = 14
_TEXTS = """
SELECT p.number, r.digest, r.text, r.method, hex(r.layout)
  FROM page p JOIN page_result r ON r.id = p.result_id ORDER BY p.number
"""


def read(system: System, paper: Path, **settings: object) -> str:
    """Bring in a file, wait until it is read, and return all that was stored of its pages."""
    done = subprocess.run(
        [sys.executable, "-m", "worker_service.cli", "ingest", str(paper), "--wait", "--timeout", "200s"],
        env=system.environment(**settings),
        cwd=system.place,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return system.sqlite3(_TEXTS).stdout


def nodes_of(system: System, job_type: str) -> Sequence[str]:
    told = system.sqlite3(
        "SELECT DISTINCT a.node FROM worker_job_attempt a JOIN worker_job_queue q ON q.id = a.job_id "
        f"WHERE q.job_type = '{job_type}' ORDER BY 1"
    )
    return told.stdout.split()


def test_pages_that_nodes_have_read_have_the_text_that_this_machine_reads(lab: RayLab, tmp_path: Path) -> None:
    paper = tmp_path / "scan.pdf"
    scan(paper, [picture(prose(number, words=50), dpi=150) for number in range(PAGES)], dpi=150)
    os.utime(paper, (time.time() - 60,) * 2)
    systems = {}
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        systems[name] = System(tmp_path / name, shipped=READERS)
    try:
        cluster = ClusterSystem(lab, systems["there"])
        cluster.start()
        systems["here"].start()

        there = read(systems["there"], paper, config=cluster.config)
        here = read(systems["here"], paper)

        assert len(here.splitlines()) >= PAGES
        assert there == here
        assert nodes_of(systems["there"], "ocr_pages") == [*NODES]
        cluster.assert_nothing_is_left()
    finally:
        for system in systems.values():
            system.close()
