"""One run of a crawl: walk a tree, or hear what has changed in it, and enqueue a download for what is new.

The first run walks everything; later runs ask the place what has changed, where it can tell, and walk where it cannot.
A token for the changes is taken before the walk and they are replayed after it, so nothing falls into the gap; what
the walk has not met is marked as gone after that, and no file of ours is removed. Each page lands in one transaction
with the jobs that it asked for: a run that is killed repeats one page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from job_handlers.crawl.options import CrawlPayload, FilesWanted, download_of, skip_reason
from job_handlers.crawl.state import (
    LISTED_IN_PART,
    NOT_LISTED,
    TO_LIST,
    TOO_DEEP,
    UNSURE,
    Detail,
    Memory,
    PageFindings,
    Remembered,
)
from job_handlers.fetch.sources.tree import Entry, ItemError, Listing, ListingExpired, Tree, TreeChanges
from worker_service.handlers import Context, CrawlItem, NewJob, Permanent, Retryable, counted

_WHY_MOST = 200

WALK, CHANGES, SWEEP, OVER = "walk", "changes", "sweep", "over"
_WALKS_MOST = 2
"""In one run. A folder that went takes things along that only another walk can find; it may not go on for ever."""
_TRIES = 3
_TOLD = ("folders", "found", "enqueued", "unchanged", "skipped", "gone", "failed")
ID_CHARACTERS_MAX = 1000
_NAME_CHARACTERS_MAX = 1000
_NOT_THERE = "a shortcut leads to it, and it is not there"


class Crawl:
    def __init__(self, context: Context[CrawlPayload], tree: Tree, memory: Memory) -> None:
        self._context, self._tree, self._memory = context, tree, memory
        self._wanted, self._log = context.payload.wanted, context.log
        # Where an attempt before this one stood.
        self._state: dict[str, Any] = dict(context.state or {})
        self._counts: Counter[str] = Counter(self._state.get("counts", {}))
        self.has_kept = False

    def go(self, *, must_walk: bool, forgets: bool) -> None:
        """`must_walk`: even if the place could tell what has changed. `forgets`: leave no state behind at the end."""
        if self._state.get("phase") == OVER:
            return
        if not self._goes_on():
            self._begin(must_walk=must_walk)
        while self._state["phase"] != OVER:
            if self._state["phase"] == WALK:
                self._walk()
                self._turn_to(CHANGES)
            elif self._state["phase"] == CHANGES:
                self._hear_changes()
                self._walk()
                self._after_changes()
            else:
                self._sweep()
                self._end(forgets=forgets)

    def summary(self) -> str:
        return " · ".join(_in_words(self._counts[fate], fate) for fate in _TOLD if self._counts[fate]) or "nothing new"

    def counts(self) -> dict[str, int]:
        return {**dict.fromkeys(_TOLD, 0), **dict(sorted(self._counts.items()))}

    # ── Where a run begins and ends ──

    def _goes_on(self) -> bool:
        """Not if another job has begun to crawl the same since: its walk and its token are the newer ones."""
        return "run" in self._state and self._memory.known().run == self._state["run"]

    def _begin(self, *, must_walk: bool) -> None:
        before = self._memory.known()
        must_walk = must_walk or before.must_walk or not before.token
        self._counts.clear()
        found = PageFindings()
        root = before.root
        if must_walk:
            entry = self._root()
            root = (entry.id, entry.name, entry.key, entry.corpus)
        self._state = {"run": before.run + 1, "walk": before.walk, "token": before.token, "root": list(root)}
        if must_walk:
            # Before the first listing: what changes while we walk is told by the changes.
            self._state["token"] = self._tree.change_token(self._corpus)
            self._begin_walk(found)
        else:
            self._state["phase"] = CHANGES
            again = [item for note in UNSURE for item in self._memory.noted(note)]
            found.items |= {item.id: replace(item, note=TO_LIST) for item in again}
            self._state["sweeps"] = bool(again)
        # The number is taken for good, and if this run never ends the next one walks.
        self._keep(found, replace(before, run=before.run + 1, walk=self._state["walk"], must_walk=must_walk, root=root))

    def _begin_walk(self, found: PageFindings) -> None:
        self._state |= {"phase": WALK, "walk": self._state["walk"] + 1, "walks": self._state.get("walks", 0) + 1}
        self._state |= {"sweeps": True, "is_stale": False}
        root_id, name, key, corpus = self._state["root"]
        detail = Detail(0, key, corpus).text
        found.items[root_id] = CrawlItem(root_id, "", name, "folder", note=TO_LIST, detail=detail)

    def _after_changes(self) -> None:
        if self._state.get("is_stale") and self._state.get("walks", 0) < _WALKS_MOST and self._goes_on():
            found = PageFindings()
            self._begin_walk(found)
            if not self._state["token"]:
                self._state["token"] = self._tree.change_token(self._corpus)
            self._keep(found, self._before(must_walk=True))
        else:
            self._turn_to(SWEEP)

    def _turn_to(self, phase: str) -> None:
        self._state["phase"] = phase
        if phase == CHANGES and self._state["token"]:
            self._keep(PageFindings())

    def _end(self, *, forgets: bool) -> None:
        after = self._before(must_walk=bool(self._state.get("is_stale") or self._state.get("is_abroad")))
        is_newest = self._goes_on()
        self._state = {"phase": OVER}
        self._keep(PageFindings(), after if is_newest else None, forgets=forgets)

    def _before(self, *, must_walk: bool) -> Remembered:
        """What the next run will know."""
        state = self._state
        return Remembered(state["run"], state["walk"], state["token"], must_walk, state["root"])

    def _root(self) -> Entry:
        try:
            return self._tree.root()
        except ItemError as trouble:
            raise Permanent("FOLDER_NOT_FOUND", trouble.detail, trouble.remedy) from trouble

    @property
    def _corpus(self) -> str:
        return str(self._state["root"][3])

    # ── The walk ──

    def _walk(self) -> None:
        while folders := self._memory.noted(TO_LIST):
            # The one that an earlier attempt was in the middle of comes first; then what is nearest, for of two ways
            # that lead to a folder the shorter one decides how deep it is.
            begun = [folder for folder in folders if folder.id == self._state.get("folder")]
            nearest = min(Detail.of(folder).depth for folder in folders)
            for folder in begun or [folder for folder in folders if Detail.of(folder).depth == nearest]:
                self._list(folder)

    def _list(self, folder: CrawlItem) -> None:
        is_begun = self._state.get("folder") == folder.id
        page = self._state["page"] if is_begun else ""
        is_partial = bool(is_begun and self._state["is_partial"])
        restarts = 0
        while True:
            try:
                listing = self._children(folder, page)
            except ListingExpired as expired:
                page, restarts = "", restarts + 1
                if restarts > _TRIES:
                    raise Retryable(f"{folder.name}: {expired}, again and again") from expired
                continue
            except ItemError as trouble:
                self._log(f"{folder.name}: {trouble}")
                self._listed(folder, PageFindings(counts=Counter(failed=1)), NOT_LISTED, str(trouble))
                return
            is_partial |= listing.is_partial
            found = self._sorted(listing.entries, folder)
            page = listing.next_page
            if not page:
                break
            self._state |= {"folder": folder.id, "page": page, "is_partial": is_partial}
            self._keep(found)
        found.counts["folders"] += 1
        if is_partial:
            found.counts["partial"] += 1
            self._log(f"{folder.name}: the listing is not complete; the next run lists it again")
        self._listed(folder, found, LISTED_IN_PART if is_partial else "")

    def _children(self, folder: CrawlItem, page: str) -> Listing:
        detail = Detail.of(folder)
        for _ in range(_TRIES):
            listing = self._tree.children(folder.id, detail.key, detail.corpus, page)
            if not listing.is_partial:
                break
        return listing

    def _listed(self, folder: CrawlItem, found: PageFindings, note: str, why: str = "") -> None:
        # Something in it may have led back to it, and have been noted on it. It comes last: what is kept in parts is
        # kept in order.
        folder = found.items.pop(folder.id, folder)
        detail = replace(Detail.of(folder), why=why[:_WHY_MOST]).text
        found.items[folder.id] = replace(folder, note=note, detail=detail)
        self._state.pop("folder", None)
        self._keep(found)

    def _sorted(self, entries: Sequence[Entry], folder: CrawlItem) -> PageFindings:
        above, found = Above.of(folder), PageFindings()
        pairs = [(entry, self._followed(entry)) for entry in entries]
        known = self._memory.items(entry.target_id if target is None else target.id for entry, target in pairs)
        for entry, target in pairs:
            self._sort(entry, target, above, known, found)
        return found

    def _sort(
        self, entry: Entry, target: Entry | None, above: Above, known: dict[str, CrawlItem], found: PageFindings
    ) -> None:
        sorter = self._sorter
        if target is None:
            sorter.dangling(entry, above, known.get(entry.target_id), found)
        elif target is entry:
            sorter.sort(entry, above, known.get(entry.id), found)
        else:
            sorter.shortcut(entry, above, found)
            sorter.sort(target, above, known.get(target.id), found, via=entry.id)
            if self._corpus and target.corpus != self._corpus:
                # The changes of another corpus are not told in ours.
                self._state["is_abroad"] = True

    @property
    def _sorter(self) -> Sorter:
        return Sorter(self._wanted, self._state["walk"], self._job_of)

    def _job_of(self, entry: Entry, is_known: bool) -> NewJob:
        return download_of(entry, self._context, self._tree, is_known=is_known)

    def _followed(self, entry: Entry) -> Entry | None:
        if entry.kind != "shortcut":
            return entry
        try:
            return self._tree.entry(entry.target_id, entry.key)
        except ItemError as trouble:
            self._log(f"{entry.name}: {trouble}")
            return None

    # ── What has changed ──

    def _hear_changes(self) -> None:
        while self._state["token"]:
            try:
                changes = self._tree.changes(self._corpus, self._state["token"])
            except ListingExpired:
                self._log("the place no longer knows what has changed since then: everything is walked again")
                self._state |= {"token": "", "is_stale": True}
                return
            found = self._apply(changes)
            self._state["token"] = changes.next_token
            self._keep(found)
            if changes.is_last:
                return

    def _apply(self, changes: TreeChanges) -> PageFindings:
        """The feed is about everything that the credential sees: what is below our folders is ours."""
        parents = [parent for entry in changes.entries for parent in entry.parent_ids]
        known = self._memory.items([*(entry.id for entry in changes.entries), *changes.gone_ids, *parents])
        found = PageFindings()
        for gone_id in changes.gone_ids:
            if gone_id == self._state["root"][0]:
                # If it really went, this raises.
                self._root()
            else:
                self._went(known.get(gone_id), found)
        folders = {one.id: Above.of(one) for one in known.values() if _is_open(one) and one.id not in found.items}
        waiting: Sequence[Entry] = [entry for entry in changes.entries if entry.id != self._state["root"][0]]
        while ready := [entry for entry in waiting if _is_in(entry, folders)]:
            waiting = [entry for entry in waiting if not _is_in(entry, folders)]
            for entry in ready:
                above = next(folders[parent] for parent in entry.parent_ids if parent in folders)
                self._came(entry, above, known, found)
            folders |= {one.id: Above.of(one) for one in found.items.values() if _is_open(one)}
        self._elsewhere(waiting, known, found)
        return found

    def _came(self, entry: Entry, above: Above, known: dict[str, CrawlItem], found: PageFindings) -> None:
        target = self._followed(entry)
        target_id = entry.target_id if target is None else target.id
        if target_id not in known:
            known |= self._memory.items([target_id])
        before = None if target is None else known.get(target.id)
        has_moved = before is not None and before.kind == "folder" and before.parent_id not in entry.parent_ids
        if has_moved and self._wanted.depth is not None:
            self._state["is_stale"] = True
        self._sort(entry, target, above, known, found)

    def _elsewhere(self, entries: Sequence[Entry], known: dict[str, CrawlItem], found: PageFindings) -> None:
        """In no folder of ours: they never were, or have left, or a shortcut of ours leads to them."""
        ours = [(entry, known[entry.id]) for entry in entries if entry.id in known]
        links = self._memory.items(Detail.of(before).via for _, before in ours)
        for entry, before in ours:
            via = Detail.of(before).via
            link = found.items.get(via) or links.get(via)
            if link is None or link.is_gone:
                self._went(before, found)
                continue
            above = Above(before.parent_id, max(0, Detail.of(before).depth - 1), Detail.of(before).key, "")
            self._sorter.sort(entry, above, before, found, via=via)

    def _went(self, before: CrawlItem | None, found: PageFindings) -> None:
        if before is None or before.is_gone:
            return
        found.items[before.id] = replace(before, is_gone=True)
        if before.kind in ("folder", "shortcut"):
            # What it led to may be gone, or elsewhere: only a walk can tell.
            self._state["is_stale"] = True
        found.counts["gone"] += _is_wanted(before)

    # ── What was there before, and this walk has not met ──

    def _sweep(self) -> None:
        if not self._state.get("sweeps"):
            return
        for items in self._memory.unseen(self._state["walk"]):
            found = PageFindings()
            unsure = self._in_unsure_folders(items)
            for item in items:
                if item.id not in unsure:
                    found.items[item.id] = replace(item, is_gone=True)
                    found.counts["gone"] += _is_wanted(item)
            self._keep(found)

    def _in_unsure_folders(self, items: Iterable[CrawlItem]) -> set[str]:
        """Those that are below a folder which could not be listed, or not to its end."""
        parents = {item.id: item.parent_id for item in items}
        above: dict[str, CrawlItem] = {}
        missing = set(parents.values())
        while missing := {one for one in missing if one and one not in above}:
            fetched = self._memory.items(missing)
            above |= fetched
            missing = {one.parent_id for one in fetched.values()}
        return {item_id for item_id, parent_id in parents.items() if _is_below_unsure(parent_id, above)}

    # ── What is kept ──

    def _keep(self, found: PageFindings, known: Remembered | None = None, *, forgets: bool = False) -> None:
        self._counts += found.counts
        self._context.progress(0, self.summary())
        walk = self._state.get("walk", 0)
        state = None if forgets and self._state["phase"] == OVER else {**self._state, "counts": self.counts()}
        self._memory.keep(found, walk, state, known)
        self.has_kept = True


def _in_words(number: int, fate: str) -> str:
    return counted(number, "folder") if fate == "folders" else f"{number} {fate}"


def _is_in(entry: Entry, folders: Mapping[str, Above]) -> bool:
    return any(parent in folders for parent in entry.parent_ids)


def _is_open(item: CrawlItem) -> bool:
    return item.kind == "folder" and not item.is_gone and item.note != TOO_DEEP


def _is_wanted(item: CrawlItem) -> bool:
    return item.kind == "file" and not item.note


def _is_below_unsure(parent_id: str, above: dict[str, CrawlItem]) -> bool:
    met: set[str] = set()
    while parent_id in above and parent_id not in met:
        if above[parent_id].note in UNSURE:
            return True
        met.add(parent_id)
        parent_id = above[parent_id].parent_id
    return False


# ── What becomes of an entry that was met: remembered, listed later, enqueued, skipped. Asks nobody ──


class Above(Struct, frozen=True):
    """The folder in which something was met."""

    id: str
    depth: int
    key: str
    corpus: str

    @classmethod
    def of(cls, item: CrawlItem) -> Above:
        detail = Detail.of(item)
        return cls(item.id, detail.depth, detail.key, detail.corpus)


class Sorter(Struct, frozen=True):
    wanted: FilesWanted
    walk: int
    """An item that has this number was met in this walk, or since."""
    job_of: Callable[[Entry, bool], NewJob]
    """Whether it was enqueued before, and has changed."""

    def sort(self, entry: Entry, above: Above, before: CrawlItem | None, found: PageFindings, *, via: str = "") -> None:
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

    def shortcut(self, entry: Entry, above: Above, found: PageFindings) -> None:
        name = entry.name[:_NAME_CHARACTERS_MAX]
        found.items[entry.id] = CrawlItem(entry.id, above.id, name, "shortcut", note="followed", walk=self.walk)

    def dangling(self, entry: Entry, above: Above, before: CrawlItem | None, found: PageFindings) -> None:
        """Its target is remembered too: it may be shared with us one day."""
        self.shortcut(entry, above, found)
        found.counts.update(["found", "skipped", "dangling"])
        if (before is None or before.note == _NOT_THERE) and entry.target_id not in found.items:
            detail = Detail(above.depth, entry.key, above.corpus, entry.id).text
            found.items[entry.target_id] = CrawlItem(
                entry.target_id, above.id, entry.name, "file", note=_NOT_THERE,
                detail=detail, walk=self.walk,
            )  # fmt: skip

    def _folder(self, entry: Entry, above: Above, before: CrawlItem | None, found: PageFindings, via: str) -> None:
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

    def _file(self, entry: Entry, above: Above, before: CrawlItem | None, found: PageFindings, via: str) -> None:
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
