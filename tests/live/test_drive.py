"""The real Google Drive, if somebody gives a credential and a folder that is shared with it:

    PAGEMILL_LIVE_DRIVE=/path/of/the/key.json:FOLDER_ID pytest tests/live

It only reads. The folder holds at least one PDF, and nobody edits in it meanwhile. How to make both is told in
CONTRIBUTING.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from job_handlers.fetch import download
from job_handlers.fetch.sources.drive import credentials as drive_credentials
from job_handlers.fetch.sources.drive.client import Drive
from job_handlers.fetch.sources.tree import ItemError, ListingExpired
from tests.drive_server import DriveServer
from tests.job_handlers.crawl.kit import Crawls
from worker_service.jobs.selector import Selector
from worker_service.testing import How, run_handler

GIVEN, _, FOLDER = os.environ.get("PAGEMILL_LIVE_DRIVE", "").rpartition(":")

pytestmark = [
    pytest.mark.skipif(not GIVEN, reason="PAGEMILL_LIVE_DRIVE=CREDENTIALS_FILE:FOLDER_ID is not set"),
    pytest.mark.timeout(900),
]


@pytest.fixture(autouse=True)
def _credential(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    directory = tmp_path / "credentials"
    directory.mkdir(mode=0o700)
    key = directory / "drive"
    shutil.copyfile(GIVEN, key)
    key.chmod(0o600)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(directory))
    monkeypatch.delenv(drive_credentials.ENDPOINT.variable, raising=False)


@pytest.fixture
def crawls(tmp_path: Path) -> Iterator[Crawls]:
    made = Crawls(DriveServer(), tmp_path)
    yield made
    made.close()


def test_the_credential_is_somebody() -> None:
    with closing(Drive()) as drive:
        assert "@" in drive.request_account()


def test_a_crawl_finds_what_a_dry_run_promised_and_a_second_one_nothing(crawls: Crawls) -> None:
    promised = crawls.run(FOLDER, dry_run=True)
    first = crawls.run(FOLDER)
    second = crawls.run(FOLDER)
    whole = crawls.run(FOLDER, reconcile=True)

    assert promised.enqueued == first.enqueued > 0
    assert first.failed == 0
    assert second.enqueued == 0
    assert (whole.enqueued, whole.gone, whole.unchanged) == (0, 0, first.enqueued)


def test_a_file_comes_whole_and_right(crawls: Crawls, tmp_path: Path) -> None:
    crawls.run(FOLDER, wanted={"mime": ["application/pdf"]})
    payloads = [
        json.loads(job.payload or "") for job in crawls.store.job_queries.list(Selector(job_types=("download",)))
    ]
    drive = Drive()
    entries = [drive.entry(one["source"], one.get("resource_key", "")) for one in payloads]
    drive.close()
    smallest = min(range(len(entries)), key=lambda at: entries[at].size or 0)

    run = run_handler(download.download, {**payloads[smallest], "ingest": False}, directory=tmp_path / "run")

    assert run.how is How.DONE, run.ended.message
    [file] = run.files
    assert hashlib.md5(file.read_bytes()).hexdigest() == entries[smallest].md5
    assert file.read_bytes().startswith(b"%PDF-")


def test_drive_refuses_as_our_own_server_does(crawls: Crawls) -> None:
    tree = crawls.tree_at(FOLDER)

    with pytest.raises(ItemError, match="share it with"):
        tree.entry("1AbCdEfGhIjKlMnOpQrStUvWxYz012345", "")
    with pytest.raises(ListingExpired):
        tree.children(FOLDER, "", tree.root().corpus, "no-such-page")
    with pytest.raises(ListingExpired):
        tree.changes(tree.root().corpus, "no-such-token")
