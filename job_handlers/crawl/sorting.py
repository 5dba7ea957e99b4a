"""What becomes of an entry that a crawl has met: remembered, listed later, enqueued, skipped. Asks nobody."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from job_handlers.crawl.memory import TO_LIST, TOO_DEEP, Detail, Found
from job_handlers.crawl.wanted import Wanted, skip_reason
from job_handlers.sources.tree import Entry
from worker_service.handlers import CrawlItem, NewJob

ID_CHARACTERS_MAX = 1000
_NAME_CHARACTERS_MAX = 1000
_NOT_THERE = "a shortcut leads to it, and it is not there"


@dataclass(frozen=True, slots=True)
class Above:
    """The folder in which something was met."""

    id: str
    depth: int
    key: str
    corpus: str

    @classmethod
    def of(cls, item: CrawlItem) -> Above:
        detail = Detail.of(item)
        return cls(item.id, detail.depth, detail.key, detail.corpus)


@dataclass(frozen=True, slots=True)
class Sorter:
    wanted: Wanted
    walk: int
    """An item that has this number was met in this walk, or since."""
    job_of: Callable[[Entry, bool], NewJob]
    """Whether it was enqueued before, and has changed."""

    def sort(self, entry: Entry, above: Above, before: CrawlItem | None, found: Found, *, via: str = "") -> None:
        """`before`: what is known of it. `via`: the shortcut that led to it."""
        if len(entry.id) > ID_CHARACTERS_MAX:
            # It could not even be remembered.
            found.counts.update(["found", "skipped"])
            return
        before = found.items.get(entry.id, before)
        # By a shortcut and directly: the shortcut alone would lead to it as well.
        via = via or ("" if before is None or before.is_gone else Detail.of(before).via)
        entry = replace(entry, name=entry.name[:_NAME_CHARACTERS_MAX], key=entry.key or above.key)
        if entry.kind == "folder":
            self._folder(entry, above, before, found, via)
        else:
            self._file(entry, above, before, found, via)

    def shortcut(self, entry: Entry, above: Above, found: Found) -> None:
        name = entry.name[:_NAME_CHARACTERS_MAX]
        found.items[entry.id] = CrawlItem(entry.id, above.id, name, "shortcut", note="followed", walk=self.walk)

    def dangling(self, entry: Entry, above: Above, before: CrawlItem | None, found: Found) -> None:
        """Its target is remembered too: it may be shared with us one day."""
        self.shortcut(entry, above, found)
        found.counts.update(["found", "skipped", "dangling"])
        if (before is None or before.note == _NOT_THERE) and entry.target_id not in found.items:
            detail = Detail(above.depth, entry.key, above.corpus, entry.id).text
            found.items[entry.target_id] = CrawlItem(
                entry.target_id, above.id, entry.name, "file", note=_NOT_THERE,
                detail=detail, walk=self.walk,
            )  # fmt: skip

    def _folder(self, entry: Entry, above: Above, before: CrawlItem | None, found: Found, via: str) -> None:
        depth = above.depth + 1
        most = self.wanted.depth
        if before is not None and self._is_met(before) and before.kind == "folder":
            known = Detail.of(before)
            is_nearer = most is not None and depth < known.depth
            if not is_nearer:
                is_there_still = via or before.parent_id in entry.parent_ids
                parent_id = before.parent_id if is_there_still else above.id
                changed = replace(before, parent_id=parent_id, name=entry.name, detail=replace(known, via=via).text)
                if changed != before:
                    found.items[entry.id] = changed
                return
        note = TOO_DEEP if most is not None and depth > most else TO_LIST
        detail = Detail(depth, entry.key, entry.corpus, via).text
        found.items[entry.id] = CrawlItem(
            entry.id, above.id, entry.name, "folder", note=note, detail=detail, walk=self.walk
        )

    def _file(self, entry: Entry, above: Above, before: CrawlItem | None, found: Found, via: str) -> None:
        there = None if before is None or before.is_gone else before
        note = skip_reason(entry, self.wanted)
        item = CrawlItem(
            entry.id, above.id, entry.name, entry.kind, entry.revision, entry.size, note,
            detail=Detail(via=via).text, walk=self.walk,
        )  # fmt: skip
        if there is not None and there.walk >= self.walk and there.revision == entry.revision and there.note == note:
            # In another of its folders, or on a page that came twice.
            if there.detail != item.detail or there.name != item.name:
                found.items[entry.id] = replace(there, name=item.name, detail=item.detail)
            return
        found.items[entry.id] = item
        found.counts["found"] += 1
        if note:
            found.counts["skipped"] += 1
        elif there is not None and not there.note and there.revision == entry.revision:
            found.counts["unchanged"] += 1
        else:
            found.counts["enqueued"] += 1
            found.jobs[entry.id] = self.job_of(entry, before is not None and not before.note)

    def _is_met(self, before: CrawlItem) -> bool:
        return not before.is_gone and before.walk >= self.walk
