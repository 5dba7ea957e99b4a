"""Which source an address belongs to: the shipped ones, and one that is installed in addition."""

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

# mypy checks that the modules have all that a source needs.
_SHIPPED: tuple[Source, ...] = (local, drive, https)

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
    """Install a source with an entry point."""
    (tmp_path / "bucket_source").mkdir()
    (tmp_path / "bucket_source" / "__init__.py").write_text(S3)
    install(tmp_path, "bucket-source", {}, {sources.GROUP: {"s3": "bucket_source"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    sources.sources.cache_clear()
    yield
    sources.sources.cache_clear()
    sys.modules.pop("bucket_source", None)


@pytest.mark.usefixtures("bucket")
def test_a_source_is_added_by_a_package_and_an_entry_point() -> None:
    assert tuple(source for source in sources.sources() if source.PLATFORM != "s3") == _SHIPPED
    addresses = ("s3://reports/a.pdf", "https://bucket.s3.example/a.pdf")
    by_scheme, by_host = (read_reference(address)[1] for address in addresses)

    assert (by_scheme.platform, by_host.platform) == ("s3", "s3")
    assert "AWS_REGION" in sources.environment()
    assert "s3*" in sources.credentials()
    with pytest.raises(Permanent, match=r"a Drive id or URL, an https URL, a full path .*, or s3://BUCKET/KEY"):
        read_reference("nothing")


def test_an_address_of_a_source_without_folders_is_no_folder() -> None:
    with pytest.raises(Permanent, match="a folder is an id or URL of Google Drive, or the full path of a directory"):
        read_folder("https://example.com/reports")


def test_the_handlers_import_the_modules_of_all_sources_before_processes_are_forked() -> None:
    assert download.__module__ in sys.modules
    assert crawl.__module__ in sys.modules
    assert "job_handlers.fetch.sources.drive.pacer" in sys.modules
