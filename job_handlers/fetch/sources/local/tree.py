"""A directory of this machine as a tree to crawl. Symbolic links and hidden names are passed over.

Like a download it looks only where jobs may read (`file`).
"""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime
from mimetypes import guess_type
from pathlib import Path

from job_handlers.fetch.errors import Trouble
from job_handlers.fetch.sources.local.file import actual_path, revision_of
from job_handlers.fetch.sources.tree import Changes, Entry, ItemTrouble, Listing, ListingExpired
from worker_service.handlers import legible, path_of, written

PAGE_ENTRIES = 1000
_NO_DISK = ("proc", "sys", "dev")


class LocalTree:
    platform = "local"
    source = ""

    def __init__(self, directory: Path) -> None:
        self._directory = Path(os.path.normpath(directory))
        self.root_name = written(self._directory)

    def root(self) -> Entry:
        try:
            actual = actual_path(self.root_name)
        except Trouble as trouble:
            raise ItemTrouble(trouble.detail, trouble.remedy) from trouble
        if not actual.is_dir():
            raise ItemTrouble(f"{self._directory} is no directory that the daemon can see")
        return Entry(self.root_name, legible(self._directory.name) or "/", "folder")

    def entry(self, item_id: str, key: str) -> Entry:
        raise ItemTrouble(f"{item_id}: a directory has no shortcuts")

    def children(self, folder_id: str, key: str, corpus: str, page: str) -> Listing:
        """By name; a page begins after the last name of the one before."""
        after = bytes.fromhex(page)
        try:
            found = os.listdir(os.fsencode(path_of(folder_id)))  # noqa: PTH208  names as they are, which need not be text
        except OSError as error:
            raise ItemTrouble(f"it cannot be read: {error.strerror}") from error
        names = sorted(name for name in found if name > after and not name.startswith(b"."))
        shown = names[:PAGE_ENTRIES]
        entries = [entry for name in shown if (entry := _entry_at(folder_id, name)) is not None]
        return Listing(entries, shown[-1].hex() if len(names) > PAGE_ENTRIES else "")

    def change_token(self, corpus: str) -> str:
        return ""

    def changes(self, corpus: str, token: str) -> Changes:
        raise ListingExpired("a directory does not tell what has changed")


def _entry_at(parent_id: str, raw: bytes) -> Entry | None:
    path = path_of(parent_id) / os.fsdecode(raw)
    if parent_id == "/" and path.name in _NO_DISK:
        return None
    item_id, name = written(path), legible(path.name)
    try:
        found = path.lstat()
    except OSError:
        # It went while we looked.
        return None
    if stat.S_ISDIR(found.st_mode):
        return Entry(item_id, name, "folder", [parent_id])
    if not stat.S_ISREG(found.st_mode):
        return None
    return Entry(
        item_id,
        name,
        "file",
        [parent_id],
        guess_type(name)[0] or "",
        found.st_size,
        revision_of(found),
        modified=datetime.fromtimestamp(found.st_mtime, UTC).isoformat(),
    )
