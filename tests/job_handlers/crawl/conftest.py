from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.job_handlers.crawl.kit import Crawls, crawls_in


@pytest.fixture
def crawls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Crawls]:
    with crawls_in(monkeypatch, tmp_path) as opened_crawls:
        yield opened_crawls
