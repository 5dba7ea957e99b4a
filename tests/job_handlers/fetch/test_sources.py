"""Whose an address is: the sources that are shipped, and one more that somebody installs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from job_handlers.crawl.crawl import run as crawl
from job_handlers.fetch import sources
from job_handlers.fetch.download import run as download
from job_handlers.fetch.sources import Source, drive, https, local, read_folder, read_reference
from tests.fake_distributions import install
from worker_service.handlers import Permanent

_drive: Source = drive
_local: Source = local
_https: Source = https

S3 = '''
"""Buckets."""

from job_handlers.fetch.sources import Reference

PLATFORM = "s3"
ADDRESSES = "s3://BUCKET/KEY"
FOLDERS = ""
IS_FOR_ANY_HOST = False
ENVIRONMENT = ("AWS_REGION",)
CREDENTIALS = ("s3*",)


def parse_reference(text):
    return Reference(PLATFORM, text) if text.startswith(("s3://", "https://bucket.s3.example/")) else None
'''


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One more folder, and its line among the entry points."""
    (tmp_path / "bucket_source").mkdir()
    (tmp_path / "bucket_source" / "__init__.py").write_text(S3)
    install(tmp_path, "bucket-source", {}, {sources.GROUP: {"s3": "bucket_source"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    sources.sources.cache_clear()
    yield
    sources.sources.cache_clear()
    sys.modules.pop("bucket_source", None)


@pytest.mark.usefixtures("bucket")
def test_another_source_is_a_folder_and_a_line() -> None:
    assert [one for one in sources.sources() if one.PLATFORM != "s3"] == [local, drive, https]
    by_scheme, by_host = (read_reference(one)[1] for one in ("s3://reports/a.pdf", "https://bucket.s3.example/a.pdf"))

    assert (by_scheme.platform, by_host.platform) == ("s3", "s3")
    assert "AWS_REGION" in sources.environment()
    assert "s3*" in sources.credentials()
    with pytest.raises(Permanent, match=r"a Drive id or URL, an https URL, a full path .*, or s3://BUCKET/KEY"):
        read_reference("nothing")


def test_a_folder_is_asked_for_where_there_are_folders() -> None:
    with pytest.raises(Permanent, match="a folder is an id or URL of Google Drive, or the full path of a directory"):
        read_folder("https://example.com/reports")


def test_whoever_fetches_or_crawls_has_imported_what_takes_long_before_children_are_forked() -> None:
    assert download.__module__ in sys.modules
    assert crawl.__module__ in sys.modules
    assert "job_handlers.fetch.sources.drive.pacer" in sys.modules
