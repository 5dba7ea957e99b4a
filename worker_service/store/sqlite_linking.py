"""Which names the files of documents have in the workspace: rows first, links after them (P5).

A name is taken in the transaction that writes it, so that two daemons never give it twice. What is to go stays in its
row until the link is gone: wherever that is cut off, it is done again.
"""

from __future__ import annotations

from collections.abc import Sequence

from worker_service.jobs.names import LinkFacts, Links, folded
from worker_service.store.sqlite_connection import Connections


class Linking(Connections):
    def links_due(self, most: int = 100) -> Sequence[int]:
        return [document_id for (document_id,) in self._read("links_due", most=most)]

    def document_ids(self, after: int = 0, most: int = 100) -> Sequence[int]:
        return [document_id for (document_id,) in self._read("document_ids", after=after, most=most)]

    def link_facts(self, document_id: int) -> LinkFacts | None:
        for _, owner, name, source_key in self._read("link_facts", document_id=document_id):
            folders = [folder for (folder,) in self._read("crawled_folders", owner=owner, source_key=source_key)]
            files = self._read("newest_files", document_id=document_id)
            return LinkFacts(document_id, owner, name, source_key, folders, [(r, n, p) for r, n, p in files])
        return None

    def links_of(self, document_id: int) -> Sequence[tuple[str, str]]:
        return [(path, target) for path, target in self._read("links_of", document_id=document_id)]

    def save_links(self, wanted: Sequence[Links]) -> None:
        with self._transaction():
            for links in wanted:
                # What it does not get again is to go.
                self._write("let_link_go", document_id=links.document_id)
                for path, target in self._free(links):
                    row = {"path": path, "folded": folded(path), "target": target}
                    self._write("save_link", document_id=links.document_id, **row)

    def _free(self, links: Links) -> Sequence[tuple[str, str]]:
        folder = ""
        for name in links.folders:
            # Where a file is called like the folder, the folder gives way.
            while self._write("is_link", folded=folded(f"{folder}{name}")):
                name += "_"
            folder += f"{name}/"
        for stem in links.stems():
            paths = [(f"{folder}{stem}{ending}", target) for ending, target in links.targets]
            if not any(self._is_taken(links.document_id, path) for path, _ in paths):
                return paths
        return []

    def _is_taken(self, document_id: int, path: str) -> bool:
        return bool(self._write("link_in_the_way", document_id=document_id, folded=folded(path)))

    def links_made(self, document_ids: Sequence[int]) -> None:
        with self._transaction():
            for document_id in document_ids:
                self._write("forget_links", document_id=document_id)
                self._write("forget_link_due", document_id=document_id)
