from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.system import System


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    made = System(tmp_path)
    yield made
    made.close()
