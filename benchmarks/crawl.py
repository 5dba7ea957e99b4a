"""The cost of a crawl: calls of Google's API, counted at the tests' own Drive server, and time.

The client and the store are real, every commit is synced. The crawl and the server run in this process, so the times
include the server's. Calls for a token, one an hour, are not counted.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.queue import disk
from benchmarks.table import Row, at_most
from tests.drive_server import Item
from tests.job_handlers.crawl.kit import Crawls, crawls_in


@dataclass(frozen=True, slots=True)
class Sizes:
    files: int = 10_000
    folders: int = 100
    repeats: int = 5

    @property
    def calls_most(self) -> int:
        """Calls for pages of a thousand items (at least one per folder), the folder, the token and the changes."""
        items = self.files + self.folders
        return -(-items // 1000) + (self.folders + 1) + 3


QUICK = Sizes(files=1_200, folders=3, repeats=1)


@dataclass(frozen=True, slots=True)
class Spent:
    calls: float
    seconds: float


def measure(is_quick: bool) -> Iterator[Row]:
    sizes = QUICK if is_quick else Sizes()
    with (
        tempfile.TemporaryDirectory(prefix="pagemill-bench-", dir=disk()) as directory,
        pytest.MonkeyPatch.context() as patch,
        crawls_in(patch, Path(directory)) as crawls,
    ):
        top = _library(crawls, sizes)
        owners = [f"owner {number}" for number in range(sizes.repeats)]
        first = [_run(crawls, top, owner) for owner in owners]
        idle = [_run(crawls, top, owner) for owner in owners]
        whole = [_run(crawls, top, owner, reconcile=True) for owner in owners]

    calls = at_most(sizes.calls_most, "calls")
    many = f"{sizes.files:,} files in {sizes.folders} folders"
    yield Row("first_calls", f"the first crawl of {many}", "–", "calls", _calls(first), [], calls)
    yield Row("idle_calls", "a later crawl, nothing has changed", "–", "calls", _calls(idle), [], at_most(1, "call"))
    yield Row("whole_calls", "a full rescan", "–", "calls", _calls(whole), [], calls)
    per_second = [sizes.files / one.seconds for one in first]
    yield Row("first_rate", "the first crawl, a job for each file", "–", "files/s", per_second, [])
    yield Row("idle_time", "a later crawl, nothing has changed", "–", "ms", [one.seconds * 1e3 for one in idle], [])
    again = [sizes.files / one.seconds for one in whole]
    yield Row("whole_rate", "a full rescan, nothing has changed", "–", "files/s", again, [])


def _library(crawls: Crawls, sizes: Sizes) -> Item:
    store = crawls.server.store
    top = store.folder("top")
    below = [store.folder(f"folder {number}", parents=[top.id]) for number in range(sizes.folders)]
    for number in range(sizes.files):
        store.add(f"{number}.pdf", b"%PDF-1.7\n", parents=[below[number % sizes.folders].id])
    return top


def _run(crawls: Crawls, top: Item, owner: str, **asked: Any) -> Spent:
    crawls.calls()
    begun = time.perf_counter()
    ran = crawls.run(top, owner=owner, **asked)
    seconds = time.perf_counter() - begun
    if ran.error is not None:
        raise ran.error
    return Spent(crawls.calls(), seconds)


def _calls(spent: list[Spent]) -> list[float]:
    return [one.calls for one in spent]
