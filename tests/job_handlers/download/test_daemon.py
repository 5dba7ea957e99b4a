"""What a person is told of a download, by a real daemon and the commands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drive_server import DriveServer
from tests.drive_server.answers import Plain
from tests.job_handlers.fetching import drive_for, pdf
from tests.system.conftest import System
from worker_service.jobs.model import NewJob, Status


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    made = System(tmp_path, shipped=("download",))
    yield made
    made.close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[DriveServer]:
    with drive_for(monkeypatch, tmp_path) as server:
        yield server


def test_a_document_whose_file_nobody_named_a_digest_of_says_so(system: System, server: DriveServer) -> None:
    server.plain["report.pdf"] = Plain(pdf(5000))
    item = server.store.add("known.pdf", pdf(6000))
    system.start(download_allow="127.0.0.0/8", drive_endpoint=server.url)
    for platform, source in (("https", f"{server.url}/plain/report.pdf"), ("gdrive", item.id)):
        job = NewJob("download", platform=platform, payload=json.dumps({"source": source}))
        system.wait_for(system.store.intake.enqueue(job).job_id, Status.COMPLETED)

    listed = json.loads(_pagemill(system, "documents", "--json"))["items"]
    [marked] = [one for one in listed if one["name"] == "report.pdf"]
    shown = _pagemill(system, "show", f"document:{marked['id']}")

    assert {one["name"]: one["note"] for one in listed} == {"report.pdf": "nobody named a digest", "known.pdf": None}
    assert "nobody named a digest" in shown


def _pagemill(system: System, *words: str) -> str:
    command = [sys.executable, "-m", "worker_service.commands", *words]
    return subprocess.run(command, env=system.environment(), capture_output=True, text=True, check=True).stdout
