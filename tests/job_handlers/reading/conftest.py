"""One fork server with the shipped handlers for all modules. Each test begins without stored pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.job_handlers.reading.kit import Library, open_library


@pytest.fixture(scope="package")
def _opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    with open_library(tmp_path_factory.mktemp("library")) as library:
        yield library


@pytest.fixture
def library(_opened: Library) -> Library:
    _opened.forget()
    return _opened
