"""The content of the Drive: items, their readers, and the list of changes. No HTTP."""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

FOLDER = "application/vnd.google-apps.folder"
SHORTCUT = "application/vnd.google-apps.shortcut"
ME = "robot@project.iam.gserviceaccount.com"
ROOT = "root-of-the-drive"


@functools.lru_cache(maxsize=8)
def digests_of(content: bytes) -> tuple[str, str]:
    # Cached, because Drive stores them too: a benchmark would measure their computation.
    return hashlib.md5(content).hexdigest(), hashlib.sha256(content).hexdigest()


@dataclass
class Item:
    id: str
    name: str
    mime: str = "application/pdf"
    content: bytes = b""
    parents: list[str] = field(default_factory=list)
    revision: int = 1
    modified: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    readers: set[str] = field(default_factory=lambda: {ME})
    is_shared_with_me: bool = False
    is_trashed: bool = False
    can_download: bool = True
    is_abusive: bool = False
    drive_id: str = ""
    resource_key: str = ""
    target: str = ""
    target_key: str = ""
    md5: str = ""
    """Stated instead of the true one."""
    has_sha256: bool = True

    @property
    def is_native(self) -> bool:
        return self.mime.startswith("application/vnd.google-apps.")

    def as_json(self, store: Store) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "kind": "drive#file",
            "id": self.id,
            "name": self.name,
            "mimeType": self.mime,
            "trashed": self.is_trashed,
            "parents": [*self.parents],
            "version": str(self.revision),
            "modifiedTime": self.modified.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
            "createdTime": "2026-01-01T00:00:00.000Z",
            "capabilities": {"canDownload": self.can_download, "canReadRevisions": True},
            "driveId": self.drive_id,
            "resourceKey": self.resource_key,
        }
        if not self.is_native:
            facts |= {
                "size": str(len(self.content)),
                "md5Checksum": self.md5 or digests_of(self.content)[0],
                "sha256Checksum": digests_of(self.content)[1] if self.has_sha256 else "",
                "headRevisionId": f"revision-{self.revision}",
            }
        if self.mime == SHORTCUT:
            target = store.items.get(self.target)
            facts["shortcutDetails"] = {
                "targetId": self.target,
                "targetMimeType": target.mime if target else "",
                "targetResourceKey": self.target_key,
            }
        return {name: value for name, value in facts.items() if value not in ("", None)}


@dataclass(frozen=True)
class Change:
    file_id: str
    drive_id: str
    removed: bool


class Store:
    """Records every change of an item made by its methods."""

    def __init__(self) -> None:
        self.items: dict[str, Item] = {}
        self.drives: dict[str, str] = {}
        self.changes: list[Change] = []
        self.lock = threading.RLock()
        self._count = 0

    def add(self, name: str, content: bytes = b"", **more: Any) -> Item:
        with self.lock:
            self._count += 1
            item_id = more.pop("id", f"id-{self._count:06}-{name.encode().hex()[:12]}")
            item = Item(item_id, name, content=content, **more)
            item.parents = item.parents or [item.drive_id or ROOT]
            self.items[item.id] = item
            self._record_change(item)
            return item

    def folder(self, name: str, **more: Any) -> Item:
        return self.add(name, mime=FOLDER, **more)

    def shortcut(self, name: str, target: str, **more: Any) -> Item:
        return self.add(name, mime=SHORTCUT, target=target, **more)

    def shared_drive(self, name: str) -> Item:
        """Return the root, a folder with the id of the drive."""
        drive_id = f"drive-{len(self.drives) + 1:08}"
        self.drives[drive_id] = name
        return self.add("Drive", mime=FOLDER, id=drive_id, drive_id=drive_id, parents=[drive_id])

    def edit(self, item: Item, change: Callable[[Item], None]) -> None:
        with self.lock:
            change(item)
            item.revision += 1
            item.modified += timedelta(minutes=1)
            self._record_change(item)

    def write(self, item: Item, content: bytes) -> None:
        self.edit(item, lambda edited: setattr(edited, "content", content))

    def trash(self, item: Item) -> None:
        self.edit(item, lambda edited: setattr(edited, "is_trashed", True))

    def remove(self, item: Item) -> None:
        with self.lock:
            del self.items[item.id]
            self.changes.append(Change(item.id, item.drive_id, removed=True))

    def _record_change(self, item: Item) -> None:
        self.changes.append(Change(item.id, item.drive_id, removed=False))
