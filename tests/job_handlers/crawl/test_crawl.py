"""The crawl handler in a real child process with its sandbox."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from job_handlers.crawl.crawl import crawl
from job_handlers.crawl.options import CrawlPayload
from job_handlers.fetch.sources import local
from tests.job_handlers.fetch.kit import LocalContext, drive_for, pdf
from worker_service.handlers import Permanent
from worker_service.testing import How, run_handler


def test_a_dry_run_over_a_drive_needs_no_database(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with drive_for(monkeypatch, tmp_path) as server:
        top = server.store.folder("top")
        server.store.add("a.pdf", pdf(100), parents=[server.store.folder("inner", parents=[top.id]).id])

        url = f"https://drive.google.com/drive/folders/{top.id}?usp=sharing"
        run = run_handler(crawl, {"folder": url, "dry_run": True}, directory=tmp_path / "run", platform="gdrive")

    assert run.how is How.DONE, run.ended.message
    assert run.result["would_enqueue"] == ["a.pdf"]
    assert (run.result["folders"], run.result["found"]) == (2, 1)
    assert run.checkpoints == []


def test_the_crawl_of_a_directory_sees_nothing_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    folder.mkdir()
    (folder / "a.pdf").write_bytes(pdf(100))
    (tmp_path / "b.pdf").write_bytes(pdf(100))
    (folder / "up").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe.pdf")

    run = run_handler(crawl, {"folder": str(folder), "dry_run": True}, directory=tmp_path / "run")
    monkeypatch.setenv(local.ROOTS.variable, str(folder / "below"))
    refused = run_handler(crawl, {"folder": str(folder), "dry_run": True}, directory=tmp_path / "again")

    assert run.result["would_enqueue"] == ["a.pdf"]
    assert (refused.how, refused.ended.code) == (How.PERMANENT, "FOLDER_NOT_FOUND")


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        ({"folder": "https://example.com/folder"}, "FOLDER_UNKNOWN"),
        ({"folder": "reports"}, "SOURCE_UNKNOWN"),
        ({"folder": "/tmp", "wanted": {"newer_than": "soon"}}, "PAYLOAD_INVALID"),
        ({"folder": "https://drive.google.com/drive/folders/1AbCdEfGhIjKl"}, "PAYLOAD_INVALID"),
    ],
    ids=str,
)
def test_an_invalid_payload_is_refused(tmp_path: Path, payload: dict[str, object], code: str) -> None:
    context: Any = LocalContext(payload=msgspec.convert(payload, CrawlPayload), directory=tmp_path)

    with pytest.raises(Permanent) as refused:
        crawl.run(context)

    assert refused.value.code == code
    assert refused.value.detail not in ("", code)
