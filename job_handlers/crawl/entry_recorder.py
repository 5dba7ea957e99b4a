"""Decide for each entry of a folder whether it is listed later, enqueued or skipped.

An entry is what the source lists: a file, a folder or a shortcut. An item is what the crawl has stored of it, with the
number of the walk that has last met it. A walk lists every folder once.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from job_handlers.crawl.options import FilesWanted, skip_reason
from job_handlers.crawl.state import TO_LIST, TOO_DEEP, ItemDetail, PageFindings
from job_handlers.fetch.sources.tree import Entry
from worker_service.handlers import CrawlItem, NewJob

REASON_CHARACTERS_MAX = 200
_ID_CHARACTERS_MAX = 1000
_NAME_CHARACTERS_MAX = 1000
_DANGLING = "the target of a shortcut, which does not exist"


def is_folder_to_crawl(item: CrawlItem) -> bool:
    return item.kind == "folder" and not item.is_gone and item.note != TOO_DEEP


def is_wanted(item: CrawlItem) -> bool:
    return item.kind == "file" and not item.note


class ParentFolder(Struct, frozen=True):
    id: str
    depth: int
    key: str
    corpus: str

    @classmethod
    def of_item(cls, item: CrawlItem) -> ParentFolder:
        detail = ItemDetail.of_item(item)
        return cls(item.id, detail.depth, detail.key, detail.corpus)


class EntryRecorder(Struct, frozen=True):
    wanted: FilesWanted
    walk: int
    make_job: Callable[[Entry, bool], NewJob]
    parent: ParentFolder
    findings: PageFindings

    def add(self, entry: Entry, before: CrawlItem | None, via: str = "") -> None:
        """Record a file or folder. `before` is its stored item, `via` the id of the shortcut that leads to it."""
        if len(entry.id) > _ID_CHARACTERS_MAX:
            # Too long to be stored, so only counted.
            self.findings.counts.update(["found", "skipped"])
            return
        before = self.findings.items.get(entry.id, before)
        # Keep the shortcut that led to the item before: the item may leave the crawled folders, and the shortcut stay.
        via = via or ("" if before is None or before.is_gone else ItemDetail.of_item(before).via)
        entry = replace(entry, name=entry.name[:_NAME_CHARACTERS_MAX], key=entry.key or self.parent.key)
        if entry.kind == "folder":
            self._add_folder(entry, before, via)
        else:
            self._add_file(entry, before, via)

    def add_shortcut(self, entry: Entry) -> None:
        name = entry.name[:_NAME_CHARACTERS_MAX]
        self._store(CrawlItem(entry.id, self.parent.id, name, "shortcut", note="followed", walk=self.walk))

    def add_dangling(self, entry: Entry, before: CrawlItem | None) -> None:
        """Record a shortcut and its missing target, which may be shared one day."""
        self.add_shortcut(entry)
        self.findings.counts.update(["found", "skipped", "dangling"])
        if (before is None or before.note == _DANGLING) and entry.target_id not in self.findings.items:
            parent, target_id = self.parent, entry.target_id
            detail = ItemDetail(parent.depth, entry.key, parent.corpus, entry.id).text
            self._store(
                CrawlItem(target_id, parent.id, entry.name, "file", note=_DANGLING, detail=detail, walk=self.walk)
            )

    def _add_folder(self, entry: Entry, before: CrawlItem | None, via: str) -> None:
        depth, depth_max = self.parent.depth + 1, self.wanted.depth
        if before is not None and before.kind == "folder" and not before.is_gone and before.walk >= self.walk:
            # This walk has met the folder before. List it again only if it is now nearer to the root.
            detail_before = ItemDetail.of_item(before)
            is_nearer = depth_max is not None and depth < detail_before.depth
            if not is_nearer:
                keeps_parent = via or before.parent_id in entry.parent_ids
                parent_id = before.parent_id if keeps_parent else self.parent.id
                detail = replace(detail_before, via=via).text
                changed = replace(before, parent_id=parent_id, name=entry.name, detail=detail)
                if changed != before:
                    self._store(changed)
                return
        note = TOO_DEEP if depth_max is not None and depth > depth_max else TO_LIST
        detail = ItemDetail(depth, entry.key, entry.corpus, via).text
        parent_id = self.parent.id
        self._store(CrawlItem(entry.id, parent_id, entry.name, "folder", note=note, detail=detail, walk=self.walk))

    def _add_file(self, entry: Entry, before: CrawlItem | None, via: str) -> None:
        existing = None if before is None or before.is_gone else before
        item = CrawlItem(
            entry.id,
            self.parent.id,
            entry.name,
            entry.kind,
            entry.revision,
            entry.size,
            skip_reason(entry, self.wanted),
            detail=ItemDetail(via=via).text,
            walk=self.walk,
        )
        is_same = existing is not None and (existing.revision, existing.note) == (item.revision, item.note)
        if existing is not None and is_same and existing.walk >= self.walk:
            # This walk has met the file before, in another folder or on a page that was listed twice.
            if existing.detail != item.detail or existing.name != item.name:
                self._store(replace(existing, name=item.name, detail=item.detail))
            return
        self._store(item)
        if item.note:
            decision = "skipped"
        elif is_same:
            decision = "unchanged"
        else:
            decision = "enqueued"
            is_changed = before is not None and not before.note
            self.findings.jobs[entry.id] = self.make_job(entry, is_changed)
        self.findings.counts.update(["found", decision])

    def _store(self, item: CrawlItem) -> None:
        self.findings.items[item.id] = item
