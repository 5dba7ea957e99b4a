"""Links in the workspace to documents' files: the rows are written first, the links after them (promise P5)."""

from __future__ import annotations

from collections.abc import Sequence

from worker_service.jobs.workspace_names import LinkFacts, Links, folded
from worker_service.store.database import StorePart


class DocumentLinks(StorePart):
    def links_due(self, most: int = 100) -> Sequence[int]:
        """Return documents whose links must be updated; 0 stands for all."""
        return [document_id for (document_id,) in self._db.read("links_due", most=most)]

    def document_ids(self, after: int = 0, most: int = 100) -> Sequence[int]:
        """Include removed documents that still have links."""
        return [document_id for (document_id,) in self._db.read("document_ids", after=after, most=most)]

    def link_facts(self, document_id: int) -> LinkFacts | None:
        for owner, name, source_key in self._db.read("link_facts", document_id=document_id):
            folders = [folder for (folder,) in self._db.read("crawled_folders", owner=owner, source_key=source_key)]
            files = self._store.attempts.inputs(document_id)
            return LinkFacts(document_id, owner, name, source_key, folders, files)
        return None

    def links_of(self, document_id: int) -> Sequence[tuple[str, str]]:
        """Return (path, target) of each link. A link without a target must be deleted."""
        return self._db.read("links_of", document_id=document_id)

    def save_links(self, wanted: Sequence[Links]) -> None:
        """Assign free paths to the wanted links, and mark all other links of these documents for deletion."""
        with self._db.transaction():
            for links in wanted:
                # Mark all links for deletion; `save_link` unmarks those that are assigned again.
                self._db.write("mark_links_for_removal", document_id=links.document_id)
                for path, target in self._free_paths(links):
                    row = {"path": path, "folded": folded(path), "target": target}
                    self._db.write("save_link", document_id=links.document_id, **row)

    def _free_paths(self, links: Links) -> Sequence[tuple[str, str]]:
        folder = ""
        for name in links.folders:
            # If the path is taken by a link, the folder gets another name.
            while self._db.read_locked("is_link", folded=folded(f"{folder}{name}")):
                name += "_"
            folder += f"{name}/"
        key = {"document_id": links.document_id}
        for stem in links.stems():
            paths = [(f"{folder}{stem}{ending}", target) for ending, target in links.targets]
            if not any(self._db.read_locked("link_in_the_way", **key, folded=folded(path)) for path, _ in paths):
                return paths
        return []

    def mark_links_made(self, document_ids: Sequence[int]) -> None:
        """Record that the workspace has the links of these documents, and not those marked for deletion."""
        with self._db.transaction():
            for document_id in document_ids:
                self._db.write("forget_marked_links", document_id=document_id)
                self._db.write("forget_link_due", document_id=document_id)
