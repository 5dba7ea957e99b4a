"""Machines that Ray's own autoscaler starts, on this one: Ray's own for that, and each has a directory of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider


class Provider(FakeMultiNodeProvider):  # type: ignore[misc]  # Ray tells no types
    def _create_node_with_resources_and_labels(self, *said: Any) -> None:
        with self.lock:
            state = Path(os.environ["STATE_DIRECTORY"]) / f"started-{self._next_node_id + 1}"
            before = os.environ["STATE_DIRECTORY"]
            os.environ["STATE_DIRECTORY"] = str(state)
            try:
                super()._create_node_with_resources_and_labels(*said)
            finally:
                os.environ["STATE_DIRECTORY"] = before
