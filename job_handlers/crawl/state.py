"""What a crawl remembers: within a run, so that one that is killed goes on; from run to run, so that only what has
changed is enqueued. A dry run has a memory that forgets.

Whatever is kept lands in one transaction with the jobs that it asked for.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from job_handlers.crawl.options import CrawlPayload, keys_of
from worker_service.handlers import Context, CrawlItem, CrawlItems, CrawlPage, NewJob, Stopped

TO_LIST = "to be listed"
NOT_LISTED = "cannot be listed"
LISTED_IN_PART = "listed in part"
TOO_DEEP = "too deep"
UNSURE = (NOT_LISTED, LISTED_IN_PART)
"""Of what is in such a folder nothing is known: it is listed again by the next run, and nothing in it is gone."""

_ASKED_MOST = 1000
_CHARACTERS_MOST = 500_000
"""Of one checkpoint; a message has an end."""
_SHOWN_MOST = 100


class Detail(Struct, frozen=True):
    """What the crawl wants to know again of an item, beside what everybody can see."""

    depth: int = 0
    key: str = ""
    corpus: str = ""
    via: str = ""
    """The shortcut that led to it, which lives elsewhere."""
    why: str = ""

    @classmethod
    def of(cls, item: CrawlItem | None) -> Detail:
        return cls(**json.loads(item.detail)) if item is not None and item.detail else cls()

    @property
    def text(self) -> str:
        said = {name: value for name, value in asdict(self).items() if value}
        return json.dumps(said, ensure_ascii=False) if said else ""


@dataclass(slots=True)
class PageFindings:
    """What is to be kept of one page: items, the jobs that some of them ask for, and what to count."""

    items: dict[str, CrawlItem] = field(default_factory=dict)
    jobs: dict[str, NewJob] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)


class Remembered(Struct, frozen=True):
    """What the runs before have left."""

    run: int = 0
    """Counts the runs that have begun."""
    walk: int = 0
    """Counts the full walks that have begun."""
    token: str = ""
    must_walk: bool = False
    root: Sequence[str] = ()
    """Id, name, key and corpus."""


class Memory:
    """In the database."""

    def __init__(self, context: Context[CrawlPayload], key: str) -> None:
        self._context = context
        self._key = key
        self._keys = keys_of(context)
        self._state: Mapping[str, Any] | None = context.state

    def known(self) -> Remembered:
        state = self._ask().state
        return Remembered(**json.loads(state)) if state else Remembered()

    def items(self, ids: Iterable[str]) -> dict[str, CrawlItem]:
        wanted = [one for one in dict.fromkeys(ids) if one]
        parts = (wanted[at : at + _ASKED_MOST] for at in range(0, len(wanted), _ASKED_MOST))
        return {item.id: item for part in parts for item in self._ask(ids=part).items}

    def noted(self, note: str) -> Sequence[CrawlItem]:
        """Some of those that have this note; empty: there are none."""
        items: Sequence[CrawlItem] = self._ask(with_note=note).items
        return items

    def unseen(self, walk: int) -> Iterator[Sequence[CrawlItem]]:
        """All that this walk has not met, part by part; each may be kept as gone before the next is asked for."""
        after = ""
        while items := self._ask(not_seen_in=walk, after=after).items:
            after = items[-1].id
            yield items

    def keep(
        self, found: PageFindings, walk: int, state: Mapping[str, Any] | None, known: Remembered | None = None
    ) -> None:
        """`state`: where the next attempt of this run goes on. `known`: for the runs to come; None: as it is."""
        *parts, last = _parts(list(found.items.values()), found.jobs)
        for part in parts:
            # The state tells of the whole page, so it comes with its end; a page that is met again asks for nothing.
            # But what went is met only once, and so is what follows from that.
            has_lost = self._state is not None and state is not None and state.get("is_stale")
            self._keep(part, found, walk, {**(self._state or {}), "is_stale": True} if has_lost else self._state, None)
        self._keep(last, found, walk, state, known)
        self._state = state
        if self._context.cancelled():
            raise Stopped

    def _keep(
        self,
        items: Sequence[CrawlItem],
        found: PageFindings,
        walk: int,
        state: Mapping[str, Any] | None,
        known: Remembered | None,
    ) -> None:
        jobs = [found.jobs[item.id] for item in items if item.id in found.jobs]
        memory = None if known is None else json.dumps(asdict(known), ensure_ascii=False)
        self._context.checkpoint(state, jobs, CrawlPage(self._key, items, walk, memory, self._keys))

    def _ask(self, **values: Any) -> Any:
        return self._context.ask(CrawlItems(self._key, **values))


class Forgetful(Memory):
    """Of a dry run: knows what the runs before have kept, and keeps nothing itself."""

    def __init__(self, context: Context[CrawlPayload], key: str) -> None:
        super().__init__(context, key)
        self._met: dict[str, CrawlItem] = {}
        self.would_enqueue: list[str] = []
        self.bytes = 0
        """Of what would be enqueued, as far as the place tells sizes."""

    def items(self, ids: Iterable[str]) -> dict[str, CrawlItem]:
        wanted = list(ids)
        return super().items(wanted) | {one: self._met[one] for one in wanted if one in self._met}

    def noted(self, note: str) -> Sequence[CrawlItem]:
        before = [item for item in super().noted(note) if item.id not in self._met]
        return [item for item in self._met.values() if item.note == note and not item.is_gone] + before

    def unseen(self, walk: int) -> Iterator[Sequence[CrawlItem]]:
        for items in super().unseen(walk):
            yield [item for item in items if item.id not in self._met]

    def keep(
        self, found: PageFindings, walk: int, state: Mapping[str, Any] | None, known: Remembered | None = None
    ) -> None:
        for item in found.items.values():
            self._met[item.id] = replace(item, walk=walk)
        names = [found.items[one].name for one in found.jobs]
        self.bytes += sum(found.items[one].size or 0 for one in found.jobs)
        self.would_enqueue += names[: _SHOWN_MOST - len(self.would_enqueue)]
        if self._context.cancelled():
            raise Stopped


def _parts(items: Sequence[CrawlItem], jobs: Mapping[str, NewJob]) -> list[list[CrawlItem]]:
    parts: list[list[CrawlItem]] = [[]]
    room = _CHARACTERS_MOST
    for item in items:
        job = jobs.get(item.id)
        size = sum(map(len, (item.id, item.parent_id, item.name, item.detail, item.note)))
        size += len(job.payload or "") + len(job.unique_key or "") if job is not None else 0
        if size > room and parts[-1]:
            parts.append([])
            room = _CHARACTERS_MOST
        room -= size
        parts[-1].append(item)
    return parts
