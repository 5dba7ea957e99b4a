"""The state that a crawl stores for its next attempt and run, in one transaction with its jobs.

A run is one crawl from its beginning to its end, in one or more attempts. `RunState` lasts for a run; `Bookmark` and
the items are for the runs after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from job_handlers.crawl.options import CrawlPayload, unique_key_prefix
from worker_service.handlers import Context, CrawlItem, CrawlItems, CrawlPage, NewJob, Stopped

# Notes on items. The text is shown to the user.
TO_LIST = "to be listed"
NOT_LISTED = "cannot be listed"
LISTED_IN_PART = "listed in part"
TOO_DEEP = "too deep"
# Notes on folders whose contents are not fully known: nothing in them counts as deleted.
UNSURE = (NOT_LISTED, LISTED_IN_PART)

_IDS_PER_QUESTION = 1000
_CHARACTERS_PER_CHECKPOINT = 500_000
_NAMES_SHOWN_MAX = 100


class Phase(StrEnum):
    WALK = "walk"
    CHANGES = "changes"
    SWEEP = "sweep"
    OVER = "over"


class CrawledFolder(Struct, frozen=True, array_like=True):
    id: str = ""
    name: str = ""
    key: str = ""
    corpus: str = ""


class RunState(Struct, omit_defaults=True):
    """The position at which the next attempt of this run continues, stored as JSON."""

    phase: Phase = Phase.WALK
    # Numbers of the run and of its latest walk, counted over all runs of the crawl.
    run: int = 0
    walk: int = 0
    # Number of walks that this run has begun.
    walks: int = 0
    token: str = ""
    root: CrawledFolder = CrawledFolder()
    counts: dict[str, int] = field(default_factory=dict)
    # True if items that this run does not meet count as deleted.
    sweeps: bool = False
    # True after a folder was deleted: only a walk shows what else is gone.
    is_stale: bool = False
    # True if a shortcut leads to another corpus, whose changes are not listed.
    is_abroad: bool = False
    # Id of the folder that is being listed. `page` and `is_partial` belong to it.
    folder: str = ""
    page: str = ""
    is_partial: bool = False

    @property
    def is_over(self) -> bool:
        return self.phase == Phase.OVER


class Bookmark(Struct, frozen=True):
    run: int = 0
    walk: int = 0
    token: str = ""
    must_walk: bool = False
    root: CrawledFolder = CrawledFolder()


class ItemDetail(Struct, frozen=True, omit_defaults=True):
    depth: int = 0
    key: str = ""
    corpus: str = ""
    # Id of the shortcut that led to the item.
    via: str = ""
    why: str = ""

    @classmethod
    def of_item(cls, item: CrawlItem | None) -> ItemDetail:
        return msgspec.json.decode(item.detail, type=cls) if item is not None and item.detail else cls()

    @property
    def text(self) -> str:
        return "" if self == ItemDetail() else msgspec.json.encode(self).decode()


class PageFindings(Struct):
    """Items and downloads of one page of a listing or of changes, by the ids of their entries."""

    items: dict[str, CrawlItem] = field(default_factory=dict)
    jobs: dict[str, NewJob] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)


class CrawlRecord:
    def __init__(self, context: Context[CrawlPayload], key: str) -> None:
        self._context = context
        self._key = key
        self._unique_key_prefix = unique_key_prefix(context)
        self._state: Mapping[str, Any] | None = context.state

    def bookmark(self) -> Bookmark:
        return msgspec.json.decode(self._ask().state or "{}", type=Bookmark)

    def items(self, ids: Iterable[str]) -> dict[str, CrawlItem]:
        distinct_ids = [item_id for item_id in dict.fromkeys(ids) if item_id]
        item_by_id: dict[str, CrawlItem] = {}
        for start in range(0, len(distinct_ids), _IDS_PER_QUESTION):
            items = self._ask(ids=distinct_ids[start : start + _IDS_PER_QUESTION]).items
            item_by_id |= {item.id: item for item in items}
        return item_by_id

    def items_with_note(self, note: str) -> Sequence[CrawlItem]:
        items: Sequence[CrawlItem] = self._ask(with_note=note).items
        return items

    def items_not_seen(self, walk: int) -> Iterator[Sequence[CrawlItem]]:
        """Yield the items that `walk` has not met, in parts. The caller may save a part as gone before the next."""
        after = ""
        while items := self._ask(not_seen_in=walk, after=after).items:
            after = items[-1].id
            yield items

    def save(self, findings: PageFindings, walk: int, state: RunState, bookmark: Bookmark | None = None) -> None:
        """Save all; without `bookmark`, keep the stored one. Raise `Stopped` if the attempt must stop."""
        new_state = msgspec.to_builtins(state)
        *first_parts, last_part = _split(list(findings.items.values()), findings.jobs)
        for part in first_parts:
            # Keep the old state until the last part, so that a killed attempt repeats the page. Save `is_stale`
            # with the first part: the repeated page would not show again that a folder was deleted.
            old_state = self._state
            if old_state is not None and state.is_stale:
                old_state = {**old_state, "is_stale": True}
            self._checkpoint(part, findings, walk, old_state, None)
        self._checkpoint(last_part, findings, walk, new_state, bookmark)
        self._state = new_state
        if self._context.cancelled():
            raise Stopped

    def _checkpoint(
        self,
        items: Sequence[CrawlItem],
        findings: PageFindings,
        walk: int,
        state: Mapping[str, Any] | None,
        bookmark: Bookmark | None,
    ) -> None:
        jobs = [findings.jobs[item.id] for item in items if item.id in findings.jobs]
        bookmark_text = None if bookmark is None else msgspec.json.encode(bookmark).decode()
        page = CrawlPage(self._key, items, walk, bookmark_text, self._unique_key_prefix)
        self._context.checkpoint(state, jobs, page)

    def _ask(self, **conditions: Any) -> Any:
        return self._context.ask(CrawlItems(self._key, **conditions))


class DryRunRecord(CrawlRecord):
    def __init__(self, context: Context[CrawlPayload], key: str) -> None:
        super().__init__(context, key)
        self._new_items: dict[str, CrawlItem] = {}
        self.would_enqueue: list[str] = []
        self.bytes = 0

    def items(self, ids: Iterable[str]) -> dict[str, CrawlItem]:
        ids = list(ids)
        return super().items(ids) | {item_id: self._new_items[item_id] for item_id in ids if item_id in self._new_items}

    def items_with_note(self, note: str) -> Sequence[CrawlItem]:
        old_items = [item for item in super().items_with_note(note) if item.id not in self._new_items]
        new_items = [item for item in self._new_items.values() if item.note == note and not item.is_gone]
        return new_items + old_items

    def items_not_seen(self, walk: int) -> Iterator[Sequence[CrawlItem]]:
        for items in super().items_not_seen(walk):
            yield [item for item in items if item.id not in self._new_items]

    def save(self, findings: PageFindings, walk: int, state: RunState, bookmark: Bookmark | None = None) -> None:
        for item in findings.items.values():
            self._new_items[item.id] = replace(item, walk=walk)
        enqueued = [findings.items[item_id] for item_id in findings.jobs]
        self.bytes += sum(item.size or 0 for item in enqueued)
        self.would_enqueue += [item.name for item in enqueued][: _NAMES_SHOWN_MAX - len(self.would_enqueue)]
        if self._context.cancelled():
            raise Stopped


def _split(items: Sequence[CrawlItem], jobs: Mapping[str, NewJob]) -> list[list[CrawlItem]]:
    parts: list[list[CrawlItem]] = [[]]
    characters_left = _CHARACTERS_PER_CHECKPOINT
    for item in items:
        job = jobs.get(item.id)
        size = sum(map(len, (item.id, item.parent_id, item.name, item.detail, item.note)))
        size += len(job.payload or "") + len(job.unique_key or "") if job is not None else 0
        if size > characters_left and parts[-1]:
            parts.append([])
            characters_left = _CHARACTERS_PER_CHECKPOINT
        characters_left -= size
        parts[-1].append(item)
    return parts
