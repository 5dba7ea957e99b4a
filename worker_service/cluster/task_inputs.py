"""The inputs of an attempt in Ray's object store: a slice of a PDF, or whole files."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from worker_service.cluster.pdf_slices import SLICE, Slicer
from worker_service.runner.messages import Order

_STORED_BYTES_MAX = 256 << 20


class TaskInputs:
    def __init__(self, slicers: Mapping[str, str], place: Path, sandbox: str) -> None:
        """Start the slicer before a sandbox is shut, and before Ray starts threads."""
        self._slicer = Slicer(slicers, place, sandbox) if slicers else None
        self._lock = threading.Lock()
        self._stored: OrderedDict[str, tuple[Any, int]] = OrderedDict()

    def put_inputs(self, order: Order) -> tuple[Order, Sequence[Any]]:
        if self._slicer is not None and self._slicer.can_slice(order):
            path = self._slicer.slice(order)
            if path is not None:
                content = path.read_bytes()
                path.unlink()
                return replace(order, inputs={SLICE: path}), [_put_content(content)]
        with self._lock:
            references = [self._stored_reference(path, order.contents.get(role)) for role, path in order.inputs.items()]
            while sum(size for _, size in self._stored.values()) > _STORED_BYTES_MAX:
                self._stored.popitem(last=False)
        return order, references

    def _stored_reference(self, path: Path, digest: str | None) -> Any:
        name = digest or f"{path} {path.stat().st_mtime_ns}"
        if name not in self._stored:
            content = path.read_bytes()
            self._stored[name] = _put_content(content), len(content)
        self._stored.move_to_end(name)
        return self._stored[name][0]


def _put_content(content: bytes) -> Any:
    import ray

    return ray.put(content)
