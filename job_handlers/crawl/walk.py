"""One run of a crawl: walk a tree or read its changes, and enqueue a download for each new or changed file.

WALK lists every folder, CHANGES reads what the source says has changed, and SWEEP marks as gone what the walk has not
met. A run begins with CHANGES if an earlier run has left a token, its position in the list of changes. Before a walk a
token is taken, and the changes since then are read after it, so none is missed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from job_handlers.crawl.entry_recorder import (
    REASON_CHARACTERS_MAX,
    EntryRecorder,
    ParentFolder,
    is_folder_to_crawl,
    is_wanted,
)
from job_handlers.crawl.options import CrawlPayload, download_job
from job_handlers.crawl.state import (
    LISTED_IN_PART,
    NOT_LISTED,
    TO_LIST,
    UNSURE,
    Bookmark,
    CrawledFolder,
    CrawlRecord,
    ItemDetail,
    PageFindings,
    Phase,
    RunState,
)
from job_handlers.fetch.sources.tree import Entry, ItemError, Listing, ListingExpired, Tree, TreeChanges
from worker_service.handlers import Context, CrawlItem, NewJob, Permanent, Retryable, counted

_WALKS_MAX = 2  # If a folder is deleted during a run, a second walk follows.
_LISTING_TRIES = 3  # For a folder whose listing expires or is incomplete.
_SUMMARY_COUNTS = ("folders", "found", "enqueued", "unchanged", "skipped", "gone", "failed")


class CrawlRun:
    def __init__(self, context: Context[CrawlPayload], tree: Tree, record: CrawlRecord) -> None:
        self._context, self._tree, self._record = context, tree, record
        self._wanted, self._log = context.payload.wanted, context.log
        self._state = msgspec.convert(context.state or {}, RunState)
        self._counts: Counter[str] = Counter(self._state.counts)
        self.has_saved = False

    def run(self, *, must_walk: bool) -> None:
        if self._state.is_over:
            return
        if not self._is_current():
            self._begin(must_walk=must_walk)
        while not self._state.is_over:
            if self._state.phase == Phase.WALK:
                self._walk()
                self._enter_changes()
            elif self._state.phase == Phase.CHANGES:
                self._read_changes()
                # The changes may contain folders, which have to be listed.
                self._walk()
                self._leave_changes()
            else:
                self._sweep()
                self._end()

    def summary(self) -> str:
        parts = [_count_text(self._counts[name], name) for name in _SUMMARY_COUNTS if self._counts[name]]
        return " · ".join(parts) or "nothing new"

    def counts(self) -> dict[str, int]:
        return {**dict.fromkeys(_SUMMARY_COUNTS, 0), **dict(sorted(self._counts.items()))}

    # ── Phases ──

    def _is_current(self) -> bool:
        """Return False if this run has not begun, or if another job has begun a newer run."""
        return self._state.run > 0 and self._record.bookmark().run == self._state.run

    def _begin(self, *, must_walk: bool) -> None:
        bookmark = self._record.bookmark()
        must_walk = must_walk or bookmark.must_walk or not bookmark.token
        self._counts.clear()
        findings = PageFindings()
        root = bookmark.root
        if must_walk:
            entry = self._root()
            root = CrawledFolder(entry.id, entry.name, entry.key, entry.corpus)
        self._state = RunState(run=bookmark.run + 1, walk=bookmark.walk, token=bookmark.token, root=root)
        if must_walk:
            # Take the token before the first listing, so that changes during the walk are read after it.
            self._state.token = self._tree.change_token(self._corpus)
            self._begin_walk(findings)
        else:
            self._state.phase = Phase.CHANGES
            unsure_folders = [item for note in UNSURE for item in self._record.items_with_note(note)]
            findings.items |= {item.id: replace(item, note=TO_LIST) for item in unsure_folders}
            self._state.sweeps = bool(unsure_folders)
        # The numbers of run and walk are stored now. If this run never ends, the next one walks, too.
        new_bookmark = replace(bookmark, run=self._state.run, walk=self._state.walk, must_walk=must_walk, root=root)
        self._save(findings, new_bookmark)

    def _begin_walk(self, findings: PageFindings) -> None:
        state = self._state
        state.phase, state.walk, state.walks = Phase.WALK, state.walk + 1, state.walks + 1
        state.sweeps, state.is_stale = True, False
        root = state.root
        detail = ItemDetail(0, root.key, root.corpus).text
        findings.items[root.id] = CrawlItem(root.id, "", root.name, "folder", note=TO_LIST, detail=detail)

    def _enter_changes(self) -> None:
        self._state.phase = Phase.CHANGES
        if self._state.token:
            self._save(PageFindings())

    def _leave_changes(self) -> None:
        needs_walk = self._state.is_stale and self._state.walks < _WALKS_MAX
        # Only the newest run of the crawl walks again.
        if not (needs_walk and self._is_current()):
            self._state.phase = Phase.SWEEP
            return
        findings = PageFindings()
        self._begin_walk(findings)
        if not self._state.token:
            self._state.token = self._tree.change_token(self._corpus)
        self._save(findings, self._bookmark(must_walk=True))

    def _end(self) -> None:
        bookmark = self._bookmark(must_walk=self._state.is_stale or self._state.is_abroad)
        # A newer run keeps its own bookmark.
        is_current = self._is_current()
        self._state = RunState(phase=Phase.OVER)
        self._save(PageFindings(), bookmark if is_current else None)

    def _bookmark(self, *, must_walk: bool) -> Bookmark:
        state = self._state
        return Bookmark(state.run, state.walk, state.token, must_walk, state.root)

    def _root(self) -> Entry:
        try:
            return self._tree.root()
        except ItemError as error:
            raise Permanent("FOLDER_NOT_FOUND", error.detail, error.remedy) from error

    @property
    def _corpus(self) -> str:
        return self._state.root.corpus

    # ── The walk ──

    def _walk(self) -> None:
        while folders := self._record.items_with_note(TO_LIST):
            # Begin with the folder that the last attempt was listing. Then go by depth, because the shortest of several
            # ways to a folder decides how deep it is.
            interrupted = [folder for folder in folders if folder.id == self._state.folder]
            depth_min = min(ItemDetail.of_item(folder).depth for folder in folders)
            nearest = [folder for folder in folders if ItemDetail.of_item(folder).depth == depth_min]
            for folder in interrupted or nearest:
                self._list(folder)

    def _list(self, folder: CrawlItem) -> None:
        was_interrupted = self._state.folder == folder.id
        page = self._state.page if was_interrupted else ""
        is_partial = was_interrupted and self._state.is_partial
        restarts = 0
        while True:
            try:
                listing = self._children(folder, page)
            except ListingExpired as error:
                # The page is no longer known: list the folder from its beginning.
                page, restarts = "", restarts + 1
                if restarts > _LISTING_TRIES:
                    raise Retryable(f"{folder.name}: {error}, again and again") from error
                continue
            except ItemError as error:
                self._log(f"{folder.name}: {error}")
                self._finish_folder(folder, PageFindings(counts=Counter(failed=1)), NOT_LISTED, str(error))
                return
            is_partial |= listing.is_partial
            findings = self._record_entries(listing.entries, folder)
            page = listing.next_page
            if not page:
                break
            self._state.folder, self._state.page, self._state.is_partial = folder.id, page, is_partial
            self._save(findings)
        findings.counts["folders"] += 1
        if is_partial:
            findings.counts["partial"] += 1
            self._log(f"{folder.name}: the listing is incomplete; the next run lists it again")
        self._finish_folder(folder, findings, LISTED_IN_PART if is_partial else "")

    def _children(self, folder: CrawlItem, page: str) -> Listing:
        detail = ItemDetail.of_item(folder)
        for _ in range(_LISTING_TRIES):
            listing = self._tree.children(folder.id, detail.key, detail.corpus, page)
            if not listing.is_partial:
                break
        return listing

    def _finish_folder(self, folder: CrawlItem, findings: PageFindings, note: str, reason: str = "") -> None:
        # A shortcut in the folder may have led back to the folder and changed its item. Save the folder last, with the
        # new state.
        folder = findings.items.pop(folder.id, folder)
        detail = replace(ItemDetail.of_item(folder), why=reason[:REASON_CHARACTERS_MAX]).text
        findings.items[folder.id] = replace(folder, note=note, detail=detail)
        self._state.folder, self._state.page, self._state.is_partial = "", "", False
        self._save(findings)

    def _record_entries(self, entries: Sequence[Entry], folder: CrawlItem) -> PageFindings:
        parent, findings = ParentFolder.of_item(folder), PageFindings()
        entries_and_targets = [(entry, self._target_of(entry)) for entry in entries]
        target_ids = [entry.target_id if target is None else target.id for entry, target in entries_and_targets]
        item_by_id = self._record.items(target_ids)
        for entry, target in entries_and_targets:
            self._record_entry(entry, target, parent, item_by_id, findings)
        return findings

    def _record_entry(
        self,
        entry: Entry,
        target: Entry | None,
        parent: ParentFolder,
        item_by_id: Mapping[str, CrawlItem],
        findings: PageFindings,
    ) -> None:
        recorder = self._recorder(parent, findings)
        if target is None:
            recorder.add_dangling(entry, item_by_id.get(entry.target_id))
        elif target is entry:
            recorder.add(entry, item_by_id.get(entry.id))
        else:
            recorder.add_shortcut(entry)
            recorder.add(target, item_by_id.get(target.id), entry.id)
            if self._corpus and target.corpus != self._corpus:
                self._state.is_abroad = True

    def _recorder(self, parent: ParentFolder, findings: PageFindings) -> EntryRecorder:
        return EntryRecorder(self._wanted, self._state.walk, self._download_job, parent, findings)

    def _download_job(self, entry: Entry, is_changed: bool) -> NewJob:
        return download_job(entry, self._context, self._tree, is_changed=is_changed)

    def _target_of(self, entry: Entry) -> Entry | None:
        """Return the target of a shortcut, None if it does not exist, and any other entry itself."""
        if entry.kind != "shortcut":
            return entry
        try:
            return self._tree.entry(entry.target_id, entry.key)
        except ItemError as error:
            self._log(f"{entry.name}: {error}")
            return None

    # ── The changes ──

    def _read_changes(self) -> None:
        while self._state.token:
            try:
                changes = self._tree.changes(self._corpus, self._state.token)
            except ListingExpired:
                self._log("the list of changes has expired: the whole folder is walked again")
                self._state.token, self._state.is_stale = "", True
                return
            findings = self._apply(changes)
            self._state.token = changes.next_token
            self._save(findings)
            if changes.is_last:
                return

    def _apply(self, changes: TreeChanges) -> PageFindings:
        # The list has the changes of all files that the credential can see, also outside the crawled folder.
        root_id = self._state.root.id
        parent_ids = [parent_id for entry in changes.entries for parent_id in entry.parent_ids]
        item_by_id = self._record.items([*(entry.id for entry in changes.entries), *changes.gone_ids, *parent_ids])
        findings = PageFindings()
        for gone_id in changes.gone_ids:
            if gone_id == root_id:
                # This raises if the crawled folder is really gone.
                self._root()
            else:
                self._mark_gone(item_by_id.get(gone_id), findings)
        folder_by_id = _folders_to_crawl(item for item in item_by_id.values() if item.id not in findings.items)
        waiting: Sequence[Entry] = [entry for entry in changes.entries if entry.id != root_id]
        # Changes come in any order: an entry may precede the new folder that it is in.
        while ready := [entry for entry in waiting if _has_parent_in(entry, folder_by_id)]:
            waiting = [entry for entry in waiting if not _has_parent_in(entry, folder_by_id)]
            for entry in ready:
                parent = next(folder_by_id[parent_id] for parent_id in entry.parent_ids if parent_id in folder_by_id)
                self._record_change(entry, parent, item_by_id, findings)
            folder_by_id |= _folders_to_crawl(findings.items.values())
        self._record_outside(waiting, item_by_id, findings)
        return findings

    def _record_change(
        self, entry: Entry, parent: ParentFolder, item_by_id: dict[str, CrawlItem], findings: PageFindings
    ) -> None:
        target = self._target_of(entry)
        target_id = entry.target_id if target is None else target.id
        if target_id not in item_by_id:
            item_by_id |= self._record.items([target_id])
        before = None if target is None else item_by_id.get(target.id)
        has_moved = before is not None and before.kind == "folder" and before.parent_id not in entry.parent_ids
        if has_moved and self._wanted.depth is not None:
            # Everything below the folder has another depth now.
            self._state.is_stale = True
        self._record_entry(entry, target, parent, item_by_id, findings)

    def _record_outside(
        self, entries: Sequence[Entry], item_by_id: Mapping[str, CrawlItem], findings: PageFindings
    ) -> None:
        """Record changed entries that are in no crawled folder: they have moved out, or a shortcut leads to them."""
        stored = [(entry, item_by_id[entry.id]) for entry in entries if entry.id in item_by_id]
        shortcut_by_id = self._record.items(ItemDetail.of_item(before).via for _, before in stored)
        for entry, before in stored:
            detail = ItemDetail.of_item(before)
            shortcut = findings.items.get(detail.via) or shortcut_by_id.get(detail.via)
            if shortcut is None or shortcut.is_gone:
                self._mark_gone(before, findings)
            else:
                parent = ParentFolder(before.parent_id, max(0, detail.depth - 1), detail.key, "")
                self._recorder(parent, findings).add(entry, before, detail.via)

    def _mark_gone(self, before: CrawlItem | None, findings: PageFindings) -> None:
        if before is None or before.is_gone:
            return
        findings.items[before.id] = replace(before, is_gone=True)
        if before.kind in ("folder", "shortcut"):
            # Its contents may be deleted or elsewhere. Only a walk shows which.
            self._state.is_stale = True
        findings.counts["gone"] += is_wanted(before)

    # ── The sweep ──

    def _sweep(self) -> None:
        if not self._state.sweeps:
            return
        for items in self._record.items_not_seen(self._state.walk):
            findings = PageFindings()
            ids_below_unsure = self._ids_below_unsure(items)
            for item in items:
                if item.id not in ids_below_unsure:
                    findings.items[item.id] = replace(item, is_gone=True)
                    findings.counts["gone"] += is_wanted(item)
            self._save(findings)

    def _ids_below_unsure(self, items: Iterable[CrawlItem]) -> set[str]:
        parent_of = {item.id: item.parent_id for item in items}
        folder_by_id: dict[str, CrawlItem] = {}
        missing = set(parent_of.values())
        while missing := {folder_id for folder_id in missing if folder_id and folder_id not in folder_by_id}:
            folders = self._record.items(missing)
            folder_by_id |= folders
            missing = {folder.parent_id for folder in folders.values()}
        return {item_id for item_id, parent_id in parent_of.items() if _is_below_unsure(parent_id, folder_by_id)}

    def _save(self, findings: PageFindings, bookmark: Bookmark | None = None) -> None:
        self._counts += findings.counts
        self._context.progress(0, self.summary())
        self._state.counts = dict(self._counts)
        self._record.save(findings, self._state.walk, self._state, bookmark)
        self.has_saved = True


def _count_text(number: int, name: str) -> str:
    return counted(number, "folder") if name == "folders" else f"{number} {name}"


def _folders_to_crawl(items: Iterable[CrawlItem]) -> dict[str, ParentFolder]:
    return {item.id: ParentFolder.of_item(item) for item in items if is_folder_to_crawl(item)}


def _has_parent_in(entry: Entry, folder_by_id: Mapping[str, ParentFolder]) -> bool:
    return any(parent_id in folder_by_id for parent_id in entry.parent_ids)


def _is_below_unsure(folder_id: str, folder_by_id: Mapping[str, CrawlItem]) -> bool:
    # Stored rows may form a circle.
    visited: set[str] = set()
    while folder_id in folder_by_id and folder_id not in visited:
        folder = folder_by_id[folder_id]
        if folder.note in UNSURE:
            return True
        visited.add(folder_id)
        folder_id = folder.parent_id
    return False
